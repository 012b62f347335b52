"""Shapes of models and a training."""

from pathlib import Path

import transformers

from revela.config.training import Experiment
from revela.plan.estimates import Shape

ROOT = Path(__file__).parents[2]
LLAMA_1B = {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
SMOLLM2_135M = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


def shape_of(described: transformers.PretrainedConfig) -> Shape:
    return Shape.of(described.to_dict())


def decoder(described: dict) -> Shape:
    return Shape.of(described | {"model_type": "llama"})


def experiment(**changes: object) -> Experiment:
    settings = {
        "objective": {"name": "revela"},
        "data": "wiki",
        "retriever": "a/b",
        "language_model": "a/b",
    }
    return Experiment.model_validate(settings | changes)
