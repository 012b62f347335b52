"""The `revela` command: the subcommands of all folders, and errors in one line."""

import atexit
import codecs
import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import typer
from typer.exceptions import TyperException

from revela.common import outputs
from revela.common.errors import RevelaError
from revela.config.commands import app as config
from revela.evaluation.commands import app as evaluation
from revela.report.commands import app as report
from revela.retriever.commands import app as retriever
from revela.search.commands import app as search
from revela.start.commands import app as start
from revela.text.commands import app as text
from revela.training.commands import app as training

app = typer.Typer(
    help="Dense retriever learning via language modeling: raw text in, retriever out.",
    epilog="`revela settings CONFIG SECTION NAME` prints the JSON for --settings of a step.",
    pretty_exceptions_enable=False,
)
PANELS = {  # of `revela --help`, with what a user needs first
    "Start here": ["new", "check", "run", "status", "show", "report", "ranking", "clean"],
    "Use a retriever": ["index", "search", "serve", "export", "push"],
    "Steps that rules call, and tools for them": [],  # all others
}
_commands = {
    info.name or info.callback.__name__.replace("_", "-"): info
    for folder in (text, training, evaluation, report, start, config, search, retriever)
    for info in folder.registered_commands
    if info.callback
}
for panel, names in PANELS.items():
    for info in [_commands.pop(name) for name in names or [*_commands]]:
        info.rich_help_panel = panel
        app.registered_commands.append(info)


def main() -> None:
    """Run the command line; a `RevelaError` or a wrong option becomes one line and exit code 1."""
    codecs.register_error("revela", _escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="revela")
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except RevelaError as error:
        _fail(f"revela: error: {error}")
    except TyperException as error:
        _fail(f"revela: error: {error.format_message()}")
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            _fail(f"revela: error: {error.filename}: {error.strerror}")
        if outputs.could_not_write(error):
            _fail(f"revela: error: cannot write: {' '.join(str(error).split())}")
        raise
    if code == 128 + signal.SIGINT:  # typer has caught a Ctrl-C
        print("revela: interrupted", file=sys.stderr)
    leave(code)


def leave(code: int | str | None) -> NoReturn:
    """Exit like `sys.exit`, one of several processes without finalising Python.

    A thread of gloo that releases a tensor meanwhile would abort or block the process.
    """
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:
        sys.exit(code)
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Escape characters that a stream cannot encode as JSON does, so that printed JSON is valid."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _fail(message: str) -> NoReturn:
    """Exit with one line; with several processes, rank 0 prints its own, the launcher others'."""
    report = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if report:
        extra = {"timestamp": str(int(time.time())), "py_callstack": message}
        error = {"message": {"message": message, "extraInfo": extra}}
        Path(report).write_text(json.dumps(error), encoding="utf-8")
    leave(message if not report or os.environ.get("RANK") == "0" else 1)
