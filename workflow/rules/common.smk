"""Shared by all rules: the checked configuration, and the part of it that each job gets."""

import itertools
import os
import re
import shlex
import signal
import sys
from glob import glob
from pathlib import Path

from snakemake.exceptions import WorkflowError

from revela.config import parse_config, paths
from revela.config.check import check_local, check_trained
from revela.config.local import collection_files, digest, fingerprint, text_files
from revela.config.read import read_yaml
from revela.common.errors import RevelaError, errors_at
from revela.common.versions import STAGE_VERSIONS
from revela.plan.jobs import RULES, Job
from revela.plan.machine import Machine, gpus_asked, this_machine
from revela.plan.preflight import run as preflight

# This checkout, even if another workflow uses this one as a module.
ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]

# A conda environment has its own Python.
PYTHON = "python" if workflow.deployment_settings.deployment_method else sys.executable

# Cores of a job that computes on all GPUs of its machine, if that has any: two would share them.
COMPUTING = workflow.cores if this_machine().gpus else 1


def in_job(command):
    """Return the shell command of a rule, with what `job.sh` defines; its output is logged.

    `shell.prefix` would change the rules of a workflow that uses this one as a module, too.
    """
    begin = shlex.join(["source", str(ROOT / "workflow/job.sh"), PYTHON])
    begin = begin.replace("{", "{{").replace("}", "}}")
    return f"{begin}; {command} | record {{log:q}}"


def or_exit(function, *given):
    """Call a function; a RevelaError becomes the last line of the run."""
    try:
        return function(*given)
    except RevelaError as error:
        raise SystemExit(f"revela: error: {error}")


# Snakemake's own message about a YAML error has no line, and it accepts duplicate keys.
for source in [*workflow.overwrite_configfiles, *Path().glob("config.yaml")]:
    or_exit(read_yaml, source)


configfile: "config.yaml"


def read_config():
    """Return the configuration after checking it and its local files."""
    replaced = workflow.config_settings.replace_workflow_config
    used = workflow.overwrite_configfiles if replaced else workflow.configfiles
    source = ", ".join(map(str, used))
    try:
        checked = parse_config(config, source)
    except RevelaError as error:
        if workflow.config_settings.config_args:
            hint = "Snakemake passes values of --config as text; use a file"
            raise RevelaError(f"{error} ({hint})") from error
        raise
    with errors_at(source):
        check_local(checked)
    return checked


CONFIG = or_exit(read_config)

# A closed terminal must not end Snakemake before it has unlocked the folder.
if workflow.is_main_process and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))

if workflow.is_main_process:  # a running training has not written its files yet
    or_exit(check_trained, CONFIG)

COMPARED = [name for name, table in CONFIG.tables.items() if table.reported]


def one_of(names):
    """Return the pattern of a wildcard that matches some names."""
    return "|".join(map(re.escape, sorted(names))) or "none"


wildcard_constraints:
    corpus=one_of(CONFIG.corpora),
    batches=one_of(CONFIG.batches),
    pairs=one_of(CONFIG.pairs),
    experiment=one_of(CONFIG.experiments),
    model=one_of(CONFIG.evaluated),
    task=one_of(CONFIG.tasks),
    table=one_of(CONFIG.tables),
    listing=one_of(CONFIG.listings),
    figure=one_of(CONFIG.figures),


def named(section, name):
    """Return `--input name=path` for each file of other entries that an entry's step reads."""
    paths_by_name = CONFIG.inputs(section, name).items()
    return " ".join(
        f"--input {shlex.quote(f'{n}={path}')}" for n, path in paths_by_name
    )


def settings(section, name):
    """Return an entry's settings for its step."""
    return CONFIG.resolved(section, name).dump()


def version(stage, models=(), files=()):
    """Return a stage's version, with fingerprints of the user's models and files that it reads.

    Timestamps do not tell all: a replaced file may be older than the results of the one before.
    """
    used = [
        *map(fingerprint, models),
        *([digest(tuple(map(Path, files)))] if files else []),
    ]
    return (
        " ".join([str(STAGE_VERSIONS[stage]), *used]) if used else STAGE_VERSIONS[stage]
    )


def inputs(section, name):
    """Return the files of other entries that an entry's step reads."""
    return list(CONFIG.inputs(section, name).values())


def corpus_files(name):
    """Return the local files of a corpus; empty for packages and hub data sets."""
    corpus = CONFIG.corpora[name]
    return text_files(Path(corpus.path)) if corpus.source == "files" else []


def ready_made(name):
    """Return the file of ready-made batches of a batch set, if it is one."""
    file = CONFIG.batches[name].file
    return [file] if file else []


def brought(task):
    """Return the files of a task's collection that the user provided."""
    if CONFIG.task(task).source != "folder":
        return []
    return list(itertools.chain(*collection_files(Path(CONFIG.collection(task)))))


def similar(model, task):
    """Return the embeddings that a task can reuse for its passages."""
    shared = CONFIG.shared_corpus(model, task)
    return paths.embeddings(model, shared) if shared else []


def sharing_options(model, task):
    """Return the options for the embeddings that a task keeps and that it reuses."""
    options = []
    suite = CONFIG.benchmarks[CONFIG.tasks[task]]
    if task in suite.shares_corpus.values():
        options += ["--embeddings", paths.embeddings(model, task)]
    if reused := similar(model, task):
        options += ["--similar", reused]
    return shlex.join(options)


def folder_option(task):
    """Return the option for the folder of a local task's collection."""
    folder = CONFIG.collection(task)
    return f"--folder {shlex.quote(folder)}" if folder else ""


def table_scores(table, path=paths.scores, tasks=CONFIG.tasks):
    """Return the scores that a table's measured rows need."""
    entry = CONFIG.table(table)
    return [
        path(model, task)
        for row in entry.rows
        for model in row.model
        for task in entry.tasks()
        if task in tasks
    ]


def look_first():
    """Check the needs of this run's jobs, on the GPUs that its profile assigns to a training.

    This is not a rule: as an input of trainings that is always remade, it would rerun them all or,
    as `ancient()`, hide other changes from Snakemake.
    """
    dag = workflow.dag
    jobs = costly(dag.needrun_jobs())
    if not jobs:
        return
    targets = {
        f"{job.rule.name} {job.wildcards[0]}": planned(
            dag.bfs(dag.dependencies, job, stop=lambda job: not dag.needrun(job))
        )
        for job in dag.needrun_jobs()
        if job.rule.name in ("train", "table")
    }
    # Of the training with the most GPUs. Local runs use this machine's, if their memory is not set;
    # of a cluster, the node that Snakemake runs on says nothing.
    trainings = [job for job in jobs if job.rule.name == "train"]
    asked = max((job.resources for job in trainings or jobs), key=gpus_asked)
    recomputing = any(map(recomputes, trainings))
    if workflow.local_exec and not asked.get("gpu_memory_gb"):
        machine = this_machine(recomputing)
    else:
        machine = Machine(
            gpus_asked(asked),
            asked.get("gpu_memory_gb"),
            partition=asked.get("slurm_partition"),
            gradient_checkpointing=recomputing,
        )
    known, output = ROOT / "data/paper", Path("results/preflight.json")
    blocked = or_exit(preflight, CONFIG, planned(jobs), machine, known, output, targets)
    skip({job: blocked[own] for job in jobs if (own := in_plan(job)) in blocked})
    if not costly(dag.needrun_jobs()):
        look_back()


SKIPPED = {}  # reason → jobs


def skip(blocked):
    """Remove jobs, and all that depend on them, from the run, as `--omit-from` does.

    Args:
        blocked: job → reason why it cannot run.
    """
    dag = workflow.dag
    needing = [job for job in dag.bfs(dag.depending, *blocked) if job not in blocked]
    for job in [*blocked, *needing]:
        dag.delete_job(job, recursive=False, add_dependencies=True)
        reason = blocked.get(job, "depend on these jobs")
        if job.rule.name != "all":
            name = " ".join([job.rule.name, *job.wildcards])
            SKIPPED.setdefault(reason, []).append(name)


def look_back():
    """Report the skipped jobs at the end of a run.

    Raises:
        WorkflowError: jobs were skipped, so the run is not complete.
    """
    if SKIPPED:
        lines = [f"  {reason}: {', '.join(jobs)}" for reason, jobs in SKIPPED.items()]
        count = sum(map(len, SKIPPED.values()))
        how = "REVELA_PREFLIGHT=off runs them anyway"
        raise WorkflowError(f"{count} jobs were skipped ({how}):", *lines)


def recomputes(job):
    """Return whether a training uses gradient checkpointing; `false` from an option is a string."""
    return str(job.resources.get("gradient_checkpointing"))[0] not in "fF0"


def costly(jobs):
    """Return the jobs that take time."""
    return [job for job in jobs if job.rule.name in RULES]


def planned(jobs):
    """Return the jobs that take time, as named in the plan."""
    return [in_plan(job) for job in costly(jobs)]


def in_plan(job):
    """Return a job as named in the plan."""
    return Job(job.rule.name, *job.wildcards)
