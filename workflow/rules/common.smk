"""What the rules know: the checked configuration and the slice of it that each job sees."""

import shlex
from glob import glob
from pathlib import Path

from snakemake.exceptions import WorkflowError

from revela.evaluation.benchmarks import collection_files
from revela.config.file import parse_config
from revela.text.corpora import local_files
from revela.common.errors import RevelaError
from revela.common.versions import STAGE_VERSIONS
from revela.plan.estimates import PAPER_TFLOPS
from revela.plan.machine import this_machine
from revela.plan.preflight import run as preflight
from revela.config.steps import LmEvalBenchmark, MtebBenchmark, PydocsBenchmark

# What the rules' shells share: `revela STEP … | record LOG`, and `launch` for one process a GPU.
# A failing command fails its job although `tee` succeeds. The checkout's own source runs in
# whatever environment a job has. The shell and the log outlive a signal to all processes of a job:
# a training that is saving its checkpoint can do so, and say so, since Slurm kills what is left of
# a job once its shell ends.
shell.prefix(
    "set -euo pipefail; "
    f"export PYTHONPATH={shlex.quote(str(workflow.basedir))}; "
    "trap : INT TERM USR1; "
    'revela() {{ exec python -m revela "$@" 2>&1; }}; '
    'launch() {{ exec bash "$PYTHONPATH/workflow/launch.sh" "$@" 2>&1; }}; '
    "record() {{ trap '' INT TERM USR1; exec tee \"$1\"; }}; "
)

try:
    CONFIG = parse_config(config, ", ".join(map(str, workflow.configfiles)))
except RevelaError as error:
    raise WorkflowError(str(error))

COMPARED = [name for name, table in CONFIG.tables.items() if table.reported]

TASKS = {
    task: name
    for name, benchmark in CONFIG.benchmarks.items()
    for task in benchmark.tasks
}
RETRIEVAL_TASKS = {
    task
    for task, name in TASKS.items()
    if not isinstance(CONFIG.benchmarks[name], LmEvalBenchmark)
}


def one_of(names):
    """Return the pattern of a wildcard that is one of some names."""
    return "|".join(sorted(names)) or "none"


wildcard_constraints:
    corpus=one_of(CONFIG.corpora),
    batches=one_of(CONFIG.batches),
    pairs=one_of(CONFIG.pairs),
    backbone=one_of(CONFIG.backbones),
    experiment=one_of(CONFIG.experiments),
    model=one_of(CONFIG.evaluable()),
    task=one_of(TASKS),
    table=one_of(CONFIG.tables),
    listing=one_of(CONFIG.listings),
    figure=one_of(CONFIG.figures),


def named(paths):
    """Return `--input name=path` for each named path, as the command line expects them."""
    return " ".join(
        f"--input {shlex.quote(f'{name}={path}')}" for name, path in paths.items()
    )


def backbone_path(name):
    """Return the folder of a backbone made here, or the hub name or folder as it is."""
    return f"results/models/{name}" if name in CONFIG.backbones else name


def local_weights(*names):
    """Return the files that a job must wait for: those of backbones made here."""
    return [
        f"results/models/{name}/model.safetensors"
        for name in names
        if name in CONFIG.backbones
    ]


def corpus_files(name):
    """Return the local files of a corpus, none for packages and hub sets."""
    corpus = CONFIG.corpora[name]
    return local_files(corpus) if corpus.source == "files" else []


def chunks_of(entry):
    """Return the chunk file of each corpus, or the batch file of each set that is mixed."""
    return {name: f"results/chunks/{name}.parquet" for name in entry.corpora} | {
        name: f"results/batches/{name}.parquet"
        for name in getattr(entry, "sample_from", {})
    }


def batch_inputs(batches):
    """Return the files that a batch set is made of."""
    ready_made = [batches.file] if batches.file else []
    return [*chunks_of(batches).values(), *ready_made]


def training_data(experiment):
    """Return the batch file or pair file that an experiment trains on."""
    stage = "pairs" if experiment.objective.name == "contriever" else "batches"
    return f"results/{stage}/{experiment.data}.parquet"


def experiment_settings(name):
    """Return an experiment's settings with its backbones as paths."""
    experiment = CONFIG.experiments[name]
    models = {"retriever": backbone_path(experiment.retriever)}
    if experiment.language_model:
        models["language_model"] = backbone_path(experiment.language_model)
    return experiment.model_copy(update=models).dump()


def model_settings(name):
    """Return how to load a model for evaluation, its backbone as a path."""
    model = CONFIG.model(name)
    if hasattr(model, "retriever"):
        path = backbone_path(model.retriever)
        model = model.model_copy(update={"retriever": path})
    return model.dump()


def model_files(name):
    """Return what must exist before a model can be evaluated."""
    name = name.partition("@")[0]  # a retriever kept at a step comes with the last one
    if name in CONFIG.experiments:
        experiment = CONFIG.experiments[name]
        return [f"results/models/{name}/retriever"] + local_weights(
            experiment.retriever
        )
    return local_weights(getattr(CONFIG.model(name), "retriever", ""))


def language_model_settings(name):
    """Return how to load a language model, one that is made here as its folder."""
    model = CONFIG.model(name)
    path = backbone_path(model.language_model)
    if model.language_model in CONFIG.experiments:
        path = f"results/models/{model.language_model}/language_model"
    return model.model_copy(update={"language_model": path}).dump()


def language_model_files(name):
    """Return what must exist before a language model can be evaluated."""
    name = CONFIG.model(name).language_model
    if name not in CONFIG.experiments:
        return local_weights(name)
    # The trained language model comes with the retriever.
    return model_files(name) + local_weights(CONFIG.experiments[name].language_model)


def task_folder(task):
    """Return the folder of a local task's collection, None for a task of mteb."""
    benchmark = CONFIG.benchmarks[TASKS[task]]
    if isinstance(benchmark, MtebBenchmark):
        return None
    if isinstance(benchmark, PydocsBenchmark):
        return f"results/benchmarks/{TASKS[task]}/{task}"
    return f"{benchmark.path}/{task}"


def task_files(task):
    """Return the files of a local task's collection: made here, or brought by the user."""
    benchmark = CONFIG.benchmarks[TASKS[task]]
    if benchmark.source == "folder":
        return collection_files(Path(task_folder(task)))
    return task_folder(task) or []


def task_settings(task):
    """Return the settings of a task's benchmark without its other tasks."""
    benchmark = CONFIG.benchmarks[TASKS[task]]
    return benchmark.model_copy(update={"tasks": [task]}).dump()


def table_scores(table, tasks=TASKS, suffix="json"):
    """Return the scores that a table's measured rows need."""
    entry = CONFIG.table(table)
    return expand(
        "results/scores/{model}/{task}.{suffix}",
        model=[model for row in entry.rows for model in row.model],
        task=[task for task in entry.tasks() if task in tasks],
        suffix=suffix,
    )


def table_queries(table):
    """Return each query's measure, for the intervals and tests of a table."""
    return table_scores(table, RETRIEVAL_TASKS, "queries.csv")


def reported_file(table):
    """Return the file of a table's printed figures, if there is one."""
    return CONFIG.tables[table].reported or []


def figure_inputs(figure):
    """Return what a figure is drawn from: training logs, scores, tables, a bench."""
    entry = CONFIG.figures[figure]
    if entry.kind in ("bars", "trend"):
        return {name: f"results/tables/{name}.csv" for name in entry.inputs()}
    if entry.kind == "step-cost":
        return {"step-cost": f"results/bench/{figure}.csv"}
    if entry.kind == "learning":
        experiments = [name for name, _ in entry.experiments]
        models = [model for name in experiments for model in CONFIG.steps_of(name)]
        scores = {m: f"results/scores/{m}/{entry.task}.json" for m in models}
        logs = {f"{name}.log": training_log(name) for name in experiments}
        return scores | logs
    return {name: training_log(name) for name in entry.inputs()}


def training_log(name):
    """Return the training log of an experiment or a backbone."""
    return f"results/models/{name}/log.jsonl"


def manifests():
    """Return the manifests that tell what was spent: those that are there."""
    return sorted(
        [
            *glob("results/models/*/manifest.json"),
            *glob("results/scores/*/*.manifest.json"),
        ]
    )


EXPENSIVE = {
    "chunk",
    "batch",
    "pair",
    "pretrain",
    "train",
    "evaluate",
    "evaluate_language_model",
}


def look_first():
    """Check what the jobs of this run need, on the GPUs that its profile gives a training.

    This is no rule. One that is made anew, and that trainings depend on, either runs them all
    again or, as `ancient()`, keeps Snakemake from seeing what else has changed for them.
    """
    jobs = [job for job in workflow.dag.needrun_jobs() if job.rule.name in EXPENSIVE]
    if not jobs:
        return
    trainings = [job for job in jobs if job.rule.name == "train"]
    told = trainings[0].resources if trainings else {}
    gpus = told.get("gpu") and told["gpu"] * told.get("nodes", 1)
    machine = this_machine(gpus, told.get("gpu_memory_gb"), told.get("slurm_partition"))
    try:
        output = Path("results/preflight.json")
        preflight(
            CONFIG, [job.output[0] for job in jobs], machine, PAPER_TFLOPS, output
        )
    except RevelaError as error:
        raise WorkflowError(f"{error}; --no-hooks goes without it")
