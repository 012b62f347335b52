"""The tools of the rehearsal: the miniature config, the warm start."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

from revela.config import load_config, parse_config
from tests.rehearsal import models, warm
from tests.rehearsal.miniature import DATA, STEP, write_miniature

ROOT = Path(__file__).parents[2]


def names(config: dict) -> dict:
    return {section: list(entries) for section, entries in config.items()}


def miniature():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        write_miniature(ROOT / "config.yaml", path)
        return load_config(path)


@pytest.fixture(autouse=True)
def _root(monkeypatch):
    monkeypatch.chdir(ROOT)  # paths in configs are relative to it


def test_the_miniature_has_every_entry_of_the_paper(tmp_path):
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
    assert config.corpora["wikipedia"].max_documents.first == 40


def test_the_miniature_keeps_the_ratios_of_the_paper():
    """An entry that requests more than its corpus has must fail in the miniature too."""
    config, small = load_config(ROOT / "config.yaml"), miniature()

    def size(count):
        return getattr(count, "first", count)

    wanted = [
        (size(entry.num_batches), size(small.batches[name].num_batches))
        for name, entry in config.batches.items()
        if entry.num_batches
    ]
    wanted += [
        (size(entry.max_documents), size(small.corpora[name].max_documents))
        for name, entry in config.corpora.items()
        if entry.max_documents
    ]
    wanted += [
        (pairs.num_pairs, small.pairs[name].num_pairs) for name, pairs in config.pairs.items()
    ]
    assert len(wanted) > 6
    for large, cut in wanted:
        assert cut == round(large / DATA)
    for name, experiment in config.experiments.items():
        cut = small.experiments[name]
        assert cut.batches_per_step == experiment.batches_per_step // STEP
        if experiment.steps:
            assert cut.steps == round(experiment.steps * STEP / DATA)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A `python` that passes `-m revela` to a running interpreter (without libraries)."""
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


def test_jobs_use_the_python_of_the_environment(tmp_path):
    """In place of the one that runs Snakemake."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho warm $@\n")
    python.chmod(0o755)
    script = shlex.join(["source", str(ROOT / "workflow/job.sh"), sys.executable])
    environment = os.environ | {"REVELA_PYTHON": str(python), "CUDA_VISIBLE_DEVICES": "0"}
    jobs = ["bash", "-c", f"{script}; (revela check); (launch 1 revela train)"]
    result = subprocess.run(jobs, capture_output=True, text=True, env=environment, check=True)
    assert result.stdout.splitlines() == ["warm -m revela check", "warm -m revela train"]


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
            printed, _ = process.communicate(timeout=120)  # waits until its output is closed
        assert "valid" not in printed
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
