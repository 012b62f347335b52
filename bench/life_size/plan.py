"""What is run: experiments and corpora of `config.yaml`, and the expectations of the plan."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.life_size.twins import shapes

_SMOLLM = "HuggingFaceTB/SmolLM2-135M"

# Name → settings to add to `config.yaml`; empty if it has that experiment.
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "revela-wiki-0.1b-lm-0.1b": {},
    "revela-code-0.1b-lm-0.1b": {},
    "replug-wiki-0.1b-lm-0.1b": {
        "base": "replug-wiki-1b",
        "retriever": _SMOLLM,
        "language_model": _SMOLLM,
    },
    "contriever-wiki-0.1b": {"base": "contriever-wiki-1b", "retriever": _SMOLLM},
    "revela-wiki-0.1b": {},
    "revela-wiki-0.5b-lm-0.5b": {},
    "revela-wiki-0.5b": {},
    "revela-wiki-1b": {},
    "revela-wiki-3b": {},
    "replug-wiki-0.5b": {},
    "replug-wiki-1b": {},
    "replug-wiki-3b": {},
    "contriever-wiki-1b": {},
}
PAIRS = 8  # of 17 texts: more than are encoded at a time (128)
LEARNING_RATE = 0.01
TEMPERATURE = 0.05


@dataclass(frozen=True)
class MicroStep:
    """One step of one experiment, and the expectations of the plan."""

    name: str
    settings: dict[str, Any]
    models: list[str]  # retriever, language model
    row: int  # texts per batch (B), or per pair
    training_gb: float
    encoding_gb: float
    flops: float
    parameters: int  # of the retriever

    @property
    def pairs(self) -> bool:
        """Whether it is trained on pairs instead of batches."""
        return self.settings["objective"]["name"] == "contriever"


@dataclass(frozen=True)
class Plan:
    """All micro-steps, the settings of all corpora, and the machine."""

    machine: str
    steps: list[MicroStep]
    corpora: dict[str, dict[str, Any]]


def make_plan(folder: Path) -> Plan:
    """Read `config.yaml` with the experiments that are added here, as `revela settings` does.

    Changes: one step of one batch (of eight pairs); no snapshots and no plain losses, which the
    modelled operations exclude. There is no warm-up, whose first step changes nothing; with
    `LEARNING_RATE` one step moves the embeddings far enough to detect the adapter. `TEMPERATURE` is
    higher, since similarities under random weights differ so much that at the paper's value no
    gradient would reach the retriever.
    """
    from bench.common import machine
    from revela.config import load_config

    raw = yaml.safe_load(Path("config.yaml").read_text(encoding="utf-8"))
    raw["experiments"] |= {name: entry for name, entry in EXPERIMENTS.items() if entry}
    extended = folder / "config.yaml"
    extended.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    config = load_config(extended)
    corpora = {name: json.loads(config.resolved("corpora", name).dump()) for name in config.corpora}
    return Plan(machine(), [_micro_step(config, name) for name in EXPERIMENTS], corpora)


def _micro_step(config: Any, name: str) -> MicroStep:
    from revela.plan import estimates
    from revela.retriever.encode import native_dtype

    entry = config.resolved("experiments", name)
    contriever = entry.objective.name == "contriever"
    data = (config.pairs if contriever else config.batches)[entry.data]
    row = 2 + data.negatives if contriever else data.batch_size
    size = PAIRS if contriever else 1
    objective = entry.objective
    if objective.name == "revela":
        update = {"plain_loss_every": 0, "temperature": TEMPERATURE}
        objective = objective.model_copy(update=update)
    if objective.name == "replug":
        objective = objective.model_copy(update={"retriever_temperature": TEMPERATURE})
    cut = entry.model_copy(
        update={
            "objective": objective,
            "steps": 1,
            "batches_per_step": size,
            "batches_per_device": size,
            "learning_rate": LEARNING_RATE,
            "warmup_steps": 0,
            "similarity_snapshot_steps": [],
        }
    )
    models = [str(model) for model in (entry.retriever, entry.language_model) if model]
    known = [estimates.Shape.of(shapes()[model]) for model in models]
    half = native_dtype(entry.precision).itemsize == 2
    return MicroStep(
        name=name,
        settings=json.loads(cut.dump()),
        models=models,
        row=row,
        training_gb=estimates.training_memory(cut, known, row, half, True) / estimates.GB,
        encoding_gb=estimates.encoding_memory(known[0], half, gpu=False) / estimates.GB,
        flops=estimates.training_flops(cut, known, row, size),
        parameters=known[0].weights(),
    )
