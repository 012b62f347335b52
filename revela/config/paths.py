"""Paths of results: besides the rules, the only place that defines paths below `results/`."""

import re

from revela.config.names import ModelName

MADE = {
    "corpora": "results/chunks/{}.parquet",
    "batches": "results/batches/{}.parquet",
    "pairs": "results/pairs/{}.parquet",
    "experiments": "results/models/{}/retriever",
    "tables": "results/tables/{}.csv",
}
"""The output of an entry of a section, as Snakemake tracks it."""

download = "results/downloads/{}/{}.json".format  # of a section, an entry: files on the hub
language_model = "results/models/{}/language_model".format  # folder; of an experiment
training_log = "results/models/{}/log.jsonl".format  # of an experiment
scores = "results/scores/{}/{}.json".format  # of a model on a task
queries = "results/scores/{}/{}.queries.csv".format  # of a model on a task: each query's measure
run = "results/runs/{}/{}.trec".format  # ranked lists of a model on a task
judgements = "results/judgements/{}.json".format  # of a task
collection = "results/benchmarks/{}/{}".format  # folder; of a benchmark that is made here, a task
bench = "results/bench/{}.csv".format  # the measurements that a figure is drawn from


def trained(path: str) -> str | None:
    """Return the experiment whose training writes a path, or None for other paths."""
    match = re.match("results/models/([^/]+)/", f"{path}/")
    return match and match[1]


def made(section: str, name: str) -> str:
    """Return the output of an entry."""
    return MADE[section].format(name)


def retriever(name: str) -> str:
    """Return the folder of a trained retriever, the last one or one kept at a step."""
    model = ModelName.parse(name)
    last = "retriever" if model.step is None else f"steps/{model.step}"
    return f"results/models/{model.training}/{last}"
