"""A trained retriever's folder, loaded by sentence-transformers, transformers and peft only."""

import functools
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch
import transformers
from peft import PeftModel
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense
from typer.testing import CliRunner

from revela.cli import app
from revela.common.errors import RevelaError
from revela.config.encoding import Encoding, Pooling
from revela.config.evaluation import EncoderModel
from revela.config.training import Experiment
from revela.retriever.encode import encode
from revela.retriever.load import load_encoder, load_model, read_encoder
from revela.retriever.lora import add_lora
from revela.retriever.save import check_folder, save_encoder
from revela.retriever.source import Source
from revela.training.callbacks import save_model
from tests.conftest import TEXTS, encoder_of, encoding_of, make_encoder
from tests.rehearsal.models import tokenizer_like

CHAT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{% endfor %}"


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
    backend = json.loads(tokenizer_like("qwen").backend_tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in backend["merges"]]
    tokenizer = transformers.Qwen2Tokenizer(vocab=backend["vocab"], merges=merges)
    tokenizer.chat_template = CHAT
    return tokenizer


STYLES = {
    "llama-3": (lambda: tokenizer_like("llama"), transformers.LlamaConfig),  # a BOS, no padding
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
        shape = config(vocab_size=len(tokenizer), **SHAPE)
        transformers.AutoModelForCausalLM.from_config(shape).save_pretrained(found[style])
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


def saved(settings: Experiment, path: Path) -> SentenceTransformer:
    """Write a retriever whose weights differ from its backbone's, and return it."""

    def load(kind: type) -> torch.nn.Module:
        model = load_model(Source(settings.retriever), kind)
        if settings.lora:
            model = add_lora(model, settings.lora, seed=0)
        torch.manual_seed(1)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:
                    weight += 0.3 * torch.randn_like(weight)
        return model

    encoder = read_encoder(Source(settings.retriever), settings.encoding, load).eval()
    save_model(encoder, path, True, functools.partial(save_encoder, encoder))
    return encoder


def test_as_trained_in_sentence_transformers(backbones, tmp_path):
    """Each kind of tokenizer with each pooling, and with weights and adapters in turn."""
    kinds = itertools.product(STYLES, get_args(Pooling))
    texts = [*TEXTS, "jobs", "  spaces \n", " \n\t ", "", "naïve (作业 №7)", "1 " * 300]
    for number, (style, pooling) in enumerate(kinds):
        kind = f"{style} {pooling}"
        eos = pooling != "mean" or style != "qwen"
        settings = experiment(
            backbones[style],
            encoding={"pooling": pooling, "append_eos": eos},
            lora={"rank": 4} if number % 2 else None,
        )
        trained = saved(settings, tmp_path / kind)
        assert check_folder(tmp_path / kind) > 0.9999, kind
        again = encoder_of(tmp_path / kind)
        assert encoding_of(again) == encoding_of(trained)
        for role in ("query", "passage"):
            ours, expected = (encode(one, texts, role, 256) for one in (again, trained))
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
        expected = encode(encoder_of(adapter), [TEXTS[0]], "query", 256)
        found = torch.nn.functional.normalize(hidden.mean(1), dim=-1)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_an_export_needs_nothing_else(adapter, backbones, tmp_path):
    before = encoder_of(adapter)
    result = CliRunner().invoke(app, ["export", str(adapter), str(tmp_path / "out")])
    assert re.search(
        r"out: same vectors in sentence-transformers, cosines ≥ (0\.9999|1\.0)", result.stdout
    )
    assert not list((tmp_path / "out").glob("adapter*"))
    for file in (tmp_path / "out").rglob("*.json"):
        assert str(backbones["qwen"]) not in file.read_text()
    shutil.copytree(tmp_path / "out", tmp_path / "elsewhere" / "copy")
    after = encoder_of(tmp_path / "elsewhere" / "copy")
    expected = encode(before, TEXTS, "passage", 256)
    torch.testing.assert_close(encode(after, TEXTS, "passage", 256), expected)


def with_file(folder: Path, name: str, change: dict) -> None:
    """Change keys of a JSON file of a folder."""
    content = json.loads((folder / name).read_text()) | change
    (folder / name).write_text(json.dumps(content))


def test_other_vectors_than_those_of_the_original_are_an_error(adapter, tmp_path):
    other = shutil.copytree(adapter, tmp_path / "other")
    prompts = {"query": "Query: ", "document": "Text: "}
    with_file(other, "config_sentence_transformers.json", {"prompts": prompts})
    assert check_folder(other) > 0.9999
    with pytest.raises(RevelaError, match=r"gives a text another vector \(cosine 0\.\d+\)"):
        check_folder(other, adapter)
    with_file(other, "adapter_config.json", {"r": "x"})
    with pytest.raises(RevelaError, match="cannot be loaded"):
        check_folder(other)


def test_the_configuration_overrides_the_files_key_by_key(adapter, backbones, tmp_path):
    def read(folder: Path, **keys: object) -> Encoding:
        return encoding_of(encoder_of(folder, **keys))

    assert read(adapter) == Encoding(pooling="mean")
    assert read(adapter, pooling="last", query_prefix="") == Encoding(query_prefix="")
    assert read(adapter, normalize=False) == Encoding(pooling="mean", normalize=False)
    beside = EncoderModel(kind="encoder", retriever=str(backbones["qwen"]), adapter=str(adapter))
    loaded, texts = load_encoder(beside, "float32", "cpu"), [*TEXTS, " "]
    assert (encoding_of(loaded), loaded.max_seq_length) == (Encoding(pooling="mean"), 256)
    expected = encode(encoder_of(adapter), texts, "query", 99)
    torch.testing.assert_close(encode(loaded, texts, "query", 99), expected)
    folder = shutil.copytree(adapter, tmp_path / "hub")
    settings = {"prompts": {"passage": "p: "}, "similarity_fn_name": None}
    with_file(folder, "config_sentence_transformers.json", settings)
    assert read(folder) == Encoding(query_prefix="", passage_prefix="p: ", pooling="mean")


def moved_transformer(folder: Path) -> None:
    """Move the transformer into a folder of its own, as the first sentence-transformers did."""
    home = folder / "0_Transformer"
    home.mkdir()
    for file in [*folder.glob("*.json"), *folder.glob("*.safetensors")]:
        if not file.name.startswith(("modules", "config_sentence")):
            file.rename(home / file.name)
    modules = (folder / "modules.json").read_text()
    (folder / "modules.json").write_text(modules.replace('"path": ""', f'"path": "{home.name}"', 1))


OLDER_POOLING = '{"word_embedding_dimension": 16, "pooling_mode_cls_token": true}'


def with_dense(folder: Path) -> None:
    """Add a layer that halves the width."""
    torch.manual_seed(2)
    encoder = SentenceTransformer(str(folder), device="cpu")
    encoder.insert(2, Dense(16, 8))
    encoder.save(str(folder), create_model_card=False)


@pytest.mark.parametrize(
    "change",
    [
        ("1_Pooling/config.json", {"pooling_mode": "max"}),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}),
        ("1_Pooling/config.json", {"include_prompt": False}),
        lambda folder: (folder / "1_Pooling/config.json").write_text(OLDER_POOLING),
        ("config_sentence_transformers.json", {"truncate_dim": 6}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("sentence_bert_config.json", {"max_seq_length": 9}),
        moved_transformer,
        with_dense,
    ],
)
def test_settings_of_sentence_transformers_are_obeyed(backbones, tmp_path, change, both_ways):
    folder = shutil.copytree(backbones["llama-3"], tmp_path / "m")
    make_encoder(folder, pooling="mean")
    change(folder) if callable(change) else with_file(folder, *change)
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), encoder_of(folder)
    for role, expected in (
        ("query", theirs.encode_query(TEXTS, convert_to_tensor=True)),
        ("passage", theirs.encode_document(TEXTS, convert_to_tensor=True)),
    ):
        expected = torch.nn.functional.normalize(expected, dim=-1)
        torch.testing.assert_close(encode(ours, TEXTS, role, 256), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("normalize", [True, False])
def test_embeddings_that_are_not_normalized(backbones, tmp_path, normalize):
    settings = experiment(backbones["llama-3"], lora=None, encoding={"normalize": normalize})
    saved(settings, tmp_path / "r")
    assert encoding_of(encoder_of(tmp_path / "r")).normalize == normalize
    assert (tmp_path / "r" / "2_Normalize").exists() == normalize
    config = json.loads((tmp_path / "r" / "config_sentence_transformers.json").read_text())
    assert config["similarity_fn_name"] == ("cosine" if normalize else "dot")
    assert config["prompts"] == {"query": "Query: ", "document": "Passage: "}
