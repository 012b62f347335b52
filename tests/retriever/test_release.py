"""A trained retriever's folder, loaded by sentence-transformers, transformers and peft only."""

import functools
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from peft import PeftModel
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

from revela.cli import app
from revela.common.errors import RevelaError
from revela.config.encoding import Encoding
from revela.config.evaluation import EncoderModel
from revela.config.training import Experiment
from revela.retriever.encode import encode
from revela.retriever.export import export
from revela.retriever.load import load_encoder, load_model, read_encoder
from revela.retriever.lora import add_lora
from revela.retriever.save import check_folder, save_encoder
from revela.retriever.source import Source
from revela.training.callbacks import save_model
from tests.conftest import TEXTS, encoder_of, encoding_of, make_encoder

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
    """Every kind of folder."""
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
    texts = [*TEXTS, "jobs", "  spaces \n", " \n\t ", "", "naïve (作业 №7)", "1 " * 300]
    for kind, settings in kinds.items():
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


def test_what_is_no_retriever_or_encodes_otherwise_is_not_exported(adapter, backbones, tmp_path):
    with pytest.raises(RevelaError, match=r"qwen: not a retriever of .*: missing modules\.json"):
        export(backbones["qwen"], tmp_path / "out")
    shutil.copytree(adapter, tmp_path / "bad")
    (tmp_path / "bad" / "modules.json").write_text("[]")
    with pytest.raises(RevelaError, match=r"modules\.json: not a list of modules"):
        export(tmp_path / "bad", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_replaces_exports_only(adapter, tmp_path, monkeypatch):
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "one.tex").touch()
    monkeypatch.chdir(mine)
    for output in (mine, Path(), Path("one.tex")):
        with pytest.raises(RevelaError, match=r"one\.tex: not written by revela"):
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
    with_file(folder, "config_sentence_transformers.json", {"similarity_fn_name": "euclidean"})
    with pytest.raises(RevelaError, match="unknown similarity 'euclidean'; allowed: cosine, dot"):
        read(folder)
    with_file(folder, "config_sentence_transformers.json", {"query_suffix": "?"})
    with pytest.raises(RevelaError, match=r"unknown setting of .* 'query_suffix'; allowed: "):
        read(folder)
    (folder / "modules.json").write_text("[")
    with pytest.raises(RevelaError, match=r"modules\.json: not (JSON|a list)"):
        read(folder)


def moved_transformer(folder: Path) -> None:
    """Move the transformer into a folder of its own, as the first sentence-transformers did."""
    home = folder / "0_Transformer"
    home.mkdir()
    for file in [*folder.glob("*.json"), *folder.glob("*.safetensors")]:
        if not file.name.startswith(("modules", "config_sentence")):
            file.rename(home / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = home.name
    (folder / "modules.json").write_text(json.dumps(modules))


def with_dense(folder: Path) -> None:
    """Add a layer that halves the width."""
    torch.manual_seed(2)
    encoder = SentenceTransformer(str(folder), device="cpu")
    encoder.insert(2, Dense(16, 8))
    encoder.save(str(folder), create_model_card=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: with_file(folder / "1_Pooling", "config.json", {"pooling_mode": "max"}),
        lambda folder: with_file(
            folder / "1_Pooling", "config.json", {"pooling_mode": "weightedmean"}
        ),
        lambda folder: with_file(folder / "1_Pooling", "config.json", {"include_prompt": False}),
        lambda folder: (folder / "1_Pooling" / "config.json").write_text(
            '{"word_embedding_dimension": 16, "pooling_mode_cls_token": true}'
        ),
        lambda folder: with_file(folder, "config_sentence_transformers.json", {"truncate_dim": 6}),
        lambda folder: with_file(folder, "sentence_bert_config.json", {"do_lower_case": True}),
        lambda folder: with_file(folder, "sentence_bert_config.json", {"max_seq_length": 9}),
        moved_transformer,
        with_dense,
    ],
)
def test_settings_of_sentence_transformers_are_obeyed(backbones, tmp_path, change, both_ways):
    folder = shutil.copytree(backbones["llama-3"], tmp_path / "m")
    make_encoder(folder, pooling="mean")
    change(folder)
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), encoder_of(folder)
    for role, expected in (
        ("query", theirs.encode_query(TEXTS, convert_to_tensor=True)),
        ("passage", theirs.encode_document(TEXTS, convert_to_tensor=True)),
    ):
        expected = torch.nn.functional.normalize(expected, dim=-1)
        torch.testing.assert_close(encode(ours, TEXTS, role, 64), expected, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_computed_is_refused_by_name(backbones, tmp_path):
    folder = shutil.copytree(backbones["llama-3"], tmp_path / "m")
    make_encoder(folder)
    modules = json.loads((folder / "modules.json").read_text())
    for kind, message in (
        ("sentence_transformers.models.BoW", "begins with a module BoW, not with a Transformer"),
        ("custom_st.Transformer", r"has code of its own \(custom_st.Transformer\), which is never"),
    ):
        first = [modules[0] | {"type": kind}]
        (folder / "modules.json").write_text(json.dumps(first + modules[1:]))
        with pytest.raises(RevelaError, match=message):
            encoder_of(folder)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "model.safetensors").rename(folder / "model.onnx")
    with pytest.raises(RevelaError, match="no safetensors weights in it; it has ONNX ones"):
        encoder_of(folder)


@pytest.mark.parametrize("normalize", [True, False])
def test_embeddings_that_are_not_normalized(backbones, tmp_path, normalize):
    settings = experiment(backbones["llama-3"], lora=None, encoding={"normalize": normalize})
    saved(settings, tmp_path / "r")
    assert encoding_of(encoder_of(tmp_path / "r")).normalize == normalize
    assert (tmp_path / "r" / "2_Normalize").exists() == normalize
    config = json.loads((tmp_path / "r" / "config_sentence_transformers.json").read_text())
    assert config["similarity_fn_name"] == ("cosine" if normalize else "dot")
    assert config["prompts"] == {"query": "Query: ", "document": "Passage: "}
