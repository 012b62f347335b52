"""`revela run`: Snakemake on a user's config, with one line of output per job."""

import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from snakemake_interface_logger_plugins.common import LogEvent

from revela.start import progress
from tests.training.common import as_in_a_terminal

CONFIG = {
    "corpora": {"mine": {"source": "files", "path": "texts"}},
    "batches": {"mine": {"corpora": ["mine"], "batch_size": 2}},
}
BATCHES = "results/batches/mine.parquet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "texts").mkdir()
    for n in range(6):
        (folder / f"texts/{n}.txt").write_text(f"River {n} has water. Fish live in it.")
    return folder


def run(folder: Path, config: dict, *arguments: str) -> subprocess.CompletedProcess:
    (folder / "mine.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "revela", "run", "mine.yaml", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_run_prints_one_line_a_job(folder):
    first = run(folder, CONFIG, BATCHES)
    assert first.returncode == 0, first.stderr
    assert first.stderr.startswith("snakemake --snakefile ")
    assert "--configfile mine.yaml --replace-workflow-config" in first.stderr
    assert re.search(r"\[1/2\] chunk mine, \d+ s \(6 documents .*\)\n\[2/2\] batch", first.stderr)
    assert "batches of 2" not in first.stdout + first.stderr  # it is in the log
    assert "6 documents" in (folder / "results/logs/chunk/mine.log").read_text()
    second = run(folder, CONFIG, BATCHES)
    assert second.stderr.splitlines()[1].startswith("Nothing to be done")
    assert "figures:" not in second.stdout  # the config has none


def test_the_graph_of_jobs_is_the_whole_standard_output(folder):
    assert run(folder, CONFIG, BATCHES, "--dag").stdout.startswith("digraph snakemake_dag {")


def test_a_report_is_not_a_run_that_shows_tables(folder):
    tables = folder / "results/tables"
    tables.mkdir(parents=True, exist_ok=True)
    (tables / "main.csv").write_text("system,task,Mean,source\nBM25,50.0,50.0,measured\n")
    (tables / "main.md").write_text("| BM25 | 50.0 |\n")
    table = {"caption": "c", "benchmark": "own", "rows": ["bm25"]}
    own = {"source": "texts", "corpus": "mine", "tasks": ["halves"]}
    config = CONFIG | {"benchmarks": {"own": own}, "models": {"bm25": {"kind": "bm25s"}}}
    report = run(folder, config | {"tables": {"main": table}}, BATCHES, "--report=mine.html")
    assert (folder / "mine.html").exists(), report.stderr
    assert "BM25" not in report.stdout


def test_verbose_output_of_jobs_goes_to_a_redirected_stdout(folder):
    """Standard output is a file, as in a Slurm job."""
    shutil.rmtree(folder / "results", ignore_errors=True)
    (folder / "mine.yaml").write_text(yaml.safe_dump(CONFIG))
    command = [sys.executable, "-m", "revela", "run", "mine.yaml", "--verbose", BATCHES]
    with (folder / "all.log").open("w") as log:
        subprocess.run(command, cwd=folder, stdout=log, stderr=log, timeout=300, check=True)
    output = (folder / "all.log").read_text()
    places = [output.find(part) for part in ("snakemake --", "6 documents", "3 batches of 2")]
    assert -1 < places[0] < places[1] < places[2]


def test_last_line_says_why_a_job_failed(folder):
    large = {"mine": {"corpora": ["mine"], "batch_size": 20}}
    result = run(folder, CONFIG | {"batches": large}, BATCHES)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last == (
        "batch mine: revela: error: corpus 'mine': 6 chunks are too few for one batch of 20 "
        "(see results/logs/batch/mine.log)"
    )
    assert "Traceback" not in result.stderr
    assert "set -euo" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_stopped_run_leaves_the_folder_unlocked(folder, tmp_path, number):
    """A closed terminal ends the jobs, which share it; SIGTERM reaches Snakemake alone."""
    shutil.copytree(folder / "texts", tmp_path / "texts")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(CONFIG))
    command = [sys.executable, "-m", "revela", "run", "mine.yaml", BATCHES]
    options = {"cwd": tmp_path, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, preexec_fn=as_in_a_terminal, **options) as running:
        while not list(tmp_path.glob("results/logs/chunk/*.log")):
            assert running.poll() is None, running.stderr.read()
            time.sleep(0.1)
        (os.killpg if number == signal.SIGHUP else os.kill)(running.pid, number)
        _, printed = running.communicate(timeout=120)
    assert running.returncode == 1
    assert "stopping; the same command resumes\n" in printed
    if number == signal.SIGTERM:  # a hangup may end the job before Snakemake hears of it
        assert "chunk mine was stopped\n" in printed
    again = run(tmp_path, CONFIG, BATCHES)
    assert again.returncode == 0, again.stderr


def test_a_second_run_in_a_folder_is_refused_in_one_line(folder, tmp_path):
    shutil.copytree(folder / "texts", tmp_path / "texts")
    locks = tmp_path / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text(f"{BATCHES}\n")
    second = run(tmp_path, CONFIG, BATCHES)
    assert second.returncode == 1
    assert len(second.stderr.splitlines()) == 2
    assert second.stderr.splitlines()[1].startswith("revela: error: another run is making the same")
    assert run(tmp_path, CONFIG, "--unlock").returncode == 0
    assert not locks.exists()


def test_an_interrupted_job_has_not_failed(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "FAILED", [])
    handler = progress.LogHandler(None, None)
    log = tmp_path / "log"
    log.write_text("revela: interrupted\n")
    job = {"jobid": 1, "rule_name": "evaluate", "wildcards": {"x": "a"}, "log": [str(log)]}
    for event in (LogEvent.JOB_INFO, LogEvent.JOB_ERROR):
        handler.emit(logging.makeLogRecord({"event": event} | job))
    assert capsys.readouterr().err == "evaluate a was stopped\n"
    (line,) = progress.FAILED
    assert line == f"evaluate a: interrupted; the same command resumes (see {log})"


def test_time_left_is_estimated_by_rule(capsys, monkeypatch):
    """Two jobs run at once: chunks take 10 s, batches 20 s, the training 15 s."""
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)
    handler, number = progress.LogHandler(None, None), itertools.count(1)

    def emit(event, **details):
        handler.emit(logging.makeLogRecord({"event": event} | details))

    jobs = {"chunk": 2, "batch": 4, "train": 1, "table": 1, "total": 8}
    for now, finished, started in (
        (0, [], ["chunk", "chunk"]),
        (10, [1, 2], ["batch", "batch"]),
        (30, [3, 4], ["batch", "train"]),
        (45, [6], []),
        (50, [5], ["batch"]),
        (70, [7], []),
    ):
        monkeypatch.setattr(progress.time, "monotonic", lambda now=now: float(now))
        if not now:
            emit(LogEvent.RUN_INFO, stats=jobs)
        for one in finished:
            emit(LogEvent.JOB_FINISHED, job_id=one)
        for rule in started:
            job = {"jobid": next(number), "rule_name": rule, "log": []}
            emit(LogEvent.JOB_INFO, **job, wildcards={"x": str(job["jobid"])})
    assert capsys.readouterr().err.splitlines() == [
        "8 jobs",
        "[1/8] chunk 1, 10 s",
        "[2/8] chunk 2, 10 s",
        "[3/8] batch 3, 20 s; more than 20 s left",  # 3 of 20 s, one half done, and a training
        "[4/8] batch 4, 20 s; more than 20 s left",
        "[5/8] train 6, 15 s; about 12 s left",  # 2 of 20 s minus the 15 s of the running one
        "[6/8] batch 5, 20 s; about 11 s left",  # 95 s of jobs have passed in 50 s
        "[7/8] batch 7, 20 s",  # a table takes no time
    ]


def test_the_longer_of_two_jobs_foretells_the_third(monkeypatch):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    handler = progress.LogHandler(None, None)
    handler.emit(
        logging.makeLogRecord({"event": LogEvent.RUN_INFO, "stats": {"evaluate": 3, "total": 3}})
    )
    for number, seconds in enumerate((12.0, 400.0, 0.0), start=1):
        job = {"jobid": number, "job_id": number, "rule_name": "evaluate", "log": []}
        job["wildcards"] = {"model": f"m{number}"}
        handler.emit(logging.makeLogRecord({"event": LogEvent.JOB_INFO} | job))
        now += seconds
        if seconds:
            handler.emit(logging.makeLogRecord({"event": LogEvent.JOB_FINISHED} | job))
    assert handler._under_way() == "[2/3] evaluate m3: 0 s; about 6 min 40 s left"


def test_steps_of_a_running_training_and_its_own_time_left(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    handler = progress.LogHandler(None, None)
    for event in (
        {"event": LogEvent.RUN_INFO, "stats": {"train": 2, "total": 2}},
        {"event": LogEvent.JOB_INFO, "jobid": 1, "rule_name": "train", "log": []}
        | {"wildcards": {"experiment": "mine"}},
    ):
        handler.emit(logging.makeLogRecord(event))
    now = 30.0
    assert handler._under_way() == "[0/2] train mine: 30 s"
    work = tmp_path / "results/models/mine/checkpoints/0123"
    work.mkdir(parents=True)
    steps = [{"step": n, "of": 10, "loss": 1.0, "seconds": 4.0} for n in (1, 2, 3)]
    (work / "log.jsonl").write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    # The other training will take as long as this one, 58 s.
    expected = "[0/2] train mine: step 3 of 10, 28 s left; about 1 min 26 s left"
    assert handler._under_way() == expected


def test_a_misspelt_target_is_reported_with_a_suggestion(folder):
    result = run(folder, CONFIG, "--jobs", "2", "usage", "results/batches/mien.parquet")
    assert result.returncode == 1
    assert "mine.yaml: unknown target 'results/batches/mien.parquet'; did you" in result.stderr
