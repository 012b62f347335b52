"""Atomic outputs, each with a manifest that records how it was made."""

import contextlib
import errno
import hashlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import revela
from revela.common.errors import RevelaError, reading

STARTED = time.time()  # of this process
_UMASK = os.umask(0)
os.umask(_UMASK)
_WRITE_ERRORS = {errno.EPERM, errno.EACCES, errno.EFBIG, errno.ENOSPC, errno.EROFS, errno.EDQUOT}


@contextlib.contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` and rename it to `path` when the block succeeds.

    The block may create a file or a folder under the temporary name. If it fails or is interrupted,
    nothing is left behind.

    Raises:
        RevelaError: the folder cannot be written, or the disk is full.
    """
    if path.name in {"", ".."}:
        raise RevelaError(f"cannot write {path}: a folder with this name exists")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise RevelaError(f"cannot write {path}: {error.strerror}") from error
    try:
        for stale in path.parent.glob(f".{path.name}.[0-9]*.part"):
            if not Path("/proc", stale.suffixes[-2][1:]).exists():
                _remove(stale)  # left by a killed process
        yield temporary
        # safetensors makes its files readable by their owner only.
        for file in (temporary, *temporary.rglob("*")):
            if file.is_file():
                file.chmod(0o666 & ~_UMASK)
        if path.exists() and path.is_dir() != temporary.is_dir():
            kind = "folder" if path.is_dir() else "file"
            raise RevelaError(f"cannot write {path}: a {kind} with this name exists")
        replace(temporary, path)
    except OSError as error:
        # Only errors of this output: an unreadable input keeps its own message.
        own = error.filename is None or str(error.filename).startswith(str(path.parent))
        if own and could_not_write(error):
            raise RevelaError(f"cannot write {path}: {error.strerror}") from error
        raise
    finally:
        _remove(temporary)


def replace(source: Path, path: Path) -> None:
    """Rename a file or folder to `path`, replacing whatever exists there."""
    if path.is_dir():
        shutil.rmtree(path)
    os.replace(source, path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def could_not_write(error: BaseException | None) -> bool:
    """Return whether an error means a full disk or a folder without write permission.

    safetensors and torch raise errors of their own, which give the reason in their text only.
    """
    if isinstance(error, OSError):
        return error.errno in _WRITE_ERRORS
    text = str(error).lower()
    reasons = [os.strerror(number).lower() for number in _WRITE_ERRORS]
    if isinstance(error, RuntimeError):  # torch's writer does not give the reason
        reasons += ["streamwriter", "unexpected pos"]
    return any(reason in text for reason in reasons)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    with atomic_output(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON to `path` atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's safetensors and JSON files in name order."""
    digest = hashlib.sha256()
    files = [path]
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix in {".safetensors", ".json"})
        files = [f for f in files if f.name != "manifest.json"]
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, such as a manifest.

    Raises:
        RevelaError: it cannot be read, or is not a JSON object.
    """
    with reading(path, "a JSON object"):
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"it starts with {json.dumps(found)[:20]}")
    return found


def write_manifest(
    output: Path, settings: Mapping[str, Any], inputs: list[Path], **facts: Any
) -> None:
    """Record how `output` was made, in `manifest.json` of a folder or `.manifest.json` of a file.

    Args:
        output: the finished file or folder.
        settings: the settings that the step was given.
        inputs: files and folders that the step read; each is hashed.
        facts: recorded by the step itself (counts, device, tokens per second, …).
    """
    seconds = time.time() - STARTED
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    manifest = {
        "output": str(output),
        "settings": dict(settings),
        "inputs": {str(path): sha256(path) for path in inputs},
        "revela": revela.__version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "versions": _versions(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "peak_memory_gb": round(memory_gb, 3),
        **_gpu_facts(seconds),
    }
    folder = output.is_dir()
    path = output / "manifest.json" if folder else output.with_suffix(".manifest.json")
    write_json(path, manifest | facts)


def _gpu_facts(seconds: float) -> dict[str, Any]:
    """Return the cost of this process's GPUs: all visible ones if it used any, else none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {"gpus": 0, "gpu_hours": 0.0}
    count = torch.cuda.device_count()
    peak = max(torch.cuda.max_memory_allocated(n) for n in range(count))
    return {
        "gpus": count,
        "gpu": torch.cuda.get_device_name(),
        "gpu_hours": round(count * seconds / 3600, 4),
        "peak_gpu_memory_gb": round(peak / 1024**3, 3),
    }


def _git_commit() -> str | None:
    """Return the commit of the source tree, with `-dirty` appended if it has changes."""
    tracked = ["ls-files", "--error-unmatch", __file__]  # fails in another project's environment
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    here: dict[str, Any] = {"cwd": Path(__file__).parent, "stderr": subprocess.DEVNULL}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        for command in (tracked, describe):
            answer = subprocess.check_output(["git", *command], text=True, timeout=10, **here)
        return answer.strip()
    return None


def _versions() -> dict[str, str]:
    """Return the versions of the loaded libraries that affect results."""
    names = ["torch", "transformers", "peft", "datasets", "nltk", "numpy"]
    names += ["mteb", "bm25s", "lm_eval"]
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    return {name: str(version) for name, version in loaded.items() if version}
