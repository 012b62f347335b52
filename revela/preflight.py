"""Looked at before hours are spent: what the targets need, and whether it is there.

    targets → what they need → hub, models' shapes, memory, disk, Java, cluster → one table

A finding is fine, doubtful or a problem; only problems fail.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from revela import estimates, trackers
from revela.config import Config
from revela.corpora import local_files
from revela.errors import RevelaError, unknown_name
from revela.estimates import GB, UNCERTAINTY, Collection, Models, Shape
from revela.hub import converted_revision, explain
from revela.settings import (
    ApiModel,
    EncoderModel,
    Experiment,
    LanguageModel,
    LmEvalBenchmark,
    LuceneModel,
    MtebBenchmark,
)

_SECONDS = 10  # that the hub, Java or Slurm may take for an answer


@dataclass(frozen=True)
class Machine:
    """What jobs will run on."""

    gpus: int  # of a training, over all its nodes
    gpu: str  # its name
    gpu_gb: float | None  # memory of one
    ram_gb: float
    partition: str | None = None


@dataclass(frozen=True)
class Finding:
    """A line of the table."""

    what: str
    verdict: Literal["fine", "doubtful", "problem"]
    told: str
    gpu_hours: float | None = None


@dataclass
class Needs:
    """What targets need that is not there yet."""

    corpora: set[str] = field(default_factory=set)
    batches: set[str] = field(default_factory=set)
    pairs: set[str] = field(default_factory=set)
    backbones: set[str] = field(default_factory=set)
    experiments: set[str] = field(default_factory=set)
    scores: set[tuple[str, str]] = field(default_factory=set)  # model, task


# ---------------------------------------------------------------------------- needs


def needs_of(config: Config, targets: Iterable[str]) -> Needs:
    """Return what must be made for targets: they themselves, and what they stand on and lack.

    Args:
        config: the configuration.
        targets: files below `results/` as the workflow makes them, or `all`; `all` if none.

    Raises:
        RevelaError: a target is not one that the workflow makes.
    """
    needs = Needs()
    for target in list(targets) or ["all"]:
        if target == "all":
            for table in config.tables:
                _need_table(config, needs, table)
            for figure in config.figures:
                _need_figure(config, needs, figure)
            continue
        parts = Path(target).parts
        if parts[:1] != ("results",) or len(parts) < 3:
            raise RevelaError(f"target {target!r}: expected a file below results/, or all")
        _need_target(config, needs, parts[1], parts[2:], target)
    return needs


def _need_target(config: Config, needs: Needs, kind: str, rest: Any, target: str) -> None:
    name = rest[0].partition(".")[0]
    known: Any
    match kind:
        case "tables":
            name = re.sub(r"_(vs_paper|significance)$", "", name)
            known = [*config.tables, *config.listings, "cost"]
            if name in config.tables:
                _need_table(config, needs, name)
        case "figures":
            known = config.figures
            if name in known:
                _need_figure(config, needs, name)
        case "scores" | "runs":
            name, known = rest[0], config.evaluable()
            task = re.sub(r"\.(queries\.csv|json|trec)$", "", rest[-1])
            if task not in _tasks(config):
                raise RevelaError(
                    f"target {target!r}: {unknown_name('task', task, _tasks(config))}"
                )
            if name in known:
                _need_score(config, needs, name, task, explicit=True)
        case "models":
            name, known = rest[0], [*config.experiments, *config.backbones]
            if name in known:
                _need_model(config, needs, name, explicit=True)
        case "batches" | "pairs":
            known = getattr(config, kind)
            if name in known:
                _need_rows(config, needs, kind, name, explicit=True)
        case "chunks":
            known = config.corpora
            needs.corpora.add(name)
        case _:  # benchmarks, logs: made from what is there
            return
    if name not in known:
        raise RevelaError(f"target {target!r}: {unknown_name('entry', name, known)}")


def _tasks(config: Config) -> dict[str, str]:
    return {task: name for name, suite in config.benchmarks.items() for task in suite.tasks}


def _need_table(config: Config, needs: Needs, name: str) -> None:
    table = config.table(name)
    for row in table.rows:
        for task in table.tasks() if row.model else []:
            _need_score(config, needs, str(row.model), task)


def _need_figure(config: Config, needs: Needs, name: str) -> None:
    figure: Any = config.figures[name]
    if figure.kind == "cost":
        return
    if figure.kind in ("bars", "trend"):
        for table in figure.inputs():
            _need_table(config, needs, table)
        return
    for model in figure.inputs():
        _need_model(config, needs, model)
    if figure.kind == "learning":
        chosen = {experiment for experiment, _ in figure.experiments}
        for model in config.evaluable():
            if model.partition("@")[0] in chosen:
                _need_score(config, needs, model, figure.task)


def _need_score(
    config: Config, needs: Needs, model: str, task: str, explicit: bool = False
) -> None:
    if not explicit and Path(f"results/scores/{model}/{task}.json").exists():
        return
    needs.scores.add((model, task))
    entry = config.models.get(model)
    if model.partition("@")[0] in config.experiments:
        _need_model(config, needs, model.partition("@")[0])
    elif isinstance(entry, LanguageModel):
        _need_model(config, needs, entry.language_model)
    elif isinstance(entry, EncoderModel):
        _need_model(config, needs, entry.retriever)


def _need_model(config: Config, needs: Needs, name: str, explicit: bool = False) -> None:
    """Need an experiment or a backbone of the file; anything else is taken as it is."""
    if name in config.experiments:
        if explicit or not Path(f"results/models/{name}/retriever").exists():
            experiment = config.experiments[name]
            needs.experiments.add(name)
            kind = "pairs" if experiment.objective.name == "contriever" else "batches"
            _need_rows(config, needs, kind, experiment.data)
            for backbone in (experiment.retriever, experiment.language_model):
                _need_model(config, needs, backbone or "")
    elif name in config.backbones and (
        explicit or not Path(f"results/models/{name}/model.safetensors").exists()
    ):
        needs.backbones.add(name)
        _need_chunks(needs, config.backbones[name].corpora)


def _need_rows(config: Config, needs: Needs, kind: str, name: str, explicit: bool = False) -> None:
    if not explicit and Path(f"results/{kind}/{name}.parquet").exists():
        return
    getattr(needs, kind).add(name)
    entry = getattr(config, kind)[name]
    _need_chunks(needs, entry.corpora)
    for other in getattr(entry, "mix", {}):
        _need_rows(config, needs, "batches", other)


def _need_chunks(needs: Needs, corpora: Iterable[str]) -> None:
    needs.corpora |= {c for c in corpora if not Path(f"results/chunks/{c}.parquet").exists()}


# ---------------------------------------------------------------------------- the check


def check(config: Config, targets: Iterable[str], machine: Machine, tflops: float) -> list[Finding]:
    """Return what was found, in the order of a run.

    Args:
        config: the configuration.
        targets: see `needs_of`.
        machine: what jobs will run on.
        tflops: 10¹² floating-point operations a second that one GPU does.

    Raises:
        RevelaError: a target is unknown.
    """
    needs = needs_of(config, targets)
    hub = Hub(config)
    models, data = _models(config, needs), _data_sets(config, needs)
    findings = [
        *hub.findings(models, data),
        *_local(config, needs),
        *_trainings(config, needs, machine, hub.shape, tflops),
        *_evaluations(config, needs, machine, hub.shape, tflops),
        *_disk(config, needs, hub.shape, models),
        *_tools(config, needs),
        *_cluster(machine),
    ]
    return findings or [Finding("nothing", "fine", "all that was asked for is there")]


Repository = tuple[str, str | None]  # name and revision


def _is_local(config: Config, name: str) -> bool:
    local = name.startswith((".", "/", "data/", "results/")) or Path(name).is_dir()
    return local or name in config.backbones or name in config.experiments


def _models(config: Config, needs: Needs) -> set[Repository]:
    """Return the models of the hub that are loaded, adapters among them."""
    found: set[Repository] = set()
    for name in needs.experiments:
        experiment = config.experiments[name]
        found |= {(n, None) for n in (experiment.retriever, experiment.language_model) if n}
    for name in {model for model, _ in needs.scores}:
        entry = config.models.get(name)
        if entry is None:
            found.add((config.experiments[name.partition("@")[0]].retriever, None))
        elif isinstance(entry, EncoderModel):
            found.add((entry.retriever, None if entry.adapter else entry.revision))
            found |= {(entry.adapter, entry.revision)} if entry.adapter else set()
        elif isinstance(entry, LanguageModel):
            found.add((entry.language_model, entry.revision))
    return {(name, revision) for name, revision in found if not _is_local(config, name)}


def _data_sets(config: Config, needs: Needs) -> set[Repository]:
    found: set[Repository] = set()
    for name in needs.corpora:
        corpus = config.corpora[name]
        if corpus.source == "hub":
            found.add((corpus.dataset, corpus.revision))
    found |= {(hub, None) for name in needs.batches if (hub := config.batches[name].hub)}
    for task in {task for _, task in needs.scores}:
        suite = config.benchmarks[_tasks(config)[task]]
        if isinstance(suite, MtebBenchmark):
            import mteb

            described = mteb.get_task(task).metadata.dataset
            found.add((described["path"], described.get("revision")))
        elif isinstance(suite, LmEvalBenchmark):
            from revela.benchmarks import lm_eval_data_set, lm_eval_task_files

            files = lm_eval_task_files(suite.path)
            name = lm_eval_data_set(files[task]) if task in files else None
            found |= {(name, None)} if name and "/" in name else set()
    return found


class Hub:
    """What the hub has, or the local cache where there is no way to it."""

    def __init__(self, config: Config) -> None:
        from huggingface_hub import HfApi, constants

        self.api = HfApi()
        self.address = constants.ENDPOINT
        self.offline = constants.HF_HUB_OFFLINE
        self.cache = Path(constants.HF_HUB_CACHE)
        self.shapes: dict[str, Shape | None] = {
            name: Shape.of_backbone(settings) for name, settings in config.backbones.items()
        }

    def findings(self, models: set[Repository], data: set[Repository]) -> list[Finding]:
        """Tell what can be had; a line for each that cannot."""
        if not models and not data:
            return []
        found = []
        if not self.offline and not self._answers():
            self.offline = True
            found.append(Finding("hub", "problem", f"{self.address} cannot be reached"))
        asked = [("model", *one) for one in sorted(models, key=str)]
        asked += [("data set", *one) for one in sorted(data, key=str)]
        look = self._in_cache if self.offline else self._on_hub
        with ThreadPoolExecutor(16) as pool:
            problems = list(pool.map(lambda one: look(*one), asked))
        where = "in the local cache" if self.offline else f"on {self.address}"
        for kind in ("model", "data set"):
            own = [told for one, told in zip(asked, problems, strict=True) if one[0] == kind]
            if own:
                fine = sum(told is None for told in own)
                verdict: Any = "fine" if fine == len(own) else "problem"
                found.append(Finding(f"{kind}s", verdict, f"{fine} of {len(own)} {where}"))
            for told in filter(None, own):
                found.append(Finding(kind, "problem", told))
        return found

    def _answers(self) -> bool:
        from huggingface_hub.utils import get_session

        try:
            get_session().head(self.address, timeout=_SECONDS / 2)
        except Exception:  # of whichever HTTP library the hub's client uses
            return False
        return True

    def _on_hub(self, kind: str, name: str, revision: str | None) -> str | None:
        """Return what keeps a repository from being read, None if nothing."""
        ask: Callable[..., Any] = self.api.model_info if kind == "model" else self.api.dataset_info
        try:
            info = ask(name, revision=revision, timeout=_SECONDS)
            if getattr(info, "gated", False):  # its description is public, its files are not
                self.api.auth_check(name, repo_type="model" if kind == "model" else "dataset")
            files = [file.rfilename for file in info.siblings or []]
            weights = any(file.endswith(".safetensors") for file in files)
            if kind == "model" and not weights and not (not revision and converted_revision(name)):
                return f"model {name!r} has no weights in safetensors"
        except Exception as error:  # explained, whatever it is
            return explain(kind, name, error)
        return None

    def _in_cache(self, kind: str, name: str, revision: str | None) -> str | None:
        from huggingface_hub import constants

        folder = self.cache / f"{kind.replace(' ', '')}s--{name.replace('/', '--')}" / "snapshots"
        # Prepared data sets stand apart from what was downloaded.
        prepared = os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME, "datasets")
        if any(folder.glob(f"{revision}/*" if revision else "*/*")):
            return None
        if kind == "data set" and Path(prepared, name.replace("/", "___").lower()).is_dir():
            return None
        return explain(kind, name, ConnectionError())

    def shape(self, name: str | None) -> Shape | None:
        """Return the shape of a backbone, a hub name or a folder, None where it is unknown."""
        if name and name not in self.shapes:
            self.shapes[name] = self._shape(name)
        return self.shapes.get(name or "")

    def _shape(self, name: str) -> Shape | None:
        from huggingface_hub import hf_hub_download

        try:
            if Path(name).is_dir():
                path = Path(name, "config.json")
            else:
                wanted: dict[str, Any] = {"etag_timeout": _SECONDS}
                wanted["local_files_only"] = self.offline or "/" not in name
                path = Path(hf_hub_download(name, "config.json", **wanted))
            return Shape.of(json.loads(path.read_text(encoding="utf-8")))
        except Exception:  # why it cannot be had is told elsewhere
            return None


def _local(config: Config, needs: Needs) -> list[Finding]:
    """Look for folders and files of the user's own that are named."""
    found = []
    named = set()
    for experiment in map(config.experiments.__getitem__, needs.experiments):
        named |= {experiment.retriever, experiment.language_model or ""}
    for name in needs.corpora:
        corpus = config.corpora[name]
        try:
            if corpus.source == "files":
                local_files(corpus)
        except RevelaError as error:
            found.append(Finding(f"corpus {name}", "problem", str(error)))
    files = {str(config.batches[name].file or "") for name in needs.batches}
    for model, task in needs.scores:
        entry, suite = config.models.get(model), config.benchmarks[_tasks(config)[task]]
        if isinstance(entry, EncoderModel):
            named |= {entry.retriever, entry.adapter or ""}
        if suite.source == "folder":
            files.add(f"{suite.path}/{task}")
    made = ("results/",)
    folders = {n for n in named if n.startswith((".", "/", "data/")) and not n.startswith(made)}
    for name in sorted(files | folders):
        if name and not Path(name).exists():
            found.append(Finding("files", "problem", f"{name}: no such file or folder"))
    for tracker in sorted({t for n in needs.experiments for t in config.experiments[n].trackers}):
        if problem := trackers.missing(tracker):
            found.append(Finding(tracker, "problem", problem))
    return found


def _trainings(
    config: Config, needs: Needs, machine: Machine, shape: Any, tflops: float
) -> list[Finding]:
    found = []
    for name in config.experiments:
        if name not in needs.experiments:
            continue
        experiment = config.experiments[name]
        found += _divides(name, experiment, machine)
        retriever = shape(experiment.retriever)
        language_model = shape(experiment.language_model) if experiment.language_model else None
        if retriever is None or (experiment.language_model and language_model is None):
            told = "memory and time unknown: no config.json of its models"
            found.append(Finding(f"train {name}", "doubtful", told))
            continue
        models = Models(retriever, language_model)
        size = estimates.row_size(config, experiment)
        need = estimates.training_memory(experiment, models, size, machine.gpu_gb is not None) / GB
        rows = estimates.rows_trained(config, experiment)
        hours = None
        if rows:
            hours = estimates.training_flops(experiment, models, size, rows) / tflops / 3.6e15
        found.append(_fits(f"train {name}", need, machine, hours))
    return found


def _divides(name: str, experiment: Experiment, machine: Machine) -> list[Finding]:
    together = max(1, machine.gpus) * experiment.batches_per_device
    if experiment.batches_per_step % together == 0:
        return []
    told = (
        f"batches_per_step {experiment.batches_per_step} is not divisible by {machine.gpus} GPUs "
        f"× batches_per_device {experiment.batches_per_device}"
    )
    return [Finding(f"train {name}", "problem", told)]


def _fits(what: str, need: float, machine: Machine, gpu_hours: float | None) -> Finding:
    """Compare gigabytes needed with what one GPU has, or the machine without one."""
    there = machine.gpu_gb if machine.gpu_gb is not None else machine.ram_gb
    where = machine.gpu if machine.gpu_gb is not None else "no GPU; this machine"
    told = f"about {need:.1f} GB; {where} has {there:.0f} GB"
    if need > UNCERTAINTY * there:
        return Finding(what, "problem", told, gpu_hours)
    return Finding(what, "doubtful" if need * UNCERTAINTY > there else "fine", told, gpu_hours)


def _evaluations(
    config: Config, needs: Needs, machine: Machine, shape: Any, tflops: float
) -> list[Finding]:
    found = []
    for name in config.evaluable():
        tasks = sorted(task for model, task in needs.scores if model == name)
        if not tasks:
            continue
        own = _evaluated_shape(config, name, shape)
        entry = config.models.get(name)
        what = f"evaluate {name}"
        if isinstance(entry, ApiModel):
            lacks = not os.environ.get(entry.key)
            told = f"{entry.key} is {'not ' if lacks else ''}in the environment"
            found.append(Finding(what, "problem" if lacks else "fine", told))
        elif isinstance(own, Shape):
            gpu = machine.gpu_gb is not None
            need = estimates.encoding_memory(own, half=gpu, gpu=gpu)
            flops = sum(
                2.0 * own.parameters() * size.tokens(_longest(config, name, task))
                for task in tasks
                if (size := _collection(config, task))
            )
            found.append(_fits(what, need / GB, machine, flops / tflops / 3.6e15))
        elif own == "unknown":
            told = "memory and time unknown: no config.json of its model"
            found.append(Finding(what, "doubtful", told))
    return found


def _evaluated_shape(config: Config, name: str, shape: Any) -> Shape | str | None:
    """Return the shape of what is evaluated, None for BM25 and APIs."""
    entry = config.models.get(name)
    if entry is None:
        backbone = config.experiments[name.partition("@")[0]].retriever
    elif isinstance(entry, EncoderModel):
        backbone = entry.retriever
    elif isinstance(entry, LanguageModel):
        backbone = entry.language_model
        if backbone in config.experiments:
            backbone = str(config.experiments[backbone].language_model)
    else:
        return None
    return shape(backbone) or "unknown"


def _longest(config: Config, model: str, task: str) -> int:
    """Return the tokens of a text at most when a model is evaluated on a task."""
    suite: Any = config.benchmarks[_tasks(config)[task]]
    own = getattr(config.models.get(model), "max_length", None)
    longest = getattr(suite, "max_length", 2048)
    return min(own or longest, longest)


def _collection(config: Config, task: str) -> Collection | None:
    """Return the size of a task's texts as mteb describes them, None where it does not."""
    suite = config.benchmarks[_tasks(config)[task]]
    if not isinstance(suite, MtebBenchmark):
        return None
    import mteb

    stats = list((mteb.get_task(task).metadata.descriptive_stats or {}).values())
    counted = [(s.get("num_samples"), s.get("number_of_characters")) for s in stats]
    documents, characters = (sum(n or 0 for n in column) for column in zip(*counted, strict=True))
    return Collection(documents, characters) if documents else None


def _disk(config: Config, needs: Needs, shape: Any, models: set[Repository]) -> list[Finding]:
    """Add up what will be written, on the disk of `results/` and on that of the hub's cache."""
    from huggingface_hub import constants

    kept, checkpoints = 0.0, 0.0
    for name in needs.experiments:
        experiment = config.experiments[name]
        retriever, language_model = shape(experiment.retriever), shape(experiment.language_model)
        if retriever:
            trained = estimates.trained_parameters(experiment, Models(retriever, language_model))
            kept += 4 * trained
            copies = experiment.checkpoints_kept + 1  # the new one stands before the old one goes
            checkpoints = max(checkpoints, 12 * trained * copies)
    data = 2 * sum(estimates.data_bytes(config, "batches", name) for name in needs.batches)
    data += sum(estimates.data_bytes(config, "pairs", name) for name in needs.pairs)
    sizes = {task: size for _, task in needs.scores if (size := _collection(config, task))}
    embeddings = max(
        (
            2.0 * own.hidden * sizes[task].documents
            for name, task in needs.scores
            if task in sizes and isinstance(own := _evaluated_shape(config, name, shape), Shape)
        ),
        default=0.0,
    )
    asked = [(own, name) for name, _ in models if (own := shape(name))]
    weights = sum(2 * own.parameters(head=True) for own, _ in asked)
    task_data = 2 * sum(size.characters for size in sizes.values())
    own_disk, cache_disk = Path("results"), Path(constants.HF_HOME)
    written = {
        "disk, results": (own_disk, {
            "data": data,
            "models": kept,
            "checkpoints of one": checkpoints,
            "embeddings of one": embeddings,
        }),
        "disk, hub cache": (cache_disk, {"models": weights, "tasks": task_data}),
    }  # fmt: skip
    found = []
    for what, (place, amounts) in written.items():
        need, free = sum(amounts.values()) / GB, _free(place) / GB
        if not need:
            continue
        parts = ", ".join(f"{key} {value / GB:.1f}" for key, value in amounts.items() if value)
        told = f"about {need:.1f} GB ({parts}); {place} has {free:.0f} GB free"
        verdict: Any = "problem" if need > UNCERTAINTY * free else "fine"
        if verdict == "fine" and need * UNCERTAINTY > free:
            verdict = "doubtful"
        found.append(Finding(what, verdict, told))
    return found


def _free(place: Path) -> int:
    place = place.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _tools(config: Config, needs: Needs) -> list[Finding]:
    """Look for Java and Lucene, and for lm-eval, where they are needed."""
    found = []
    suites = {config.benchmarks[_tasks(config)[task]].source for _, task in needs.scores}
    if any(isinstance(config.models.get(model), LuceneModel) for model, _ in needs.scores):
        from revela.lucene import jar_path, java_path

        try:
            java, jar = java_path(), jar_path()
            subprocess.run([java, "-version"], capture_output=True, timeout=_SECONDS, check=True)
            found.append(Finding("Java and Lucene", "fine", f"{java}, {jar.name}"))
        except RevelaError as error:
            found.append(Finding("Java and Lucene", "problem", str(error)))
        except (OSError, subprocess.SubprocessError) as error:
            found.append(Finding("Java and Lucene", "problem", f"{java} does not run: {error}"))
    if "lm-eval" in suites and importlib.util.find_spec("lm_eval") is None:
        told = "the package lm-eval is missing: pip install 'revela[lm-eval]'"
        found.append(Finding("lm-eval", "problem", told))
    return found


def _cluster(machine: Machine) -> list[Finding]:
    """Ask Slurm for the partition that trainings are sent to."""
    name = machine.partition
    if not name:
        return []
    what = f"partition {name}"
    try:
        told = subprocess.run(
            ["sinfo", "--noheader", "--format=%R|%a|%G"],
            capture_output=True, text=True, timeout=_SECONDS, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return [Finding(what, "problem", f"sinfo does not answer: {error}")]
    lines = [line.split("|") for line in told.splitlines()]
    own = [(state, resources) for partition, state, resources in lines if partition == name]
    if not own:
        known = unknown_name("partition", name, {line[0] for line in lines})
        return [Finding(what, "problem", f"{known} (sinfo)")]
    if not any(state == "up" for state, _ in own):
        return [Finding(what, "problem", "it is not up (sinfo)")]
    if machine.gpus and not any("gpu" in resources for _, resources in own):
        return [Finding(what, "problem", "its nodes have no GPU (sinfo)")]
    return [Finding(what, "fine", ", ".join(sorted({resources for _, resources in own})))]


# ---------------------------------------------------------------------------- the machine


def this_machine(
    gpus: int | None = None, gpu_gb: float | None = None, partition: str | None = None
) -> Machine:
    """Return what jobs will run on: what is told of it, and for the rest this machine."""
    found = _own_gpus()
    name = found[0][0] if found else "the GPU"
    if gpu_gb is None and found:
        gpu_gb = min(memory for _, memory in found)
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    return Machine(len(found) if gpus is None else gpus, name, gpu_gb, ram, partition)


def _own_gpus() -> list[tuple[str, float]]:
    """Return name and memory in GB of the GPUs that a process here may use."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(
            query, capture_output=True, text=True, timeout=_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rpartition(",") for line in told.splitlines() if "," in line]
    every = [(name.strip(), float(memory) / 1024) for name, _, memory in rows]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return every if visible is None else every[: len([v for v in visible.split(",") if v])]


# ---------------------------------------------------------------------------- telling


def show(findings: list[Finding], machine: Machine, tflops: float) -> None:
    """Print the findings as one table, and the GPU-hours of all together."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if os.isatty(1) else 140)
    table = Table(title="Preflight")
    for heading, justify in (("", "left"), ("", "left"), ("Found", "left"), ("GPU-hours", "right")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    colours = {"fine": "green", "doubtful": "yellow", "problem": "red"}
    for one in findings:
        hours = "" if one.gpu_hours is None else f"{one.gpu_hours:,.1f}"
        table.add_row(one.what, f"[{colours[one.verdict]}]{one.verdict}[/]", one.told, hours)
    console.print(table)
    total = sum(one.gpu_hours or 0 for one in findings)
    if total:
        gpus = f", {total / machine.gpus:,.0f} hours on {machine.gpus}" if machine.gpus else ""
        console.print(
            f"about {total:,.0f} GPU-hours{gpus}, at {tflops:.0f} TFLOP/s a GPU "
            f"(the paper's 44 and 48 hours on 4 A100 come to {estimates.PAPER_TFLOPS:.0f})",
            highlight=False,
        )
