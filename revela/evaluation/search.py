"""Dense retrieval: encodes passages into shards and searches all of them exactly."""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from revela.common.versions import STAGE_VERSIONS
from revela.config.evaluation import EncoderModel, MtebBenchmark, RetrievalBenchmark
from revela.config.settings import Precision
from revela.evaluation.bm25 import Bm25s
from revela.evaluation.embeddings import Passages, Shard, encode_corpus, find_shards
from revela.retriever.encode import devices, encode, native_dtype, prompt_of
from revela.retriever.load import load_encoder, read_encoder
from revela.retriever.source import Source

_QUERIES_AT_A_TIME = 4_096
_BM25_DEPTH = 1_000  # documents per query whose BM25 score is used
_NO_PROMPT = "Retrieve text based on user query."  # mteb's for a task without a prompt


class DenseSearch:
    """An encoder as mteb's SearchProtocol.

    mteb's SearchEncoderWrapper encodes on one device and starts over after an interruption.
    """

    def __init__(
        self,
        model: EncoderModel,
        name: str,
        revision: str,
        suite: RetrievalBenchmark,
        folder: Path,
        similar: Sequence[Path] = (),
    ) -> None:
        """Prepare the search by a model, its name in runs and the `revision` of its weights.

        The benchmark `suite` sets the maximum length and the precision; `folder` has the shards;
        passages in the folders `similar`, of other tasks, are not encoded again.
        """
        from mteb.models.model_meta import ModelMeta, ScoringFunction

        self.model, self.suite, self.revision = model, suite, revision
        self.folder, self.similar = folder, [*similar, folder]
        described = read_encoder(Source.of(model), model.encoding, None, model.max_length)
        self.prompt = prompt_of(described, "query")
        self.max_length = min(suite.max_length, described.max_seq_length or suite.max_length)
        self.bm25 = Bm25s() if model.times_bm25 else None
        described_to_mteb = {
            "name": f"revela/{name}",
            "revision": revision,
            "max_tokens": self.max_length,
            "open_weights": True,
            "framework": ["PyTorch", "Transformers", "safetensors"],
            "similarity_fn_name": ScoringFunction(described.similarity_fn_name),
            "use_instructions": bool(self.prompt),
            # Models trained here have seen raw text only; for others it is unknown.
            "training_datasets": set() if model.retriever.startswith("results/") else None,
        }
        self.mteb_model_meta = ModelMeta.create_empty(described_to_mteb)

    @functools.cached_property
    def encoder(self) -> SentenceTransformer:
        """The encoder on the first device."""
        encoder = _loaded(self.model, self.suite.precision, self.revision)
        size = {
            "n_parameters": sum(weight.numel() for weight in encoder.parameters()),
            "embed_dim": encoder.truncate_dim or encoder.get_embedding_dimension(),
        }
        self.mteb_model_meta = self.mteb_model_meta.model_copy(update=size)
        return encoder

    def index(self, corpus: Any, *, hf_split: str, hf_subset: str, **rest: Any) -> None:
        """Encode a corpus into shards, reusing those of an interrupted call."""
        dtype = native_dtype(self.suite.precision)
        facts = (self.revision, self.model.dump(), dtype, self.max_length)
        made_by = "\n".join(map(str, (STAGE_VERSIONS["evaluate"], *facts)))
        own = self.folder / f"{hf_split}-{hf_subset}"
        self.shards: list[Shard] = []
        numbers: Sequence[int] = range(len(corpus))
        files = [file for folder in self.similar for file in folder.glob("*/*.safetensors")]
        if others := sorted(file for file in files if file.parent != own):
            self.shards = find_shards(others, Passages(corpus), made_by)
            known = {number for shard in self.shards for number in shard.passages}
            print(f"{len(known)} of {len(numbers)} passages are already encoded")
            numbers = [number for number in numbers if number not in known]
        load = functools.partial(load_encoder, self.model, self.suite.precision)
        if len(devices()) > 1:  # the first device gets a copy of its own, as all others
            vars(self).pop("encoder", None)
            _loaded.cache_clear()
            torch.cuda.empty_cache()
        loaded = load if len(devices()) > 1 else lambda _: self.encoder
        texts = Passages(corpus.select(numbers))
        for shard in encode_corpus(loaded, texts, self.max_length, own, made_by, devices()):
            part = slice(shard.passages[0], shard.passages[-1] + 1)
            self.shards.append(Shard(shard.path, numbers[part]))
        ids = list(corpus["id"])
        self.ids: list[str] = [ids[number] for shard in self.shards for number in shard.passages]
        if self.bm25:
            self.bm25.index(corpus, hf_split=hf_split, hf_subset=hf_subset, **rest)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        top_ranked: Mapping[str, Collection[str]] | None = None,
        **rest: Any,
    ) -> dict[str, dict[str, float]]:
        """Return each query's documents and scores, only those of `top_ranked` if given."""
        names, texts = list(queries["id"]), list(queries["text"])
        lexical: dict[str, dict[str, float]] = {}
        if self.bm25:
            rest |= {"task_metadata": task_metadata, "top_ranked": top_ranked}
            top_ranked = lexical = self.bm25.search(queries, top_k=_BM25_DEPTH, **rest)
        prompt = self.prompt.replace("{instruction}", instruction_of(task_metadata, self.suite))
        self.encoder.prompts["query"] = prompt
        embeddings = encode(self.encoder, texts, "query", self.max_length)
        scores, numbers = exact_search(
            embeddings,
            (shard.load() for shard in self.shards),
            top_k,
            self._allowed(names, top_ranked) if top_ranked is not None else None,
            devices()[0],
        )
        return {
            name: {
                self.ids[number]: score * lexical[name][self.ids[number]] if self.bm25 else score
                for score, number in zip(best, where, strict=True)
                if score > -np.inf
            }
            for name, best, where in zip(names, scores.tolist(), numbers.tolist(), strict=True)
        }

    def _allowed(
        self, queries: list[str], top_ranked: Mapping[str, Collection[str]]
    ) -> list[np.ndarray]:
        """Return the sorted indices of the documents that each query may find."""
        number = {document: number for number, document in enumerate(self.ids)}
        everything = np.arange(len(number))
        return [
            np.sort(np.array([number[document] for document in top_ranked[query]], np.int64))
            if query in top_ranked
            else everything
            for query in queries
        ]


@functools.lru_cache(maxsize=1)
def _loaded(model: EncoderModel, precision: Precision, _: str) -> SentenceTransformer:
    """Return an encoder of a revision on the first device, the same one for all tasks of a job."""
    return load_encoder(model, precision, devices()[0])


def instruction_of(task_metadata: Any, suite: RetrievalBenchmark) -> str:
    """Return a task's instruction for `{instruction}` in a query prompt."""
    prompt = task_metadata.prompt
    prompt = prompt.get("query") if isinstance(prompt, dict) else prompt
    instructions = suite.instructions if isinstance(suite, MtebBenchmark) else {}
    return str(instructions.get(task_metadata.name) or prompt or _NO_PROMPT).strip()


def exact_search(
    queries_QD: Tensor,
    blocks: Iterable[Tensor],
    depth: int,
    allowed: Sequence[np.ndarray] | None = None,
    device: str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Return the documents with the largest dot products for each query, best first.

    These are K = `depth` scores (Q, K), -inf if a query has fewer documents, and indices (Q, K), of
    consecutive `blocks` (N, D). `allowed` has for each query the sorted indices of the documents it
    may find. Products are in float32; memory holds those of a block and some thousand queries.
    """
    queries = queries_QD.to(device, torch.float32).split(_QUERIES_AT_A_TIME)
    scores = [torch.empty((len(part), 0), device=device) for part in queries]
    numbers = [torch.empty((len(part), 0), dtype=torch.long, device=device) for part in queries]
    start = 0
    for stored in blocks:
        block_ND = stored.to(device, torch.float32)
        for part, part_QD in enumerate(queries):
            block_scores_QN = part_QD @ block_ND.T
            if allowed is not None:
                first = part * _QUERIES_AT_A_TIME
                permitted = _permitted(allowed[first : first + len(part_QD)], start, len(block_ND))
                block_scores_QN.masked_fill_(~permitted.to(device), -torch.inf)
            # The block's best first, so that the merge sorts 2 K instead of N + K.
            best, where = block_scores_QN.topk(min(depth, len(block_ND)))
            best = torch.cat([scores[part], best], dim=1)
            where = torch.cat([numbers[part], where + start], dim=1)
            scores[part], order = best.topk(min(depth, best.shape[1]))
            numbers[part] = where.gather(1, order)
        start += len(block_ND)
    return torch.cat(scores).cpu(), torch.cat(numbers).cpu()


def _permitted(allowed: Sequence[np.ndarray], start: int, size: int) -> Tensor:
    """Return a mask (Q, N) of the block's documents, from `start` on, that each query may find."""
    permitted = np.zeros((len(allowed), size), dtype=bool)
    for row, numbers in enumerate(allowed):
        low, high = np.searchsorted(numbers, [start, start + size])
        permitted[row, numbers[low:high] - start] = True
    return torch.from_numpy(permitted)
