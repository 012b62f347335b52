"""Status of runs, read from their files."""

import json
import time
from pathlib import Path

import pytest

from revela.common.errors import RevelaError
from revela.common.locks import locked
from revela.common.outputs import claim
from revela.start import status
from revela.training.checkpoints import work_folder


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (59.7, "1 min 0 s"),  # not 60 s
        (3599.8, "1 h 0 min"),
        (47.9 * 3600, "47 h 54 min"),
        (49.5 * 3600, "2 d 1 h"),
    ],
)
def test_durations_have_two_units(seconds, words):
    assert status.duration(seconds) == words


@pytest.fixture
def results(tmp_path) -> Path:
    """Results with a finished training, two evaluations of it, and an unfinished one of each."""
    done = tmp_path / "models" / "done"
    done.mkdir(parents=True)
    manifest = {
        "settings": {"batches_per_step": 32}, "steps": 7, "tokens": 70, "hours": 2.0, "gpus": 4,
        "gpu": "A100", "gpu_hours": 8.0, "peak_gpu_memory_gb": 30.0, "peak_memory_gb": 5.0,
        "tokens_per_second": 1234.5,
    }  # fmt: skip
    (done / "manifest.json").write_text(json.dumps(manifest))
    (done / "log.jsonl").write_text('{"step": 7, "loss": 1.5}\n')
    scores = tmp_path / "scores" / "done"
    scores.mkdir(parents=True)
    for task in "ab":
        (scores / f"{task}.manifest.json").write_text("{}")
    work = tmp_path / "models" / "under-way" / "checkpoints" / "0123"
    claim(work)
    (work / "checkpoint-20").mkdir()
    (work / "checkpoint-30").mkdir()  # incomplete
    (work / "checkpoint-20" / "complete.json").write_text("{}")
    line = {"of": 100, "seconds": 10.0, "tokens_per_second": 100.0}
    lines = [line | {"step": n, "loss": 9 - n / 10} for n in range(1, 31)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (work / "log.jsonl").write_text(text + '{"step": 31, "lo')
    shards = tmp_path / "shards" / "done" / "done-c" / "test-default"
    claim(shards.parent)
    shards.mkdir()
    (shards / "00000.safetensors").touch()
    return tmp_path


def test_status_of_finished_and_running_trainings(results):
    now = time.time()
    with locked(results / "models/under-way/checkpoints", "training"):
        done, under_way = status.trainings(results, now + 1)
    assert [done[key] for key in ("model", "state", "step", "loss", "GPU-hours")] == [
        "done", "done", 7, 1.5, 8.0,
    ]  # fmt: skip
    assert (under_way["state"], under_way["step"], under_way["of"]) == ("running", 30, 100)
    assert (under_way["loss"], under_way["checkpoint"], under_way["tokens/s"]) == (6.0, 20, 100)
    assert under_way["left"] == "11 min 40 s"  # 70 steps of 10 seconds
    assert status.trainings(results, now + 1)[1]["state"] == "stopped"  # nobody holds its lock
    (evaluation,) = status.evaluations_under_way(results, now)
    assert [evaluation[key] for key in ("model", "task", "shards")] == ["done", "c", 1]


def test_files_that_jobs_remove_meanwhile(results, monkeypatch):
    """A link that leads nowhere stands for a file that is removed after it was listed."""
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    for folder in (
        "models/under-way/checkpoints/0123/checkpoint-20",
        "shards/done/done-c/test-default",
    ):
        (results / folder / "removed.safetensors").symlink_to("nowhere")
        status.show(results)


def test_a_training_is_not_failed_because_a_table_of_its_name_is(results, capsys):
    log = results / "logs/table/under-way.log"
    log.parent.mkdir(parents=True)
    log.write_text("revela: error: a score is damaged\n")
    with locked(results / "models/under-way/checkpoints", "training"):
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
    with (
        locked(results / "models/under-way/checkpoints", "training"),
        pytest.raises(RevelaError, match="'under-way' is running"),
    ):
        status.clean(results, "under-way")
    status.show(results)
    output = capsys.readouterr().out
    assert "failed" in output
    assert "`revela clean under-way` removes them" in output
    unchecked = results / "models" / "under-way" / "retriever-unchecked"
    unchecked.mkdir()
    (unchecked / "notes").touch()
    with pytest.raises(RevelaError, match="retriever-unchecked/notes: not written by revela"):
        status.clean(results, "under-way")
    (unchecked / "notes").unlink()
    assert status.clean(results, "under-way") > 0
    assert not unchecked.exists()
    assert not (results / "models/under-way/checkpoints").exists()
    with pytest.raises(RevelaError, match="no checkpoints and no shards of 'under-way'"):
        status.clean(results, "under-way")
    (work,) = results.glob("shards/done/*")
    with locked(work, "evaluation"), pytest.raises(RevelaError, match="'done' is running"):
        status.clean(results, "done")
    status.clean(results, "done")  # shards of its evaluations
    assert not (results / "shards/done").exists()
    assert (results / "models/done/manifest.json").exists()


def test_a_training_that_saves_its_model_is_not_cleaned(tmp_path):
    unchecked = tmp_path / "models/mine/retriever-unchecked"
    with work_folder(unchecked.parent, "", []):
        unchecked.mkdir()
        with pytest.raises(RevelaError, match="'mine' is running"):
            status.clean(tmp_path, "mine")
    status.clean(tmp_path, "mine")
    assert not unchecked.exists()
