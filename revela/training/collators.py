"""Collators: turn rows of a batch or pair file into the ids that an objective is trained on."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import datasets
import pyarrow.compute as pc
from sentence_transformers import SentenceTransformer

from revela.common import outputs
from revela.common.errors import RevelaError, check_name
from revela.config.training import Experiment
from revela.retriever.encode import pad, tokenize
from revela.text import batching, pairs
from revela.text.rows import check_columns
from revela.training.objectives.revela import chunks_to_read


class BatchCollator:
    """Turn rows of a batch file into the ids of retriever and language model.

    The chunks are shuffled by seed and row, so that positions in a batch carry no information. The
    retriever gets prefix + chunk + EOS in both roles; the language model gets the chunk alone,
    truncated as the retriever's (paper, appendix B.5, and its public code).
    """

    def __init__(
        self,
        experiment: Experiment,
        encoder: SentenceTransformer,
        language_model_tokenizer: Any,
    ) -> None:
        self.experiment = experiment
        self.encoder = encoder
        self.language_model_tokenizer = language_model_tokenizer

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return `tensors` of the rows with shuffled chunks, and the chunks' `documents`."""
        shuffled = [self._shuffled(row) for row in rows]
        return self.tensors(shuffled) | {"documents": [row["documents"] for row in shuffled]}

    def _shuffled(self, row: dict[str, Any]) -> dict[str, Any]:
        order = list(range(len(row["texts"])))
        Random(f"{self.experiment.seed} {row['index']}").shuffle(order)
        documents = row.get("documents") or [None] * len(order)
        return row | {
            "texts": [row["texts"][n] for n in order],
            "documents": [documents[n] for n in order],
        }

    def tensors(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the `chunk_tensors` of all rows' chunks.

        `sizes` are their numbers per row if there are several rows, `reads` the chunks that
        Revela's chunks read if their documents determine it.
        """
        halved = self.experiment.first_half
        tensors = chunk_tensors(
            self.encoder,
            self.language_model_tokenizer,
            [(row["texts"], row["source"] in halved) for row in rows],
            self.experiment.max_length,
        )
        if len(rows) > 1:
            tensors["sizes"] = [len(row["texts"]) for row in rows]
        objective, seed = self.experiment.objective, self.experiment.seed
        if objective.name == "revela" and objective.similarity == "documents":
            tensors["reads"] = [
                chunks_to_read(
                    row["documents"], objective.wrong_share, Random(f"reads {seed} {row['index']}")
                )
                for row in rows
            ]
        return tensors


def chunk_tensors(
    encoder: SentenceTransformer,
    language_model_tokenizer: Any,
    batches: Sequence[tuple[list[str], bool]],
    length: int,
) -> dict[str, Any]:
    """Return ids and masks: retriever (2B, L), all query forms first; language model (B, L).

    The B chunks of all batches are concatenated. A batch is its texts, and whether their first
    halves are the query forms. `retriever_lengths` are the token counts of the retriever's rows.
    """
    queries, passages, bare = [], [], []
    for texts, half in batches:
        queries += tokenize(encoder, texts, "query", length, first_half=half)
        passages += tokenize(encoder, texts, "passage", length)
        bare += language_model_tokenizer(texts, truncation=True, max_length=length - 1)["input_ids"]
    ids, mask = pad(bare, language_model_tokenizer.pad_token_id)
    tensors = _padded("retriever", queries + passages, encoder.tokenizer)
    return tensors | {"language_model_ids": ids, "language_model_mask": mask}


class PairCollator:
    """Turn rows of a pair file into ids: Q queries, each with its positive and negatives."""

    def __init__(self, experiment: Experiment, encoder: SentenceTransformer) -> None:
        self.experiment = experiment
        self.encoder = encoder

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return ids, masks and lengths of queries (Q, L) and passages (Q · G, L')."""
        encoder, length = self.encoder, self.experiment.max_length
        queries = [row["query"] for row in rows]
        passages = [text for row in rows for text in (row["positive"], *row["negatives"])]
        query_ids = tokenize(encoder, queries, "query", length)
        passage_ids = tokenize(encoder, passages, "passage", length)
        query = _padded("query", query_ids, encoder.tokenizer)
        return query | _padded("passage", passage_ids, encoder.tokenizer)


def _padded(name: str, ids: list[list[int]], tokenizer: Any) -> dict[str, Any]:
    padded, mask = pad(ids, tokenizer.pad_token_id)
    return {f"{name}_ids": padded, f"{name}_mask": mask, f"{name}_lengths": list(map(len, ids))}


def load_batches(data: Path) -> Any:
    """Memory-map a batch file, and number its rows.

    Raises:
        RevelaError: it cannot be read, lacks a column or values, or a batch is a single chunk.
    """
    rows = _load(data, batching.SCHEMA, ["source", "texts"])
    if _lengths(rows, "texts")[0] < 2:
        raise RevelaError(f"{data}: a row has fewer than two texts, but a batch is at least two")
    return rows


def load_pairs(data: Path) -> Any:
    """Memory-map a pair file, and number its rows.

    Raises:
        RevelaError: it cannot be read, lacks a column or values, or the number of negatives varies.
    """
    rows = _load(data, pairs.SCHEMA, ["query", "positive", "negatives"])
    fewest, most = _lengths(rows, "negatives")
    if fewest < most:
        raise RevelaError(f"{data}: rows have {fewest} to {most} negatives; use the same number")
    return rows


def _lengths(rows: Any, column: str) -> tuple[int, int]:
    """Return the minimum and maximum length of a column of lists."""
    lengths = pc.min_max(pc.list_value_length(rows.data.column(column)))
    return lengths["min"].as_py(), lengths["max"].as_py()


def _load(data: Path, schema: Any, columns: Sequence[str]) -> Any:
    try:
        rows = datasets.load_dataset("parquet", data_files=str(data), split="train")
    except Exception as error:
        if outputs.could_not_write(error) or outputs.could_not_write(error.__cause__):
            raise RevelaError(
                f"cannot write the memory-mapped copy of {data}: free disk space or set "
                "HF_DATASETS_CACHE to another folder"
            ) from error
        raise RevelaError(f"{data}: not a batch or pair file: {error}") from error
    for column in columns:
        check_name(str(data), "column", column, rows.column_names)
    check_columns(data, rows.select_columns(columns).data, schema)
    if not len(rows):
        raise RevelaError(f"{data}: has no rows")
    return rows.add_column("index", list(range(len(rows))))
