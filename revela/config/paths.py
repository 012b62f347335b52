"""Where results stand: the only place beside the rules that spells paths below `results/`."""

from revela.config.names import ModelName

MADE = {
    "corpora": "results/chunks/{}.parquet",
    "batches": "results/batches/{}.parquet",
    "pairs": "results/pairs/{}.parquet",
    "backbones": "results/models/{}/model.safetensors",
    "experiments": "results/models/{}/retriever",
    "tables": "results/tables/{}.csv",
}
"""What an entry of a section makes, as Snakemake waits for it."""


def made(section: str, name: str) -> str:
    """Return what an entry makes."""
    return MADE[section].format(name)


def backbone(name: str) -> str:
    """Return the folder of a backbone that is pretrained here."""
    return f"results/models/{name}"


def retriever(name: str) -> str:
    """Return the folder of a trained retriever, the last one or one kept at a step."""
    model = ModelName.parse(name)
    last = "retriever" if model.step is None else f"steps/{model.step}"
    return f"results/models/{model.training}/{last}"


def language_model(name: str) -> str:
    """Return the folder of the language model that an experiment trained."""
    return f"results/models/{name}/language_model"


def training_log(name: str) -> str:
    """Return the log of an experiment or a backbone."""
    return f"results/models/{name}/log.jsonl"


def scores(model: str, task: str) -> str:
    """Return the scores of a model on a task."""
    return f"results/scores/{model}/{task}.json"


def queries(model: str, task: str) -> str:
    """Return the measure of each query of a task."""
    return f"results/scores/{model}/{task}.queries.csv"


def embeddings(model: str, task: str) -> str:
    """Return the embeddings of a task's corpus, which are kept while others need them."""
    return f"results/embeddings/{model}/{task}"


def collection(benchmark: str, task: str) -> str:
    """Return the folder of a collection that is made here."""
    return f"results/benchmarks/{benchmark}/{task}"


def bench(figure: str) -> str:
    """Return the measurements that a figure is drawn from."""
    return f"results/bench/{figure}.csv"
