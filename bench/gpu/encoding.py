"""Encoding texts of mixed lengths: ours, and padded batches of a fixed number of texts."""

import random
import time
from collections.abc import Iterator
from types import SimpleNamespace

import torch

from bench.common import encoder_around
from bench.gpu.steps import model_of, synchronize
from revela.retriever.encode import encode_rows, pad

TEXTS_AT_A_TIME = 128


def measure(device: torch.device, tiny: bool) -> Iterator[dict[str, str]]:
    """Yield tokens per second of both, and the difference of their embeddings."""
    for longest in (24, 48) if tiny else (512, 2048):
        yield from _at_length(device, tiny, longest)


@torch.inference_mode()
def _at_length(device: torch.device, tiny: bool, longest: int) -> Iterator[dict[str, str]]:
    random.seed(0)
    model = model_of("SmolLM2-135M", device, tiny).model.eval()
    rows = []
    for _ in range(16 if tiny else 4_000_000 // longest):
        length = round(8 * (longest / 8) ** random.random())
        rows.append(random.choices(range(model.config.vocab_size), k=length))
    ours = encoder_around(model, "mean")
    ours[0].tokenizer = ours.tokenizer = SimpleNamespace(pad_token_id=0)
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))

    def padded() -> torch.Tensor:
        """Encode as sentence-transformers does."""
        found = torch.empty(len(rows), model.config.hidden_size)
        for start in range(0, len(rows), TEXTS_AT_A_TIME):
            batch = order[start : start + TEXTS_AT_A_TIME]
            ids, mask = (given.to(device) for given in pad([rows[row] for row in batch], 0))
            states = model(input_ids=ids, attention_mask=mask, use_cache=False)[0].float()
            mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            found[batch] = torch.nn.functional.normalize(mean).cpu()
        return found

    expected = None
    for name, run in {
        "ours": lambda: encode_rows(ours, rows, [""] * len(rows), "passage"),
        f"padded, {TEXTS_AT_A_TIME} at a time": padded,
    }.items():
        embeddings = run()  # warms up
        synchronize(device)
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        expected = embeddings if expected is None else expected
        yield {
            "": name,
            "at most": str(longest),
            "texts/s": f"{len(rows) / seconds:,.0f}",
            "tokens/s": f"{sum(map(len, rows)) / seconds:,.0f}",
            "largest difference": f"{float((embeddings - expected).abs().max()):.0e}",
        }
