"""Bad input of every kind gives one line with the problem and its location; nothing is written.

`bad_input/project.yaml` is a small valid project, `bad_input/cases.yaml` a table of changes to it,
each with how the line that it gives begins.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
import yaml
from safetensors.torch import load_file, save_file

from revela.cli import app, main
from revela.common.outputs import sha256
from revela.config import load_config
from tests.conftest import TEXTS, make_encoder, write_choices

HERE = Path(__file__).parent / "bad_input"
DELETE = object()
yaml.SafeLoader.add_constructor("!delete", lambda *_: DELETE)
PROJECT = yaml.safe_load((HERE / "project.yaml").read_text())
TABLE = yaml.safe_load((HERE / "cases.yaml").read_text())
MADE = {"chunk rows": "chunks", "batch": "batches", "pair": "pairs", "index": "index"}


def token(number: int) -> str:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return '"added_tokens": [' + json.dumps({"id": number, "content": "parser", **flags}) + ","


def zeros(path: Path, _: None) -> None:
    weights = {name: torch.zeros_like(weight) for name, weight in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})


# Changes other than a new text of a file.
CHANGES: dict[str, Callable[[Path, Any], Any]] = {
    "copy": lambda path, name: shutil.copy(name, path),
    "set": lambda path, new: path.write_text(json.dumps(json.loads(path.read_text()) | new)),
    "token": lambda path, number: path.write_text(
        path.read_text().replace('"added_tokens": [', token(number), 1)
    ),
    "zeros": zeros,
    "rows": lambda path, rows: pq.write_table(pa.Table.from_pylist(rows), path),
    "rename": lambda path, names: (path / names[0]).rename(path / names[1]),
    "without": lambda path, pattern: [file.unlink() for file in path.glob(pattern)],
}


def cases() -> list[Any]:
    """Return (change, command, line), a change being the name of a file or key and its value."""
    rows: list[Any] = [("mine.yaml", text, "check", line) for text, line in TABLE["yaml"]]
    for kind, sign in (("config", "mine.yaml:"), ("files", ""), ("environment", "$")):
        for command, changes in TABLE[kind].items():
            rows += [(sign + name, value, command, line) for name, value, line in changes]
    rows += [("", None, command, line) for command, line in TABLE["calls"]]
    return [pytest.param(*row, id=f"{row[2]} {row[0]}") for row in rows]


def call(command: str, monkeypatch: pytest.MonkeyPatch) -> str | int | None:
    """Run a command in this process; return its exit value."""

    def settings(found: re.Match[str]) -> str:
        section, name = found[1].split("/")
        return shlex.quote(load_config(Path("mine.yaml")).resolved(section, name).dump())

    words = shlex.split(re.sub(r"@(\S+/\S+)", settings, command))
    monkeypatch.setattr("sys.argv", ["revela", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


@pytest.fixture(scope="module")
def project(tmp_path_factory, backbone) -> Path:
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(backbone, folder / "model")
    pq.write_table(pa.table({"text": TEXTS}), folder / "rows.parquet")
    write_choices(folder / "choices", "choice", [{"question": "a", "choices": ["b"], "answer": 0}])
    shutil.copytree(HERE.parents[1] / "data/paper", folder / "known")
    for name, text in PROJECT["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    rows = [{"id": f"r{n}", "text": f"{TEXTS[n % 5]} Note {n}."} for n in range(10)]
    documents = [{"_id": f"d{n}", "text": text} for n, text in enumerate(TEXTS)]
    for file, lines in (("rows.jsonl", rows), ("collections/task/corpus.jsonl", documents)):
        (folder / file).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "mine.yaml").write_text(yaml.safe_dump(PROJECT["config"], sort_keys=False))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        shutil.copytree("model", "retriever")
        make_encoder(Path("retriever"))
        for name, output in MADE.items():
            command = PROJECT["commands"][name].replace(" out", f" {output}")
            assert call(command, monkeypatch) is None
    return folder


@pytest.fixture
def copied(project, tmp_path, monkeypatch) -> Path:
    shutil.copytree(project, tmp_path / "p")
    monkeypatch.chdir(tmp_path / "p")
    return tmp_path / "p"


def change(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, key = Path(name.partition(":")[0]), name.partition(":")[2]
    if name.startswith("$"):
        monkeypatch.setenv(name[1:], value)
    elif key:
        config = json.loads(json.dumps(PROJECT["config"]))
        *parents, last = key.split(".")
        entry = config
        for parent in parents:
            entry = entry[int(parent)] if isinstance(entry, list) else entry[parent]
        entry[last] = value
        if value is DELETE:
            del entry[last]
        path.write_text(yaml.safe_dump(config, sort_keys=False))
    elif isinstance(value, dict):
        ((how, argument),) = value.items()
        CHANGES[how](path, argument)
    elif name:
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if value is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value.encode("utf-8", "surrogateescape"))


def there() -> dict[str, int]:
    """Return all files and folders, with their sizes."""
    return {str(path): path.stat().st_size for path in Path().rglob("*")}


@pytest.mark.parametrize("name", [n for n in PROJECT["commands"] if n not in MADE])
def test_all_is_well_without_a_change(copied, monkeypatch, name):
    assert call(PROJECT["commands"][name], monkeypatch) is None


@pytest.mark.parametrize(("name", "value", "command", "line"), cases())
def test_one_line_and_nothing_half_written(copied, monkeypatch, name, value, command, line):
    change(name, value, monkeypatch)
    before = there()
    message = str(call(PROJECT["commands"].get(command, command), monkeypatch))
    assert re.match(".*".join(map(re.escape, f"revela: error: {line}".split("…"))), message)
    assert "\n" not in message
    assert there() == before


# A call of each command; of these, one that ends early, as a path is the matter here.
LINES = {line.split()[0]: line for line in PROJECT["commands"].values()} | {
    "clean": "clean old --results results",
    "collection": "collection docstring-to-function --settings @tasks/docstring-to-function "
    "--output out",
    "download": """download --settings '{"dataset": "no/where"}' --output out""",
    "new": "new rows.jsonl --output out.yaml",
    "push": "push model some/model --dry-run",
    "report": "report mine.yaml",
    "run": "run mine.yaml",
    "serve": "serve nowhere",
}
COMMANDS = typer.main.get_command(app).commands


def with_paths(line: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield each option or argument of a command that is a path, and the call with `path` there."""
    name, *words = shlex.split(line)
    known = {key: option for option in COMMANDS[name].params for key in option.opts}
    arguments = [key for key, its in known.items() if its.param_type_name == "argument"]
    places, position = {}, 0
    while position < len(words):
        option = known[words[position]] if words[position].startswith("--") else None
        places[words[position] if option else arguments.pop(0)] = position + bool(option)
        position += 2 if option and not option.is_flag else 1
    for key, option in known.items():
        if "Path" in str(option.type_descriptor.annotation):
            changed = [*words] if key in places else [*words, key, ""]
            changed[places.get(key, -1)] = path
            yield key, shlex.join([name, *changed])


@pytest.mark.parametrize("name", COMMANDS)
def test_no_file_of_the_user_is_removed_or_replaced(copied, monkeypatch, name):
    """Of any command, wherever a path may be given: a folder with other files, or a file."""
    Path("mine/task").mkdir(parents=True)
    Path("mine/notes.txt").write_text("precious")
    Path("mine/task/notes.txt").write_text("precious")
    before = {path: sha256(path) for path in Path().rglob("[!.]*") if path.is_file()}
    for path in ("mine", ".", "mine/notes.txt"):
        for option, line in with_paths(LINES[name], path):
            message = call(line, monkeypatch)
            after = {path: sha256(path) for path in before if path.is_file()}
            assert after == before, (option, path)
            assert message is None or "\n" not in str(message), (option, path)
