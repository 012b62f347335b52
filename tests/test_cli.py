"""How the `revela` command ends."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import revela

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("launched", [True, False])
def test_a_launched_process_exits_as_any_other_but_without_finalising_python(tmp_path, launched):
    code = """
import atexit
from revela.cli import leave
class Finalised:
    def __del__(self): print("finalised")
kept = Finalised()
atexit.register(print, "at exit")
print("printed", end=" ")
leave("the reason")
"""
    extra = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")} if launched else {}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | extra
    )
    expected = "printed at exit\n" + ("" if launched else "finalised\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, expected, "the reason\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["check", str(ROOT / "config.yaml")],
            "coir.csv: No such file",
        ),  # relative to the current folder
        (["chek"], "No such command 'chek'. Did you mean 'check'"),
    ],
)
def test_errors_are_one_line_and_exit_with_one(tmp_path, arguments, message):
    result = revela(*arguments, cwd=tmp_path)
    assert result.returncode == 1
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", r"\u00e9\u2013"), ("latin-1", r"é\u2013"), ("utf-8", "é–")],
)
def test_output_that_a_terminal_cannot_show_is_escaped(encoding, shown):
    printed = "é – 世界 🌍 \udce9"
    code = f"""
import json
from revela.cli import app, main
app.command("x")(lambda: print(json.dumps({printed!r}, ensure_ascii=False)))
main()
"""
    options = {"env": os.environ | {"PYTHONIOENCODING": encoding}, "encoding": encoding}
    command = [sys.executable, "-c", code, "x"]
    assert json.loads(subprocess.check_output(command, **options)) == printed
    wrong = revela("check", "é–.yaml", **options)
    assert wrong.stderr == f"revela: error: {shown}.yaml: No such file or directory\n"
    assert revela("--help", **options).returncode == 0


def test_every_command_has_help():
    shown = revela("--help").stdout
    panels = [re.findall(r"^│ ([a-z][a-z-]+) ", one, re.MULTILINE) for one in shown.split("╭─")]
    assert [panel[:3] for panel in panels[2:]] == [
        ["new", "check", "run"],
        ["index", "search", "serve"],
        ["chunk", "batch", "export-batches"],
    ]
    commands = [command for panel in panels for command in panel]
    assert {"pair", "train", "evaluate", "table", "figure", "schema"} <= {*commands}
    for command in commands:
        result = revela(command, "--help")
        assert result.returncode == 0
        assert "Usage" in result.stdout
