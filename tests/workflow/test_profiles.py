"""Where jobs run: the profiles in a fresh clone, the launcher, the propagation of signals."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import revela
from tests.training.common import wait_for_step
from tests.workflow.test_workflow import CONFIG, ROOT, jobs, snakemake, write_inputs

LAUNCH = ROOT / "workflow" / "launch.sh"
SCORES = "results/scores/revela-code-1b/CosQA.json"  # which a training and an evaluation make


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, without any results."""
    folder = tmp_path_factory.mktemp("clone") / "revela"
    made = ("[.]*", "results", "tests", "bench", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*made))
    return folder


@pytest.fixture
def program(tmp_path, monkeypatch) -> Callable[[str, str], None]:
    """A function that puts a shell script of a name before all programs of this name."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return write


def plan(folder: Path, *arguments: str) -> str:
    command = ["snakemake", "--dry-run", *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def asked(printed: str, rule: str) -> dict[str, str]:
    """Return the resources and threads of a rule's first job in a dry run."""
    job = printed.split(f"\nrule {rule}:", 1)[1].split("\nrule ")[0]
    lines = re.findall(r"^ +(?:resources|threads): .*", job, re.MULTILINE)
    return dict(re.findall(r"(\w+)(?:=|: )([^,\n]+)", "\n".join(lines)))


def test_the_paper_is_planned_on_a_cluster(clone):
    joint = "results/scores/revela-wiki-1b/BrightRetrieval.json"
    printed = plan(clone, "--profile", "slurm", "results/tables/coir.csv", joint)
    assert {"chunk", "batch", "train", "evaluate", "table"} < set(jobs(printed))
    train = {"nodes": "1", "gpu": "4", "runtime": "1440", "mem_mb": "256000", "threads": "32"}
    train |= {"gradient_checkpointing": "auto", "loader_workers": "2", "checkpoint_minutes": "15"}
    assert train.items() <= asked(printed, "train").items()
    for rule in ("evaluate", "evaluate_3_bright"):  # of one task, of several
        evaluate = {"gpu": "1", "disk_gb": "31", "threads": "16"}
        assert evaluate.items() <= asked(printed, rule).items()
    assert "gpu" not in asked(printed, "batch")
    profile = yaml.safe_load((clone / "workflow/profiles/slurm/config.yaml").read_text())
    assert profile["resources"]["disk_gb"] < 31 * profile["jobs"]
    assert {"chunk", "train", "evaluate"} <= set(profile["preemptible-rules"])


def test_downloads_alone_are_planned_as_documented(clone):
    page = (ROOT / "docs/cluster.md").read_text()
    (line,) = re.findall(r"^snakemake (.*--until.*?) +#", page, re.MULTILINE)
    assert jobs(plan(clone, *line.split())) == {"download": "3", "total": "3"}


def test_several_nodes_and_the_names_of_a_cluster_are_an_overlay(clone):
    overlay = ("--workflow-profile", "slurm/nodes", "--slurm-status-command", "squeue")
    names = ("--default-resources", "slurm_partition=gpu", "slurm_account=mine")
    printed = plan(clone, "--profile", "slurm", *overlay, SCORES, *names)
    train = asked(printed, "train")
    expected = {"nodes": "2", "tasks": "2", "tasks_per_gpu": "0", "mpi": "srun", "gres": "gpu:4"}
    assert (expected | {"slurm_partition": "gpu", "slurm_account": "mine"}).items() <= train.items()
    assert "gpu" not in train
    assert asked(printed, "evaluate")["slurm_partition"] == "gpu"


@pytest.mark.parametrize(("visible", "threads"), [(None, "8"), ("", "1")])
def test_one_job_at_a_time_computes_on_the_gpus(clone, program, monkeypatch, visible, threads):
    """Without a profile; `CUDA_VISIBLE_DEVICES=` hides the GPUs."""
    program("nvidia-smi", "printf 'GPU 0: A100\\nGPU 1: A100\\n'")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    printed = plan(clone, "--cores", "8", "results/tables/coir.csv")
    for rule in ("train", "evaluate"):
        assert asked(printed, rule).get("threads", "1") == threads
    assert asked(printed, "batch").get("threads", "1") == "1"


def test_a_reworded_command_makes_nothing_stale(clone, tmp_path):
    shutil.copytree(clone / "workflow", tmp_path / "workflow")
    for name in ("Snakefile", "profiles", "envs", "revela", "data"):
        (tmp_path / name).symlink_to(clone / name)
    (tmp_path / "notes.jsonl").write_text('{"text": "a note"}\n')
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"corpora": CONFIG["corpora"]}))
    target = "results/chunks/notes.parquet"
    assert snakemake(tmp_path, target).returncode == 0
    rules = tmp_path / "workflow/rules/text.smk"
    rules.write_text(rules.read_text().replace("revela chunk ", "revela  chunk "))
    local = ("--profile", "workflow/profiles/local", "--workflow-profile", "none")
    for options in ((), local):
        assert "Nothing to be done" in plan(tmp_path, *options, target)
    ran = revela("run", "config.yaml", target, cwd=tmp_path)
    assert "\nNothing to be done" in ran.stderr


def test_only_training_differs_on_several_nodes():
    profiles = ROOT / "workflow/profiles/slurm"
    one = yaml.safe_load((profiles / "config.yaml").read_text())["set-resources"]
    several = yaml.safe_load((profiles / "nodes/config.yaml").read_text())["set-resources"]
    assert one.pop("train") != several.pop("train")
    assert one == several


def test_two_trainings_on_one_machine_do_not_share_its_gpus(clone):
    printed = plan(clone, "--profile", "workflow/profiles/local", SCORES)
    assert asked(printed, "train")["gpu"] == "1"
    profile = yaml.safe_load((clone / "workflow/profiles/local/config.yaml").read_text())
    assert profile["resources"] == {"gpu": 1}


TORCHRUN = "python -m revela.training.launch"
SRUN = (
    "srun --kill-on-bad-exit=1 --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=8 "
    f"{TORCHRUN} --nproc-per-node=2 --nnodes=2"
)


@pytest.mark.parametrize(
    ("nodes", "visible", "threads", "called"),
    [
        (1, None, 8, "python -m revela train --x"),
        (1, "", 8, "python -m revela train --x"),
        (1, "3", 8, "python -m revela train --x"),
        (1, "0,1,2,3", 2, f"{TORCHRUN} --nproc-per-node=4 --standalone -m revela train --x"),
        (2, "0,1", 4, f"{SRUN} --rdzv-id=7 .*:20007 -m revela train --x"),
    ],
)
def test_a_process_for_each_gpu(program, monkeypatch, nodes, visible, threads, called):
    """Of those that are visible; of all (None), which here is one GPU with a MIG instance."""
    program("nvidia-smi", "printf 'GPU 0: A100\\n  MIG 1g.5gb\\n'")
    for name in ("python", "srun"):
        program(name, f'echo OMP=$OMP_NUM_THREADS {name} "$@"')
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "8", "SLURM_JOB_ID": "7"}
    environment |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    command = ["bash", LAUNCH, str(nodes), "revela", "train", "--x"]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert re.fullmatch(f"OMP={threads} {called}", printed.stdout.strip()), printed.stdout


def test_signals_to_a_whole_job_save_a_checkpoint(clone, backbone, tmp_path):
    # As scancel and Ctrl-C do. torchrun's processes have their own sessions.
    for name in ("Snakefile", "workflow", "envs", "revela", "data"):
        (tmp_path / name).symlink_to(clone / name)
    training = CONFIG["experiments"]["tiny-revela"] | {"batches_per_step": 2, "steps": 150}
    training |= {"similarity_snapshot_steps": [], "save_retriever_steps": []}
    config = {name: CONFIG[name] for name in ("corpora", "batches")}
    write_inputs(tmp_path, backbone, config | {"experiments": {"tiny-revela": training}})
    work = tmp_path / "results/models/tiny-revela"

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            ["snakemake", "--cores", "2", "results/models/tiny-revela/retriever"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "0,1"},
            start_new_session=True,
        )  # fmt: skip

    for number, least in ((signal.SIGTERM, 5), (signal.SIGINT, 20)):
        process = start()
        wait_for_step(process, work, least)
        os.killpg(process.pid, number)
        printed, _ = process.communicate(timeout=120)
        assert process.returncode != 0
        log = (tmp_path / "results/logs/train/tiny-revela.log").read_text()
        stopped = re.search(rf"stopped by {number.name} at step (\d+) of 150", log)
        assert stopped, printed + log
        assert list(work.glob(f"checkpoints/*/checkpoint-{stopped[1]}/complete.json"))
    printed, _ = start().communicate(timeout=180)
    lines = (work / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 151)), printed
    assert json.loads((work / "manifest.json").read_text())["processes"] == 2
