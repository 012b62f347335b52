"""The rehearsal's config and models are those of the paper in small."""

import json
from pathlib import Path

import pytest
import transformers
import yaml

from revela.config import load_config
from tests.rehearsal import models
from tests.rehearsal.miniature import DATA, STEP, write_miniature

ROOT = Path(__file__).parents[2]


def test_the_miniature_has_every_entry_and_the_ratios_of_the_paper(tmp_path, monkeypatch):
    """An entry that requests more than its corpus has must fail in the miniature too."""
    monkeypatch.chdir(ROOT)  # paths in configs are relative to it
    write_miniature(ROOT / "config.yaml", tmp_path / "config.yaml")
    written = [yaml.safe_load((at / "config.yaml").read_text()) for at in (tmp_path, ROOT)]
    names = [{section: list(entries) for section, entries in one.items()} for one in written]
    assert names[0] == names[1]
    for suite in written[0]["benchmarks"].values():
        suite.pop("tasks_per_job", None)  # how its jobs are divided, which changes no score
    for section in ("models", "benchmarks", "tables", "listings"):
        assert written[0][section] == written[1][section]

    small, large = load_config(tmp_path / "config.yaml"), load_config(ROOT / "config.yaml")
    counts = 0
    for section, key in (
        ("batches", "num_batches"),
        ("corpora", "max_documents"),
        ("corpora", "max_chunks"),
        ("pairs", "num_pairs"),
    ):
        for name, entry in getattr(large, section).items():
            if count := getattr(entry, key):
                cut = getattr(getattr(small, section)[name], key)
                assert getattr(cut, "first", cut) == round(getattr(count, "first", count) / DATA)
                counts += 1
    assert counts > 6
    for name, experiment in large.experiments.items():
        cut = small.experiments[name]
        assert cut.lora is None or cut.lora.rank <= 8
        assert cut.max_length <= 64
        assert cut.batches_per_step == experiment.batches_per_step // STEP
        if experiment.steps:
            assert cut.steps == round(experiment.steps * STEP / DATA)


@pytest.mark.parametrize("name", ["trumancai/Revela-1b", "intfloat/e5-mistral-7b-instruct"])
def test_miniature_decoders_begin_texts_as_the_real_ones(name, tmp_path):
    models.write_model(tmp_path, name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("some text")["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] != tokenizer.eos_token_id
    if name.startswith("trumancai"):
        adapter = json.loads((tmp_path / "adapter_config.json").read_text())
        assert adapter["base_model_name_or_path"] == "meta-llama/Llama-3.2-1B"
        assert (tmp_path / "adapter_model.safetensors").exists()
