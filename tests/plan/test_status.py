"""Status and usage of runs, read from their files."""

import csv
import json
import os
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import pandas as pd
import pytest

from revela.common import usage
from revela.common.errors import RevelaError
from revela.plan import commands, status
from revela.plan.show import duration
from revela.plan.usage import summed
from revela.training.checkpoints import work_folder

NOW = 1_800_000_000.0


def segment(work: Path, started: float, seen: float, **more: object) -> None:
    facts = {
        "host": "node1", "process": 1, "started": started, "began": started, "seen": seen,
        "processes": 4, "gpus": 4, "gpu": "A100", "first_step": 0, "step": 0, "last_step": 100,
        "ended": False, "joules": None, "peak_gpu_memory_gb": None,
    }  # fmt: skip
    folder = work / "segments"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{started:.0f}-{more.get('host', 'node1')}.json"
    path.write_text(json.dumps(facts | more))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59.7, "1 min 0 s"),  # not 60 s
        (119.6, "2 min 0 s"),
        (3599.8, "1 h 0 min"),
        (47.9 * 3600, "47 h 54 min"),
        (49.5 * 3600, "2 d 1 h"),
    ],
)
def test_durations_have_two_units(seconds, words):
    assert duration(seconds) == words


def test_usage_sums_segments_of_restarts_and_nodes(tmp_path):
    hour = 3600
    segment(tmp_path, NOW, NOW + hour, joules=3.6e6, peak_gpu_memory_gb=10.0)
    segment(tmp_path, NOW + 2 * hour, NOW + 2.5 * hour, joules=1.8e6, peak_gpu_memory_gb=12.0)
    segment(tmp_path, NOW + 2 * hour + 5, NOW + 2.5 * hour + 5, host="node2", joules=1.8e6)
    spent = usage.spent(tmp_path)
    assert spent["starts"] == 2
    assert spent["gpus"] == 8  # of the last start only
    assert spent["gpu_hours"] == pytest.approx(4 * 1 + 4 * 0.5 + 4 * 0.5, abs=1e-3)
    assert spent["hours"] == pytest.approx(1.5, abs=0.01)
    assert spent["kilowatt_hours"] == pytest.approx(2.0)
    assert spent["peak_gpu_memory_gb"] == 12.0
    segment(tmp_path, NOW + 9 * hour, NOW + 9 * hour)
    assert usage.spent(tmp_path)["kilowatt_hours"] is None  # one segment lacks it


def test_energy_counts_visible_gpus_only(monkeypatch):
    drawn = {0: 5_000, 1: 7_000}

    class NVMLError(Exception):
        pass

    def by_uuid(uuid):
        if uuid != "GPU-1":
            raise NVMLError
        return 1

    fake = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: drawn[handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    for visible, joules in ((None, 12), ("0", 5), ("GPU-1", 7), ("", None), ("MIG-x", None)):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert usage.energy_joules() == joules
    assert usage.joules_between(5.0, 7.5) == 2.5
    assert usage.joules_between(5.0, 1.0) is usage.joules_between(None, 1.0) is None


@pytest.fixture
def results(tmp_path) -> Path:
    """Results with a finished training, two evaluations of it, and an unfinished one of each."""
    done = tmp_path / "models" / "done"
    done.mkdir(parents=True)
    manifest = {
        "settings": {"data": "wikipedia", "objective": {"name": "revela"}},
        "steps": 7, "hours": 2.0, "starts": 3, "gpus": 4, "gpu": "A100", "gpu_hours": 8.0,
        "kilowatt_hours": 1.5, "peak_gpu_memory_gb": 30.0, "peak_memory_gb": 5.0,
        "tokens_per_second": 1234.5,
    }  # fmt: skip
    (done / "manifest.json").write_text(json.dumps(manifest))
    (done / "log.jsonl").write_text('{"step": 7, "loss": 1.5}\n')
    scores = tmp_path / "scores" / "done"
    scores.mkdir(parents=True)
    for task in "ab":
        manifest = {"settings": {}, "gpu_hours": 0.5, "kilowatt_hours": 0.25, "peak_memory_gb": 9.0}
        (scores / f"{task}.manifest.json").write_text(json.dumps(manifest))
    work = tmp_path / "models" / "under-way" / "checkpoints" / "0123"
    (work / "checkpoint-20").mkdir(parents=True)
    (work / "checkpoint-30").mkdir()  # incomplete
    (work / "checkpoint-20" / "complete.json").write_text("{}")
    lines = [{"step": n, "loss": 9 - n / 10, "tokens_per_second": 100.0} for n in range(1, 31)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (work / "log.jsonl").write_text(text + '{"step": 31, "lo')
    shards = tmp_path / "shards" / "done" / "c" / "test-default"
    shards.mkdir(parents=True)
    (shards / "00000.safetensors").touch()
    return tmp_path


def test_status_of_finished_and_running_trainings(results):
    now = time.time()
    work = results / "models/under-way/checkpoints/0123"
    segment(work, now - 100, now, first_step=20, step=30, last_step=100)
    done, under_way = status.trainings(results, now + 1)
    assert [done[key] for key in ("model", "state", "step", "loss", "GPU-hours")] == [
        "done", "done", 7, 1.5, 8.0,
    ]  # fmt: skip
    assert (under_way["state"], under_way["step"], under_way["of"]) == ("running", 30, 100)
    assert under_way["loss"] == 6.0
    assert under_way["checkpoint"] == 20
    assert under_way["tokens/s"] == 100
    assert under_way["left"] == "11 min 40 s"  # 70 steps of 10 seconds
    assert under_way["GPU-hours"] == pytest.approx(4 * 100 / 3600, abs=1e-3)

    def state(later: float) -> str:
        return status.trainings(results, now + later)[1]["state"]

    # Steps take ten seconds, so five minutes without activity are a stall.
    assert state(200) == "running"
    assert state(400) == "stalled"
    segment(work, now - 100, now, first_step=20, step=30, ended=True)
    assert state(400) == "stopped"
    segment(work, now - 50, now, first_step=20, step=30, host=socket.gethostname(), process=2**30)
    assert state(1) == "stopped"  # its process on this machine is dead
    (evaluation,) = status.evaluations_under_way(results, now)
    assert [evaluation[key] for key in ("model", "task", "shards")] == ["done", "c", 1]


def test_files_that_jobs_remove_meanwhile(results, monkeypatch):
    """A link that leads nowhere stands for a file that is removed after it was listed."""
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    for folder in ("models/under-way/checkpoints/0123/checkpoint-20", "shards/done/c/test-default"):
        (results / folder / "removed.safetensors").symlink_to("nowhere")
        status.show(results)


def test_a_training_is_not_failed_because_a_table_of_its_name_is(results, capsys):
    segment(results / "models/under-way/checkpoints/0123", time.time() - 100, time.time())
    log = results / "logs/table/under-way.log"
    log.parent.mkdir(parents=True)
    log.write_text("revela: error: a score is damaged\n")
    status.show(results)
    row = next(line for line in capsys.readouterr().out.splitlines() if "│ under-way" in line)
    assert "running" in row


def test_the_analysis_of_a_table_is_not_a_table_of_its_own(results, capsys):
    (results / "tables").mkdir()
    for name in ("one.csv", "one.md", "one.tex", "one_significance.csv", "one_vs_paper.csv"):
        (results / "tables" / name).touch()
    status.show(results)
    assert capsys.readouterr().out.endswith(", 1 tables\n")


def test_failures_are_listed_and_their_files_can_be_removed(results, capsys):
    now = time.time()
    segment(results / "models/under-way/checkpoints/0123", now - 100, now)
    logs = {
        "train/under-way": "step 30\nrevela: error: the loss is not finite\n\n",
        "train/done": "7 steps\n",
        "evaluate/done.c": "Traceback …\nsafetensors.SafetensorError: header\n",
        "batch/mine": "no errors: Error counts are 0\n",
        "train/stopped": "revela: error: stopped by SIGHUP at step 3 of 9; run the same command\n",
        "verify": "revela: error: a result is damaged\n",
    }
    for name, text in logs.items():
        log = results / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text)
    assert status.failures(results) == {
        "train under-way": "revela: error: the loss is not finite",
        "evaluate done.c": "safetensors.SafetensorError: header",
        "verify": "revela: error: a result is damaged",
    }
    killed = results / "logs/train/killed.log"
    killed.write_text("training: 1/9\rtraining: 2/9\r")
    assert status.reason(killed) == "no error message, perhaps killed; last: training: 2/9"
    killed.write_text("training: 1/9\rrevela: interrupted\n")
    assert status.reason(killed) == "interrupted; the same command resumes"
    killed.unlink()
    with pytest.raises(RevelaError, match="'under-way' is running"):
        status.clean(results, "under-way")
    status.show(results)
    output = capsys.readouterr().out
    assert "failed" in output
    assert "`revela clean under-way` removes them" in output
    segment(results / "models/under-way/checkpoints/0123", now - 50, now, ended=True)
    unchecked = results / "models" / "under-way" / "retriever-unchecked"
    unchecked.mkdir()
    assert status.clean(results, "under-way") > 0
    assert not unchecked.exists()
    assert not (results / "models/under-way/checkpoints").exists()
    with pytest.raises(RevelaError, match="no checkpoints and no shards of 'under-way'"):
        status.clean(results, "under-way")
    with pytest.raises(RevelaError, match="'done' is being evaluated: a shard was written 0 s ago"):
        status.clean(results, "done")
    (shard,) = results.glob("shards/done/*/*/*")
    os.utime(shard, (now - 301, now - 301))
    status.clean(results, "done")  # shards of its evaluations
    assert not (results / "shards/done").exists()
    assert (results / "models/done/manifest.json").exists()


def test_a_training_that_saves_its_model_is_not_cleaned(tmp_path):
    unchecked = tmp_path / "models/mine/retriever-unchecked"
    with work_folder(unchecked.parent, "", []) as work:
        segment(work, NOW, NOW, ended=True)  # the last step has been made
        unchecked.mkdir()
        with pytest.raises(RevelaError, match="'mine' is running"):
            status.clean(tmp_path, "mine")
    status.clean(tmp_path, "mine")
    assert not unchecked.exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../models/a", "/models/a"])
def test_only_a_name_is_cleaned(tmp_path, name):
    (tmp_path / "models/a/retriever").mkdir(parents=True)
    with pytest.raises(RevelaError, match="not the name of an experiment or model"):
        status.clean(tmp_path, name)
    assert (tmp_path / "models/a/retriever").exists()


def test_usage_sums_manifests_beside_the_paper(results, tmp_path):
    paper = Path(__file__).parents[2] / "data/paper/gpu_hours.csv"
    commands.usage(results, tmp_path / "usage.csv", paper)
    rows = list(csv.DictReader((tmp_path / "usage.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["done", "total"]
    assert rows[0] == {
        "name": "done", "gpu": "A100", "gpus": "4", "starts": "3", "training_hours": "2",
        "training_gpu_hours": "8", "evaluation_gpu_hours": "1", "kilowatt_hours": "2",
        "peak_gpu_memory_gb": "30", "peak_memory_gb": "9", "paper_gpu_hours": "176",
    }  # fmt: skip
    assert (rows[1]["training_gpu_hours"], rows[1]["evaluation_gpu_hours"]) == ("8", "1")
    cells = [line.split() for line in (tmp_path / "usage.md").read_text().splitlines()]
    assert ["|", "done", "|", "A100", "|", "4", "|"] in [line[:7] for line in cells]
    assert ["|", "total", "|", "–", "|", "–", "|"] in [line[:7] for line in cells]


def test_energy_is_unknown_if_one_manifest_lacks_it(results):
    (results / "scores/done/c.manifest.json").write_text('{"settings": {}, "gpu_hours": 0.5}')
    row = summed(results).loc["done"]
    assert pd.isna(row["kilowatt_hours"])
    assert row["evaluation_gpu_hours"] == 1.5


def test_status_imports_nothing_heavy(results):
    code = (
        "import sys; from revela.cli import app; "
        "app(['status', sys.argv[1]], standalone_mode=False); "
        "print(sorted({'torch', 'transformers', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(results)], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert "under-way" in result.stdout
    assert "2 scores" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"
