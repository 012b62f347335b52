"""The script that pretrained the backbones."""

import subprocess
import sys

import pandas as pd

from revela.retriever.load import load_language_model, load_tokenizer
from revela.retriever.source import Source
from tests.conftest import ROOT, TEXTS


def test_a_backbone_is_pretrained_on_chunk_files(tmp_path):
    rows = [{"document": f"d{n}", "text": f"{n}: {TEXTS[n % 5]}"} for n in range(300)]
    pd.DataFrame(rows).to_parquet(tmp_path / "chunks.parquet")
    tiny = "--vocabulary 300 --hidden 16 --intermediate 32 --layers 1 --heads 2 --length 16"
    command = f"chunks.parquet --output out {tiny} --windows 4 --tokens 256 --warmup 1 --every 2"
    script = [sys.executable, ROOT / "data/backbones/pretrain.py", *command.split()]
    subprocess.run(script, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    made = str(tmp_path / "out")
    source = Source(made)
    vocabulary = len(load_tokenizer(source))
    assert load_language_model(source).config.vocab_size == vocabulary == 300
