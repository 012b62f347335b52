"""A training step and an encoding on a CPU: ours against sentence-transformers'.

The same model (all-MiniLM-L6-v2, see `make data/encoders/all-MiniLM-L6-v2`), tokens, pairs and loss
(in-batch negatives); texts are pieces of the descriptions of installed packages, from a line to 70
words. Ours also under autocast in bfloat16, which a training and an evaluation on a CPU do not use.

    python -m bench.cpu [--threads 2 4 8]
"""

import argparse
import random
from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from bench.common import medians, report
from revela.common.memory import keep_freed_memory
from revela.config.encoding import EncodingKeys
from revela.config.training import ContrieverObjective
from revela.retriever.encode import encode, pad, tokenize
from revela.retriever.load import load_model, read_encoder
from revela.retriever.source import Source
from revela.training.objectives.contriever import Contriever

MODEL = "data/encoders/all-MiniLM-L6-v2"
BFLOAT16 = torch.autocast("cpu", torch.bfloat16)  # a decorator, too
MAX_LENGTH, PAIRS, TEXTS, TEMPERATURE = 96, 8, 48, 0.05


def texts_of_mixed_lengths(count: int) -> list[str]:
    """Return pieces of 5 to 70 words, more short ones than long ones."""
    chance = random.Random(0)
    described = (package.metadata["Description"] for package in metadata.distributions())
    words = " ".join(sorted({text for text in described if text})).split()
    lengths = [round(5 * 14 ** chance.random()) for _ in range(count)]
    starts = [chance.randrange(len(words) - length) for length in lengths]
    return [" ".join(words[a : a + n]) for a, n in zip(starts, lengths, strict=True)]


def steps(ours: Any, theirs: Any, texts: list[str]) -> dict[str, Callable[[], Any]]:
    """Return losses of the same pairs; each is followed by a backward pass."""
    rows = tokenize(ours, texts[: 2 * PAIRS], "passage", MAX_LENGTH)
    sides = [pad(rows[::2], 0), pad(rows[1::2], 0)]
    settings = {"temperature": TEMPERATURE, "encode_batch_size": 2 * PAIRS}
    module = Contriever(ours, ContrieverObjective(name="contriever", **settings)).train()
    loss = MultipleNegativesRankingLoss(theirs.train(), scale=1 / TEMPERATURE)

    def learn(model: Any, run: Callable[[], Any]) -> float:
        model.zero_grad()
        found = run()
        found.backward()
        return float(found.detach())

    def of_theirs() -> Any:
        features = [{"input_ids": ids, "attention_mask": mask} for ids, mask in sides]
        return loss(features, torch.empty(0))

    def of_ours() -> Any:
        return module(*sides[0], *sides[1])["loss"]

    return {
        "sentence-transformers": partial(learn, theirs, of_theirs),
        "ours": partial(learn, ours, of_ours),
        "ours, bfloat16": partial(learn, ours, BFLOAT16(of_ours)),
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    threads = parser.parse_args().threads
    keep_freed_memory()
    source, texts = Source(MODEL), texts_of_mixed_lengths(TEXTS)
    ours = read_encoder(source, EncodingKeys(), lambda kind: load_model(source, kind))
    theirs = SentenceTransformer(MODEL, device="cpu")
    theirs.max_seq_length = MAX_LENGTH
    for part in (ours, theirs):
        for module in part.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # to compare losses
    learning = steps(ours, theirs, texts)
    encoding: dict[str, Callable[[], Any]] = {
        "sentence-transformers": lambda: torch.as_tensor(theirs.encode(texts)),
        "ours": lambda: encode(ours, texts, "passage", MAX_LENGTH),
    }
    encoding["ours, bfloat16"] = BFLOAT16(encoding["ours"])
    rows = []
    for count in threads:
        torch.set_num_threads(count)
        for what, runs in {"training step": learning, "encoding": encoding}.items():
            for part in (ours, theirs):
                part.train(what == "training step")
            first, *others = (torch.as_tensor(run()) for run in runs.values())
            far = ["", *(f"{float((other - first).abs().max()):.0e}" for other in others)]
            found = medians(runs, repeats=3)
            base = found["sentence-transformers"]
            for (name, seconds), difference in zip(found.items(), far, strict=True):
                row = {"": f"{what}, {name}", "threads": str(count), "s": f"{seconds:.2f}"}
                row |= {"speed": f"{base / seconds:.2f}", "largest difference": difference}
                rows.append(row)
    command = f"python -m bench.cpu --threads {' '.join(map(str, threads))}"
    report("A CPU, beside sentence-transformers", command, rows)


if __name__ == "__main__":
    main()
