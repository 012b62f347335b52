"""Peak memory of a process, and what the C library does with memory that is freed."""

import contextlib
import ctypes
import gc
import resource

import torch


def memory_gb() -> float:
    """Return the peak memory so far in GB: of the GPU if there is one, else of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1024**3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for the next step, except for tensors of 8 MB and more.

    On a CPU the page faults of new memory slow down a small model. If large tensors are kept, as
    glibc by default does up to 32 MB, the heap of a large model with gradient checkpointing
    fragments to nearly three times its size, for an eighth of its time (`bench/RESULTS.md`).
    """
    with contextlib.suppress(OSError, AttributeError):  # only glibc has mallopt
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 2**23)  # M_MMAP_THRESHOLD


def return_freed_memory() -> None:
    """Return to the system what `keep_freed_memory` has kept."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
