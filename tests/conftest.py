"""Tiny models and data, generated in the formats of real ones."""

import json
import os
import subprocess
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # a missing model or data set fails at once

import pytest
import torch
import transformers
import yaml
from sentence_transformers import SentenceTransformer

from revela.config.encoding import Encoding, EncodingKeys
from revela.config.evaluation import EncoderModel
from revela.retriever.load import load_encoder
from revela.retriever.save import save_encoder
from revela.retriever.tokenizer import appends_eos
from tests.inbatch.reference import varlen_attn

ROOT = Path(__file__).parents[1]
TEXTS = [
    "The parser reads a file line by line. Every line becomes a record. Records are sorted.",
    "A socket connects two processes. Each end reads what the other end writes. Both can close it.",
    "Rivers carry water to the sea. In spring they flood the fields. Farmers welcome the mud.",
    "The queue holds jobs until a worker is free. Workers take the oldest job. Jobs may fail.",
    "A matrix has rows and columns. Its transpose swaps them. Its inverse may not exist.",
]


def revela(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = ["revela", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def tiny_llama(**changes: object) -> transformers.LlamaForCausalLM:
    """Return a random Llama of a few thousand parameters."""
    torch.manual_seed(0)
    settings = {
        "vocab_size": 300,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    config = transformers.LlamaConfig(**(settings | changes))
    return transformers.LlamaForCausalLM(config)


def encoder_of(folder: Path, **encoding: object) -> SentenceTransformer:
    """Return the encoder of a folder in float32, loaded as in evaluation."""
    model = EncoderModel(kind="encoder", retriever=str(folder), encoding=EncodingKeys(**encoding))
    return load_encoder(model, "float32", "cpu")


def make_encoder(folder: Path, max_length: int = 512, **encoding: object) -> None:
    """Make a backbone's folder a sentence-transformers model with the paper's or these settings."""
    encoder = encoder_of(folder, **encoding)
    encoder.max_seq_length = max_length
    save_encoder(encoder, folder, encoder.state_dict())


def encoding_of(encoder: SentenceTransformer) -> Encoding:
    """Return what an encoder does, as it is written in a config."""
    pooling = next(m.pooling_mode for m in encoder if hasattr(m, "pooling_mode"))
    return Encoding(
        query_prefix=encoder.prompts["query"],
        passage_prefix=encoder.prompts["document"],
        pooling={"lasttoken": "last"}.get(pooling, pooling),
        append_eos=appends_eos(encoder.tokenizer),
        normalize=encoder.similarity_fn_name == "cosine",
    )


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention as on a GPU."""
    attend_as_on_a_gpu(monkeypatch)


def attend_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attend on packed rows, with plain loops instead of the kernel."""
    monkeypatch.setattr("revela.inbatch.packing.varlen_attn", varlen_attn)
    for module in ("inbatch.in_batch", "retriever.encode", "training.objectives.replug"):
        monkeypatch.setattr(f"revela.{module}.flash_takes", lambda *_: True)


@pytest.fixture(params=["padded", "flash"])
def both_ways(request: pytest.FixtureRequest) -> str:
    """Attention as on a CPU, and as on a GPU."""
    if request.param == "flash":
        request.getfixturevalue("flash")
    return request.param


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with its own tokenizer."""
    return write_backbone(tmp_path_factory.mktemp("backbone"))


def write_backbone(folder: Path, **changes: object) -> Path:
    """Write a tiny Llama, and a tokenizer like those of data/backbones, by `save_pretrained`."""
    known = transformers.AutoTokenizer.from_pretrained(ROOT / "data/backbones/1m")
    tokenizer = known.train_new_from_iterator(iter(TEXTS * 5), 300, show_progress=False)
    model = tiny_llama(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **changes,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_choices(folder: Path, name: str, rows: list[dict]) -> Path:
    """Write a multiple-choice task of lm-eval: its YAML, its examples as JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    examples = folder / f"{name}.jsonl"
    examples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(examples)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        "metadata": {"version": 3.0},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    return folder
