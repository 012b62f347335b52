"""A trained retriever's folder, loaded by sentence-transformers, transformers and peft only."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

from revela.cli import app
from revela.common.errors import RevelaError
from revela.config.encoding import Encoding, EncodingKeys
from revela.config.evaluation import EncoderModel
from revela.config.training import Experiment
from revela.encoder import (
    Encoder,
    add_lora,
    load_encoder,
    load_encoding,
    load_model,
    load_tokenizer,
)
from revela.encoding import write_encoding
from revela.release import check
from revela.release.merge import export
from revela.training.callbacks import save_model
from tests.conftest import TEXTS

CHAT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{% endfor %}"


def trained_bpe(special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    return tokenizer


def llama3_tokenizer() -> transformers.PreTrainedTokenizerBase:
    """Bytes, a BOS by the post-processor, no padding token, as in Llama 3."""
    tokenizer = trained_bpe(["<|begin_of_text|>", "<|end_of_text|>"])
    bos = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|> $B",
        special_tokens=[("<|begin_of_text|>", 0)],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"
    )


def llama2_tokenizer() -> transformers.PreTrainedTokenizerBase:
    """Words that begin with `▁`, a BOS, and its own class, which does not support stripping."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += sorted({*"▁", *"".join(TEXTS).replace(" ", "")})
    merges = [("▁", "t"), ("t", "h"), ("e", "r"), ("▁", "a"), ("i", "n")]
    pieces += [a + b for a, b in merges]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return transformers.LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)


def qwen_tokenizer() -> transformers.PreTrainedTokenizerBase:
    """Bytes, NFC, no BOS, its own class, a chat template, as in Qwen 2.5."""
    backend = json.loads(trained_bpe(["<|endoftext|>", "<|im_start|>"]).to_str())["model"]
    merges = [tuple(merge) for merge in backend["merges"]]
    tokenizer = transformers.Qwen2Tokenizer(vocab=backend["vocab"], merges=merges)
    tokenizer.chat_template = CHAT
    return tokenizer


STYLES = {
    "llama-3": (llama3_tokenizer, transformers.LlamaConfig),
    "llama-2": (llama2_tokenizer, transformers.LlamaConfig),
    "qwen": (qwen_tokenizer, transformers.Qwen2Config),
}
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


@pytest.fixture(scope="module")
def backbones(tmp_path_factory) -> dict[str, Path]:
    """A tiny random backbone with a tokenizer of each style."""
    found = {}
    for style, (make, config) in STYLES.items():
        found[style] = tmp_path_factory.mktemp("backbones") / style
        tokenizer = make()
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            config(vocab_size=len(tokenizer), **SHAPE)
        )
        model.save_pretrained(found[style])
        tokenizer.save_pretrained(found[style])
    return found


def experiment(backbone: Path, **changes: object) -> Experiment:
    settings = {
        "objective": {"name": "contriever"},
        "data": "x",
        "retriever": str(backbone),
        "lora": {"rank": 4},
        "encoding": {"pooling": "last"},
    }
    return Experiment.model_validate(settings | changes)


def saved(settings: Experiment, path: Path) -> Encoder:
    """Write a retriever whose weights differ from its backbone's, and return it."""
    model = load_model(settings.retriever)
    if settings.lora:
        model = add_lora(model, settings.lora, seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.3 * torch.randn_like(weight)
    encoder = Encoder(model, load_tokenizer(settings.retriever), settings.encoding).eval()
    save_model(model, encoder.tokenizer, path, writes=True)
    write_encoding(path, encoder.tokenizer, settings.encoding, 256, settings.max_length)
    return encoder


def read_back(folder: Path) -> Encoder:
    """Return the encoder of a folder, without giving its encoding."""
    return load_encoder(EncoderModel(kind="encoder", retriever=str(folder)), "float32", "cpu")


def test_as_trained_in_sentence_transformers(backbones, tmp_path, monkeypatch):
    """Every kind of folder, in one process of sentence-transformers."""
    kinds = {
        f"{style} {pooling} {weights}": experiment(
            backbones[style],
            encoding={"pooling": pooling, "append_eos": pooling != "mean" or style != "qwen"},
            lora={"rank": 4} if weights == "LoRA" else None,
        )
        for style in STYLES
        for pooling in ("last", "mean", "cls")
        for weights in ("LoRA", "full")
    }
    folders = {kind: tmp_path / kind for kind in kinds}
    trained = {kind: saved(kinds[kind], folders[kind]) for kind in kinds}
    texts = list(check.texts_to_compare(256).values())
    theirs = check.encode_alone(list(folders.values()), texts)
    print()
    for (kind, folder), found in zip(folders.items(), theirs, strict=True):
        monkeypatch.setattr(check, "encode_alone", lambda _, asked, f=found: [f] * (asked == texts))
        cosines = check.check_folder(folder)
        print(f"{kind:20} {min(cosines.values()):.7f} to {max(cosines.values()):.7f}")
        assert len(cosines) == 2 * len(texts)
        again = read_back(folder)
        assert again.encoding == kinds[kind].encoding
        for role in ("query", "passage"):
            ours, expected = (one.encode(texts, role, 256) for one in (again, trained[kind]))
            torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def adapter(backbones, tmp_path_factory) -> Path:
    """A trained adapter of a backbone whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("trained") / "adapter"
    saved(experiment(backbones["qwen"], encoding={"pooling": "mean"}), folder)
    return folder


def test_the_adapter_in_transformers_and_peft(adapter, backbones):
    """By hand, as a model card would describe it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(adapter)
    base = transformers.AutoModel.from_pretrained(backbones["qwen"])
    for model in (
        PeftModel.from_pretrained(base, adapter),
        transformers.AutoModel.from_pretrained(adapter),
    ):
        batch = tokenizer(f"Query: {TEXTS[0]}", return_tensors="pt")
        assert batch["input_ids"][0, -1] == tokenizer.eos_token_id
        hidden = model.eval()(**batch).last_hidden_state
        expected = read_back(adapter).encode([TEXTS[0]], "query", 256)
        found = torch.nn.functional.normalize(hidden.mean(1), dim=-1)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_an_export_needs_nothing_else(adapter, backbones, tmp_path):
    before = read_back(adapter)
    result = CliRunner().invoke(app, ["export", str(adapter), str(tmp_path / "out")])
    assert re.search(
        r"out: same vectors in sentence-transformers, cosines ≥ (0\.9999|1\.0)", result.stdout
    )
    assert not list((tmp_path / "out").glob("adapter*"))
    for file in (tmp_path / "out").rglob("*.json"):
        assert str(backbones["qwen"]) not in file.read_text()
    shutil.copytree(tmp_path / "out", tmp_path / "elsewhere" / "copy")
    after = read_back(tmp_path / "elsewhere" / "copy")
    expected = before.encode(TEXTS, "passage", 256)
    torch.testing.assert_close(after.encode(TEXTS, "passage", 256), expected)


def test_what_is_no_retriever_or_encodes_otherwise_is_not_exported(adapter, backbones, tmp_path):
    with pytest.raises(RevelaError, match=r"qwen: not a retriever of .*: missing modules\.json"):
        export(backbones["qwen"], tmp_path / "out")
    shutil.copytree(adapter, tmp_path / "bad")
    (tmp_path / "bad" / "modules.json").write_text("[]")
    with pytest.raises(RevelaError, match="sentence-transformers module Pooling is missing"):
        export(tmp_path / "bad", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_replaces_retrievers_only(adapter, tmp_path, monkeypatch):
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "one.tex").touch()
    monkeypatch.chdir(mine)
    for output in (mine, Path(), Path("one.tex")):
        with pytest.raises(RevelaError, match="exists but is not a retriever"):
            export(adapter, output)
    with pytest.raises(RevelaError, match="is in the folder to export"):
        export(adapter, adapter)
    assert (mine / "one.tex").exists()
    assert (adapter / "adapter_config.json").exists()


def with_file(folder: Path, name: str, change: dict) -> Path:
    """Change keys of a JSON file of a folder."""
    content = json.loads((folder / name).read_text()) | change
    (folder / name).write_text(json.dumps(content))
    return folder


def test_one_line_says_which_text_differs(adapter, tmp_path, monkeypatch):
    """The reference is the trained model, not the folder."""
    reference = EncoderModel(
        kind="encoder", retriever=str(adapter), encoding=EncodingKeys(passage_prefix="Text: ")
    )
    with pytest.raises(
        RevelaError, match=r"gives the passage short a different .* \(cosine 0\.\d+\)"
    ):
        check.check_folder(adapter, reference)
    encoder, texts = read_back(adapter), list(check.texts_to_compare(256).values())
    found = {role: encoder.encode(texts, role, 256).clone() for role in ("query", "passage")}
    similarity = found["query"] @ found["passage"].T
    similarity[3] = similarity[3].flip(0)
    answer = found | {"similarity": similarity}
    monkeypatch.setattr(check, "encode_alone", lambda *_: [answer])
    with pytest.raises(RevelaError, match="for the query of whitespace differently from Revela"):
        check.check_folder(adapter)
    found["query"][1] = float("nan")
    with pytest.raises(RevelaError, match=r"the query with spaces .* \(cosine nan\)"):
        check.check_folder(adapter)


def test_the_other_process_has_nothing_of_revela(tmp_path):
    code = "import sys, runpy; sys.argv[1:] = []; sys.stdin = __import__('io').StringIO('[1, 2]'); "
    code += f"runpy.run_path({str(Path(check.__file__).with_name('alone.py'))!r}); "
    code += "print([name for name in sys.modules if name.startswith('revela')])"
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1:] == ["[]"], ran.stderr
    with pytest.raises(RevelaError, match="sentence-transformers cannot load it: "):
        check.encode_alone([tmp_path], ["a", "b"])


def test_the_configuration_overrides_the_files_key_by_key(adapter, backbones, tmp_path):
    def read(folder: Path, **keys: object) -> tuple:
        model = EncoderModel(
            kind="encoder", retriever=str(folder), encoding=EncodingKeys.model_validate(keys)
        )
        _, encoding, length = load_encoding(model)
        return encoding, length

    assert read(adapter) == (Encoding(pooling="mean"), 256)
    beside = EncoderModel(kind="encoder", retriever=str(backbones["qwen"]), adapter=str(adapter))
    assert load_encoding(beside)[1:] == (Encoding(pooling="mean"), 256)
    texts = [*TEXTS, " "]
    found = load_encoder(beside, "float32", "cpu").encode(texts, "query", 99)
    torch.testing.assert_close(found, read_back(adapter).encode(texts, "query", 99))
    assert read(adapter, pooling="last", query_prefix="")[0] == Encoding(query_prefix="")
    assert EncodingKeys(pooling="last").dump() == '{"pooling": "last"}'
    assert Encoding(pooling="last").dump() == "{}"
    folder = tmp_path / "hub"
    shutil.copytree(adapter, folder)
    with_file(
        folder, "config_sentence_transformers.json", {"prompts": {}, "similarity_fn_name": None}
    )
    assert read(folder)[0] == Encoding(query_prefix="", passage_prefix="", pooling="mean")
    with_file(folder, "sentence_bert_config.json", {"max_seq_length": 99})
    assert read(folder)[1] == 99
    with_file(folder, "sentence_bert_config.json", {"do_lower_case": True})
    with pytest.raises(RevelaError, match="do_lower_case True is not supported"):
        read(folder)
    with_file(folder, "sentence_bert_config.json", {"do_lower_case": False})
    old = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(old))
    assert read(folder)[0].pooling == "cls"
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps(old | {"pooling_mode_max_tokens": 1})
    )
    with pytest.raises(
        RevelaError, match="pooling 'cls, pooling_mode_max_tokens' is not supported"
    ):
        read(folder)
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    modules = json.loads((adapter / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(RevelaError, match="sentence-transformers module Dense is not supported"):
        read(folder)
    shutil.rmtree(folder / "1_Pooling")
    (folder / "modules.json").write_text("[")
    with pytest.raises(RevelaError, match=r"modules\.json: not JSON"):
        read(folder)


@pytest.mark.parametrize("normalize", [True, False])
def test_embeddings_that_are_not_normalized(backbones, tmp_path, normalize):
    settings = experiment(backbones["llama-3"], lora=None, encoding={"normalize": normalize})
    saved(settings, tmp_path / "r")
    assert read_back(tmp_path / "r").encoding == settings.encoding
    assert (tmp_path / "r" / "2_Normalize").exists() == normalize
    config = json.loads((tmp_path / "r" / "config_sentence_transformers.json").read_text())
    assert config["similarity_fn_name"] == ("cosine" if normalize else "dot")
    assert config["prompts"] == {"query": "Query: ", "document": "Passage: "}
