"""Encoding a corpus of mixed lengths: ours against sentence-transformers' `encode`.

The same weights, tokenizer, texts and pooling; both in float32, and ours also in bfloat16 if the
processor supports it. Texts are pieces of the descriptions of installed packages, from a line to
500 words, as in real corpora.

    python -m bench.evaluation.encoding [--texts N]
"""

import argparse
import copy
import random
import tempfile
from importlib import metadata

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from bench.common import medians, random_model, report
from revela.config.encoding import EncodingKeys
from revela.config.evaluation import EncoderModel
from revela.config.names import ModelRef
from revela.retriever.encode import encode
from revela.retriever.load import load_encoder, load_tokenizer
from revela.retriever.source import Source

MAX_LENGTH = 512


def texts_of_mixed_lengths(count: int) -> list[str]:
    """Return pieces of 5 to 500 words, more short ones than long ones."""
    chance = random.Random(0)
    described = (package.metadata["Description"] for package in metadata.distributions())
    words = " ".join(sorted({text for text in described if text})).split()
    texts = []
    for _ in range(count):
        length = round(5 * 100 ** chance.random())
        start = chance.randrange(len(words) - length)
        texts.append(" ".join(words[start : start + length]))
    return texts


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=128)
    arguments = parser.parse_args()
    texts = texts_of_mixed_lengths(arguments.texts)
    tokenizer = load_tokenizer(Source("data/backbones/5m"))
    model = random_model(
        "SmolLM2-135M", num_hidden_layers=6, eos_token_id=tokenizer.eos_token_id
    ).model.eval()

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = modules.Transformer(folder, max_seq_length=MAX_LENGTH)
        keys = EncodingKeys(pooling="mean", append_eos=False)
        ours = load_encoder(
            EncoderModel(kind="encoder", retriever=ModelRef(folder), encoding=keys),
            "float32",
            "cpu",
        )
    theirs = SentenceTransformer(
        modules=[
            transformer,
            modules.Pooling(model.config.hidden_size, "mean"),
            modules.Normalize(),
        ],
        prompts=ours.prompts,
        device="cpu",
    )
    half = copy.deepcopy(ours).bfloat16()
    runs = {
        "sentence-transformers, float32": lambda: torch.as_tensor(
            theirs.encode(texts, prompt_name="document")
        ),
        "ours, float32": lambda: encode(ours, texts, "passage", MAX_LENGTH),
        "ours, bfloat16": lambda: encode(half, texts, "passage", MAX_LENGTH),
    }
    expected = runs["sentence-transformers, float32"]()
    far = {name: float((run() - expected).abs().max()) for name, run in runs.items()}
    assert far["ours, float32"] < 1e-4, far
    times = medians(runs, repeats=3)
    base = times["sentence-transformers, float32"]
    rows = [
        {
            "": name,
            "texts a second": f"{len(texts) / seconds:.0f}",
            "ratio": f"{base / seconds:.2f}",
            "largest difference": f"{far[name]:.0e}",
        }
        for name, seconds in times.items()
    ]
    report("Encoding texts of mixed lengths", "python -m bench.evaluation.encoding", rows)


if __name__ == "__main__":
    main()
