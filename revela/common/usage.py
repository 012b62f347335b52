"""Energy drawn by this process, and the cost of a training over all its starts.

A training writes one file per segment, from a start until it ends or is killed (`Meter`),
so that work repeated after a restart counts too. Imports nothing heavy.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

SEGMENTS = "segments"  # folder of a training's segments, beside its checkpoints


def energy_joules() -> float | None:
    """Return the energy in joules drawn by this process's GPUs since the driver was loaded.

    None without a GPU, without the package nvidia-ml-py, or if the driver does not measure energy.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = range(pynvml.nvmlDeviceGetCount()) if visible is None else visible.split(",")
        joules = []
        for name in filter(None, map(str, names)):
            if name.isdigit():
                gpu = pynvml.nvmlDeviceGetHandleByIndex(int(name))
            else:
                gpu = pynvml.nvmlDeviceGetHandleByUUID(name)
            joules.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000)
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    return sum(joules) if joules else None


def joules_between(before: float | None, now: float | None) -> float | None:
    """Return the difference of two readings; None if one is missing or the counter was reset."""
    return now - before if before is not None and now is not None and now >= before else None


def kilowatt_hours(joules: float | None) -> float | None:
    """Return joules as kilowatt-hours."""
    return None if joules is None else round(joules / 3.6e6, 4)


def read_segments(work: Path) -> list[dict[str, Any]]:
    """Return the segments of a training, oldest first; unreadable ones are skipped."""
    segments = []
    for path in work.glob(f"{SEGMENTS}/*.json"):
        with contextlib.suppress(OSError, ValueError):
            segments.append(json.loads(path.read_text(encoding="utf-8")))
    return sorted(segments, key=lambda segment: segment["started"])


def spent(work: Path) -> dict[str, Any]:
    """Return the cost of a training so far, over all its starts, for its manifest.

    Returns:
        starts, hours (wall-clock time while it ran), GPUs of the last start, GPU-hours,
        kilowatt-hours (None unless every segment has them), peak GPU memory in GB.
    """
    segments = read_segments(work)
    starts: list[tuple[float, float]] = []
    for segment in segments:  # the nodes of one start run concurrently
        if starts and segment["started"] < starts[-1][1]:
            starts[-1] = (starts[-1][0], max(starts[-1][1], segment["seen"]))
        else:
            starts.append((segment["started"], segment["seen"]))
    last = [segment for segment in segments if starts and segment["started"] >= starts[-1][0]]
    joules = [segment["joules"] for segment in segments]
    peaks = [segment["peak_gpu_memory_gb"] for segment in segments if segment["peak_gpu_memory_gb"]]
    gpu_seconds = sum((one["seen"] - one["started"]) * one["gpus"] for one in segments)
    known = bool(joules) and None not in joules
    return {
        "starts": len(starts),
        "hours": round(sum(end - start for start, end in starts) / 3600, 4),
        "gpus": sum(segment["gpus"] for segment in last),
        "gpu": last[-1]["gpu"] if last else None,
        "gpu_hours": round(gpu_seconds / 3600, 4),
        "kilowatt_hours": kilowatt_hours(sum(joules)) if known else None,
        "peak_gpu_memory_gb": max(peaks, default=None),
    }
