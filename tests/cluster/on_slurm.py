"""The pipeline as Slurm jobs: requested GPUs, several nodes, and no loss after any kill.

Needs root that can create PID namespaces (in a container: a privileged one) and Debian's slurmctld,
slurmd, slurm-client and munge: `make test-cluster`.
"""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from revela.training.checkpoints import step_of
from tests.cluster import slurm
from tests.training.common import assert_same_weights
from tests.workflow.test_workflow import CONFIG as TINY
from tests.workflow.test_workflow import ROOT, write_inputs

STEPS = 100
CONFIG = {name: TINY[name] for name in ("corpora", "batches")} | {
    "benchmarks": {"mine": TINY["benchmarks"]["mine"]},
    # One training, with a name for each kind of disturbance.
    "experiments": {
        "undisturbed": TINY["experiments"]["tiny-revela"]
        | {"batches_per_step": 4, "steps": STEPS}
        | {"similarity_snapshot_steps": [], "save_retriever_steps": []},
        "cancelled": {"base": "undisturbed"},
        "two-nodes": {"base": "undisturbed"},
        "limited": {"base": "undisturbed", "steps": 3},
        "node-lost": {"base": "undisturbed"},
        "one-of-two-lost": {"base": "node-lost"},
    },
    "models": {"untouched": TINY["models"]["untouched"]},
    "tables": {
        "notes": {
            "caption": "Notes",
            "benchmark": "mine",
            "rows": [{"label": name, "model": name} for name in ("untouched", "undisturbed")],
        }
    },
}
# This cluster's own settings, as an overlay: the profile is unchanged.
OVERLAY = {
    "default-resources": {"slurm_partition": "fake"},
    "slurm-status-command": "squeue",
    "slurm-init-seconds-before-status-checks": 3,
    "latency-wait": 5,
    # It does not have the CPUs that it claims to have.
    "set-threads": {"chunk": 1, "train": 4, "evaluate": 1},
}


@dataclass
class Cluster:
    """A clone of the project on a Slurm cluster."""

    folder: Path
    lost: Callable[[str], contextlib.AbstractContextManager]  # a node is lost within the block
    running: contextlib.ExitStack  # calls of Snakemake, killed if the test ends before them

    def start(self, *targets: str, **overlay: object) -> subprocess.Popen:
        """Start `snakemake --profile slurm` with targets or other arguments."""
        profile = self.folder / "overlay" / "config.yaml"
        profile.parent.mkdir(exist_ok=True)
        profile.write_text(yaml.safe_dump(OVERLAY | overlay))
        command = ["snakemake", "--profile", "slurm", "--workflow-profile", "overlay", *targets]
        with (self.folder / "snakemake.log").open("a") as log:
            running = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
                stdout=log,
                stderr=log,
            )
        self.running.callback(running.kill)
        return running

    def finish(self, running: subprocess.Popen) -> None:
        """Wait for the end of a call and check that it succeeded."""
        assert running.wait(timeout=600) == 0, self.log()

    def log(self) -> str:
        """Return the end of Snakemake's output."""
        return (self.folder / "snakemake.log").read_text()[-5000:]

    def records(self, rule: str) -> list[dict[str, str]]:
        """Return Slurm's records of the jobs of a rule, or of one of its outputs, oldest first."""
        printed = slurm.output("squeue", "--states=all", "--sort=i", "-h", "--format=%i %k")
        ids = [line.split()[0] for line in printed.splitlines() if rule in line.split()[1]]
        return [slurm.record(number) for number in ids]

    def train_until(self, step: int, name: str, **overlay: object) -> tuple[subprocess.Popen, str]:
        """Call Snakemake for a training and wait for a step; return the call and the job."""
        running = self.start(f"results/models/{name}/retriever", **overlay)
        slurm.wait_for(
            lambda: self.seen(name) >= step or running.poll() is not None, 300, f"{step} steps"
        )
        assert running.poll() is None, self.log()
        (job,) = slurm.jobs()
        return running, job

    def seen(self, name: str) -> int:
        """Return the number of steps in the logs of a training."""
        logs = (self.folder / "results/models" / name).glob("checkpoints/*/log.jsonl")
        return sum(log.read_text().count("\n") for log in logs)

    def saved(self, name: str) -> int:
        """Return the step of a training's last checkpoint, 0 if there is none."""
        whole = (self.folder / "results/models" / name).glob("checkpoints/*/*/complete.json")
        return max((step_of(path.parent) for path in whole), default=0)

    def cancel(self, job: str, name: str) -> None:
        """Cancel a running training and check that its checkpoint loses no step."""
        subprocess.run(["scancel", job], check=True)
        slurm.wait_for(lambda: self.saved(name), 30, "the checkpoint")
        assert 10 < self.saved(name) < STEPS
        assert self.saved(name) == self.seen(name), "steps after the checkpoint are lost"

    def steps(self, name: str) -> list[int]:
        """Return the steps in a finished training's log."""
        lines = (self.folder / f"results/models/{name}/log.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]

    def manifest(self, name: str) -> dict:
        return json.loads((self.folder / f"results/models/{name}/manifest.json").read_text())


def gpus(job: dict[str, str]) -> str:
    """Return the GPUs of a job in Slurm's notation, empty for none."""
    return job.get("TresPerJob") or job.get("TresPerNode") or ""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("clone")
    for name in ("Snakefile", "slurm", "workflow", "envs", "revela", "data/paper"):
        source = ROOT / name
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name, follow_symlinks=False)
    write_inputs(folder, backbone, CONFIG)
    lab = tmp_path_factory.mktemp("slurm") / "lab"
    with slurm.slurm(lab) as lost, contextlib.ExitStack() as running:
        yield Cluster(folder, lost, running)


def test_the_pipeline_runs_as_jobs_with_the_gpus_asked_for(cluster):
    cluster.finish(cluster.start("results/tables/notes.csv"))
    assert (cluster.folder / "results/tables/notes.csv").read_text().count("measured") == 2
    asked = {"rule_chunk": "", "rule_batch": ""}
    asked |= {"rule_train": "gres:gpu:4", "rule_evaluate": "gres:gpu:1"}
    for rule, expected in asked.items():
        jobs = cluster.records(rule)
        assert jobs, rule
        for job in jobs:
            assert job["JobState"] == "COMPLETED"
            assert job["Partition"] == "fake"
            assert gpus(job) == expected
            assert job["NumNodes"] == "1"
    assert not cluster.records("rule_table"), "tables take seconds and no job"
    assert cluster.manifest("undisturbed")["processes"] == 4


def on_nodes(number: str) -> dict:
    """Return the settings for a training of four processes on `number` nodes."""
    if number == "1":
        profile = yaml.safe_load((ROOT / "workflow/profiles/slurm/config.yaml").read_text())
        return {"set-resources": profile["set-resources"]}
    several = yaml.safe_load((ROOT / "slurm/nodes/config.yaml").read_text())
    several["set-resources"]["train"]["gres"] = "gpu:2"  # on each node
    return several


@pytest.mark.parametrize(("name", "nodes"), [("cancelled", "1"), ("two-nodes", "2")])
def test_a_training_cancelled_in_its_middle_loses_no_step(cluster, name, nodes):
    running, job = cluster.train_until(11, name, **on_nodes(nodes))
    cluster.cancel(job, name)
    cluster.finish(running)
    first, second = cluster.records(f"rule_train_wildcards_{name}")
    assert first["JobState"] == "CANCELLED"
    assert second["JobState"] == "COMPLETED"
    assert second["NumNodes"] == nodes
    assert gpus(second) == ("gres:gpu:4" if nodes == "1" else "gres:gpu:2")
    assert_undisturbed(cluster, name)


@pytest.mark.parametrize(("name", "nodes"), [("node-lost", "1"), ("one-of-two-lost", "2")])
def test_a_training_whose_node_is_lost_resumes_from_its_checkpoint(cluster, name, nodes):
    overlay = on_nodes(nodes)
    overlay["set-resources"]["train"]["checkpoint_minutes"] = 0  # after every step
    running, job = cluster.train_until(25, name, **overlay)
    node = slurm.record(job)["NodeList"].replace("gpu[1-2]", "gpu2")
    with cluster.lost(node):
        seen = cluster.seen(name)
        slurm.wait_for(lambda: slurm.record(job)["JobState"] == "NODE_FAIL", 60, "its failure")
        saved = cluster.saved(name)
    cluster.finish(running)
    assert 0 <= seen - saved <= 2, "other steps are lost than those since the last checkpoint"
    first, second = cluster.records(f"rule_train_wildcards_{name}")
    assert first["JobState"] == "NODE_FAIL"
    assert second["JobState"] == "COMPLETED"
    assert second["NumNodes"] == nodes
    assert_undisturbed(cluster, name)


def test_a_job_at_its_time_limit_is_submitted_again_until_done(cluster):
    # A minute is less than the reserve: each job has time for one step.
    limited = {"train": {"nodes": 1, "gpu": 2, "mem_mb": 8000, "runtime": 1}}
    cluster.finish(cluster.start("results/models/limited/retriever", **{"set-resources": limited}))
    jobs = cluster.records("rule_train_wildcards_limited")
    assert [job["JobState"] for job in jobs] == ["FAILED", "FAILED", "COMPLETED"]
    for step, job in enumerate(jobs[:2], start=1):
        said = Path(job["StdOut"]).read_text()
        assert f"stopped by the job's time limit at step {step} of 3" in said
        assert job["TimeLimit"] == "00:01:00"
        assert gpus(job) == "gres:gpu:2"
    assert cluster.steps("limited") == [1, 2, 3]


def assert_undisturbed(cluster: Cluster, name: str) -> None:
    """Check that a training made each step once, on four processes, with the same result."""
    assert cluster.manifest(name)["processes"] == 4
    assert cluster.steps(name) == list(range(1, STEPS + 1))
    models = cluster.folder / "results/models"
    assert_same_weights(models / "undisturbed/retriever", models / name / "retriever")
