"""The sections of `bench.gpu`, each measured in a process of its own."""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from bench.gpu import demo, encoding, exact, ranks, steps

Rows = list[dict[str, str]]

# Processes are forked from one that has imported these modules and uses no GPU.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def sections(device: torch.device, tiny: bool) -> dict[str, Callable[[], Rows]]:
    """Return the measurements, the most important first."""
    plan: dict[str, Callable[[], Rows]] = {
        "Attention against plain loops": lambda: exact.attention(device),
        "Losses and gradients against float64": lambda: exact.losses(device, tiny),
        "Adapters and norms against float64": lambda: exact.adapters(device),
        "Matrix products": lambda: steps.matmul(device, tiny),
    }
    for shape in ("SmolLM2-135M",) if tiny else ("Llama-3.2-1B", "SmolLM2-135M"):
        plan |= {
            f"The paper's step, {shape}": lambda s=shape: steps.revela(s, device, tiny),
            f"In-batch attention beside a plain pass, {shape}": lambda s=shape: steps.beside_plain(
                s, device, tiny
            ),
            f"REPLUG's step, {shape}": lambda s=shape: steps.replug(s, device, tiny),
        }
    return plan | {
        "Where a step's time goes": lambda: steps.operators(device, tiny),
        "Encoding": lambda: encoding.measure(device, tiny),
        "Two processes": lambda: ranks.measure(device),
        "The demo": lambda: demo.measure(tiny),
    }


def in_child(title: str, seconds: float, tiny: bool) -> Rows:
    """Measure a section in a process of its own.

    A device error then stays in that process, and so does memory.

    Raises:
        RuntimeError: it fails, dies or takes longer.
    """
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(target=_measure, args=(title, tiny, theirs))
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise RuntimeError(f"took more than {seconds:.0f} s")
        rows = ours.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"its process ended with exit code {child.exitcode}") from None
    finally:
        child.kill()
    if isinstance(rows, str):
        raise RuntimeError(rows)
    return rows


def _measure(title: str, tiny: bool, answer: Connection) -> None:
    try:
        answer.send(sections(find_device(), tiny)[title]())
    except Exception as error:
        traceback.print_exc()
        answer.send(f"{type(error).__name__}: {error}")


def find_device() -> torch.device:
    """Return the first GPU, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
