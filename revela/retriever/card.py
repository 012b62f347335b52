"""The model card of a retriever, from its training's manifest and its scores."""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from revela.common.errors import RevelaError
from revela.common.hub import find_file
from revela.common.outputs import read_json
from revela.config.encoding import EncodingKeys
from revela.config.names import ModelName, ModelRef
from revela.config.training import Experiment
from revela.retriever.load import read_encoder
from revela.retriever.source import Source

_LICENCE = ("license", "license_name", "license_link")
_TEXT = """---
{data}
---

# {name}

A dense retriever for sentence-transformers, trained with {objective} on raw text only, without
queries or labels. Its backbone is {backbone}.

## Usage

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{location}")
queries = ["how to close a socket"]
documents = ["A socket is closed by both of its ends.", "Rivers carry water to the sea."]
scores = model.similarity(model.encode_query(queries), model.encode_document(documents))
print(scores)
```

Texts of more than {max_length} tokens are truncated. Pooling: {pooling}; prompts: {prompts};
made with sentence-transformers {version}.

## Training

{trained}

Data: {corpora}.

```yaml
{settings}
```
{scores}
## Licence

{licences}

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


def make_card(folder: Path, location: str, merged: bool = False) -> str | None:
    """Return the card of a trained retriever, or None if a training did not write its folder.

    The usage example loads the model from the folder or hub name `location`; the weights of an
    adapter may be `merged` into the backbone's.
    """
    folder = folder.resolve()
    at_step = folder.parent.name == "steps" and folder.name.isdecimal()
    home = folder.parents[1] if at_step else folder.parent
    if not ((at_step or folder.name == "retriever") and (home / "manifest.json").is_file()):
        return None
    name = str(ModelName(home.name, step=int(folder.name))) if at_step else home.name
    manifest = read_json(home / "manifest.json")
    settings = {k: v for k, v in manifest["settings"].items() if k in Experiment.model_fields}
    experiment = Experiment.model_validate(settings)
    root = _working_folder(home, manifest)
    sources = list(_sources(root, next(iter(manifest["inputs"]))))
    data_sets = sorted({source["dataset"] for source in sources if "dataset" in source})
    scores = list(_scores(home.parents[1] / "scores" / name, Source(str(folder)).fingerprint()))
    base = Source(str(experiment.retriever)).name
    encoder = read_encoder(Source(str(folder)), EncodingKeys())
    local = {
        key: Path(used).name  # local paths are of no use to others
        for key, used in experiment
        if isinstance(used, ModelRef) and (not used.is_hub_name or (root / used).is_dir())
    }
    on_hub = "retriever" not in local
    backbone = f"[{base}](https://huggingface.co/{base})"
    relation = "adapter" if experiment.lora and not merged else "finetune"
    licence = licence_of(base if on_hub else str(root / base))
    data = ModelCardData(
        base_model=base if on_hub else None,
        base_model_relation=relation if on_hub else None,
        **licence,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "dense-retrieval", "revela"],
        datasets=data_sets or None,
        model_name=name,
        eval_results=[
            EvalResult("Retrieval", task, task, "ndcg_at_10", score, metric_name="nDCG@10")
            for task, score, _ in scores
        ]
        or None,
    )
    commit = f", commit {manifest['git_commit']}" if manifest["git_commit"] else ""
    spent = f"{manifest['gpu_hours']:.2f} GPU-hours" if manifest.get("gpus") else "no GPU"
    dumped = experiment.model_dump(mode="json", exclude_defaults=True) | local
    rows = [f"| {task} | {100 * score:.1f} | {interval} |\n" for task, score, interval in scores]
    head = "\n## Evaluation\n\n| Task | nDCG@10 | 95% interval |\n|---|---:|---:|\n"
    licences = [f"- The backbone: {_named(licence)}."]
    if must_be_called_llama(licence):
        licences.append("- Built with Llama: the name of a derived model must begin with Llama.")
    for data_set in data_sets:
        licences.append(f"- The data set {data_set}: {_named(licence_of(data_set, 'data set'))}.")
    return _TEXT.format(
        data=data.to_yaml(),
        name=name,
        objective=experiment.objective.title,
        backbone=backbone if on_hub else f"{local['retriever']}, not on the hub",
        location=location,
        max_length=encoder.max_seq_length,
        pooling=encoder[1].pooling_mode,
        version=version("sentence-transformers"),
        prompts=f"`{encoder.prompts['query']}` and `{encoder.prompts['document']}`",
        trained=f"{manifest['steps']} steps, {spent}; revela {manifest['revela']}{commit}.",
        corpora="; ".join(f"{c['name']} ({c['what']})" for c in sources) or "not recorded",
        settings=yaml.safe_dump({"experiments": {home.name: dumped}}, sort_keys=False).strip(),
        scores="".join([head, *rows] if rows else []),
        licences="\n".join(licences),
    )


def _working_folder(home: Path, manifest: Mapping[str, Any]) -> Path:
    """Return the folder in which a training ran, to which the paths in manifests are relative."""
    output, home = Path(manifest["output"]), home.resolve()
    depth = len(output.parts)
    known = not output.is_absolute() and home.parts[-depth:] == output.parts
    return home.parents[depth - 1] if known else Path()


def _sources(root: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the corpora that a file was made from, as recorded in the manifests behind it."""
    path = root / name
    file = path.with_suffix(".manifest.json")
    if not file.is_file():
        return
    manifest = read_json(file)
    settings = manifest["settings"]
    if "source" in settings and "corpora" not in settings:
        corpus = {"name": path.stem, "what": settings.get("dataset") or settings["source"]}
        yield corpus | ({"dataset": settings["dataset"]} if settings.get("dataset") else {})
    elif settings.get("hub"):
        yield {"name": path.stem, "what": settings["hub"], "dataset": settings["hub"]}
    for path in manifest["inputs"]:
        yield from _sources(root, path)


def _scores(folder: Path, revision: str) -> Iterator[tuple[str, float, str]]:
    """Yield each task evaluated with these weights, its nDCG@10 and the 95% interval in %."""
    from scipy.stats import bootstrap  # slow to import, and every training imports this file

    for file in sorted(folder.glob("*.queries.csv")):
        task = file.name.removesuffix(".queries.csv")
        if read_json(folder / f"{task}.manifest.json").get("revision") != revision:
            continue  # of an earlier training
        subsets = pd.read_csv(file, keep_default_na=False).groupby("subset")["ndcg_at_10"]
        interval = "–"
        if subsets.size().min() > 1:
            low, high = bootstrap(
                [queries.to_numpy() for _, queries in subsets],
                lambda *subsets, axis: np.mean([ndcg.mean(axis=axis) for ndcg in subsets], axis=0),
                method="percentile",
                batch=100,
                rng=0,
            ).confidence_interval
            interval = f"{100 * low:.1f} to {100 * high:.1f}"
        yield task, read_json(folder / f"{task}.json")["ndcg_at_10"], interval


def licence_of(name: str, what: str = "model") -> dict[str, Any]:
    """Return the licence keys in the card of a model or data set; empty without a card."""
    try:
        card = find_file(name, "README.md", what=what)
        data = ModelCard.load(card).data.to_dict() if card else {}
    except (RevelaError, ValueError, yaml.YAMLError):
        return {}
    if isinstance(several := data.get("license"), list):  # of a data set; a model's is one
        return {"license_name": ", ".join(map(str, several))}
    return {key: str(data[key]) for key in _LICENCE if key in data}


def must_be_called_llama(licence: Mapping[str, str]) -> bool:
    """Return whether a licence is one of Llama 3's, by which derived models carry its name."""
    return licence.get("license", "").startswith("llama3")


def _named(licence: Mapping[str, str]) -> str:
    name = licence.get("license_name") or licence.get("license") or "not stated"
    return f"[{name}]({licence['license_link']})" if "license_link" in licence else name
