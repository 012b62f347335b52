"""The sections of `bench.gpu`, each measured in a process of its own."""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection

import torch

from bench.gpu import demo, encoding, exact, ranks, steps, training
from revela.retriever.encode import prepare_for_ragged_batches

Rows = list[dict[str, str]]
Plan = dict[str, tuple[int, Callable[[], Iterator[dict[str, str]]]]]

# Processes are forked from one that has imported these modules and uses no GPU.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def sections(device: torch.device, tiny: bool) -> Plan:
    """Return the seconds at most and the measurement of each section.

    The most important are first: those up to encoding take less than ten minutes.
    """
    one, small = ("SmolLM2-135M",) * 2 if tiny else ("Llama-3.2-1B", "SmolLM2-135M")
    both = f"{'Llama-3.2-1B' if tiny else 'Llama-3.2-3B'} + {one}"

    def revela(shapes: str, *plans: tuple[int, int, str]) -> Callable[[], Iterator[dict[str, str]]]:
        # A tiny B leaves the other numbers as they are.
        fewer = [(2, min(together, 2), how) for _, together, how in plans]
        return partial(steps.revela, shapes, device, tiny, fewer if tiny else [*plans])

    return {
        "Attention against plain loops": (40, partial(exact.attention, device)),
        "Losses and gradients against float64": (60, partial(exact.losses, device, tiny)),
        "Adapters and norms against float64": (30, partial(exact.adapters, device)),
        "Matrix products": (20, partial(steps.matmul, device, tiny)),
        f"The paper's step, {one}": (130, revela(one, (16, 1, ""), (16, 2, ""), (16, 4, ""))),
        "Where a step's time goes": (60, partial(steps.operators, device, tiny)),
        "Processes": (90, partial(ranks.measure, device)),
        "Encoding": (90, partial(encoding.measure, device, tiny)),
        f"Small models, {small}": (120, revela(small, (16, 8, ""), (16, 16, ""), (16, 32, ""))),
        f"Large retriever, {both}": (120, revela(both, (16, 1, ""), (16, 2, ""))),
        f"Other ways, {one}": (
            150,
            revela(one, (16, 1, "unfused"), (16, 1, "checkpointing"), (32, 1, ""), (64, 1, "")),
        ),
        "Training, with a resumed one": (120, partial(training.measure, device, tiny, (0,))),
        "Training with ZeRO": (180, partial(training.measure, device, tiny, (2, 3))),
        f"REPLUG's step, {one}": (120, partial(steps.replug, one, device, tiny)),
        f"In-batch attention beside a plain pass, {one}": (
            120,
            partial(steps.beside_plain, one, device, tiny),
        ),
        "The demo": (600, partial(demo.measure, tiny)),
    }


def in_child(title: str, seconds: float, tiny: bool) -> tuple[Rows, str]:
    """Return a section's rows, and why there are no more: "" if it has ended.

    Its process keeps a device error and memory to itself.
    """
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(target=_measure, args=(title, tiny, theirs))
    end, rows = time.monotonic() + seconds, []
    child.start()
    theirs.close()
    try:
        while ours.poll(max(0, end - time.monotonic())):
            row = ours.recv()
            if isinstance(row, str):
                return rows, row
            rows.append(row)
        return rows, f"took more than {seconds:.0f} s"
    except EOFError:
        child.join()
        return rows, f"its process ended with exit code {child.exitcode}"
    finally:
        child.kill()


def _measure(title: str, tiny: bool, answer: Connection) -> None:
    prepare_for_ragged_batches()
    try:
        for row in sections(find_device(), tiny)[title][1]():
            print(row, flush=True)
            answer.send(row)
        answer.send("")
    except Exception as error:
        traceback.print_exc()
        answer.send(f"{type(error).__name__}: {error}")


def find_device() -> torch.device:
    """Return the first GPU, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
