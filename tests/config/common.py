"""The demo's configuration, with an entry of each kind, and changes of it."""

import copy
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DEMO = yaml.safe_load((ROOT / "config.demo.yaml").read_text())
DEMO["experiments"]["demo-revela"]["save_retriever_steps"] = [8]
DEMO["models"]["lm"] = {"kind": "language-model", "language_model": "data/backbones/5m"}
SHARED = {"source": "mteb", "tasks": ["NQ", "FEVER"]}
LM = {"source": "lm-eval", "tasks": ["copa"]}
DEMO["benchmarks"]["lm"] = LM
PRINTED = {
    "caption": "c",
    "reported": "data/paper/coir.csv",
    "rows": [{"label": "BM25", "reported": "BM25"}],
}


def changed(path: str, value: object) -> dict:
    config = copy.deepcopy(DEMO)
    *parents, last = path.split("/")
    entry = config
    for key in parents:
        entry = entry[int(key)] if isinstance(entry, list) else entry[key]
    entry[last] = value
    return config
