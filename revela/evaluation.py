"""Evaluation: a model on a task along mteb's own path; scores as JSON, ranked lists as TREC."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from revela.encoder import Encoder, load_encoder
from revela.lucene import LuceneSearch
from revela.settings import AnyRetriever, Bm25Model, EncoderModel, LuceneModel

_RUN_DEPTH = 100  # documents of a query that a saved run keeps


class MtebEncoder:
    """Our encoder as mteb calls it: mteb joins title and text, the encoder adds its prefixes."""

    def __init__(self, encoder: Encoder, name: str, revision: str, max_length: int) -> None:
        from mteb.models.model_meta import ModelMeta

        self.encoder = encoder
        self.max_length = max_length
        self.mteb_model_meta = ModelMeta.create_empty(
            {"name": f"revela/{name}", "revision": revision}
        )

    def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> torch.Tensor:
        """Return the embeddings (N, D) of mteb's batches of texts."""
        texts = [text for batch in inputs for text in batch["text"]]
        role = "query" if getattr(prompt_type, "value", prompt_type) == "query" else "passage"
        return self.encoder.encode(texts, role, self.max_length)  # type: ignore[arg-type]

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return dot products (N, M): cosines where the encoder normalizes."""
        return torch.as_tensor(embeddings1) @ torch.as_tensor(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return dot products (N,)."""
        return (torch.as_tensor(embeddings1) * torch.as_tensor(embeddings2)).sum(-1)


def load_for_mteb(
    model: AnyRetriever, name: str, revision: str, max_length: int, cache: Path | None = None
) -> Any:
    """Return a model as mteb evaluates it; `cache` keeps Lucene's indexes for the next call."""
    if isinstance(model, Bm25Model):
        import mteb

        return mteb.get_model("mteb/baseline-bm25s")
    if isinstance(model, LuceneModel):
        return LuceneSearch(model, name, cache, torch.get_num_threads())
    assert isinstance(model, EncoderModel)
    encoder = load_encoder(model.retriever, model.encoding, model.revision)
    return MtebEncoder(encoder, name, revision, max_length)


def evaluate(model: Any, task: Any) -> tuple[dict[str, Any], list[str]]:
    """Evaluate a model on a task with mteb.

    Returns:
        The scores: main score, every measure of every subset; and the lines of a TREC run.
    """
    import mteb

    with tempfile.TemporaryDirectory() as folder:
        result = mteb.evaluate(
            model, task, cache=None, prediction_folder=folder, show_progress_bar=False
        )
        (predictions,) = Path(folder).rglob("*_predictions.json")
        ranked = json.loads(predictions.read_text(encoding="utf-8"))
    (task_result,) = result.task_results
    subsets = {
        f"{split}/{entry['hf_subset']}": {
            key: value for key, value in entry.items() if isinstance(value, int | float)
        }
        for split, entries in task_result.scores.items()
        for entry in entries
    }
    measures = set.intersection(*(set(scores) for scores in subsets.values()))
    means = {
        measure: sum(scores[measure] for scores in subsets.values()) / len(subsets)
        for measure in sorted(measures)
    }
    scores = {"task": task_result.task_name, **means}
    if len(subsets) > 1:
        scores["subsets"] = subsets
    return scores, _run_lines(ranked, model.mteb_model_meta.name)


def _run_lines(predictions: dict[str, Any], tag: str) -> list[str]:
    """Return TREC lines: query, Q0, document, rank, score, tag; best first."""
    lines = []
    parts = {
        (subset, split): queries
        for subset, splits in predictions.items()
        if subset != "mteb_model_meta"
        for split, queries in splits.items()
    }
    for (subset, _), queries in parts.items():
        prefix = f"{subset}/" if len(parts) > 1 else ""
        for query, documents in queries.items():
            best = sorted(documents.items(), key=lambda item: (-item[1], item[0]))[:_RUN_DEPTH]
            lines += [
                f"{prefix}{query} Q0 {document} {rank} {score:.6f} {tag}"
                for rank, (document, score) in enumerate(best, start=1)
            ]
    return lines
