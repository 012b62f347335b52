"""Time and peak memory of a training step of REPLUG and of Revela as the batch grows.

Both objectives with the paper's settings on the same real chunks, from the small backbone in
`data/backbone`, in one process; a step is the loss of one batch and its gradients, in float32. The
objectives take turns, and times are medians. The paper derives a cost quadratic in B for REPLUG
and linear for Revela.

    python -m bench.training.step_cost                           into RESULTS.md
    python -m bench.training.step_cost --output cost.csv         for a figure of kind `step-cost`
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.attention.memory import peak_gb
from bench.common import machine, medians, real_chunks, report
from revela.common import outputs
from revela.config.steps import Experiment, ReplugObjective, RevelaObjective
from revela.encoder import Encoder, load_model, load_tokenizer
from revela.training.collators import BatchCollator
from revela.training.objectives.replug import Replug
from revela.training.objectives.revela import Revela
from revela.training.trainlog import keep_freed_memory

BACKBONE = "data/backbone"
SIZES = [2, 4, 8, 16, 32]
REPEATS = 3
COMMAND = "python -m bench.training.step_cost"
HEADING = [
    "batch_size",
    "replug_seconds",
    "revela_seconds",
    "seconds_ratio",
    "replug_memory_gb",
    "revela_memory_gb",
    "memory_ratio",
    "machine",
]


def steps_by_size(sizes: list[int]) -> dict[int, dict[str, Callable[[], None]]]:
    """Return for each batch size a step of each objective."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    experiment = Experiment.model_validate(
        {
            "objective": {"name": "revela"},
            "data": "chunks",
            "retriever": BACKBONE,
            "language_model": BACKBONE,
        }
    )
    tokenizer = load_tokenizer(BACKBONE)
    collate = BatchCollator(experiment, tokenizer, tokenizer)

    def encoder() -> Encoder:
        model = load_model(BACKBONE, causal=False, dtype=torch.float32)
        return Encoder(model, tokenizer, experiment.encoding)

    def language_model() -> Any:
        return load_model(BACKBONE, causal=True, dtype=torch.float32)

    modules = {
        "replug": Replug(encoder(), language_model(), ReplugObjective(name="replug")),
        "revela": Revela(encoder(), language_model(), RevelaObjective(name="revela")),
    }

    def step(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], None]:
        def run() -> None:
            module(**inputs)["loss"].backward()
            module.zero_grad()

        return run

    texts = real_chunks(max(sizes))
    steps: dict[int, dict[str, Callable[[], None]]] = {}
    for size in sizes:
        inputs = {name: t.to(device) for name, t in collate.tensors(texts[:size], "").items()}
        steps[size] = {name: step(m.to(device).train(), inputs) for name, m in modules.items()}
    return steps


def memory_gb(run: Callable[[], None]) -> float:
    """Return the peak memory of a step in GB above what stands before it, on CPU or GPU."""
    if not torch.cuda.is_available():
        return peak_gb(run)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return (torch.cuda.max_memory_allocated() - before) / 1024**3


def main() -> None:
    """Measure, and write a CSV or a section of RESULTS.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    output, steps = arguments.output, steps_by_size(arguments.sizes)
    for run in steps[arguments.sizes[0]].values():
        run()  # what is set up once is no step's memory
    peaks = {
        size: {name: memory_gb(run) for name, run in runs.items()} for size, runs in steps.items()
    }
    keep_freed_memory()  # from here on: it would hide the peaks
    rows = []
    for size, runs in steps.items():
        seconds, memory = medians(runs, REPEATS), peaks[size]
        cells = [str(size)]
        for found in (seconds, memory):
            ratio = found["replug"] / found["revela"]
            cells += [f"{found['replug']:.4f}", f"{found['revela']:.4f}", f"{ratio:.2f}"]
        rows.append(cells)
        print(dict(zip(HEADING, cells, strict=False)), flush=True)
    if output is None:
        report("REPLUG and Revela as the batch grows", COMMAND, HEADING[:-1], rows)
        return
    with outputs.atomic_output(output) as temporary, temporary.open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(
            [HEADING, *([*cells, machine()] for cells in rows)]
        )


if __name__ == "__main__":
    main()
