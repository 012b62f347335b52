"""Time and peak memory of a training step of REPLUG and of Revela by batch size.

Both objectives with the paper's settings on the same real chunks, from the small backbone in
data/backbones/5m, in one process; a step is the loss of one batch and its gradients, in float32.
The objectives run alternately, and times are medians. The paper derives a cost quadratic in B for
REPLUG and linear in B for Revela.

    python -m bench.training.step_cost                           into RESULTS.md
    python -m bench.training.step_cost --output cost.csv         for a figure of kind `step-cost`
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate.utils import send_to_device

from bench.common import machine, medians, peak_gb, real_chunks, report
from revela.common import outputs
from revela.common.memory import keep_freed_memory
from revela.config.encoding import EncodingKeys
from revela.config.training import Experiment, ReplugObjective, RevelaObjective
from revela.retriever.load import load_language_model, load_model, load_tokenizer, read_encoder
from revela.retriever.source import Source
from revela.training.collators import BatchCollator
from revela.training.objectives.replug import Replug
from revela.training.objectives.revela import Revela

BACKBONE = "data/backbones/5m"
COMMAND = "python -m bench.training.step_cost"


def steps_by_size(sizes: list[int]) -> dict[int, dict[str, Callable[[], None]]]:
    """Return for each batch size a step of each objective."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    models = {"retriever": BACKBONE, "language_model": BACKBONE}
    revela, replug = RevelaObjective(name="revela"), ReplugObjective(name="replug")
    source = Source(BACKBONE)
    # REPLUG's tensors, a subset of Revela's.
    experiment = Experiment(objective=replug, data="chunks", **models)

    def encoder() -> Any:
        return read_encoder(source, EncodingKeys(), lambda kind: load_model(source, kind))

    collate = BatchCollator(experiment, encoder(), load_tokenizer(source))
    modules = {
        "replug": Replug(encoder(), load_language_model(source), replug),
        "revela": Revela(encoder(), load_language_model(source), revela),
    }

    def step(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], None]:
        def run() -> None:
            module(**inputs)["loss"].backward()
            module.zero_grad()

        return run

    texts = real_chunks(max(sizes))
    steps: dict[int, dict[str, Callable[[], None]]] = {}
    for size in sizes:
        inputs = send_to_device(collate.tensors([{"texts": texts[:size], "source": ""}]), device)
        steps[size] = {name: step(m.to(device).train(), inputs) for name, m in modules.items()}
    return steps


def main() -> None:
    """Measure, and write a CSV or a section of RESULTS.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    arguments = parser.parse_args()
    output, steps = arguments.output, steps_by_size(arguments.sizes)
    for run in steps[arguments.sizes[0]].values():
        run()  # one-time setup does not count as a step's memory
    peaks = {
        size: {name: peak_gb(run) for name, run in runs.items()} for size, runs in steps.items()
    }
    keep_freed_memory()  # only from here on: it would hide the peaks
    rows = []
    for size, runs in steps.items():
        row = {"batch_size": str(size)}
        found = {"seconds": medians(runs, repeats=3), "memory_gb": peaks[size]}
        for what, of in found.items():
            row |= {f"{name}_{what}": f"{of[name]:.4f}" for name in ("replug", "revela")}
            row[f"{what.removesuffix('_gb')}_ratio"] = f"{of['replug'] / of['revela']:.2f}"
        rows.append(row)
        print(row, flush=True)
    if output is None:
        report("REPLUG and Revela as the batch grows", COMMAND, rows)
    else:
        table = pd.DataFrame(rows).assign(machine=machine())
        outputs.write_text(output, table.to_csv(index=False, lineterminator="\n"))


if __name__ == "__main__":
    main()
