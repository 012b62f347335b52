"""Runs commands and functions in separate processes and records time, memory and CPU time."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

GB = 1024**3
_REVELA = [sys.executable, "-m", "revela"]
_KEEP_FREE_GB = 0.5  # a command is stopped before less is free
_LOOK_EVERY = 0.5  # seconds


class Skipped(Exception):
    """A part is skipped; the message gives the reason."""


class Failed(Exception):
    """A command failed; the message has the last line of its log."""


@dataclass(frozen=True)
class Spent:
    """The resources used by a command."""

    seconds: float
    peak_gb: float  # of the process and its children together, shared pages counted once
    own_cpu: float  # processor seconds of the process itself
    workers_cpu: float  # and of its children


def require_memory(needed_gb: float, what: str) -> None:
    """Raise `Skipped` unless this much memory is free."""
    free = psutil.virtual_memory().available / GB
    if free < needed_gb:
        raise Skipped(f"{what} needs {needed_gb:.1f} GB of memory, {free:.1f} are free")


def require_disk(folder: Path, needed_gb: float, what: str) -> None:
    """Raise `Skipped` unless this much disk is free."""
    free = psutil.disk_usage(str(folder)).free / GB
    if free < needed_gb:
        raise Skipped(f"{what} needs {needed_gb:.1f} GB of disk, {free:.1f} are free")


def revela(log: Path, environment: dict[str, str], *arguments: str) -> Spent:
    """Run a command of the project to its end, with its output in a log.

    Raises:
        Skipped: it was stopped because the machine was about to run out of memory.
        Failed: it failed.
    """
    print(f"    revela {arguments[0]}", flush=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    start, next_report, peak, own = time.monotonic(), 60.0, 0, 0.0
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*_REVELA, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
    watched = psutil.Process(process.pid)
    try:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            with contextlib.suppress(psutil.Error):
                times = watched.cpu_times()
                own = times.user + times.system
                peak = max(peak, memory_of(watched))
            if psutil.virtual_memory().available < _KEEP_FREE_GB * GB:
                raise Skipped(f"stopped at {peak / GB:.1f} GB: no memory was left")
            if time.monotonic() - start > next_report:
                print(f"    … {next_report / 60:.0f} min, {peak / GB:.1f} GB", flush=True)
                next_report += 60
            time.sleep(_LOOK_EVERY)
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "no output")
        raise Failed(f"exit {process.returncode}: {last.strip()[:300]} (see {log})")
    everything = usage.ru_utime + usage.ru_stime
    return Spent(time.monotonic() - start, peak / GB, own, max(0.0, everything - own))


def memory_of(process: psutil.Process) -> int:
    """Return the memory of a process and its children in bytes, shared pages counted once."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += one.memory_full_info().pss
    return total


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a separate process, which frees its memory at the end."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, *arguments).result()
