"""The contents of the local hub: miniatures of every model and data set named by a config.

Each has the name, the files, the fields and the nesting of the real one; texts and code are taken
from Python's own documentation and source, weights are random.
"""

from pathlib import Path

from revela.config import Config
from revela.config.evaluation import MtebBenchmark
from revela.config.names import ModelRef, references
from revela.config.text import HubCorpus
from tests.rehearsal import corpora, models, tasks


def make(config: Config, folder: Path) -> None:
    """Write the models and data sets that a config names under a folder of the local hub.

    Raises:
        KeyError: the config names one without a miniature.
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
    """Return the hub names of the models used by experiments and models, with adapters' bases."""
    entries = [*config.experiments.values(), *config.models.values()]
    used = (name for name in references(entries) if isinstance(name, ModelRef))
    found = {name.partition("@")[0] for name in used if name.is_hub_name}
    return found | {base for name in found if (base := models.base_of(name))}
