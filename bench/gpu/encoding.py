"""Encoding texts of mixed lengths: ours, and sentence-transformers'."""

import random
import tempfile
import time
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from transformers import AutoTokenizer

from bench.gpu.steps import model_of, synchronize
from revela.retriever.encode import encode, pack_where_possible

BACKBONE = Path(__file__).parents[2] / "data/backbones/5m"  # for its tokenizer
MAX_LENGTH = 512


def measure(device: torch.device, tiny: bool) -> list[dict[str, str]]:
    """Return texts per second of both, and the difference of their embeddings."""
    tokenizer = AutoTokenizer.from_pretrained(BACKBONE)
    # A tiny model also has a smaller vocabulary; this one stays large enough.
    model = model_of("Llama-3.2-1B" if tiny else "SmolLM2-135M", device, tiny).model.eval()
    model.config.eos_token_id = tokenizer.eos_token_id
    words = Path(__file__).with_name("steps.py").read_text().split()
    random.seed(0)
    lengths = [
        round(5 * (10 if tiny else 60) ** random.random()) for _ in range(16 if tiny else 8192)
    ]
    texts = [" ".join(random.choices(words, k=length)) for length in lengths]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        ours, theirs = (
            SentenceTransformer(
                modules=[
                    modules.Transformer(folder, max_seq_length=MAX_LENGTH),
                    modules.Pooling(model.config.hidden_size, "mean"),
                    modules.Normalize(),
                ],
                device=str(device),
            ).bfloat16()
            for _ in range(2)
        )
    pack_where_possible(ours)
    runs = {
        "ours": lambda: encode(ours, texts, "passage", MAX_LENGTH),
        "sentence-transformers": lambda: (
            theirs.encode(texts, convert_to_tensor=True, batch_size=128).float().cpu()
        ),
    }
    rows, expected = [], None
    for name, run in runs.items():
        run()  # warms up
        synchronize(device)
        start = time.perf_counter()
        embeddings = run()
        seconds = time.perf_counter() - start
        expected = embeddings if expected is None else expected
        rows.append(
            {
                "": name,
                "texts/s": f"{len(texts) / seconds:,.0f}",
                "tokens/s": f"{_tokens(tokenizer, texts) / seconds:,.0f}",
                "largest difference": f"{float((embeddings - expected).abs().max()):.0e}",
            }
        )
    return rows


def _tokens(tokenizer: object, texts: list[str]) -> int:
    return sum(map(len, tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]))
