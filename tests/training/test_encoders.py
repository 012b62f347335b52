"""Any encoder is trained as it is, and averaged with its start."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import T5Config, T5EncoderModel

from revela.common.errors import RevelaError
from revela.config.encoding import EncodingKeys
from revela.config.read import parse_config
from revela.config.training import PROJECTIONS, Lora
from revela.retriever.export import export
from revela.retriever.load import read_encoder
from revela.retriever.source import Source
from revela.start.local import check_local
from revela.training.callbacks import save_model, start_weights
from revela.training.trainer import train
from tests.training.common import LORA, REPLUG, experiment
from tests.training.encoders import KINDS, write_encoder

CONTRIEVER = {"name": "contriever", "temperature": 0.1}


@pytest.mark.parametrize(
    ("kind", "objective", "lora"),
    [
        ("bert-mean", CONTRIEVER, LORA),
        ("bert-cls-dense", CONTRIEVER, None),
        ("bert-cls-dense", REPLUG, LORA),
        ("xlm-roberta-e5", {"name": "revela", "temperature": 0.1}, None),
        ("modernbert-cls", {"name": "revela", "temperature": 0.1}, LORA),
        ("qwen3-last", REPLUG, None),
    ],
)
def test_an_encoder_is_trained_as_it_is(backbone, data, pair_data, tmp_path, kind, objective, lora):
    start, exported, share = write_encoder(tmp_path, kind), {}, 0.25
    kept = [1] if kind == "bert-cls-dense" else []
    models = ["retriever", *(f"steps/{step}" for step in kept)]
    changes = {"objective": objective, "lora": lora, "batches_per_step": 2, "steps": 2}
    changes |= {"warmup_steps": 0, "save_retriever_steps": kept}
    rows, changes["language_model"] = data, str(backbone)
    if objective is CONTRIEVER:
        rows, changes["language_model"], changes["batches_per_device"] = pair_data, None, 2
    for average in (0, share):
        folder = tmp_path / str(average)
        train(experiment(start, average_with_start=average, **changes), rows, folder)
        for model in models:
            exported[model, average] = folder / "exported" / model
            export(folder / model, exported[model, average])  # which compares its vectors
    theirs = SentenceTransformer(str(exported["retriever", share]), device="cpu")
    *_, pooling, width, (query, document) = KINDS[kind]
    assert [type(module).__name__ for module in theirs] == [
        "Transformer", "Pooling", *(["Dense"] if width else []), "Normalize",
    ]  # fmt: skip
    assert theirs[1].pooling_mode == pooling
    assert (theirs.prompts["query"], theirs.prompts["document"]) == (query, document)
    assert theirs.max_seq_length == 60
    for model in models:
        for file in start.rglob("*.safetensors"):
            name = file.relative_to(start)
            folders = (start, exported[model, 0], exported[model, share])
            before, after, averaged = (load_file(folder / name) for folder in folders)
            # A frozen Dense layer is saved too.
            changed = any(not torch.equal(before[key], after[key]) for key in before)
            assert changed == (name.parent == Path() or not lora)
            mean = {key: (1 - share) * after[key] + share * before[key] for key in before}
            torch.testing.assert_close(averaged, mean, rtol=0, atol=1e-6)


def test_an_adapter_trained_further_has_no_start_to_average_with(backbone, pair_data, tmp_path):
    changes = {"objective": CONTRIEVER, "language_model": None, "batches_per_device": 2}
    changes |= {"batches_per_step": 2, "steps": 1, "lora": LORA}
    train(experiment(backbone, **changes), pair_data, tmp_path / "first")
    again = experiment(tmp_path / "first/retriever", average_with_start=0.5, **changes)
    with pytest.raises(RevelaError, match=r"^average_with_start: 0\.5 needs a new adapter, but "):
        train(again, pair_data, tmp_path / "again")


def test_the_paper_s_targets_are_the_default_s_of_its_models():
    assert experiment("a/b", lora={"targets": PROJECTIONS}).lora == Lora()


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("2_Dense/config.json", {"in_features": 32}, "a Dense layer of 32 inputs, but .* has 16"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "max"]}, "of 16 inputs, but .* has 32"),
        ("config.json", {"auto_map": {"AutoModel": "m.New"}}, r"code of its own \(m\.New\)"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_the_config(tmp_path, file, change, problem):
    folder = write_encoder(tmp_path, "bert-cls-dense")
    old = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(old | change))
    models = {"m": {"kind": "encoder", "retriever": str(folder)}}
    with pytest.raises(RevelaError, match=rf"^models\.m\.retriever: .* {problem}"):
        check_local(parse_config({"models": models}, "c"))
    with pytest.raises(RevelaError, match=problem):
        read_encoder(Source(str(folder)), EncodingKeys())


def test_tied_weights_are_averaged_once(tmp_path):
    config = T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    model = T5EncoderModel(config)  # whose embeddings have two names
    start = start_weights(model)
    model.shared.weight.data += 1
    expected = (model.shared.weight + start["shared.weight"]) / 2

    def write(folder: Path, state: dict) -> None:
        model.save_pretrained(folder, state_dict=state)

    save_model(model, tmp_path / "saved", True, write, start, 0.5)
    saved = T5EncoderModel.from_pretrained(tmp_path / "saved")
    assert torch.equal(saved.encoder.embed_tokens.weight, expected)
