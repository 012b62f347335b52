"""Retrievers adapted to the same texts by Revela, Contriever and the recipes of the field.

SimCSE and TSDAE are those of sentence-transformers, whose trainer runs all four with the demo's
texts, steps, rate and schedule: 32 chunks or pairs a step. Each retriever is scored as trained and
with the mean of its weights before and after, on the demo's tasks and on test collections with
real queries (nDCG@10, %). In a checkout, after `make demo`:

    python -m bench.training.peers [--steps 64] [--seed 0 …] [--collection FOLDER …]
"""

import argparse
import copy
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.common import report
from revela import NeighborBatchSampler, RevelaCollator, RevelaLoss
from revela.evaluation.benchmarks import read_qrels, read_queries, read_rows
from revela.evaluation.collections import collection_files
from revela.text.rows import parquet_rows

ENCODER, LANGUAGE_MODEL = "data/encoders/all-MiniLM-L6-v2", "data/backbones/5m"
BATCHES = Path("results/batches/python-packages.parquet")
PAIRS = Path("results/pairs/in-batch.parquet")
TASKS = Path("results/benchmarks/pydocs")
COMMAND = "python -m bench.training.peers"


def recipes(encoder: SentenceTransformer) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return what each recipe gives the trainer beside the encoder: data, loss, batches."""
    chunks = [text for row in parquet_rows(BATCHES) for text in row["texts"]]
    pairs = list(parquet_rows(PAIRS))
    queries, positives = ([pair[side] for pair in pairs] for side in ("query", "positive"))
    noisy = [_damaged(text) for text in chunks]
    in_batch = losses.MultipleNegativesRankingLoss(encoder, scale=20)

    def on_pairs(first: list[str], second: list[str], loss: Any) -> dict[str, Any]:
        return {"train_dataset": Dataset.from_dict({"a": first, "b": second}), "loss": loss}

    def revela() -> dict[str, Any]:
        reader = AutoModelForCausalLM.from_pretrained(LANGUAGE_MODEL).requires_grad_(False)
        tokenizer = AutoTokenizer.from_pretrained(LANGUAGE_MODEL)
        return {
            "train_dataset": Dataset.from_dict({"text": chunks}),
            "loss": RevelaLoss(encoder, reader, temperature=0.1, reading="joint"),
            "data_collator": RevelaCollator(encoder, tokenizer),
        }

    return {
        "Contriever": partial(on_pairs, queries, positives, in_batch),
        "Revela, joint": revela,
        "SimCSE": partial(on_pairs, chunks, chunks, in_batch),
        "TSDAE": lambda: on_pairs(noisy, chunks, losses.DenoisingAutoEncoderLoss(encoder)),
    }


def adapted(recipe: str, steps: int, seed: int) -> tuple[SentenceTransformer, float]:
    """Return the encoder trained by a recipe, and the seconds of a step."""
    encoder = fresh()
    given = recipes(encoder)[recipe]()
    neighbors = "data_collator" in given  # two batches of 16 that read each other
    with tempfile.TemporaryDirectory() as work:
        arguments = SentenceTransformerTrainingArguments(
            work,
            per_device_train_batch_size=16 if neighbors else 32,
            gradient_accumulation_steps=2 if neighbors else 1,
            batch_sampler=NeighborBatchSampler if neighbors else BatchSamplers.BATCH_SAMPLER,
            max_steps=steps,
            learning_rate=5e-5,
            warmup_steps=0.1,
            seed=seed,
            save_strategy="no",
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
        )
        trainer = SentenceTransformerTrainer(encoder, arguments, **given)
        start = time.perf_counter()
        trainer.train()
    return encoder, (time.perf_counter() - start) / steps


def fresh() -> SentenceTransformer:
    """Return the encoder that all recipes start from."""
    encoder = SentenceTransformer(ENCODER, model_kwargs={"dtype": torch.float32})
    encoder.max_seq_length = 128
    return encoder


def halfway(start: SentenceTransformer, end: SentenceTransformer) -> SentenceTransformer:
    """Return an encoder with the mean of the weights of two."""
    mean = copy.deepcopy(start)
    with torch.no_grad():
        for weight, other in zip(mean.parameters(), end.parameters(), strict=True):
            weight.lerp_(other, 0.5)
    return mean


def score(encoder: SentenceTransformer, folders: list[Path]) -> float:
    """Return nDCG@10 in percent, the mean over test collections."""
    scores = []
    for folder in folders:
        corpus, queries, qrels = collection_files(folder)
        asked: dict[str, Any] = {**read_queries(queries)}
        documents: dict[str, Any] = {
            row["id"]: f"{row['title']} {row['text']}".strip() for row in read_rows(corpus)
        }
        judged = read_qrels(qrels, set(asked), set(documents))
        relevant = {
            query: {d for d, grade in row.items() if grade > 0} for query, row in judged.items()
        }
        evaluator = InformationRetrievalEvaluator(
            asked, documents, relevant, write_csv=False, batch_size=64
        )
        scores.append(100 * evaluator(encoder)["cosine_ndcg@10"])
    return statistics.mean(scores)


def _damaged(text: str) -> str:
    """Return a text without three of five words, as TSDAE's authors do."""
    words, chance = text.split(), random.Random(text)
    return " ".join(word for word in words if chance.random() < 0.4) or words[0]


def main() -> None:
    """Measure and write the table; the first row is the encoder untouched."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--collection", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    sets = {"demo's tasks": sorted(TASKS.iterdir())} | {c.name: [c] for c in options.collection}
    start = fresh()
    first = {"": "untouched"}
    for name, folders in sets.items():
        first |= {name: f"{score(start, folders):.1f}", f"{name}, averaged": ""}
    rows = [first]
    for recipe in recipes(start):
        found: dict[str, list[float]] = defaultdict(list)
        seconds = []
        for seed in options.seed:
            end, each_step = adapted(recipe, options.steps, seed)
            seconds.append(each_step)
            for name, folders in sets.items():
                found[name].append(score(end, folders))
                found[f"{name}, averaged"].append(score(halfway(start, end), folders))
        row = {name: " ".join(f"{value:.1f}" for value in values) for name, values in found.items()}
        rows.append({"": recipe} | row | {"s a step": f"{statistics.mean(seconds):.1f}"})
    title = f"Recipes of adapting without labels: all-MiniLM-L6-v2, {options.steps} steps, by seed"
    report(title, " ".join([COMMAND, *sys.argv[1:]]), rows)


if __name__ == "__main__":
    main()
