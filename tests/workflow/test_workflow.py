"""The workflow on a tiny config: it completes, a second run does nothing, changes stay local."""

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from revela.evaluation.benchmarks import write_collection
from tests.conftest import TEXTS, revela, write_choices

ROOT = Path(__file__).parents[2]

EVALUATED = {"scores", "runs", "mteb", "tables"}  # below results/
CONFIG = yaml.safe_load(Path(__file__).with_name("config.yaml").read_text())


def write_inputs(folder: Path, backbone: Path, config: dict = CONFIG) -> None:
    """Write a config of these tests, and the model, texts and collection that it names."""
    shutil.copytree(backbone, folder / "tiny")
    rows = [{"text": f"{TEXTS[n % 5]} This is note number {n}."} for n in range(60)]
    (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = [(f"d{n}", "", text) for n, text in enumerate(TEXTS)]
    queries, judgements = [("q", "mud of rivers")], [("q", "d2", 1)]
    for task in ("notes-task", "tuning-task"):
        write_collection(folder / "mine" / task, documents, queries, judgements)
    write_config(folder, config)


def write_config(folder: Path, config: dict) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def snakemake(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["snakemake", "--cores", "2", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"HF_HUB_OFFLINE": "1"} | environment,
    )


def planned(folder: Path, **environment: str) -> set[str]:
    """Return the outputs that a dry run would make."""
    result = snakemake(folder, "--dry-run", "--summary", **environment)
    assert result.returncode == 0, result.stderr
    lines = [line.split("\t") for line in result.stdout.splitlines() if "\t" in line]
    return {line[0] for line in lines[1:] if line[-1] != "no update"}


def jobs(printed: str) -> dict[str, str]:
    """Return the number of jobs by rule, as Snakemake prints it."""
    return dict(re.findall(r"^(\w+) +(\d+)$", printed, re.MULTILINE))


@pytest.fixture(scope="module")
def complete(tmp_path_factory, backbone) -> Path:
    """A copy of the workflow with a small corpus and collection, after a complete run."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "Snakefile", folder)
    for name in ("workflow", "envs", "data/paper", "revela"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    write_inputs(folder, backbone)
    choices = [{"question": "a", "choices": ["b"], "answer": 0}]
    write_choices(folder / "choices", "notes-choice", choices)
    (folder / "printed.csv").write_text("task,BM25\nnotes-task,99.5\nMean,90.0\n")
    (folder / "list.csv").write_text("Name,License\na,MIT\n")
    result = snakemake(folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture
def project(complete) -> Iterator[Path]:
    """The same, its config restored after the test."""
    yield complete
    write_config(complete, CONFIG)


@pytest.fixture
def config() -> dict:
    """A config to be changed."""
    return copy.deepcopy(CONFIG)


def test_names_are_no_patterns(project):
    named = {"corpora": {"c++": CONFIG["corpora"]["notes"]}}
    (project / "named.yaml").write_text(yaml.safe_dump(named))
    configs = ("--configfile", "named.yaml", "--replace-workflow-config")
    result = snakemake(project, "-n", *configs, "--", "results/chunks/c++.parquet")
    assert result.returncode == 0, result.stderr
    assert "chunk" in result.stdout


def test_everything_is_made_with_a_manifest(project):
    results = project / "results"
    for made in ("chunks/notes.", "batches/notes.", "pairs/notes.", "models/tiny-contriever/",
                 "scores/bm25/notes-task.", "scores/tiny-revela@3/notes-task.",
                 "scores/tiny-lm/notes-choice.", "scores/both/notes-task."):  # fmt: skip
        manifest = json.loads((results / f"{made}manifest.json").read_text())
        recorded = {"settings", "inputs", "revela", "finished", "seconds", "peak_memory_gb"}
        assert recorded <= set(manifest)
    assert (results / "models/tiny-revela/steps/3/model.safetensors").exists()
    first, *rows = (results / "tables/notes.csv").read_text().splitlines()
    assert first == "system,notes-task,Mean,source"
    assert rows[0].startswith("bm25,100.0,100.0,measured")
    assert len(rows) == 5
    fused = json.loads((results / "scores/both/notes-task.json").read_text())["fused"]
    assert fused["tuned_on"] == ["tuning-task"]
    rows = (results / "tables/choices.csv").read_text().splitlines()
    assert rows[1] == "LM,100.0,100.0,measured"
    assert (results / "tables/printed_vs_paper.csv").read_text().splitlines()[1:] == [
        "BM25,notes-task,99.5,,,,100.0,0.5,reproduced",
        "BM25,Mean,90.0,99.5,no,,100.0,0.5,reproduced",
    ]
    assert not [path for path in results.rglob(".*") if path.suffix == ".part"]


def test_a_second_run_and_comments_do_nothing(project):
    text = (project / "config.yaml").read_text()
    remarked = text.replace("caption: Notes", "caption: Notes # x")
    (project / "config.yaml").write_text(f"# a remark\n{remarked}")
    for path in (project / "revela").rglob("*.py"):
        path.write_text(path.read_text() + "# a remark\n")
    assert planned(project) == set()


def test_a_new_version_of_a_stage_makes_its_results_again(project):
    versions = project / "revela/common/versions.py"
    before = versions.read_text()
    versions.write_text(before.replace('"evaluate": ', '"evaluate": 1'))  # 2 becomes 12
    changed = planned(project, PYTHONPATH=str(project))
    versions.write_text(before)
    scores = "results/scores/{}/notes-task.json"
    assert {"results/tables/notes.csv", scores.format("bm25"), scores.format("both")} <= changed
    assert not {path.split("/")[1] for path in changed} & {"models", "chunks"}
    assert scores.format("tiny-lm").replace("task", "choice") not in changed


def test_text_replaced_by_an_older_file_is_noticed(project):
    path, kept = project / "notes.jsonl", project / "kept.jsonl"
    shutil.copy2(path, kept)
    path.write_text(path.read_text() + '{"text": "One more note."}\n')
    shutil.copystat(kept, path)
    changed = planned(project)
    kept.replace(path)
    tables = {"results/tables/notes.csv", "results/tables/batch.csv"}
    assert {"results/chunks/notes.parquet"} | tables <= changed


def test_a_step_that_fails_fails_its_job(project):
    (project / "broken.jsonl").write_text('{"text": "fine"}\n{broken\n')
    write_config(project, {"corpora": {"broken": {"source": "files", "path": "broken.jsonl"}}})
    result = snakemake(project, "results/chunks/broken.parquet")
    assert result.returncode != 0
    log = (project / "results/logs/chunk/broken.log").read_text()
    assert "broken.jsonl:2: broken JSON" in log
    # The exit code itself must get through the pipe to the log, not only the missing output.
    assert "MissingOutputException" not in result.stdout + result.stderr


def test_a_learning_rate_retrains_its_experiment_only(project, config):
    config["experiments"]["tiny-contriever"]["learning_rate"] = 0.01
    write_config(project, config)
    changed = [path.split("/")[1:] for path in planned(project)]
    assert {path[0] for path in changed} == {*EVALUATED, "models", "figures"}
    names = {re.split(r"[._]", path[1])[0] for path in changed}
    assert names == {"tiny-contriever", "both", "notes", "bars", "curves"}


def test_an_evaluation_setting_never_retrains(project, config):
    config["benchmarks"]["mine"]["max_length"] = 64
    write_config(project, config)
    assert EVALUATED < {path.split("/")[1] for path in planned(project)} <= EVALUATED | {"figures"}


def test_a_new_ablation_adds_its_own_jobs_only(project, config):
    config["experiments"]["wide"] = {"base": "tiny-revela", "objective": {"temperature": 0.5}}
    rows = [{"label": name, "model": name} for name in ("wide", "tiny-revela")]
    config["tables"]["ablation"] = config["tables"]["notes"] | {"rows": rows}
    write_config(project, config)
    counts = jobs(snakemake(project, "--dry-run").stdout)
    assert counts == {"all": "1", "evaluate": "1", "table": "1", "total": "4", "train": "1"}


def test_another_workflow_uses_this_one_as_its_module(project, tmp_path):
    for name in ("config.yaml", "printed.csv", "list.csv", "notes.jsonl"):
        shutil.copy2(project / name, tmp_path)  # with its modification time
    for name in ("choices", "mine", "data", "tiny", "results"):
        shutil.copytree(project / name, tmp_path / name)
    shutil.rmtree(tmp_path / "results/models/tiny-contriever")
    (tmp_path / "Snakefile").write_text(f"""
configfile: "config.yaml"

rule mine:
    input: "results/models/tiny-contriever/retriever"
    output: "mine.txt"
    shell: "ls {{input}} > {{output}}; echo PYTHONPATH=${{{{PYTHONPATH:-}}}} >> {{output}}"

module revela:
    snakefile: {str(project / "Snakefile")!r}
    config: config

use rule * from revela as revela_*
""")
    result = snakemake(tmp_path, PYTHONPATH="own")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "model.safetensors" in (tmp_path / "mine.txt").read_text()
    assert "PYTHONPATH=own\n" in (tmp_path / "mine.txt").read_text()
    assert jobs(result.stderr) == {"revela_train": "1", "mine": "1", "total": "2"}


def test_one_job_evaluates_several_tasks(project, config):
    """Those of a benchmark and those with the same passages, if a table shows the model on them."""
    more = {"double": ["first-task", "second-task"], "single": ["third-task"]}
    for benchmark, tasks in more.items():
        config["benchmarks"][benchmark] = config["benchmarks"]["mine"] | {"tasks": tasks}
        for task in tasks:
            shutil.copytree(project / "mine/notes-task", project / "mine" / task)
    config["benchmarks"]["single"]["shares_corpus"] = "first-task"
    row = {"label": "untouched", "model": "untouched"}
    shown = {"caption": "c", "columns": {"A": "double", "B": "single"}, "rows": [row]}
    config["tables"]["more"] = shown
    write_config(project, config)
    result = snakemake(project, target := "results/scores/untouched/second-task.json")
    assert result.returncode == 0, result.stderr
    assert jobs(result.stderr) == {"evaluate_1_double": "1", "total": "1"}
    log = project / "results/logs/evaluate/untouched.first-task.log"
    assert len(re.findall(r"^(\d+) of \1 passages are already", log.read_text(), re.M)) == 2
    scores = [f"results/scores/untouched/{task}.json" for tasks in more.values() for task in tasks]
    first, *others = (json.loads((project / path).read_text()) | {"task": ""} for path in scores)
    assert others == [first, first]
    assert not list((project / "results/shards").rglob("*.safetensors"))

    queries = project / "mine/third-task/queries.jsonl"
    text = queries.read_text()
    queries.write_text("{")
    preemptible = ["--preemptible-rules", "evaluate", "--preemptible-retries", "1"]
    assert "Trying to restart job" in snakemake(project, *preemptible, "--", *scores).stderr
    queries.write_text(text + "\n")
    result = snakemake(project, *scores)
    assert result.returncode == 0, result.stderr
    assert re.findall(r"untouched on (\S+): (evaluated before|nDCG)", log.read_text()) == [
        ("first-task", "evaluated before"),
        ("second-task", "evaluated before"),
        ("third-task", "nDCG"),
    ]
    assert "Nothing to be done" in snakemake(project, "--dry-run", *scores).stdout
    config["benchmarks"]["double"]["tasks_per_job"] = 1
    write_config(project, config)
    printed = snakemake(project, "--dry-run", "--forceall", "results/tables/more.csv").stdout
    assert (jobs(printed)["evaluate"], jobs(printed)["evaluate_1_double"]) == ("1", "1")
    lexical = snakemake(project, "--dry-run", target.replace("untouched", "bm25")).stdout
    assert jobs(lexical) == {"evaluate": "1", "total": "1"}


def test_the_report_carries_tables_and_figures(project):
    result = snakemake(project, "--report", "report.html")
    assert result.returncode == 0, result.stderr
    report = (project / "report.html").read_text()
    assert "notes.csv" in report
    assert "dynamics.png" in report


@pytest.mark.parametrize(
    ("steps", "options", "line"),
    [
        ("stepz", "", "config.yaml: experiments.tiny-contriever: unknown key"),
        ("steps", '={"tiny-revela":{"steps":5}}', "Snakemake passes values of --config as text"),
    ],
)
def test_a_mistake_in_the_config_stops_before_anything_runs(project, config, steps, options, line):
    config["experiments"]["tiny-revela"][steps] = 1
    write_config(project, config)
    given = ["--config", f"experiments{options}"] if options else []
    result = snakemake(project, "--dry-run", *given)
    assert result.returncode == 1
    assert re.fullmatch(f"revela: error: .*{line}.*", result.stderr.splitlines()[-1])
    assert "Traceback" not in result.stdout + result.stderr


def test_a_file_that_is_gone_from_a_trained_folder_is_named(project):
    file = project / "results/models/tiny-revela/retriever/tokenizer_config.json"
    text = file.read_bytes()
    file.unlink()
    result = snakemake(project, "--dry-run", "results/scores/tiny-revela/notes-task.json")
    file.write_bytes(text)
    assert result.returncode == 1
    assert re.search(rf"error: {file.relative_to(project)}: missing: restore it, or", result.stderr)


def test_what_is_missing_stops_only_the_jobs_that_need_it(project, config):
    config["models"]["lost"] = {"kind": "encoder", "retriever": "no/where"}
    config["corpora"]["more"] = config["corpora"]["notes"]
    rows = [{"label": "lost", "model": "lost"}]
    config["tables"]["more"] = config["tables"]["notes"] | {"rows": rows}
    write_config(project, config)
    chunks, table = "results/chunks/more.parquet", "results/tables/more.csv"
    result = snakemake(project, "--keep-going", chunks, table)
    run = ["run", "config.yaml", chunks, table]
    ran = revela(*run, cwd=project, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert result.returncode == ran.returncode == 1
    assert (project / chunks).exists()
    failed = "evaluate lost notes-task failed; waiting for it: table more"
    assert failed in result.stderr.splitlines()[-8:]
    assert failed == ran.stderr.splitlines()[-2]
    reason = "evaluate lost notes-task: revela: error: model 'no/where' is not in the local cache"
    assert ran.stderr.splitlines()[-1].startswith(reason)
    assert "Traceback" not in result.stdout + result.stderr + ran.stdout + ran.stderr


def test_usage_is_of_what_is_there(project):
    result = snakemake(project, "usage")
    assert result.returncode == 0, result.stderr
    rows = (project / "results/tables/usage.csv").read_text().splitlines()
    assert {row.partition(",")[0] for row in rows} >= {"tiny-revela", "tiny-contriever"}
    manifest = json.loads((project / "results/models/tiny-revela/manifest.json").read_text())
    assert manifest["gpu_hours"] == 0
    assert manifest["hours"] > 0


def test_after_a_kill_the_next_run_finishes(project, config):
    config["experiments"]["disturbed"] = {"base": "tiny-revela", "steps": 40}
    write_config(project, config)
    model, log = project / "results/models/disturbed", "results/models/disturbed/log.jsonl"
    # A checkpoint after every step.
    often = ["--set-resources", "train:checkpoint_minutes=0"]
    process = subprocess.Popen(
        ["snakemake", "--cores", "2", *often, "--", log],
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(model.glob("checkpoints/*/*/complete.json")):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGSTOP)
    process.kill()  # Snakemake only: the training is left running, and waits here
    process.wait()
    again = ["--rerun-incomplete", "--nolock", log]
    refused = snakemake(project, *again)
    os.killpg(process.pid, signal.SIGKILL)  # now the training too
    assert list(model.glob("checkpoints/*")), "the training was not killed in its middle"
    assert refused.returncode != 0
    train_log = project / "results/logs/train/disturbed.log"
    (line,) = train_log.read_text().splitlines()
    assert line.endswith("models/disturbed/checkpoints: another training is using this folder")
    assert not (model / "retriever").exists()
    result = snakemake(project, *again)
    assert result.returncode == 0, result.stderr
    lines = map(json.loads, (project / log).read_text().splitlines())
    assert [line["step"] for line in lines if "snapshot" not in line] == list(range(1, 41))
    assert "resuming from the checkpoint of step" in train_log.read_text()


@pytest.mark.parametrize(("names", "threads"), [(["revela"], "4"), (["revela", "contriever"], "2")])
def test_trainings_share_all_cores(project, names, threads):
    # The last test, since it makes what depends on the retrievers stale.
    retrievers = [f"results/models/tiny-{name}/retriever" for name in names]
    options = ["--touch", "--forcerun", "train", "--cores", "4", *retrievers]
    printed = snakemake(project, *options, CUDA_VISIBLE_DEVICES="").stderr
    found = re.findall(r"rule train:.*?threads: (\d+)", printed, re.M | re.S)
    assert found == [threads] * len(names)
