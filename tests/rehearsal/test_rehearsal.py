"""The rehearsal's means: the miniature config, the warm start."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from revela.config.file import parse_config
from tests.rehearsal import models, warm
from tests.rehearsal.miniature import write_miniature

ROOT = Path(__file__).parents[2]


def names(config: dict) -> dict:
    return {section: list(entries) for section, entries in config.items()}


def test_the_miniature_has_every_entry_of_the_paper(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    write_miniature(ROOT / "config.yaml", tmp_path / "config.yaml")
    small = yaml.safe_load((tmp_path / "config.yaml").read_text())
    large = yaml.safe_load((ROOT / "config.yaml").read_text())
    assert names(small) == names(large)
    for section in ("models", "benchmarks", "tables", "listings"):
        assert small[section] == large[section]
    config = parse_config(small, "miniature")
    for experiment in config.experiments.values():
        assert experiment.lora is None or experiment.lora.rank <= 8
        assert experiment.max_length <= 64
    counts = [corpus.max_documents for corpus in config.corpora.values()]
    assert all(count is None or count < 1000 for count in counts)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A `python` that hands `-m revela` to an interpreter that is running (without libraries)."""
    folder = tmp_path_factory.mktemp("warm")
    warm.write_client(folder / "bin", folder / "socket")
    code = (
        "from pathlib import Path; from tests.rehearsal import warm; "
        f"warm.LIBRARIES.clear(); warm.serve(Path({str(folder / 'socket')!r}))"
    )
    server = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while not (folder / "socket").exists():
        assert server.poll() is None
        time.sleep(0.02)
    yield str(folder / "bin" / "python")
    server.terminate()
    server.wait()


def call(python: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [python, *arguments], capture_output=True, text=True, timeout=60, env=environment, **options
    )


def test_a_warm_call_is_as_a_cold_one(python, tmp_path):
    (tmp_path / "fine.yaml").write_text("corpora: {a: {source: files, path: a}}")
    for arguments in (["check", "fine.yaml"], ["check", "none.yaml"], ["check"], ["--help"]):
        command = ["-m", "revela", *arguments]
        cold = call(sys.executable, *command, cwd=tmp_path)
        hot = call(python, *command, cwd=tmp_path)
        assert (hot.returncode, hot.stdout, hot.stderr) == (
            cold.returncode,
            cold.stdout,
            cold.stderr,
        )
    assert call(python, "-c", "print(6 * 7)").stdout == "42\n"
    assert call(python, "-m", "revela", "check", "/dev/stdin", input="{}").returncode == 0


def test_a_signal_to_the_client_ends_the_command(python, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(
            [python, "-m", "revela", "check", str(tmp_path / "pipe")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        with (tmp_path / "pipe").open("w"):  # waits until the command reads from it
            process.send_signal(number)
            told, _ = process.communicate(timeout=120)  # waits until its output is closed
        assert "fine" not in told
        assert process.returncode in (-number, 128 + number)


@pytest.mark.parametrize("name", ["trumancai/Revela-1b", "intfloat/e5-mistral-7b-instruct"])
def test_miniature_decoders_begin_texts_as_the_real_ones(name, tmp_path):
    import transformers

    models.write_model(tmp_path, name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("some text")["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] != tokenizer.eos_token_id
    if name.startswith("trumancai"):
        adapter = json.loads((tmp_path / "adapter_config.json").read_text())
        assert adapter["base_model_name_or_path"] == "meta-llama/Llama-3.2-1B"
        assert (tmp_path / "adapter_model.safetensors").exists()


def test_a_model_of_unknown_family_is_named(tmp_path):
    with pytest.raises(KeyError, match="some/thing"):
        models.write_model(tmp_path, "some/thing")
