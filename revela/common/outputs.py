"""Atomic outputs, each with a manifest that records how it was made; no others are replaced."""

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
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

LEDGER = ".revela"
"""In a folder, lists files that this package wrote, as `sha256sum` does; `*` claims all of it."""

STARTED = time.time()  # of this process
_UMASK = os.umask(0)
os.umask(_UMASK)
_INTERNAL = {LEDGER, f"{LEDGER}.lock", ".snakemake_timestamp"}
_TEMPORARY = re.compile(r"\..+\.\d+\.part")
_WRITE_ERRORS = {errno.EPERM, errno.EACCES, errno.EFBIG, errno.ENOSPC, errno.EROFS, errno.EDQUOT}


def check_ours(*paths: Path) -> None:
    """Check that files and folders may be replaced or removed, if they exist.

    Raises:
        RevelaError: one is or contains a file not written by this package, or changed since.
    """
    for path in paths:
        if _is_ours(path):
            continue
        for file in (path, *sorted(path.rglob("*"))):
            folder = file.is_dir() and not file.is_symlink()
            if os.path.lexists(file) and not folder and not _is_ours(file):
                advice = "move it away or give another output"
                raise RevelaError(f"{file}: not written by revela, or changed since; {advice}")


def _is_ours(path: Path) -> bool:
    """Return whether a path is in a claimed folder, or a file as it is listed in a ledger."""
    path = path.absolute()
    is_plain = path.is_file() and not path.is_symlink()
    for folder in (path, *path.parents):
        if folder.name in _INTERNAL or _TEMPORARY.fullmatch(folder.name):
            return True
        try:
            text = (folder / LEDGER).read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            continue
        lines = text.splitlines()
        digests = {line[:64] for line in lines if line[64:] == f"  {path.relative_to(folder)}"}
        if "*" in lines or (is_plain and digests and sha256(path) in digests):
            return True
    return False


def claim(folder: Path) -> None:
    """Make a folder in which everything is this package's own; errors as `check_ours`."""
    folder.mkdir(parents=True, exist_ok=True)
    if not _is_ours(folder):
        check_ours(folder)
        (folder / LEDGER).write_text("*\n", encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a file or folder that this package wrote; errors as `check_ours`."""
    check_ours(path)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(source: Path, path: Path) -> None:
    """Rename a file or folder of this package to `path`, removing what it wrote there before."""
    check_ours(path)
    if path.is_dir():
        remove(path)
    if not _is_ours(path.parent) and not (source / LEDGER).exists():
        folder = source if source.is_dir() else path.parent
        files = [file for file in (source, *source.rglob("*")) if file.is_file()]
        names = [path.name if file == source else file.relative_to(source) for file in files]
        lines = [f"{sha256(file)}  {name}\n" for file, name in zip(files, names, strict=True)]
        # Before the file is there: a kill must not leave one that seems foreign. If the ledger
        # cannot be written, as in another user's folder, the output will just not be replaced.
        with contextlib.suppress(OSError), (folder / LEDGER).open("ab") as stream:
            stream.write("".join(lines).encode(errors="surrogateescape"))
    os.replace(source, path)


@contextlib.contextmanager
def scratch(folder: Path, reused: str) -> Iterator[Path]:
    """Yield a folder, claimed, removed on success or if no file matches the pattern `reused`."""
    claim(folder)
    done = False
    try:
        yield folder
        done = True
    finally:
        with contextlib.suppress(OSError):  # over NFS, a file that is still open
            if done or not any(folder.glob(reused)):
                remove(folder)


@contextlib.contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` and rename it to `path` when the block succeeds.

    The block makes a file or a folder there. If it fails or is interrupted, nothing is left behind.

    Raises:
        RevelaError: `path` or its folder cannot be written; see also `check_ours`.
    """
    if path.name in {"", ".."}:
        raise RevelaError(f"cannot write {path}: a folder with this name exists")
    check_ours(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        remove(temporary)
    except OSError as error:
        raise RevelaError(f"cannot write {path}: {error.strerror}") from error
    try:
        for stale in path.parent.glob(f".{path.name}.[0-9]*.part"):
            if not Path("/proc", stale.suffixes[-2][1:]).exists():
                with contextlib.suppress(OSError):
                    remove(stale)  # left by a killed process
        yield temporary
        # safetensors makes its files readable by their owner only.
        for file in filter(Path.is_file, (temporary, *temporary.rglob("*"))):
            file.chmod(0o666 & ~_UMASK)
        if path.exists() and path.is_dir() != temporary.is_dir():
            kind = "folder" if path.is_dir() else "file"
            raise RevelaError(f"cannot write {path}: a {kind} with this name exists")
        replace(temporary, path)
    except OSError as error:
        # An unreadable input keeps its own message.
        is_output = error.filename is None or str(error.filename).startswith(str(path.parent))
        if is_output and could_not_write(error):
            raise RevelaError(f"cannot write {path}: {error.strerror}") from error
        raise
    finally:
        with contextlib.suppress(OSError):
            remove(temporary)


def could_not_write(error: BaseException | None) -> bool:
    """Return whether an error means a full disk or a folder without write permission."""
    if isinstance(error, OSError):
        return error.errno in _WRITE_ERRORS
    # safetensors and torch raise errors of their own, which give the reason in their text only.
    reasons = [os.strerror(number) for number in _WRITE_ERRORS]
    if isinstance(error, RuntimeError):  # torch's writer does not give the reason
        reasons += ["StreamWriter", "unexpected pos"]
    return any(reason.lower() in str(error).lower() for reason in reasons)


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
    """Read a JSON object, such as a manifest; an error if it is not one."""
    with reading(path, "a JSON object"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it starts with {json.dumps(content)[:20]}")
    return content


def write_manifest(
    output: Path, settings: Mapping[str, Any], inputs: list[Path], **facts: Any
) -> None:
    """Write the manifest of `output`: `manifest.json` in a folder, `.manifest.json` of a file."""
    beside = output.with_suffix(".manifest.json")
    path = output / "manifest.json" if output.is_dir() else beside
    write_json(path, manifest(output, settings, inputs, **facts))


def manifest(
    output: Path,
    settings: Mapping[str, Any],
    inputs: list[Path],
    started: float | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return how `output` was made, from a time on, by default the start of this process.

    The `inputs` are hashed; `facts` are those of the step itself (counts, device, …).
    """
    seconds = time.time() - (started or STARTED)
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return {
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
        **facts,
    }


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
