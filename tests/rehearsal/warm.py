"""A warm start: one interpreter that has imported the libraries forks for each command.

`python -m revela …` takes seconds to import its libraries. Here a process imports them once (but
none of the project's own modules) and listens on a socket; a client with the command line of
`python` sends its standard streams, folder, arguments and environment, and a fork runs the module
like `python -m`.
"""

import ast
import atexit
import contextlib
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

LIBRARIES = [
    "accelerate",
    "bm25s",
    "datasets",
    "matplotlib.pyplot",
    "mteb",
    "nltk",
    "pandas",
    "peft",
    "pyarrow.parquet",
    "pydantic",
    "rich",
    "sentence_transformers",
    "torch",
    "transformers.trainer",
    "typer",
]
MODULE = "revela"

_CLIENT = """\
#!{interpreter} -IS
import os, signal, socket, sys

if sys.argv[1:3] != ["-m", {module!r}]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
# repr, not json: importing it would take as long as all the rest.
call = repr((os.getcwd(), sys.argv[3:], dict(os.environ))).encode("utf-8", "surrogateescape")
socket.send_fds(connection, [len(call).to_bytes(8, "big")], [0, 1, 2])
connection.sendall(call)
child = int.from_bytes(connection.recv(8), "big")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(child, number))
status = connection.recv(1)
sys.exit(status[0] if status else 1)
"""


def write_client(folder: Path, address: Path) -> None:
    """Write an executable `python` that runs the module in a fork, and anything else as usual."""
    folder.mkdir(parents=True, exist_ok=True)
    client = folder / "python"
    client.write_text(
        _CLIENT.format(
            # The base interpreter: the path of an environment may have spaces.
            interpreter=Path(sys.executable).resolve(),
            python=sys.executable,
            module=MODULE,
            address=str(address.absolute()),
        )
    )
    client.chmod(0o755)


def serve(address: Path) -> None:
    """Answer clients at a socket until the process is ended."""
    # Background processes of a shell ignore Ctrl-C; the forks must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for library in LIBRARIES:
        __import__(library)
    listener = socket.socket(socket.AF_UNIX)
    starting = f"{address}.new"
    listener.bind(starting)
    listener.listen(64)
    os.rename(starting, address)  # a socket at this path is listening
    watched = selectors.DefaultSelector()
    watched.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if watched.get_map().get(key.fd) is not key:
                continue  # closed by an earlier event
            if key.fileobj is listener:
                connection, _ = listener.accept()
                own = [watched.fileno(), connection.fileno(), *watched.get_map()]
                try:
                    child = _fork(connection, own)
                except ConnectionError:
                    connection.close()
                    continue
                ended = os.pidfd_open(child)
                watched.register(ended, selectors.EVENT_READ, (child, connection))
                watched.register(connection, selectors.EVENT_READ, (child, ended))
                _tell(connection, child.to_bytes(8, "big"))
            elif isinstance(key.fileobj, socket.socket):  # the client was killed
                watched.unregister(key.fileobj)
                os.kill(key.data[0], signal.SIGKILL)
            else:
                child, connection = key.data
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                watched.unregister(key.fd)
                os.close(key.fd)
                if connection in watched.get_map():
                    watched.unregister(connection)
                    _tell(connection, bytes([code if code >= 0 else 128 - code]))
                connection.close()


def _tell(connection: socket.socket, message: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # a client may be killed at any time
        connection.sendall(message)


def _fork(connection: socket.socket, own: list[int]) -> int:
    """Start a child that runs a client's command; return its process id.

    Args:
        connection: the client's.
        own: file descriptors of the server, closed in the child.

    Raises:
        ConnectionError: the client disconnected before it sent a command.
    """
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    size, call = int.from_bytes(head, "big"), b""
    while part := connection.recv(size - len(call)) if len(call) < size else b"":
        call += part
    if not head or len(call) < size:
        raise ConnectionAbortedError
    child = os.fork()
    if child:
        for stream in streams:
            os.close(stream)
        return child
    code = 1
    try:
        for descriptor in own:
            os.close(descriptor)
        _take_over(streams, *ast.literal_eval(call.decode("utf-8", "surrogateescape")))
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        _finish()
        os._exit(code)


def _take_over(
    streams: list[int], folder: str, arguments: list[str], environment: dict[str, str]
) -> None:
    """Adopt the client's streams, folder, arguments and environment."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [MODULE, *arguments]
    sys.path[:0] = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    # Forks would draw the same "random" file names in a shared cache.
    random.seed()
    if fingerprint := sys.modules.get("datasets.fingerprint"):
        fingerprint.fingerprint_rng.seed()
    if threads := environment.get("OMP_NUM_THREADS"):  # read by the libraries when they are loaded
        import torch

        torch.set_num_threads(int(threads))


def _finish() -> None:
    """Do what an interpreter does at exit."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
