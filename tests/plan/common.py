"""Shapes of models and a training."""

from pathlib import Path

import transformers

from bench.common import SHAPES
from revela.config.training import Experiment
from revela.plan.estimates import Shape

ROOT = Path(__file__).parents[2]
LLAMA_1B, SMOLLM2_135M = SHAPES["Llama-3.2-1B"], SHAPES["SmolLM2-135M"]


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
