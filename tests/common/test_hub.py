"""The rehearsal's local hub, and the project's messages for hub errors."""

import gzip
import json
import shutil
import subprocess
import sys

import peft
import pytest

from revela.retriever.load import load_model
from revela.retriever.source import Source
from tests.rehearsal import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"

LOAD = """
import json
from pathlib import Path
from revela.text.corpora import Skipped, read_documents
from revela.text.downloads import download, downloaded
from revela.config.encoding import EncodingKeys
from revela.retriever.load import load_model, load_tokenizer, read_encoder
from revela.retriever.source import Source
from revela.common.errors import RevelaError
from revela.config.text import HubCorpus, HubFiles

def result_of(call):
    try:
        return call()
    except RevelaError as error:
        return str(error)

def count(model):
    return sum(weight.numel() for weight in model.parameters())

def size(name):
    return count(load_model(Source(name)))

def texts(name, **more):
    corpus = HubCorpus(source="hub", dataset=name, **more)
    download(corpus.hub_files, Path("listing.json"))
    commits, files = downloaded(Path("listing.json"))
    found = [[one.id, one.text] for one in read_documents(corpus, Skipped(), files)]
    return [commits[name], *found]

print(json.dumps({
    "weights": result_of(lambda: size("some/model")),
    "ids": result_of(lambda: load_tokenizer(Source("some/model@COMMIT"))("mud")["input_ids"]),
    "hidden": result_of(lambda: Source("some/model").read("config.json")["hidden_size"]),
    "modules": result_of(lambda: Source("some/model", "COMMIT").read("modules.json")),
    "folder": result_of(lambda: Source("some/sentences").read("1_Pooling/config.json")),
    "set": result_of(lambda: texts("some/texts")),
    "split": result_of(lambda: texts("some/texts", split="test")),
    "array": result_of(lambda: texts("some/texts", file="docs.json")),
    "file": result_of(lambda: texts("some/texts", file="more.jsonl.gz", revision="COMMIT")),
    "adapted": result_of(lambda: size("some/adapter")),
    "base": result_of(lambda: [Source("some/adapter").base.name, Source("some/model").base]),
    "converted": result_of(lambda: size("some/old")),
    "described": result_of(lambda: count(read_encoder(Source("some/old"), EncodingKeys()))),
    "gated model": result_of(lambda: size("some/gated")),
    "missing model": result_of(lambda: size("some/modle")),
    "gated set": result_of(lambda: texts("some/gated")),
    "missing set": result_of(lambda: texts("some/text")),
    "gated file": result_of(lambda: texts("some/gated", file="a.jsonl")),
    "missing split": result_of(lambda: texts("some/texts", split="tset")),
    "missing file": result_of(lambda: texts("some/texts", file="moer.jsonl.gz")),
}))
""".replace("COMMIT", COMMIT)


@pytest.fixture(scope="module")
def address(tmp_path_factory, backbone):
    """A hub with a model, two data sets, and gated ones."""
    folder = tmp_path_factory.mktemp("hub")
    models, texts = folder / "models/some", folder / "datasets/some/texts"
    shutil.copytree(backbone, models / "model")
    lora = peft.LoraConfig(target_modules=["q_proj"])
    model = peft.get_peft_model(load_model(Source(str(backbone))), lora)
    model.peft_config["default"].base_model_name_or_path = "some/model"
    model.save_pretrained(models / "adapter")
    pooling = models / "sentences/1_Pooling/config.json"
    pooling.parent.mkdir(parents=True)
    pooling.write_text('{"pooling_mode": "mean"}')
    old = shutil.copytree(backbone, models / "old")
    (old / ".pulls/1").mkdir(parents=True)
    (old / "pytorch_model.bin").write_bytes(b"a pickle")
    (old / "model.safetensors").rename(old / ".pulls/1/model.safetensors")
    texts.mkdir(parents=True)
    (texts / "train.jsonl").write_text('{"text": "One."}\n{"text": "Two."}\n')
    (texts / "more.jsonl.gz").write_bytes(gzip.compress(b'{"text": "Three."}\n'))
    (texts / "README.md").write_text(
        "---\nconfigs: [{config_name: default, data_files: [{split: train, path: train.jsonl}, "
        "{split: test, path: 'test-*'}]}]\n---\n"
    )
    for number in (2, 1):
        (texts / f"test-{number}.jsonl").write_text(f'{{"text": "Test {number}."}}\n')
    (texts / "docs.json").write_text('[\n {"text": "Four."},\n {"text": "Five."}\n]\n')
    for gated in (folder / "models/some/gated", folder / "datasets/some/gated"):
        gated.mkdir()
        (gated / ".gated").touch()
    with hub.serving(folder) as address:
        yield address


@pytest.fixture(scope="module")
def loaded(address, tmp_path_factory):
    """Results of a process that has only this hub, and an empty cache."""
    environment = hub.environment(address, tmp_path_factory.mktemp("cache"))
    result = subprocess.run(
        [sys.executable, "-c", LOAD], capture_output=True, text=True, timeout=120,
        env=environment, cwd=tmp_path_factory.mktemp("work"),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_models_and_data_sets_load_as_from_the_real_hub(loaded):
    assert loaded["weights"] > 1000
    assert loaded["ids"]
    assert (loaded["hidden"], loaded["modules"]) == (16, None)
    assert loaded["folder"] == {"pooling_mode": "mean"}
    # Its pickle cannot be read: not even the shapes are taken from one.
    assert loaded["converted"] == loaded["described"] == loaded["weights"]
    assert loaded["base"] == ["some/model", None]
    assert loaded["adapted"] == loaded["weights"]


@pytest.mark.parametrize(
    ("asked", "texts"),
    [
        ("set", {"train.jsonl:1": "One.", "train.jsonl:2": "Two."}),
        ("split", {"test-1.jsonl:1": "Test 1.", "test-2.jsonl:1": "Test 2."}),
        ("file", {"more.jsonl.gz:1": "Three."}),
        ("array", {"docs.json:1": "Four.", "docs.json:2": "Five."}),
    ],
)
def test_what_is_asked_of_a_data_set_is_read_with_its_commit(loaded, asked, texts):
    commit, *found = loaded[asked]
    assert found == [[f"some/texts/{place}", text] for place, text in texts.items()]
    assert (commit == COMMIT) == (asked == "file")
    assert len(commit) == 40


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("gated model", "model 'some/gated' is gated"),
        ("missing model", "model 'some/modle' does not exist on the hub"),
        ("gated set", "data set 'some/gated' is gated"),
        ("missing set", "data set 'some/text' does not exist on the hub"),
        ("gated file", "data set 'some/gated' is gated"),
        ("missing split", "data set 'some/texts': unknown split 'tset'; did you mean 'test'?"),
        ("missing file", "data set 'some/texts': unknown file 'moer.jsonl.gz'; did you mean"),
    ],
)
def test_what_cannot_be_had_is_told_in_one_line(loaded, what, message):
    assert loaded[what].startswith(message)
    assert "\n" not in loaded[what]
