"""Revela as a loss of the trainer of sentence-transformers."""

import doctest
import re

import pytest
import torch
from datasets import Dataset

import revela.training.loss
from revela import NeighborBatchSampler, RevelaCollator, RevelaLoss
from revela.common.errors import RevelaError
from revela.config.training import RevelaObjective
from revela.retriever.load import load_language_model, load_tokenizer
from revela.retriever.source import Source
from revela.training.collators import BatchCollator
from revela.training.objectives.revela import Revela
from tests.conftest import ROOT, TEXTS, encoder_of
from tests.training.common import experiment


@pytest.mark.parametrize(
    "options", [{"value_norm": False}, {"reading": "joint"}, {"language_model_loss": True}]
)
def test_loss_and_gradients_are_the_pipelines(backbone, options, both_ways):
    source, half = Source(str(backbone)), "value_norm" in options
    settings = {"name": "revela", "temperature": 0.1, **options}
    made = experiment(backbone, objective=settings, first_half=["x"] if half else [])
    tokenizer = load_tokenizer(source)
    found = []
    for ours in (False, True):
        model, language_model = encoder_of(backbone), load_language_model(source)
        model.max_seq_length = made.max_length
        if ours:
            loss = RevelaLoss(model, language_model, temperature=0.1, **options)
            loss.model = torch.nn.DataParallel(model)  # as the trainer wraps it
            collate = RevelaCollator(model, tokenizer, first_half=half)
            batch = collate([{"text": text} for text in TEXTS])
            features = [
                {key.removeprefix(role): batch[key] for key in batch if key.startswith(role)}
                for role in ("retriever_", "language_model_")
            ]
            value = loss(features, None)
        else:
            objective = Revela(model, language_model, RevelaObjective(**settings))
            rows = [{"texts": TEXTS, "source": "x", "index": 0}]
            value = objective(**BatchCollator(made, model, tokenizer).tensors(rows))["loss"]
        value.backward()
        weights = [*model.parameters(), *language_model.parameters()]
        found.append([value.detach(), *(weight.grad for weight in weights)])
    assert all(map(torch.equal, *found))


def test_the_documented_training_runs(tmp_path):
    page = (ROOT / "docs/sentence-transformers.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    backbone = str(ROOT / "data/backbones/1m")
    code = code.replace("HuggingFaceTB/SmolLM2-135M", backbone)
    code = code.replace("my-retriever", str(tmp_path))
    code = code.replace("per_device", "max_steps=2, save_steps=1, report_to=[], per_device")
    names: dict = {"chunks": TEXTS * 7}
    exec(code, names)
    logged = names["trainer"].state.log_history
    assert logged[-1]["train_loss"] > 0
    trained, before = encoder_of(tmp_path / "final"), encoder_of(ROOT / "data/backbones/1m")
    pairs = zip(trained[0].model.parameters(), before[0].model.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in pairs)
    assert trained.prompts["query"] == "Query: "


def test_the_documented_example_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, attempted = doctest.testmod(revela.training.loss)
    assert attempted
    assert not failed


def test_batches_are_of_neighbours():
    rows = Dataset.from_dict({"text": ["a"] * 11})
    sampler = NeighborBatchSampler(rows, 3, drop_last=False, generator=torch.Generator())
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
        assert sorted(epochs[-1]) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    assert epochs[0] != epochs[1]
    assert len(sampler) == 4
    for size, drop_last in ((5, False), (3, True)):  # one row has nothing to read
        assert sum(map(len, NeighborBatchSampler(rows, size, drop_last=drop_last))) in (10, 9)


def test_what_the_loss_cannot_use_is_refused(backbone, monkeypatch):
    model, language_model = encoder_of(backbone), load_language_model(Source(str(backbone)))
    with pytest.raises(RevelaError, match=r"^RevelaLoss: temperature: .* got -1$"):
        RevelaLoss(model, language_model, temperature=-1)
    loss = RevelaLoss(model, language_model)
    with pytest.raises(ValueError, match="must be a RevelaCollator"):
        loss([{"input_ids": None}])
    collate = RevelaCollator(model, load_tokenizer(Source(str(backbone))))
    with pytest.raises(ValueError, match="one column of texts, not query, answer"):
        collate([{"query": "a", "answer": "b"}])
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="freeze the language model"):
        loss([{"lengths": []}, {}])
