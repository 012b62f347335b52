"""The model card of a retriever, from what its training recorded and what was measured since."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from revela.common.errors import RevelaError
from revela.common.hub import find_file
from revela.common.outputs import read_json
from revela.config.names import ModelName, ModelRef
from revela.config.steps import Experiment

_TEXT = """---
{data}
---

# {name}

A dense retriever for sentence-transformers, trained by {objective} on raw text alone, without
queries and labels. Its backbone is {backbone}.

## Usage

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{location}")
queries = ["how to close a socket"]
documents = ["A socket is closed by both of its ends.", "Rivers carry water to the sea."]
scores = model.similarity(model.encode_query(queries), model.encode_document(documents))
print(scores)
```

Texts of more than {max_length} tokens are truncated. Pooling: {pooling}; prefixes: {prefixes};
made with sentence-transformers {version}.

## Training

{trained}

Data: {corpora}.

```yaml
{settings}
```
{scores}
## Citation

```bibtex
@inproceedings{{cai2026revela,
  title = {{Revela: Dense Retriever Learning via Language Modeling}},
  author = {{Cai, Fengyu and Chen, Tong and Zhao, Xinran and Chen, Sihao and Zhang, Hongming and
            Wu, Sherry Tongshuang and Gurevych, Iryna and Koeppl, Heinz}},
  booktitle = {{International Conference on Learning Representations}},
  year = {{2026}},
  url = {{https://arxiv.org/abs/2506.16552}}
}}
```
"""


def make_card(folder: Path, location: str) -> str | None:
    """Return the card of a trained retriever, None where no manifest stands beside its folder.

    Args:
        folder: as a training leaves it, in the folder of its manifest and beside its scores.
        location: where the usage example loads the model from: a folder or a name on the hub.
    """
    above = folder.resolve().parents[:2]  # those of a step are one folder deeper
    home = next((one for one in above if (one / "manifest.json").is_file()), None)
    if home is None:
        return None
    name = home.name if home == above[0] else str(ModelName(home.name, step=int(folder.name)))
    manifest = read_json(home / "manifest.json")
    experiment = Experiment.model_validate(manifest["settings"])
    sources = list(_sources(Path(next(iter(manifest["inputs"])))))
    scores = _scores(home.parents[1] / "scores" / name)
    base, encoding = experiment.retriever, experiment.encoding
    on_hub = base.is_hub_name
    hub_page = f"https://huggingface.co/{base}"
    data = ModelCardData(
        base_model=base if on_hub else None,
        base_model_relation=("adapter" if experiment.lora else "finetune") if on_hub else None,
        license=_license(base),
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "dense-retrieval", "revela"],
        datasets=sorted({one["dataset"] for one in sources if "dataset" in one}) or None,
        model_name=name,
        eval_results=[
            EvalResult("Retrieval", task, task, "ndcg_at_10", score, metric_name="nDCG@10")
            for task, score in scores.items()
        ]
        or None,
    )
    spent = f"{manifest['gpu_hours']:.2f} GPU-hours" if manifest.get("gpus") else "no GPU"
    dumped = experiment.model_dump(mode="json", exclude_defaults=True)
    for key, used in experiment:
        if isinstance(used, ModelRef) and not used.is_hub_name:
            dumped[key] = Path(used).name  # where it was is nothing to others
    rows = [f"| {task} | {100 * score:.1f} |\n" for task, score in scores.items()]
    table = ["\n## Evaluation\n\n", "| Task | nDCG@10 |\n|---|---:|\n", *rows] if rows else []
    return _TEXT.format(
        data=data.to_yaml(),
        name=name,
        objective=experiment.objective.name.capitalize(),
        backbone=f"[{base}]({hub_page})" if on_hub else f"{Path(base).name}, not on the hub",
        location=location,
        max_length=read_json(folder / "tokenizer_config.json")["model_max_length"],
        pooling=encoding.pooling,
        version=version("sentence-transformers"),
        prefixes=f"`{encoding.query_prefix}` and `{encoding.passage_prefix}`",
        trained=f"{manifest['steps']} steps, {spent}; revela {manifest['revela']}, "
        f"commit {manifest['git_commit']}.",
        corpora="; ".join(f"{one['name']} ({one['what']})" for one in sources) or "not recorded",
        settings=yaml.safe_dump({"experiments": {home.name: dumped}}, sort_keys=False).strip(),
        scores="".join(table),
    )


def _sources(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what the manifests behind a file say of the corpora that it was made from."""
    file = path.with_suffix(".manifest.json")
    if not file.is_file():
        return
    manifest = read_json(file)
    settings, inputs = manifest["settings"], [Path(name) for name in manifest["inputs"]]
    if "source" in settings and "corpora" not in settings:
        found = {"name": path.stem, "what": settings.get("dataset") or settings["source"]}
        yield found | ({"dataset": settings["dataset"]} if settings.get("dataset") else {})
    elif settings.get("hub"):
        yield {"name": path.stem, "what": settings["hub"], "dataset": settings["hub"]}
    for one in inputs:
        yield from _sources(one)


def _scores(folder: Path) -> dict[str, float]:
    files = [file for file in sorted(folder.glob("*.json")) if ".manifest" not in file.name]
    found = {file.stem: read_json(file) for file in files}
    return {task: scores["ndcg_at_10"] for task, scores in found.items() if "ndcg_at_10" in scores}


def _license(model: str) -> str | None:
    """Return the licence in a model's own card, None if it has none or cannot be reached."""
    try:
        card = find_file(model, "README.md")
        return ModelCard.load(card).data.license if card else None
    except (RevelaError, ValueError):
        return None
