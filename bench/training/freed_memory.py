"""Handling of freed memory on a CPU: which tensors the C library keeps, and which it returns.

A step of a small model, without gradient checkpointing, and one of twelve layers of SmolLM2-135M's
width with it, each in a separate process, since the setting cannot be reverted.

    python -m bench.training.freed_memory
"""

import ctypes
import itertools
import resource
import statistics
import subprocess
import sys

import torch

from bench.common import encoder_around, medians, random_model, report
from revela.common.memory import keep_freed_memory
from revela.config.training import Lora
from revela.retriever.lora import add_lora

COMMAND = "python -m bench.training.freed_memory"
SMALL = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 4}
ROUNDS = 3


def keep(largest: int) -> None:
    """Keep freed tensors of less than `largest` bytes."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    libc.mallopt(-3, largest)  # M_MMAP_THRESHOLD


FREED = {
    "glibc's default": lambda: None,
    "kept to 8 MB (ours)": keep_freed_memory,
    "kept to 32 MB": lambda: keep(2**25),
    "all kept": lambda: keep(2**31 - 1),
}


def step(model: str) -> float:
    """Return the seconds of a forward and backward pass over texts of mixed lengths."""
    wide = model == "wide"
    network = random_model("SmolLM2-135M", **({"num_hidden_layers": 12} if wide else SMALL)).model
    if wide:
        network.gradient_checkpointing_enable({"use_reentrant": False})
        network.enable_input_require_grads()
        network = add_lora(network, Lora(), seed=0)
    encoder = encoder_around(network.train())
    longest, texts = (157, 32) if wide else (64, 64)
    batches = []
    for _ in range(1 if wide else 8):
        lengths = torch.randint(longest // 2, longest + 1, (texts, 1))
        mask = (torch.arange(int(lengths.max())) < lengths).long()
        batches.append((torch.randint_like(mask, 1000), mask))
    stream = itertools.cycle(batches)
    return medians({"step": lambda: encoder(*next(stream)).sum().backward()}, 1 if wide else 20)[
        "step"
    ]


def main() -> None:
    """Run the processes alternately and print the table."""
    rows = []
    for model in ("small", "wide"):
        found: dict[str, list[list[float]]] = {name: [] for name in FREED}
        for name in [*FREED] * (1 if model == "wide" else ROUNDS):
            command = [sys.executable, "-m", "bench.training.freed_memory", model, name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[name].append([*map(float, done.stdout.split()[-2:])])
        seconds = {n: statistics.median(one[0] for one in runs) for n, runs in found.items()}
        rows += [
            {
                "Model": model,
                "Freed memory": name,
                "a step, s": f"{seconds[name]:.2f}",
                "of default": f"{seconds[name] / next(iter(seconds.values())):.2f}",
                "peak, GB": f"{max(one[1] for one in runs):.1f}",
            }
            for name, runs in found.items()
        ]
    report("Freed memory on a CPU", COMMAND, rows)


if __name__ == "__main__":
    if sys.argv[1:]:
        FREED[sys.argv[2]]()
        print(step(sys.argv[1]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    else:
        main()
