"""How the `revela` command ends."""

import itertools
import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from revela.cli import app
from tests.conftest import revela


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


def test_an_error_is_one_line_and_exits_with_one(tmp_path):
    result = revela("check", "none.yaml", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == "revela: error: none.yaml: No such file or directory\n"
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


def test_every_command_has_help():
    def shown(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--help"])
        assert result.exit_code == 0
        return result.stdout

    panels = shown().split("╭─")
    commands = [re.findall(r"^│ ([a-z][a-z-]+) ", panel, re.MULTILINE) for panel in panels[2:]]
    assert [panel[:3] for panel in commands] == [
        ["new", "check", "run"],
        ["index", "search", "serve"],
        ["chunk", "batch", "export-batches"],
    ]
    for command in itertools.chain(*commands):
        assert "Usage" in shown(command)
