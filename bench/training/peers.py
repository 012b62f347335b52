"""Retrievers adapted to the same texts by Revela, Contriever and the recipes of the field.

SimCSE and TSDAE are those of sentence-transformers, whose trainer runs all with the same texts,
steps, rate and schedule: 32 chunks or pairs a step. Each retriever is scored as trained and with
shares of the start in its weights, on tasks cut from texts and on test collections with real
queries (nDCG@10, %). In a checkout, after `make demo`:

    python -m bench.training.peers [--steps 64] [--seed 0 …] [--collection FOLDER …]
"""

import argparse
import copy
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import product
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
from revela.text.pairs import Chunk, independent_crops, inverse_cloze
from revela.text.rows import parquet_rows

ENCODER, LANGUAGE_MODEL = "data/encoders/all-MiniLM-L6-v2", "data/backbones/5m"
RESULTS = Path("results")  # of the demo


class Sum(torch.nn.Module):
    """The losses of Revela and of two spans of each chunk, over the same chunks."""

    def __init__(self, revela: RevelaLoss, spans: torch.nn.Module) -> None:
        super().__init__()
        self.revela, self.spans = revela, spans

    def forward(self, sentence_features: Any, labels: Any = None) -> torch.Tensor:
        """Return the sum; the features are those of `Spans`."""
        features = list(sentence_features)
        loss: torch.Tensor = self.revela(features[:2]) + self.spans(features[2:], labels)
        return loss


class Spans(RevelaCollator):
    """Ids of chunks for Revela, and of two spans of each as of Contriever's pairs."""

    def __call__(self, rows: list[dict[str, str]]) -> dict[str, Any]:
        """Return the features of chunks, queries and positives."""
        made = super().__call__(rows)
        pairs = []
        for text in (text for row in rows for text in row.values()):
            chunk, choose = Chunk("", "", text, text), random.Random(text)
            cut = inverse_cloze(chunk, choose) or independent_crops(chunk, choose)
            pairs.append(cut or (text, text))
        for side, texts in zip(("query", "positive"), zip(*pairs, strict=True), strict=True):
            tokens = self.model.preprocess(list(texts))
            made |= {f"{side}_{key}": tokens[key] for key in ("input_ids", "attention_mask")}
        return made


def recipes(
    encoder: SentenceTransformer, options: argparse.Namespace
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return what each recipe gives the trainer beside the encoder: data, loss, batches."""
    chunks = [text for row in parquet_rows(options.batches) for text in row["texts"]]
    pairs = list(parquet_rows(options.pairs))
    queries, positives = ([pair[side] for pair in pairs] for side in ("query", "positive"))
    noisy = [_damaged(text) for text in chunks]
    in_batch = losses.MultipleNegativesRankingLoss(encoder, scale=20)

    def on_pairs(first: list[str], second: list[str], loss: Any) -> dict[str, Any]:
        return {"train_dataset": Dataset.from_dict({"a": first, "b": second}), "loss": loss}

    def revela(spans: bool) -> dict[str, Any]:
        reader = AutoModelForCausalLM.from_pretrained(LANGUAGE_MODEL).requires_grad_(False)
        tokenizer = AutoTokenizer.from_pretrained(LANGUAGE_MODEL)
        loss = RevelaLoss(encoder, reader, temperature=0.1, reading="joint")
        return {
            "train_dataset": Dataset.from_dict({"text": chunks}),
            "loss": Sum(loss, in_batch) if spans else loss,
            "data_collator": (Spans if spans else RevelaCollator)(encoder, tokenizer),
        }

    return {
        "Contriever": partial(on_pairs, queries, positives, in_batch),
        "Revela, joint": partial(revela, spans=False),
        "Contriever + Revela": partial(revela, spans=True),
        "SimCSE": partial(on_pairs, chunks, chunks, in_batch),
        "TSDAE": lambda: on_pairs(noisy, chunks, losses.DenoisingAutoEncoderLoss(encoder)),
    }


def adapted(
    recipe: str, seed: int, options: argparse.Namespace
) -> tuple[SentenceTransformer, float]:
    """Return the encoder trained by a recipe, and the seconds of a step."""
    encoder = fresh()
    given = recipes(encoder, options)[recipe]()
    neighbors = "data_collator" in given  # two batches of 16 that read each other
    with tempfile.TemporaryDirectory() as work:
        arguments = SentenceTransformerTrainingArguments(
            work,
            per_device_train_batch_size=16 if neighbors else 32,
            gradient_accumulation_steps=2 if neighbors else 1,
            batch_sampler=NeighborBatchSampler if neighbors else BatchSamplers.BATCH_SAMPLER,
            max_steps=options.steps,
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
    return encoder, (time.perf_counter() - start) / options.steps


def fresh() -> SentenceTransformer:
    """Return the encoder that all recipes start from."""
    encoder = SentenceTransformer(ENCODER, model_kwargs={"dtype": torch.float32})
    encoder.max_seq_length = 128
    return encoder


def between(
    start: SentenceTransformer, end: SentenceTransformer, share: float
) -> SentenceTransformer:
    """Return an encoder whose weights have a share of the start."""
    mean = copy.deepcopy(end)
    with torch.no_grad():
        for weight, other in zip(mean.parameters(), start.parameters(), strict=True):
            weight.lerp_(other, share)
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=Path, default=RESULTS / "batches/python-packages.parquet")
    parser.add_argument("--pairs", type=Path, default=RESULTS / "pairs/in-batch.parquet")
    parser.add_argument("--recipe", nargs="+", help="all by default")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--share", type=float, nargs="+", default=[0, 0.5], help="of the start")
    tasks = sorted(RESULTS.glob("benchmarks/pydocs/*"))
    parser.add_argument("--tasks", type=Path, nargs="*", default=tasks)
    parser.add_argument("--collection", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    sets = {"tasks": options.tasks} if options.tasks else {}
    sets |= {folder.name: [folder] for folder in options.collection}
    start = fresh()
    rows = [{"": "untouched"} | {name: f"{score(start, sets[name]):.1f}" for name in sets}]
    for recipe in options.recipe or recipes(start, options):
        found: dict[str, list[float]] = defaultdict(list)
        for seed in options.seed:
            end, seconds = adapted(recipe, seed, options)
            for name, share in product(sets, options.share):
                column = f"{name}, {share:g}" if share else name
                found[column].append(score(between(start, end, share), sets[name]))
            print(recipe, seed, dict(found), file=sys.stderr)
        row = {name: " ".join(f"{value:.1f}" for value in values) for name, values in found.items()}
        rows.append({"": recipe} | row | {"s a step": f"{seconds:.1f}"})
    title = f"Recipes of adapting without labels: all-MiniLM-L6-v2, {options.steps} steps, by seed"
    report(title, shlex.join(["python", "-m", "bench.training.peers", *sys.argv[1:]]), rows)


if __name__ == "__main__":
    main()
