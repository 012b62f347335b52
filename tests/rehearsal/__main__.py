"""Rehearse the paper's plan: run jobs of `config.yaml`, in miniature and offline.

By default one job represents each loader, objective, model and task; `--all` runs every job. All
files are in `.rehearsal/`, which is recreated each time: the local hub, its clients' cache, the
config, the results.
"""

import argparse
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from revela.config import Config, load_config, paths
from revela.config.evaluation import ApiModel, LanguageModel
from tests.rehearsal import contents, hub
from tests.rehearsal.miniature import write_miniature

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".rehearsal"
SETS = ("corpora", "batches", "pairs")  # all of them are made: each takes seconds


def main() -> None:
    """Make the hub's contents and the config, run the workflow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="run every job")
    options = parser.parse_args()
    os.chdir(ROOT)
    prepare()
    sample = representatives(load_config(FOLDER / "config.yaml"))
    command = ["snakemake", "--cores=2", "--directory", str(FOLDER)]
    command += ["--scheduler=greedy", "--nolock"]
    # After each job that it starts, Snakemake 9 rechecks all ready jobs, then again at an interval
    # of a second by default, which would soon take most of its time.
    command += ["--max-jobs-per-timespan=10000/20s", "--scheduler-subsample=20"]
    command += ["--rerun-incomplete", "--keep-going", "--show-failed-logs"]
    command += ["--quiet", "rules", "reason", "host", "--", *(["all"] if options.all else sample)]
    with hub.serving(FOLDER / "hub") as address:
        sys.exit(subprocess.run(command, env=surroundings(address), check=False).returncode)


def prepare() -> None:
    """Make the rehearsal's folder: contents of the hub, config, and links to its inputs."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for shared in ("bench", "data", "revela"):
        (FOLDER / shared).symlink_to(ROOT / shared)
    config = FOLDER / "config.yaml"
    write_miniature(ROOT / "config.yaml", config)
    contents.make(load_config(config), FOLDER / "hub")


def representatives(config: Config) -> list[str]:
    """Return all data, and targets that run each loader, objective, model and task once."""
    kinds = {}
    for name, experiment in config.experiments.items():
        data = getattr(config, experiment.data.section)[experiment.data]
        loader = next(key for key in ("corpora", "hub", "sample_from") if getattr(data, key, None))
        kinds.setdefault((experiment.objective.name, experiment.retriever, loader), name)
    others = [
        name
        for name, model in config.models.items()
        if not isinstance(model, ApiModel | LanguageModel)
    ]
    models, tasks = [*kinds.values(), *others], config.retrieval_tasks
    pairs = zip(itertools.cycle(models), itertools.cycle(tasks), strict=False)
    pairs = itertools.islice(pairs, max(len(models), len(tasks)))
    tables = sorted(config.tables, key=lambda name: len(config.table(name).tasks()))
    other_tasks = next(n for n in tables if set(config.table(n).tasks()) - set(tasks))
    drawn = [n for n, figure in config.figures.items() if figure.kind in ("dynamics", "step-cost")]
    return [
        *(paths.made(section, n) for section in SETS for n in getattr(config, section)),
        *(paths.scores(*pair) for pair in pairs),
        *(paths.made("tables", name) for name in (tables[0], other_tasks, *config.listings)),
        *(f"results/figures/{name}.png" for name in drawn),
    ]


def surroundings(address: str) -> dict[str, str]:
    """Return an environment with the local hub only, without the user's caches."""
    # Requests to other machines go to the local hub, which rejects them.
    proxies = {"http_proxy": address, "https_proxy": address, "no_proxy": "127.0.0.1"}
    cache = FOLDER / "cache"
    return hub.environment(address, cache) | proxies | {"NLTK_DATA": str(cache / "nltk")}


if __name__ == "__main__":
    main()
