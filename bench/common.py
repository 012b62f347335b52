"""Shared by the benchmarks: shapes, real chunk lengths, medians of interleaved runs, results."""

import contextlib
import ctypes
import datetime
import gc
import platform
import random
import re
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

RESULTS = Path(__file__).with_name("RESULTS.md")

SHAPES: dict[str, dict[str, Any]] = {
    name: {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "tie_word_embeddings": True,
    }
    for name, vocabulary, hidden, intermediate, layers, heads, key_value_heads in (
        ("SmolLM2-135M", 49152, 576, 1536, 30, 9, 3),
        ("Qwen2.5-0.5B", 151936, 896, 4864, 24, 14, 2),
        ("Llama-3.2-1B", 128256, 2048, 8192, 16, 32, 8),
        ("Llama-3.2-3B", 128256, 3072, 8192, 28, 24, 8),
    )
}


def random_model(shape: str, **changes: Any) -> transformers.LlamaForCausalLM:
    """Return a Llama of a known shape with random weights; speed does not depend on them.

    With fewer layers the vocabulary shrinks in proportion, so that the head has the same share of
    the cost as in the full model.
    """
    torch.manual_seed(0)
    settings = SHAPES[shape] | {"max_position_embeddings": 2048, "bos_token_id": None} | changes
    depth = settings["num_hidden_layers"] / SHAPES[shape]["num_hidden_layers"]
    settings["vocab_size"] = round(SHAPES[shape]["vocab_size"] * depth)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))


class InMemory(torch.nn.Module):
    """The first module of an encoder whose model is in memory only, without files."""

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        super().__init__()
        self.model, self.tokenizer, self.max_seq_length = model, tokenizer, 2048

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Run the model on padded ids."""
        given = {"use_cache": False, "attention_mask": features["attention_mask"]}
        output = self.model(input_ids=features["input_ids"], **given)
        return features | {"token_embeddings": output.last_hidden_state}


def encoder_around(model: Any, pooling: str = "lasttoken", normalize: bool = True) -> Any:
    """Return the encoder of a model in memory, which takes ids, not texts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    from revela.retriever.encode import pack_where_possible

    pooled = modules.Pooling(model.config.hidden_size, pooling)
    ends = [modules.Normalize()] if normalize else []
    parts: Any = {"modules": [InMemory(model), pooled, *ends], "device": str(model.device)}
    similarity: Any = "cosine" if normalize else "dot"
    return pack_where_possible(SentenceTransformer(similarity_fn_name=similarity, **parts))


def chunk_lengths(count: int, longest: int) -> list[int]:
    """Return the lengths in tokens of `count` real chunks of English, truncated at `longest`.

    A word counts as 4/3 tokens, the usual ratio in English.
    """
    return [min(longest, 1 + len(chunk.split()) * 4 // 3) for chunk in real_chunks(count)]


def real_chunks(count: int) -> list[str]:
    """Return `count` chunks of at most 120 words from the descriptions of installed packages."""
    from revela.text.chunking import chunk_text, train_punkt  # needs nltk

    described = (package.metadata["Description"] for package in metadata.distributions())
    texts = sorted({text for text in described if text and len(text) > 2000})
    punkt = train_punkt(texts)
    chunks = [chunk for text in texts for chunk in chunk_text(text, punkt, 120)[0]]
    random.Random(0).shuffle(chunks)
    return chunks[:count]


def ragged_batch(lengths: list[int], vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return random ids (B, L) and their mask, padded on the right to the longest."""
    ids = torch.randint(0, vocabulary, (len(lengths), max(lengths)))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return ids * mask, mask


def medians(runs: dict[str, Callable[[], object]], repeats: int = 5) -> dict[str, float]:
    """Return the median seconds of each run; runs are interleaved to share noise equally."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:  # the first one warms up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def peak_gb(run: Callable[[], object]) -> float:
    """Return the peak memory of a run in GB above the memory in use before it, on CPU or GPU.

    On a CPU a process that keeps freed memory hides its peaks.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 1024**3
    with contextlib.suppress(OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    resident = resident_gb("VmRSS")
    run()
    return resident_gb("VmHWM") - resident


def resident_gb(name: str) -> float:
    """Return the resident memory of this process, now (VmRSS) or at its peak (VmHWM)."""
    return int(Path("/proc/self/status").read_text().partition(name + ":")[2].split()[0]) / 1024**2


def markdown_table(rows: list[dict[str, str]]) -> str:
    """Return rows as a table; a row may lack columns of others."""
    heading = list(dict.fromkeys(name for row in rows for name in row))
    cells = [heading, ["---", *["---:"] * (len(heading) - 1)]]
    cells += [[row.get(name, "") for name in heading] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def report(title: str, command: str, rows: list[dict[str, str]]) -> None:
    """Print a table and write it to RESULTS.md, replacing the last one with that title."""
    table = markdown_table(rows)
    print(f"\n{title}\n{table}", flush=True)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    section = f"## {title}\n\n`{command}`, {today}, {machine()}.\n\n{table}\n"
    before = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "# Measured\n"
    kept = [part for part in before.split("\n## ") if not part.startswith(title + "\n")]
    RESULTS.write_text("\n## ".join([*(k.rstrip() + "\n" for k in kept), section[3:]]), "utf-8")


def machine() -> str:
    """Return the name of the processor or GPU, its cores and the relevant versions."""
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {versions}"
    named = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    name = named[1] if named else platform.machine()
    return f"{torch.get_num_threads()} cores of {name}, {versions}"
