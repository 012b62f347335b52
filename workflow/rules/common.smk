"""Shared by all rules: the checked configuration, and the part of it that each job gets."""

import contextlib
import itertools
import os
import re
import shlex
import signal
import sys
from glob import glob
from pathlib import Path

import psutil

from revela.config import parse_config, paths
from revela.config.read import read_yaml
from revela.evaluation.collections import collection_files
from revela.common.errors import RevelaError, errors_at
from revela.common.files import digest
from revela.common.versions import STAGE_VERSIONS
from revela.retriever.source import Source
from revela.start.local import check_local, check_trained
from revela.start.machine import visible_gpus
from revela.text.files import corpus_files

# This checkout, even if another workflow uses this one as a module.
ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]

# A conda environment has its own Python.
PYTHON = "python" if workflow.deployment_settings.deployment_method else sys.executable

# A job that computes takes all GPUs of its machine, if that has any: two would share them.
ON_GPUS = visible_gpus() > 0


def cores(_, rulename):
    """Return a computing job's share of this machine's cores.

    All jobs of its rule that wait for no other one get as many. Snakemake asks before each start.
    """
    if ON_GPUS or not workflow.local_exec:  # a cluster's profile sets the number
        return workflow.cores if ON_GPUS else 1
    dag = workflow.dag
    left = {job for job in dag.needrun_jobs() if job.rule.name == rulename}
    first = [job for job in left if left & {*dag.bfs(dag.dependencies, job)} == {job}]
    return max(1, workflow.cores // max(1, len(first)))


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


def stop_jobs(*_):
    """End the jobs of this machine, then as on Ctrl-C; Snakemake would wait for their success."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a hangup ends them, too
            process.terminate()
    raise KeyboardInterrupt


def input_options(paths_by_name):
    """Return `--input name=path` for each of some files."""
    options = (shlex.quote(f"{name}={path}") for name, path in paths_by_name.items())
    return " ".join(f"--input {option}" for option in options)


def named(section, name):
    """Return `--input name=path` for each file of other entries that an entry's step reads."""
    return input_options(CONFIG.inputs(section, name))


def settings(section, name):
    """Return an entry's settings for its step."""
    return CONFIG.resolved(section, name).dump()


def version(stage, models=(), files=()):
    """Return a stage's version, with fingerprints of the user's models and files that it reads.

    Timestamps do not tell all: a replaced file may be older than the results of the one before.
    """
    used = [STAGE_VERSIONS[stage], *(Source(str(m)).fingerprint() for m in models)]
    if files:
        used.append(digest(map(Path, files)))
    return " ".join(map(str, used)) if used[1:] else used[0]


def inputs(section, name):
    """Return the files of other entries that an entry's step reads."""
    return list(CONFIG.inputs(section, name).values())


def ready_made(name):
    """Return the file of ready-made batches of a batch set, if it is one."""
    return list(filter(None, [CONFIG.batches[name].file]))


def brought(task):
    """Return the files of a task's collection that the user provided."""
    suite = CONFIG.task(task)
    if suite.source != "folder":
        return []
    folder = Path(CONFIG.collection(task))
    return list(itertools.chain(*collection_files(folder, suite.split)))


def collection(task):
    """Return the files of a task's collection, or its folder if it is made here."""
    return brought(task) or list(filter(None, [CONFIG.collection(task)]))


def named_by(wildcards, tasks):
    """Return the tasks of a job, of which one is given by a wildcard."""
    return [task.format(**wildcards) for task in tasks]


def evaluated_together():
    """Return name, models and tasks of each rule whose jobs evaluate several tasks.

    A job has only tasks that tables and figures show its model on.
    """
    models = {}
    for model, tasks in CONFIG.evaluations().items():
        jobs = {}
        for task in tasks:
            jobs.setdefault(CONFIG.first_of_job(task), []).append(task)
        for some in jobs.values():
            models.setdefault(tuple(some), []).append(model)
    together = [tasks for tasks in models if len(tasks) > 1]
    return [
        (f"evaluate_{number}_{CONFIG.tasks[tasks[0]]}", models[tasks], tasks)
        for number, tasks in enumerate(together, start=1)
    ]


def as_evaluate(name):
    """Prefer a rule to `evaluate`, and give it the same resources, unless it is given its own."""
    workflow.ruleorder(name, "evaluate")
    known, other = rules.evaluate.rule, getattr(rules, name).rule
    given = workflow.resource_settings
    if other.name not in {*given.overwrite_resources, *given.overwrite_threads}:
        other.resources = known.resources


def retry_together():
    """Retry joint evaluations as often as others, which is known once a run starts."""
    for name, _, _ in evaluated_together():
        getattr(rules, name).rule.restart_times = rules.evaluate.rule.restart_times


def task_options(tasks):
    """Return `--benchmark JSON` for each task, and `--input TASK=FOLDER` for each local one."""
    suites = [f"--benchmark {shlex.quote(settings('tasks', task))}" for task in tasks]
    local = {task: CONFIG.collection(task) for task in tasks if CONFIG.collection(task)}
    return " ".join([*suites, input_options(local)])


def folder_option(task):
    """Return the option for the folder of a local task's collection."""
    folder = CONFIG.collection(task)
    return f"--folder {shlex.quote(folder)}" if folder else ""


def table_scores(table, path=paths.scores, tasks=CONFIG.tasks):
    """Return the scores that a table's measured rows need."""
    return [
        path(model, task) for model, task in CONFIG.measured(table) if task in tasks
    ]


def name_failed():
    """Say at the end of a run which jobs failed, and which others wait for them."""
    dag = workflow.dag
    for failed in workflow.scheduler.failed:
        jobs = [job for job in dag.bfs(dag.depending, failed) if job.rule.name != "all"]
        first, *others = (" ".join([job.rule.name, *job.wildcards]) for job in jobs)
        waiting = f"; waiting for it: {', '.join(others)}" if others else ""
        print(f"{first} failed{waiting}", file=sys.stderr)
