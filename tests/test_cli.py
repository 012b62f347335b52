"""How the `revela` command ends."""

import os
import subprocess
import sys

import pytest


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
