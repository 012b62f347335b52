"""The workflow on a tiny config: it completes, a second run does nothing, changes stay local."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from tests.conftest import TEXTS, revela, write_choices

ROOT = Path(__file__).parents[2]

CONFIG = {
    "corpora": {"notes": {"source": "files", "path": "notes.jsonl", "max_words": 12}},
    "batches": {"notes": {"corpora": ["notes"], "batch_size": 4}},
    "pairs": {"notes": {"corpora": ["notes"], "negatives": 2}},
    "experiments": {
        "tiny-revela": {
            "objective": {"name": "revela", "temperature": 0.1},
            "data": "notes",
            "retriever": "./tiny",
            "language_model": "./tiny",
            "lora": None,
            "max_length": 33,
            "batches_per_step": 1,
            "steps": 6,
            "warmup_steps": 0.2,
            "similarity_snapshot_steps": [0, 6],
            "save_retriever_steps": [0, 3],
        },
        "tiny-replug": {
            "base": "tiny-revela",
            "objective": {"name": "replug", "include_self": False},
            "similarity_snapshot_steps": [],
            "save_retriever_steps": [],
        },
        "tiny-contriever": {
            "base": "tiny-revela",
            "objective": {"name": "contriever"},
            "language_model": None,
            "similarity_snapshot_steps": [],
            "save_retriever_steps": [],
        },
    },
    "models": {
        "bm25": {"kind": "bm25s"},
        "untouched": {"kind": "encoder", "retriever": "./tiny"},
        "tiny-lm": {"kind": "language-model", "language_model": "tiny-revela"},
    },
    "benchmarks": {
        "mine": {"source": "folder", "path": "mine", "tasks": ["notes-task"]},
        "choices": {"source": "lm-eval", "path": "choices", "tasks": ["notes-choice"]},
    },
    "tables": {
        "notes": {
            "caption": "Notes",
            "benchmark": "mine",
            "rows": [
                {"label": name, "model": name}
                for name in ("bm25", "untouched", "tiny-contriever", "tiny-replug", "tiny-revela")
            ],
        },
        "choices": {
            "caption": "Choices",
            "benchmark": "choices",
            "measure": "acc",
            "rows": [{"label": "LM", "model": "tiny-lm"}],
        },
        "printed": {
            "caption": "As printed",
            "benchmark": "mine",
            "reported": "printed.csv",
            "rows": [{"label": "BM25", "model": "bm25", "reported": "BM25"}],
        },
    },
    "listings": {
        "list": {"caption": "Listed", "file": "list.csv"},
        "batch": {"caption": "Batch", "file": "list.csv", "batches": "notes"},
    },
    "figures": {
        "bars": {"kind": "bars", "caption": "Bars", "tables": {"notes": "Notes"}},
        "curves": {
            "kind": "curves",
            "caption": "Curves",
            "experiments": {"tiny-revela": "Revela", "tiny-replug": "REPLUG"},
        },
        "dynamics": {"kind": "dynamics", "caption": "Dynamics", "experiment": "tiny-revela"},
        "learning": {
            "kind": "learning",
            "caption": "Learning",
            "task": "notes-task",
            "experiments": {"tiny-revela": "Revela"},
        },
    },
}


@pytest.fixture(scope="module")
def project(tmp_path_factory, backbone) -> Path:
    """A copy of the workflow with a small corpus and collection, after a complete run."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "Snakefile", folder)
    shutil.copytree(backbone, folder / "tiny")
    shutil.copytree(ROOT / "workflow", folder / "workflow")
    shutil.copytree(ROOT / "envs", folder / "envs")
    shutil.copytree(ROOT / "data" / "paper", folder / "data" / "paper")
    shutil.copytree(
        ROOT / "revela", folder / "revela", ignore=shutil.ignore_patterns("__pycache__")
    )
    rows = [{"text": f"{TEXTS[n % 5]} This is note number {n}."} for n in range(60)]
    (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    collection = folder / "mine" / "notes-task"
    collection.mkdir(parents=True)
    (collection / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{n}", "text": t}) + "\n" for n, t in enumerate(TEXTS))
    )
    (collection / "queries.jsonl").write_text('{"_id": "q", "text": "mud of rivers"}\n')
    (collection / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td2\t1\n")
    write_choices(
        folder / "choices", "notes-choice", [{"question": "a", "choices": ["b"], "answer": 0}]
    )
    (folder / "printed.csv").write_text("task,BM25\nnotes-task,99.5\nMean,90.0\n")
    (folder / "list.csv").write_text("Name,License\na,MIT\n")
    write_config(folder, CONFIG)
    result = snakemake(folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


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


def test_names_are_no_patterns(project):
    named = {"corpora": {"c++": CONFIG["corpora"]["notes"]}}
    (project / "named.yaml").write_text(yaml.safe_dump(named))
    config = ("--configfile", "named.yaml", "--replace-workflow-config")
    result = snakemake(project, "-n", *config, "--", "results/chunks/c++.parquet")
    assert result.returncode == 0, result.stderr
    assert "chunk" in result.stdout


def planned(folder: Path, **environment: str) -> set[str]:
    """Return the outputs that a dry run would make."""
    result = snakemake(folder, "--dry-run", "--summary", **environment)
    assert result.returncode == 0, result.stderr
    lines = [line.split("\t") for line in result.stdout.splitlines() if "\t" in line]
    return {line[0] for line in lines[1:] if line[-1] != "no update"}


def test_everything_is_made_with_a_manifest(project):
    for path in (
        "chunks/notes.parquet",
        "batches/notes.parquet",
        "pairs/notes.parquet",
        "models/tiny-revela/retriever/model.safetensors",
        "models/tiny-revela/log.jsonl",
        "scores/tiny-revela/notes-task.json",
        "runs/bm25/notes-task.trec",
        "tables/notes.csv",
        "tables/notes.md",
        "tables/notes.tex",
        "tables/notes_significance.csv",
        "tables/notes_significance.md",
        "tables/list.tex",
        "tables/batch.tex",
        "figures/bars.pdf",
        "tables/printed_vs_paper.md",
        "figures/curves.png",
        "figures/dynamics.pdf",
        "figures/learning.png",
        "models/tiny-revela/steps/3/model.safetensors",
        "scores/tiny-revela@0/notes-task.json",
    ):
        assert (project / "results" / path).stat().st_size > 0, path
    for path in (
        "chunks/notes.manifest.json",
        "batches/notes.manifest.json",
        "pairs/notes.manifest.json",
        "models/tiny-replug/manifest.json",
        "scores/bm25/notes-task.manifest.json",
        "scores/tiny-lm/notes-choice.manifest.json",
    ):
        manifest = json.loads((project / "results" / path).read_text())
        assert {"settings", "inputs", "revela", "finished", "seconds", "peak_memory_gb"} <= set(
            manifest
        )
    rows = (project / "results/tables/notes.csv").read_text().splitlines()
    assert rows[0] == "system,notes-task,Mean,source"
    assert rows[1].startswith("bm25,100.0,100.0,measured")
    assert len(rows) == 6
    rows = (project / "results/tables/choices.csv").read_text().splitlines()
    assert rows[1] == "LM,100.0,100.0,measured"
    assert (project / "results/tables/printed_vs_paper.csv").read_text().splitlines()[1:] == [
        "BM25,notes-task,99.5,,,100.0,0.5,reproduced",
        "BM25,Mean,90.0,99.5,no,100.0,0.5,reproduced",
    ]
    hidden = [p for p in (project / "results").rglob(".*") if p.name.endswith(".part")]
    assert not hidden


def test_a_second_run_and_a_comment_do_nothing(project):
    assert planned(project) == set()
    text = (project / "config.yaml").read_text()
    (project / "config.yaml").write_text(
        "# a remark\n" + text.replace("caption: Notes", "caption: Notes # x")
    )
    assert planned(project) == set()
    write_config(project, CONFIG)


def test_a_comment_in_the_code_does_nothing(project):
    for path in (project / "revela").rglob("*.py"):
        path.write_text(path.read_text() + "# a remark\n")
    assert planned(project) == set()


def test_a_new_version_of_a_stage_makes_its_results_again(project):
    versions = project / "revela/common/versions.py"
    before = versions.read_text()
    versions.write_text(before.replace('"evaluate": ', '"evaluate": 1'))  # 2 becomes 12
    changed = planned(project, PYTHONPATH=str(project))
    versions.write_text(before)
    assert {path for path in changed if path.startswith("results/scores/")} == {
        f"results/scores/{folder.name}/notes-task.{suffix}"
        for folder in (project / "results/scores").iterdir()
        for suffix in ("json", "queries.csv")
        if folder.name != "tiny-lm"
    }
    assert "results/tables/notes.csv" in changed
    assert not [path for path in changed if path.startswith("results/models")]


def test_changed_text_is_noticed(project):
    path = project / "notes.jsonl"
    before, text = os.stat(path), path.read_text()
    path.write_text(text + '{"text": "One more note."}\n')
    changed = planned(project)
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "results/chunks/notes.parquet" in changed
    assert "results/tables/notes.csv" in changed
    assert "results/tables/batch.csv" in changed


def test_text_replaced_by_an_older_file_is_noticed(project):
    path = project / "notes.jsonl"
    before, text = os.stat(path), path.read_text()
    path.write_text(text + '{"text": "One more note."}\n')
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = planned(project)
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "results/chunks/notes.parquet" in changed
    assert not planned(project)


def test_a_step_that_fails_fails_its_job(project, tmp_path):
    for name in ("Snakefile", "config.yaml", "printed.csv", "list.csv"):
        shutil.copy(project / name, tmp_path)
    for name in ("workflow", "envs", "revela", "choices", "data", "mine", "tiny"):
        shutil.copytree(project / name, tmp_path / name)
    (tmp_path / "notes.jsonl").write_text('{"text": "fine"}\n{broken\n')
    result = snakemake(tmp_path, "results/chunks/notes.parquet")
    assert result.returncode != 0
    assert "notes.jsonl:2: broken JSON" in (tmp_path / "results/logs/chunk/notes.log").read_text()
    # The exit code itself must get through the pipe to the log, not only the missing output.
    assert "MissingOutputException" not in result.stdout + result.stderr


def test_a_learning_rate_retrains_its_experiment_only(project):
    config = json.loads(json.dumps(CONFIG))
    config["experiments"]["tiny-contriever"]["learning_rate"] = 0.01
    write_config(project, config)
    changed = planned(project)
    write_config(project, CONFIG)
    assert changed == {
        "results/models/tiny-contriever/retriever",
        "results/models/tiny-contriever/log.jsonl",
        "results/scores/tiny-contriever/notes-task.json",
        "results/scores/tiny-contriever/notes-task.queries.csv",
        "results/runs/tiny-contriever/notes-task.trec",
        "results/embeddings/tiny-contriever/notes-task",
        "results/mteb/tiny-contriever/notes-task",
        "results/tables/notes.csv",
        "results/tables/notes.md",
        "results/tables/notes.tex",
        "results/tables/notes_significance.csv",
        "results/tables/notes_significance.md",
        "results/figures/bars.png",
        "results/figures/bars.pdf",
    }


def test_a_number_in_an_option_is_explained(project):
    given = 'experiments={"tiny-revela":{"steps":5}}'
    result = snakemake(project, "-n", "--config", given)
    assert result.returncode != 0
    assert "Snakemake passes values of --config as text; use a file" in result.stderr


def test_an_evaluation_setting_never_retrains(project):
    config = json.loads(json.dumps(CONFIG))
    config["benchmarks"]["mine"]["max_length"] = 64
    write_config(project, config)
    changed = planned(project)
    write_config(project, CONFIG)
    assert changed
    assert not [path for path in changed if path.startswith("results/models")]


def test_a_new_ablation_adds_its_own_jobs_only(project):
    config = json.loads(json.dumps(CONFIG))
    config["experiments"]["wide"] = {"base": "tiny-revela", "objective": {"temperature": 0.5}}
    config["tables"]["ablation"] = CONFIG["tables"]["notes"] | {
        "rows": [{"label": "wide", "model": "wide"}, {"label": "Revela", "model": "tiny-revela"}]
    }
    write_config(project, config)
    result = snakemake(project, "--dry-run")
    write_config(project, CONFIG)
    counts = dict(re.findall(r"^(\w+) +(\d+)$", result.stdout, re.MULTILINE))
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
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", result.stderr, re.MULTILINE))
    assert jobs == {"revela_train": "1", "mine": "1", "total": "2"}


def test_tasks_with_one_corpus_encode_it_once(project):
    config = json.loads(json.dumps(CONFIG))
    config["benchmarks"]["more"] = CONFIG["benchmarks"]["mine"] | {
        "tasks": ["lending-task", "more-task"],
        "shares_corpus": {"more-task": "lending-task"},
    }
    for task in config["benchmarks"]["more"]["tasks"]:
        shutil.copytree(project / "mine/notes-task", project / "mine" / task)
    write_config(project, config)
    dense, lexical = (f"results/scores/{name}/more-task.json" for name in ("untouched", "bm25"))
    result = snakemake(project, dense, lexical)
    again = snakemake(project, dense, lexical)
    write_config(project, CONFIG)
    assert result.returncode == 0, result.stderr
    log = project / "results/logs/evaluate/untouched.more-task.log"
    assert re.search(r"^(\d+) of \1 passages are already encoded", log.read_text(), re.MULTILINE)
    own = json.loads((project / dense).read_text())
    lent = json.loads((project / "results/scores/untouched/lending-task.json").read_text())
    assert own | {"task": ""} == lent | {"task": ""}
    assert "Nothing to be done" in again.stdout + again.stderr
    assert not list((project / "results").glob("embeddings/*/lending-task"))  # no longer needed
    assert not list((project / "results").glob("shards/*/*"))


def test_the_report_carries_tables_and_figures(project):
    result = snakemake(project, "--report", "report.html")
    assert result.returncode == 0, result.stderr
    report = (project / "report.html").read_text()
    assert "notes.csv" in report
    assert "dynamics.png" in report


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["tables"]["notes"].update(benchmark="min"), "unknown benchmark 'min'"),
        (lambda c: c["experiments"]["tiny-revela"].update(stepz=1), "unknown key 'stepz'"),
        (lambda c: c["tables"]["notes"]["rows"][4].update(model="tiny-revel"), "tiny-revel"),
        (lambda c: c["corpora"]["notes"].update(path="nots"), "nots: no such file or folder"),
        (lambda c: c["benchmarks"]["mine"].update(path="mein"), "mein/notes-task: no such folder"),
    ],
)
def test_a_mistake_in_the_config_stops_before_anything_runs(project, change, message):
    config = json.loads(json.dumps(CONFIG))
    change(config)
    write_config(project, config)
    result = snakemake(project, "--dry-run")
    write_config(project, CONFIG)
    assert result.returncode != 0
    last = result.stderr.splitlines()[-1]
    assert last.startswith("revela: error: config.yaml: ")
    assert message in last
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("corpora: [1\n", ":2:1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("corpora:\n  a: 1\n  a: 2\n", ":3:3: not valid YAML: duplicate key 'a'"),
    ],
)
def test_the_last_line_says_where_a_config_is_no_yaml(project, text, line):
    (project / "config.yaml").write_text(text)
    result = snakemake(project, "--dry-run")
    write_config(project, CONFIG)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == f"revela: error: config.yaml{line}"


def test_a_file_that_is_gone_from_a_trained_folder_is_named(project):
    file = project / "results/models/tiny-revela/retriever/tokenizer_config.json"
    text = file.read_bytes()
    file.unlink()
    result = snakemake(project, "--dry-run", "results/scores/tiny-revela/notes-task.json")
    file.write_bytes(text)
    assert result.returncode == 1
    assert re.search(rf"error: {file.relative_to(project)}: missing: restore it, or", result.stderr)
    assert planned(project) == set()


def test_what_is_missing_stops_only_the_jobs_that_need_it(project):
    config = json.loads(json.dumps(CONFIG))
    config["models"]["lost"] = {"kind": "encoder", "retriever": "no/where"}
    config["corpora"]["more"] = CONFIG["corpora"]["notes"]
    config["tables"]["more"] = CONFIG["tables"]["notes"] | {
        "rows": [{"label": "lost", "model": "lost"}]
    }
    write_config(project, config)
    chunks, table = "results/chunks/more.parquet", "results/tables/more.csv"
    result = snakemake(project, "--keep-going", chunks, table)
    run = ["run", "config.yaml", chunks, table]
    ran = revela(*run, cwd=project, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    write_config(project, CONFIG)
    assert result.returncode == ran.returncode == 1
    assert (project / chunks).exists()
    failed = "evaluate lost notes-task failed; waiting for it: table more"
    assert failed in result.stderr.splitlines()[-8:]
    assert failed == ran.stderr.splitlines()[-2]
    reason = "evaluate lost notes-task: revela: error: model 'no/where' is not in the local cache"
    assert ran.stderr.splitlines()[-1].startswith(reason)
    for one in (result, ran):
        assert "Traceback" not in one.stdout + one.stderr
    (project / chunks).unlink()


def test_usage_is_of_what_is_there(project):
    result = snakemake(project, "usage")
    assert result.returncode == 0, result.stderr
    rows = (project / "results/tables/usage.csv").read_text().splitlines()
    assert {row.partition(",")[0] for row in rows} >= {"tiny-revela", "tiny-contriever"}
    manifest = json.loads((project / "results/models/tiny-revela/manifest.json").read_text())
    assert manifest["gpu_hours"] == 0
    assert manifest["hours"] > 0


def test_after_a_kill_the_next_run_finishes(project):
    config = json.loads(json.dumps(CONFIG))
    config["experiments"]["disturbed"] = {"base": "tiny-revela", "steps": 60}
    config["experiments"]["undisturbed"] = {"base": "disturbed"}
    write_config(project, config)
    # A checkpoint after every step.
    often = ["--set-resources", "train:checkpoint_minutes=0"]
    process = subprocess.Popen(
        ["snakemake", "--cores", "2", *often, "--", "results/models/disturbed/log.jsonl"],
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    deadline = time.monotonic() + 120
    work = project / "results/models/disturbed/checkpoints"
    while time.monotonic() < deadline and not list(work.glob("*/*/complete.json")):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGSTOP)
    process.kill()  # Snakemake only: the training is left running, and waits here
    process.wait()
    again = ["--rerun-incomplete", "--nolock", "results/models/disturbed/log.jsonl"]
    refused = snakemake(project, *again)
    os.killpg(process.pid, signal.SIGKILL)  # now the training too
    assert list(work.glob("*/*/complete.json")), "the training was not killed in its middle"
    assert refused.returncode != 0
    (line,) = (project / "results/logs/train/disturbed.log").read_text().splitlines()
    assert line.endswith("results/models/disturbed: another training is using this folder")
    assert not (project / "results/models/disturbed/retriever").exists()
    result = snakemake(project, *again, "results/models/undisturbed/log.jsonl")
    write_config(project, CONFIG)
    assert result.returncode == 0, result.stderr
    manifest = json.loads((project / "results/models/disturbed/manifest.json").read_text())
    assert manifest["hours"] > 0
    steps = [
        json.loads(line)["step"]
        for line in (project / "results/models/disturbed/log.jsonl").read_text().splitlines()
        if "snapshot" not in line
    ]
    assert steps == list(range(1, 61))
    found, expected = (
        (project / f"results/models/{name}/retriever/model.safetensors").read_bytes()
        for name in ("disturbed", "undisturbed")
    )
    assert found == expected


# ---------------------------------------------------------------------------- the command line


def test_settings_printed_for_a_rule_run_by_hand(tmp_path, project):
    printed = revela("settings", "config.yaml", "corpora", "notes", cwd=project).stdout
    result = revela("chunk", "--settings", printed, "--output", tmp_path / "c.parquet", cwd=project)
    assert result.returncode == 0, result.stderr
    assert "60 documents" in result.stdout


def test_a_full_disk_leaves_nothing_behind(project, tmp_path):
    settings = revela("settings", "config.yaml", "corpora", "notes", cwd=project).stdout
    small = (500, 500)  # maximum bytes of a file: fails like a full disk
    result = revela(
        "chunk", "--settings", settings, "--output", tmp_path / "c.parquet",
        cwd=project, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, small),
    )  # fmt: skip
    assert result.returncode == 1
    assert "cannot write" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())
