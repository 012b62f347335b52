"""Evaluations of large collections: peak memory and minutes of BM25, Lucene and a small encoder.

MS MARCO, the largest public collection of BEIR, has 8.8 million passages of 56 words. The encoder
has one random layer, so that the time of the rest can be seen.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import transformers

from bench.common import real_chunks, report
from revela.common.outputs import read_json
from revela.evaluation.benchmarks import write_collection

_TOKENIZER = Path(__file__).parents[2] / "data/backbones/1m"
_WORDS, _QUERY_WORDS, _MAX_LENGTH, _WIDTH = 56, 8, 16, 128
_LONGEST, _AT_A_TIME = 20, 10_000


def main() -> None:
    """Measure each size, and write a table."""
    parser = argparse.ArgumentParser(prog="bench.evaluation.large", description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--queries", type=int, default=5_000)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        encoder = _random_encoder(Path(place, "encoder"))
        models = {
            "bm25s": {"kind": "bm25s"},
            "Lucene": {"kind": "lucene"},
            "encoder": {"kind": "encoder", "retriever": str(encoder)},
        }
        for size in options.documents:
            folder = _write_random(Path(place, f"{size}"), size, options.queries)
            row = {"documents": f"{size:,}"}
            for name, model in models.items():
                gigabytes, minutes = _evaluated(model, folder)
                row |= {f"{name}, GB": f"{gigabytes:.1f}", f"{name}, min": f"{minutes:.1f}"}
            rows.append(row)
    report("Large collections", "python -m bench.evaluation.large", rows)


def _random_encoder(folder: Path) -> Path:
    tokenizer = transformers.AutoTokenizer.from_pretrained(_TOKENIZER)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=_WIDTH,
        intermediate_size=_WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    transformers.LlamaModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _write_random(folder: Path, size: int, queries: int) -> Path:
    """Write a collection of random words in the frequencies of real ones."""
    draw = np.random.default_rng(size)
    known = " ".join(real_chunks(20_000)).split()
    words = np.array([word for word in known if len(word) <= _LONGEST])
    batches = (
        draw.choice(words, (min(_AT_A_TIME, size - start), _WORDS))
        for start in range(0, size, _AT_A_TIME)
    )
    texts = enumerate(itertools.chain.from_iterable(batches))
    documents = ((f"d{n}", "", " ".join(text)) for n, text in texts)
    asked = enumerate(np.random.default_rng(0).choice(words, (queries, _QUERY_WORDS)))
    judged = enumerate(np.random.default_rng(1).integers(size, size=queries))
    write_collection(
        folder,
        documents,
        ((f"q{n}", " ".join(text)) for n, text in asked),
        ((f"q{n}", f"d{document}", 1) for n, document in judged),
    )
    return folder


def _evaluated(model: dict[str, str], folder: Path) -> tuple[float, float]:
    """Return the gigabytes and minutes of `revela evaluate`, its Java included."""
    benchmark = {"source": "folder", "path": str(folder.parent), "tasks": [folder.name]}
    benchmark |= {"max_length": _MAX_LENGTH}
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "revela", "evaluate"]
        command += ["--input", f"{folder.name}={folder}", "--cache", f"{place}/cache"]
        command += ["--model", json.dumps(model), "--benchmark", json.dumps(benchmark)]
        command += ["--scores", f"{place}/scores.json", "--run", f"{place}/run.trec"]
        quiet = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
        subprocess.run(command, env=os.environ | quiet, stdout=subprocess.DEVNULL, check=True)
        made = read_json(Path(place, "scores.manifest.json"))
    return made["peak_memory_gb"], made["seconds"] / 60


if __name__ == "__main__":
    main()
