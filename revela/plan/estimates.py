"""What a job will take, from shapes alone: parameters, memory, floating-point operations, rows.

Good enough to see beforehand what cannot fit or cannot end in time, and no better. The memory of a
training was compared with `bench/RESULTS.md`: a whole step at SmolLM2-135M's full size on a CPU
took 12.2 GB at B = 64 and 12.8 at B = 128, where these formulas say 8.9 and 16.1 (UNCERTAINTY).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from revela.config.file import Config
from revela.config.steps import Backbone, Experiment, First, Lora

GB = 1024**3
UNCERTAINTY = 1.4  # a factor, either way

# Of one GPU: what the paper's 44 hours (Wikipedia) and 48 (code) on 4 A100 come to, 33 and 39.
PAPER_TFLOPS = 35.0

_CHARACTERS_PER_TOKEN = 4
_BYTES_PER_WORD = 3  # of a Parquet file's compressed text
_TOKENS_AT_A_TIME = 65_536  # of an encoding on a GPU
_LOGITS_GB = 0.6
_ALIASES = {  # of DistilBERT
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer that its costs depend on."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    queries: int  # width of all heads' queries together
    keys: int  # width of all heads' keys together
    gated: bool  # three matrices in an MLP, else two
    head: int  # parameters of a language model's head that are not those of the embedding
    positions: int = 0  # that are learnt

    @classmethod
    def of(cls, config: dict[str, Any]) -> Self:
        """Return the shape that a `config.json` of transformers describes.

        Raises:
            KeyError: it describes no transformer of this kind.
        """
        config = {_ALIASES.get(key, key): value for key, value in config.items()}
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        width = config.get("head_dim") or hidden // heads
        decoder = "rms_norm_eps" in config
        tied = config.get("tie_word_embeddings", not decoder)
        return cls(
            vocabulary=config["vocab_size"],
            hidden=hidden,
            intermediate=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            queries=heads * width,
            keys=(config.get("num_key_value_heads") or heads) * width,
            gated=decoder,
            head=0 if tied else config["vocab_size"] * hidden,
            positions=0 if decoder else config.get("max_position_embeddings", 0),
        )

    @classmethod
    def of_backbone(cls, settings: Backbone) -> Self:
        """Return the shape of a backbone that is pretrained here."""
        return cls.of(
            {
                "vocab_size": settings.vocabulary,
                "hidden_size": settings.hidden_size,
                "intermediate_size": settings.intermediate_size,
                "num_hidden_layers": settings.layers,
                "num_attention_heads": settings.heads,
                "rms_norm_eps": 1e-6,
                "tie_word_embeddings": True,
            }
        )

    def _matrices(self) -> dict[str, int]:
        """Return inputs + outputs of a layer's matrices, by the names that adapters know."""
        up = self.hidden + self.intermediate
        return {
            "q_proj": self.hidden + self.queries,
            "k_proj": self.hidden + self.keys,
            "v_proj": self.hidden + self.keys,
            "o_proj": self.queries + self.hidden,
            "gate_proj": up if self.gated else 0,
            "up_proj": up,
            "down_proj": up,
        }

    def parameters(self, head: bool = False) -> int:
        """Return the number of weights, biases and norms left out (less than a hundredth)."""
        attention = 2 * self.hidden * (self.queries + self.keys)
        mlp = (3 if self.gated else 2) * self.hidden * self.intermediate
        embeddings = (self.vocabulary + self.positions) * self.hidden
        return self.layers * (attention + mlp) + embeddings + (self.head if head else 0)

    def adapter(self, lora: Lora) -> int:
        """Return the number of weights of low-rank adapters."""
        sizes = self._matrices()
        return self.layers * lora.rank * sum(sizes.get(name, 0) for name in lora.targets)

    def layer_width(self) -> int:
        """Return the numbers that one layer keeps of one token for its backward pass."""
        return 16 * self.hidden + 8 * self.intermediate


@dataclass(frozen=True)
class Models:
    """The shapes of what an experiment trains with."""

    retriever: Shape
    language_model: Shape | None = None


def trained_parameters(experiment: Experiment, models: Models) -> int:
    """Return the number of weights that an experiment trains."""
    trained = [(models.retriever, False)]
    objective = experiment.objective
    if objective.name == "revela" and models.language_model and not objective.freeze_language_model:
        trained.append((models.language_model, True))
    if experiment.lora:
        return sum(shape.adapter(experiment.lora) for shape, _ in trained)
    return sum(shape.parameters(head) for shape, head in trained)


def training_memory(experiment: Experiment, models: Models, row: int, gpu: bool) -> float:
    """Return the bytes that one process of a training takes, of the device that it computes on.

    Weights, gradients and AdamW's two moments; what each layer keeps for the backward pass, or
    with gradient checkpointing each layer's input and one layer whole; some logits at a time.

    Args:
        experiment: its settings.
        models: the shapes of its models.
        row: texts of a batch (B); of a pair, its query, positive and negatives.
        gpu: whether it runs on one, which has bfloat16.
    """
    width = 2 if gpu and experiment.precision == "bfloat16" else 4
    trained = trained_parameters(experiment, models)
    shapes = [(models.retriever, False)]
    if models.language_model:
        shapes.append((models.language_model, True))
    everything = sum(shape.parameters(head) for shape, head in shapes)
    frozen = everything if experiment.lora else everything - trained
    states = frozen * width + trained * 16  # weight, gradient, two moments in float32

    texts = row * experiment.batches_per_device
    at_once = getattr(experiment.objective, "encode_batch_size", None)
    kept, working = 0.0, 0.0
    for shape, is_language_model in shapes:
        forms = 1 if experiment.objective.name == "contriever" else 2  # query and passage; e and h
        tokens = forms * texts * experiment.max_length
        if at_once:
            tokens = min(tokens, at_once * experiment.max_length)
        if is_language_model and experiment.objective.name == "replug":
            # No gradients: the keys and values of all prefixes, and a part of one layer.
            kept += tokens // 2 * shape.layers * 2 * shape.keys * width
            working = max(working, tokens // 2 * shape.layer_width() / 4 * width)
        elif experiment.gradient_checkpointing:
            kept += 10 * tokens * shape.layers * shape.hidden
            working = max(working, tokens * shape.layer_width() * width)
        else:
            kept += tokens * shape.layers * shape.layer_width() * width
    logits = _LOGITS_GB * GB if models.language_model else 0
    return states + kept + working + logits


def encoding_memory(shape: Shape, gpu: bool) -> float:
    """Return the bytes that encoding texts takes: weights, and one layer of a batch of texts."""
    width = 2 if gpu else 4
    tokens = _TOKENS_AT_A_TIME if gpu else _TOKENS_AT_A_TIME // 16
    return shape.parameters(head=True) * width + tokens * shape.layer_width() / 4 * width


def training_flops(experiment: Experiment, models: Models, row: int, rows: int) -> float:
    """Return the floating-point operations of a training: tokens × 6 × parameters.

    Six for a token that passes forward and back, two for one that passes forward only. Every text
    counts as of full length, as in the paper's time that the rate was taken from.
    """
    tokens = rows * row * experiment.max_length
    retriever = 6.0 * models.retriever.parameters()
    if experiment.objective.name == "contriever":
        return tokens * retriever
    forms = 1.5 if experiment.first_half else 2.0
    assert models.language_model
    language_model = models.language_model.parameters(head=True)
    if experiment.objective.name == "replug":
        passes = 2.0 * (1 + row) * language_model  # each text after each other
    else:
        passes = 6.0 * 2 * language_model  # e and h
    return tokens * (forms * retriever + passes)


def row_size(config: Config, experiment: Experiment) -> int:
    """Return the texts of a row of an experiment's data: B, or query, positive and negatives."""
    if experiment.objective.name == "contriever":
        return 2 + config.pairs[experiment.data].negatives
    return config.batches[experiment.data].batch_size


def rows_trained(config: Config, experiment: Experiment) -> int | None:
    """Return how many rows an experiment reads, None where that is not known beforehand."""
    if experiment.steps:
        return experiment.steps * experiment.batches_per_step
    kind = "pairs" if experiment.objective.name == "contriever" else "batches"
    rows = rows_made(config, kind, experiment.data)
    return rows and rows // experiment.batches_per_step * experiment.batches_per_step


def rows_made(config: Config, kind: str, name: str) -> int | None:
    """Return the rows of a batch set or a set of pairs, from its file if it is there."""
    file = Path(f"results/{kind}/{name}.parquet")
    if file.exists():
        import pyarrow.parquet as pq

        return pq.ParquetFile(file).metadata.num_rows
    if kind == "pairs":
        return config.pairs[name].num_pairs
    batches = config.batches[name]
    counts = [
        count * config.batches[other].batch_size // batches.batch_size
        for other, count in batches.sample_from.items()
    ]
    wanted = batches.num_batches
    limit = wanted.first if isinstance(wanted, First) else wanted
    if not counts:
        return limit
    if batches.oversized == "truncate":
        counts = list(batches.sample_from.values())
    return min(sum(counts), limit or sum(counts))


def data_bytes(config: Config, kind: str, name: str) -> float:
    """Return the bytes of a batch set or a set of pairs on disk, 0 where its rows are unknown."""
    entry = config.batches[name] if kind == "batches" else config.pairs[name]
    texts = getattr(entry, "batch_size", 0) or 2 + getattr(entry, "negatives", 0)
    words = max((config.corpora[c].max_words for c in entry.corpora), default=120)
    return (rows_made(config, kind, name) or 0) * texts * words * _BYTES_PER_WORD


@dataclass(frozen=True)
class Collection:
    """The size of a task's documents and queries."""

    documents: int
    characters: int

    def tokens(self, max_length: int) -> int:
        """Return their tokens when each text is cut at so many."""
        return min(self.characters // _CHARACTERS_PER_TOKEN, self.documents * max_length)
