"""What the local hub serves: miniatures of every model and data set that a config names.

Each has the name, the files, the fields and the nesting of the real one; texts and code are taken
from Python's own documentation and source, weights are random.
"""

import re
from pathlib import Path

from revela.config.file import Config
from revela.config.steps import HubCorpus, MtebBenchmark
from tests.rehearsal import corpora, models, tasks

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LOCAL = ("data/", "results/")


def make(config: Config, folder: Path) -> None:
    """Write the models and data sets that a config names under a folder of the local hub.

    Raises:
        KeyError: the config names one of which no miniature is known.
    """
    for name in sorted(_hub_names(config)):
        models.write_model(folder / "models" / name, name)
    sets = [c.dataset for c in config.corpora.values() if isinstance(c, HubCorpus)]
    sets += [batches.hub for batches in config.batches.values() if batches.hub]
    for name in sets:
        corpora.WRITERS[name](folder / "datasets" / name)
    for benchmark in config.benchmarks.values():
        if isinstance(benchmark, MtebBenchmark):
            for task in benchmark.tasks:
                tasks.write_task(folder / "datasets", task)
    for name, subset, row in tasks.LANGUAGE_MODEL_TASKS:
        tasks.write_multiple_choice(folder / "datasets" / name, subset, row)


def _hub_names(config: Config) -> set[str]:
    """Return the hub names among the settings of experiments and models, with adapters' bases."""
    measured_here = [m for m in config.models.values() if m.kind != "api"]
    entries = [*config.experiments.values(), *measured_here]
    found = {
        value
        for entry in entries
        for key, value in entry.model_dump().items()
        if key != "data" and isinstance(value, str) and _HUB_NAME.fullmatch(value)
        if not value.startswith(_LOCAL)
    }
    return found | {base for name in found if (base := models.base_of(name))}
