"""How the `revela` command ends."""

import json
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from revela.cli import app
from tests.conftest import revela


def test_an_error_is_one_line_and_exits_with_one(tmp_path):
    result = revela("check", "none.yaml", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == "revela: error: none.yaml: No such file or directory\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", r"\u00e9\u2013"), ("latin-1", r"é\u2013"), ("utf-8", "é–")]
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
    for name in typer.main.get_command(app).commands:
        result = CliRunner().invoke(app, [name, "--help"])
        assert "Usage" in result.stdout, result.output
