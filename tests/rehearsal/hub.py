"""A local hub: the part of the Hugging Face hub's HTTP interface that is needed to load from it.

It serves `models/<organisation>/<name>/…` and `datasets/<organisation>/<name>/…` of a folder, the
same files for every revision. With `HF_ENDPOINT` set to its address, huggingface_hub, transformers,
datasets and mteb load from it as from the real one. A repository with a file `.gated` is gated;
`.pulls/<number>/` contains the files added by a pull request. With a file `.breaks`, the connection
breaks off in the middle of the next file, once. Uploaded models are written below `models/`.
"""

import base64
import functools
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_API = re.compile(
    r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info|commits|discussions|preupload|commit)(?:/([^/]+)(.*))?)?"
)
_BLOCK = 1 << 20  # bytes of a file in memory
_FILE = re.compile(r"/(?:(datasets)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder of `models/` and `datasets/` within the block; yield the hub's address."""
    server = _Server(("127.0.0.1", 0), functools.partial(_Handler, folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def environment(address: str, cache: Path) -> dict[str, str]:
    """Return the environment of a process that has only this hub, and its own cache."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
    return kept | {
        "HF_ENDPOINT": address,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Refusal(Exception):
    """An error response to a request: status, the hub's error code, headers."""

    def __init__(self, status: HTTPStatus, code: str, **headers: str) -> None:
        self.status = status
        self.headers = {"X-Error-Code": code, "X-Error-Message": code} | headers


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: otherwise each answer waits for an acknowledgement

    def __init__(self, folder: Path, *args: Any) -> None:
        self.folder = folder
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer a GET or a HEAD."""
        self._answer_or_refuse(b"")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Answer a POST: which of these paths exist?"""
        self._answer_or_refuse(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer_or_refuse(self, body: bytes) -> None:
        url = urlsplit(self.path)
        try:
            if url.netloc:  # a request to a proxy, for another machine
                raise _Refusal(HTTPStatus.FORBIDDEN, "Offline")
            if url.path == "/api/repos/create":
                self._send_json({"url": _create(self.folder, self.headers, json.loads(body))})
            elif url.path == "/api/validate-yaml":
                self._send_json({"errors": [], "warnings": []})
            elif match := _API.fullmatch(url.path):
                kind, name, question, revision, rest = map(unquote, match.groups(""))
                repository = self._repository(kind, name)
                if question == "tree":
                    recursive = "recursive=true" in url.query.lower()
                    answer = _tree(repository, rest.strip("/"), recursive)
                elif question == "paths-info":
                    wanted = parse_qs(body.decode())["paths"]
                    answer = [_entry(repository, p) for p in wanted if (repository / p).exists()]
                elif question == "preupload":
                    answer = {"files": [_as_it_is(file) for file in json.loads(body)["files"]]}
                elif question == "commit":
                    commit = _write(repository, body, _commit(name, revision))
                    address = f"http://{self.headers['Host']}/{name}/commit/{commit}"
                    answer = {"commitUrl": address, "commitOid": commit}
                elif question == "commits":
                    answer = _commits(name, revision)
                elif question == "discussions":
                    answer = _pull_requests(repository, name, kind.removesuffix("s"))
                else:
                    answer = _info(repository, name, revision)
                self._send_json(answer)
            elif match := _FILE.fullmatch(url.path):
                kind, name, revision, file = map(unquote, match.groups(""))
                self._send_file(self._repository(kind or "models", name), name, revision, file)
            else:
                raise _Refusal(HTTPStatus.NOT_FOUND, "NotFound")
        except _Refusal as refusal:
            self._send(refusal.status, b"", refusal.headers)

    def _repository(self, kind: str, name: str) -> Path:
        repository = self.folder / kind / name
        if not repository.is_dir():
            raise _Refusal(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
        if (repository / ".gated").exists():
            known = "Authorization" in self.headers
            raise _Refusal(HTTPStatus.FORBIDDEN if known else HTTPStatus.UNAUTHORIZED, "GatedRepo")
        return repository

    def _send_file(self, repository: Path, name: str, revision: str, file: str) -> None:
        path, commit = _place(repository, name, revision, file), _commit(name, revision)
        if not path.is_file() or not path.is_relative_to(repository.resolve()):
            missing = {"X-Repo-Commit": commit}
            raise _Refusal(HTTPStatus.NOT_FOUND, "EntryNotFound", **missing)
        size, status = path.stat().st_size, HTTPStatus.OK
        first, last = 0, size - 1
        headers = {
            "ETag": f'"{_blob(path)}"',
            "X-Repo-Commit": commit,
            "X-Linked-Size": str(size),
            "Accept-Ranges": "bytes",
        }
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(asked[1]), min(int(asked[2] or last), last)
            if first >= size:
                wrong = {"Content-Range": f"bytes */{size}"}
                raise _Refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "Range", **wrong)
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
            status = HTTPStatus.PARTIAL_CONTENT
        self._send_head(status, headers, last + 1 - first)
        if self.command != "HEAD":
            if (breaks := repository / ".breaks").exists() and not file.endswith(".md"):
                breaks.unlink()
                last = (first + last) // 2
                self.close_connection = True
            with path.open("rb") as file:
                file.seek(first)
                for start in range(first, last + 1, _BLOCK):
                    self.wfile.write(file.read(min(_BLOCK, last + 1 - start)))

    def _send_json(self, answer: Any) -> None:
        content = json.dumps(answer).encode()
        self._send(HTTPStatus.OK, content, {"Content-Type": "application/json"})

    def _send(self, status: HTTPStatus, content: bytes, headers: dict[str, str]) -> None:
        self._send_head(status, headers, len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_head(self, status: HTTPStatus, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def _commit(name: str, revision: str) -> str:
    """Return the commit of a revision: the revision itself if it is a commit."""
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    return hashlib.sha1(f"{name}@{revision or 'main'}".encode()).hexdigest()


def _place(repository: Path, name: str, revision: str, file: str) -> Path:
    """Return the path of a file, which may be in the pull request of a revision."""
    for pull in repository.glob(".pulls/*"):
        reference = f"refs/pr/{pull.name}"
        if revision in (reference, _commit(name, reference)) and (pull / file).is_file():
            return (pull / file).resolve()
    return (repository / file).resolve()


def _create(folder: Path, headers: Any, asked: dict[str, Any]) -> str:
    """Create a repository for a model if a token was sent, and return its address."""
    if headers.get("Authorization") != "Bearer hf_right":
        raise _Refusal(HTTPStatus.UNAUTHORIZED, "Unauthorized")
    name = f"{asked['organization']}/{asked['name']}"
    (folder / "models" / name).mkdir(parents=True, exist_ok=True)
    return f"http://{headers['Host']}/{name}"


def _as_it_is(file: dict[str, Any]) -> dict[str, Any]:
    """Request a file in the commit itself, not in the storage for large files."""
    return {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}


def _write(repository: Path, body: bytes, commit: str) -> str:
    """Write the files of a commit, given as one JSON line each, and return the commit."""
    for line in map(json.loads, body.splitlines()):
        if line["key"] == "file":
            path = repository / line["value"]["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(line["value"]["content"]))
        elif line["key"] == "deletedFile":
            (repository / line["value"]["path"]).unlink()
    return commit


def _pull_requests(repository: Path, name: str, kind: str) -> dict[str, Any]:
    """Return the pull requests, all of them by the hub's bot that converts weights."""
    requests = [
        {
            "num": int(pull.name),
            "title": "Adding `safetensors` variant of this model",
            "author": {"name": "SFconvertbot"},
            "createdAt": "2023-01-01T00:00:00.000Z",
            "status": "open",
            "isPullRequest": True,
            "repo": {"name": name, "type": kind},
        }
        for pull in sorted(repository.glob(".pulls/*"))
    ]
    return {"discussions": requests, "count": len(requests), "start": 0}


def _commits(name: str, revision: str) -> list[dict[str, Any]]:
    """Return the last commits of a revision: a pull request's follows the main branch's."""
    revisions = [revision, "main"] if revision.startswith("refs/pr/") else [revision]
    rest = {"title": "", "message": "", "authors": [], "date": "2023-01-01T00:00:00.000Z"}
    return [{"id": _commit(name, one), **rest} for one in revisions]


def _info(repository: Path, name: str, revision: str) -> dict[str, Any]:
    files = [
        {"rfilename": entry["path"], "size": entry["size"]}
        for entry in _tree(repository, "", recursive=True)
        if entry["type"] == "file"
    ]
    never = dict.fromkeys(("private", "gated", "disabled"), False)
    rest = {"downloads": 0, "likes": 0, "tags": [], "siblings": files} | never
    return {"id": name, "sha": _commit(name, revision)} | rest


def _tree(repository: Path, below: str, recursive: bool) -> list[dict[str, Any]]:
    folder = repository / below
    if not folder.is_dir():
        raise _Refusal(HTTPStatus.NOT_FOUND, "EntryNotFound")
    found = folder.rglob("*") if recursive else folder.iterdir()
    files = [str(path.relative_to(repository)) for path in sorted(found)]
    return [_entry(repository, file) for file in files if not file.startswith(".")]


def _entry(repository: Path, file: str) -> dict[str, Any]:
    path = repository / file
    if path.is_dir():
        return {"type": "directory", "path": file, "oid": "0" * 40, "size": 0}
    return {"type": "file", "path": file, "oid": _blob(path), "size": path.stat().st_size}


@functools.cache
def _blob(path: Path) -> str:
    """Return the hash by which clients identify contents; the files do not change."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest()
