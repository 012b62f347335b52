"""Every objective learns, and what changes no number changes none."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from revela.common.errors import RevelaError
from revela.retriever import save
from revela.retriever.encode import encode
from revela.retriever.load import load_language_model, load_model, load_tokenizer
from revela.retriever.save import check_folder
from revela.retriever.source import Source
from revela.training import trainer as training
from revela.training.collators import BatchCollator
from revela.training.loop import training_arguments
from revela.training.schedule import warmup_decay
from revela.training.trainer import train
from revela.training.trainlog import read_log
from tests.conftest import TEXTS, encoder_of, encoding_of
from tests.training.common import LORA, assert_same_weights, experiment, weights_of

WEIGHTS = "retriever/model.safetensors"


@pytest.fixture
def run(backbone, data, tmp_path) -> Callable[..., list[dict]]:
    """A function that trains in a folder of a name, and returns its log."""

    def run(name: str, rows: Path = data, options: dict | None = None, **changes) -> list[dict]:
        train(experiment(backbone, **changes), rows, tmp_path / name, **(options or {}))
        return read_log(tmp_path / name / "log.jsonl")

    return run


def test_each_step_is_recorded(run, data, tmp_path):
    log = run("m", similarity_snapshot_steps=[0, 4, 8])
    steps = [entry for entry in log if "loss" in entry]
    assert [entry["step"] for entry in steps] == list(range(1, 9))
    assert {
        "loss", "learning_rate", "gradient_norm", "top_similarity", "rows_learning",
        "of", "tokens", "seconds", "tokens_per_second", "memory_gb", "plain_loss",
    } <= set(steps[0])  # fmt: skip
    assert "plain_loss" not in steps[1]
    snapshots = {entry["step"]: entry["snapshot"] for entry in log if "snapshot" in entry}
    assert list(snapshots) == [0, 4, 8]
    assert snapshots[0]["documents"] == ["0.0", "0.0", "0.1", "0.1"]
    for row in snapshots[0]["similarity"]:
        assert sum(row) == pytest.approx(1, abs=1e-5)
    suffixes = {path.suffix for path in (tmp_path / "m").rglob("[!.]*") if path.is_file()}
    assert suffixes <= {".safetensors", ".json", ".jsonl", ".md", ".jinja"}
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert manifest["settings"]["learning_rate"] == 5e-3
    assert manifest["inputs"][str(data)]
    assert not (tmp_path / "m" / "checkpoints").exists()
    retriever = encoder_of(tmp_path / "m" / "retriever")
    assert encode(retriever, TEXTS, "query", 32).shape == (5, 16)
    load_language_model(Source(str(tmp_path / "m" / "language_model")))


def test_every_objective_learns(run, objective, tmp_path):
    changes, rows = objective
    losses = [entry["loss"] for entry in run("m", rows, **changes | {"lora": None, "steps": 20})]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert (tmp_path / "m/language_model").exists() == ("objective" not in changes)  # Revela's


def test_a_retriever_that_sentence_transformers_encodes_differently_stays_unchecked(
    backbone, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(training, "check_folder", check_folder)
    settings = experiment(backbone, steps=2, warmup_steps=1, encoding={"pooling": "mean"})

    def half(model, **options):
        return SentenceTransformer(model, device="cpu", prompts={"query": "other: "})

    with (
        mock.patch.object(save, "SentenceTransformer", half),
        pytest.raises(RevelaError, match=r"retriever-unchecked: .* gives a text another vector"),
    ):
        train(settings, data, tmp_path / "m")
    assert not (tmp_path / "m" / "retriever").exists()
    assert (tmp_path / "m" / "retriever-unchecked" / "model.safetensors").exists()
    train(settings, data, tmp_path / "m")  # from its last checkpoint
    assert encoding_of(encoder_of(tmp_path / "m" / "retriever")).pooling == "mean"
    assert not (tmp_path / "m" / "retriever-unchecked").exists()


def test_an_adapter_is_trained_further(run, backbone, tmp_path):
    first = {key: str(tmp_path / "first" / key) for key in ("retriever", "language_model")}
    run("first", lora=LORA, steps=2)
    run("again", lora=LORA, steps=2, **first)
    for key, causal in (("retriever", False), ("language_model", True)):
        before, after = (flat(tmp_path / run / key, causal) for run in ("first", "again"))
        untrained = flat(backbone, causal)
        # From the first training's weights, not from the backbone's.
        assert 0 < (after - before).norm() < (after - untrained).norm()
        settings = json.loads((tmp_path / "again" / key / "adapter_config.json").read_text())
        assert settings["base_model_name_or_path"] == str(backbone)
    with pytest.raises(RevelaError, match=r"has rank 4, alpha \d+, .* set lora to the same values"):
        run("other", lora=LORA | {"alpha": 5}, steps=2, **first)


def test_accumulated_batches_have_equal_weight(run):
    """Four batches of one step give the mean of their gradients, and so of their losses."""
    (together,) = run("four", steps=1, batches_per_step=4)
    apart = run("one", steps=4, learning_rate=1e-12)
    mean = sum(entry["loss"] for entry in apart) / 4
    assert together["loss"] == pytest.approx(mean, rel=1e-4)
    assert together["gradient_norm"] < max(entry["gradient_norm"] for entry in apart)


@pytest.mark.parametrize(
    ("most", "similarity"), [(3, "retriever"), (8, "retriever"), (2, "documents")]
)
def test_several_batches_in_a_forward_pass_change_nothing(run, tmp_path, most, similarity):
    objective = {"name": "revela", "temperature": 0.1, "similarity": similarity}
    settings = {"objective": objective, "steps": 3, "batches_per_step": 4}
    first = run("one", **settings)
    second = run("more", options={"batches_per_forward": most}, **settings)
    for one, more in zip(first, second, strict=True):
        for name in ("loss", "gradient_norm", "top_similarity", "rows_learning"):
            assert more[name] == pytest.approx(one[name], rel=1e-4)
    assert_same_weights(tmp_path / "one", tmp_path / "more", atol=1e-3)


@pytest.mark.parametrize("lora", [None, LORA | {"dropout": 0.0}])
def test_a_language_model_learns_to_read_before_there_is_a_retriever(run, backbone, tmp_path, lora):
    reading = {"name": "revela", "similarity": "documents", "plain_loss_every": 2}
    settings = {"steps": 4, "batches_per_step": 2, "similarity_snapshot_steps": [0]}
    snapshot, *log = run("reader", objective=reading, lora=lora, **settings)
    taught = tmp_path / "reader" / "language_model"
    assert not torch.equal(flat(backbone, causal=True), flat(taught, causal=True))
    assert torch.equal(flat(backbone), flat(tmp_path / "reader" / "retriever"))
    assert snapshot["snapshot"]["top_similarity"] < 1  # the retriever's
    assert ["contrast" in entry for entry in log] == [True, False, True, False]

    def plain_loss(name: str, language_model: Path, frozen: bool) -> float:
        objective = {"name": "revela", "temperature": 0.1, "freeze_language_model": frozen}
        models = {"language_model": str(language_model), "lora": lora}
        return run(name, objective=objective, steps=2, **models)[0]["plain_loss"]

    frozen = plain_loss("frozen", taught, frozen=True)
    assert plain_loss("joint", taught, frozen=False) == pytest.approx(frozen, rel=1e-5)
    assert plain_loss("untaught", backbone, frozen=False) != pytest.approx(frozen, rel=1e-5)


def flat(folder: Path, causal: bool = False) -> torch.Tensor:
    model = (load_language_model if causal else load_model)(Source(str(folder)))
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_gradient_checkpointing_changes_nothing(run, objective, tmp_path):
    """In float32, with dropout: recomputed activations are the same."""
    for on in (False, True):
        run(str(on), objective[1], {"gradient_checkpointing": on}, **objective[0])
        manifest = json.loads((tmp_path / str(on) / "manifest.json").read_text())
        assert manifest["gradient_checkpointing"] is on
    assert_same_weights(tmp_path / "False", tmp_path / "True")


def test_loader_workers_change_nothing(run, objective, tmp_path, monkeypatch, capfd):
    # A snapshot before the first step uses tokenizers' threads, which forked workers do not have.
    settings, rows = objective[0] | {"similarity_snapshot_steps": [0]}, objective[1]
    monkeypatch.setattr(training, "devices", lambda: ["cuda:0"])  # a CPU uses none
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    signal.alarm(900)  # instead of waiting forever
    arguments = mock.Mock(wraps=training_arguments)
    monkeypatch.setattr(training, "training_arguments", arguments)
    for workers in (0, 2):
        run(str(workers), rows, {"loader_workers": workers}, **settings)
        assert arguments.call_args.args[-1] == workers
    signal.alarm(0)
    assert_same_weights(tmp_path / "0", tmp_path / "2")
    assert "parallelism" not in capfd.readouterr().err


def test_the_code_for_gpus_trains_like_the_code_for_cpus(
    run, objective, tmp_path, monkeypatch, request
):
    """In bfloat16, with adapters, recomputed activations and several batches at a time."""
    lora, rows = {"rank": 4, "dropout": 0.0}, objective[1]
    settings = objective[0] | {"lora": lora, "precision": "bfloat16", "steps": 1}
    monkeypatch.setenv("REVELA_CPU_BFLOAT16", "1")
    monkeypatch.setattr("revela.retriever.encode._cpu_has_bfloat16", lambda: True)
    cpu = run("cpu", rows, {"gradient_checkpointing": True}, **settings)
    request.getfixturevalue("flash")
    monkeypatch.setattr(training, "devices", lambda: ["cuda:0"])
    options = {"batches_per_forward": 2, "gradient_checkpointing": True, "loader_workers": 0}
    gpu = run("gpu", rows, options, **settings)
    assert gpu[0]["loss"] == pytest.approx(cpu[0]["loss"], rel=2e-2)
    assert gpu[0]["gradient_norm"] == pytest.approx(cpu[0]["gradient_norm"], rel=0.1)
    manifest = json.loads((tmp_path / "gpu" / "manifest.json").read_text())
    assert manifest["precision"] == "bfloat16"


@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(), reason="needs a driver"
)
def test_one_process_means_one_gpu(backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # without a launcher
    arguments = training_arguments(experiment(backbone, batches_per_step=4), tmp_path, 2)
    assert arguments.n_gpu == 1
    assert arguments.train_batch_size == 2


def test_tensorboard_logs_stay(run, tmp_path, monkeypatch):
    monkeypatch.setenv("REVELA_TRACKERS", "tensorboard")
    run("m", steps=2)
    assert list((tmp_path / "m" / "tensorboard").rglob("events.out.*"))


def test_the_collator_shuffles_by_seed_and_row_and_halves_by_corpus(backbone):
    tokenizer, orders = load_tokenizer(Source(str(backbone))), set()
    for seed, index in ((0, 0), (0, 0), (0, 1), (1, 0)):
        settings = experiment(backbone, first_half=["x"], seed=seed)
        collate = BatchCollator(settings, encoder_of(backbone), tokenizer)
        tensors = collate([{"texts": TEXTS, "source": "y", "index": index}])
        orders.add(str(tensors["language_model_ids"].tolist()))
    assert len(orders) == 3
    whole = collate.tensors([{"texts": TEXTS, "source": "y"}])["retriever_mask"].sum(1)
    half = collate.tensors([{"texts": TEXTS, "source": "x"}])["retriever_mask"].sum(1)
    assert torch.equal(whole[:5], whole[5:])
    assert torch.equal(half[5:], whole[5:])
    assert torch.equal(half[:5], (whole[:5] - 1) // 2 + 1)


ONE_STEP = {"steps": 1, "warmup_steps": 0, "learning_rate": 0.01}


def test_weights_decay_and_norms_do_not(run, backbone, tmp_path):
    start = load_model(Source(str(backbone))).state_dict()
    run("plain", **ONE_STEP)
    run("decayed", weight_decay=2.0, **ONE_STEP)
    plain, decayed = (load_file(tmp_path / name / WEIGHTS) for name in ("plain", "decayed"))
    for name, weight in start.items():
        expected = plain[name] - 0.01 * 2 * weight * ("norm" not in name)
        torch.testing.assert_close(decayed[name], expected, atol=1e-6, rtol=0)


def test_gradients_are_clipped(run, backbone, tmp_path):
    """Adam moves by the learning rate, unless gradients are far below its epsilon, 1e-8."""
    start = load_model(Source(str(backbone))).state_dict()
    for bound, least, most in ((1.0, 0.009, 0.011), (1e-10, 0, 0.001)):
        run(str(bound), max_gradient_norm=bound, **ONE_STEP)
        made = load_file(tmp_path / str(bound) / WEIGHTS)
        moved = max(float((made[name] - weight).abs().max()) for name, weight in start.items())
        assert least < moved < most


@pytest.mark.parametrize(("lora", "reading"), [(None, "sum"), (LORA, "sum"), (LORA, "joint")])
def test_a_frozen_language_model_is_neither_trained_nor_saved(run, tmp_path, lora, reading):
    objective = {"name": "revela", "temperature": 0.1, "freeze_language_model": True}
    made = {"objective": objective | {"reading": reading}, "similarity_snapshot_steps": [0]}
    snapshot, entry = run("m", lora=lora, steps=1, **made)
    assert snapshot["snapshot"]["loss"] != snapshot["snapshot"]["plain_loss"]
    assert {"plain_loss_gain", "top_similarity"} < entry.keys()
    saved = weights_of(tmp_path / "m")
    assert {name.split("/")[0] for name in saved} == {"retriever"}
    manifest = json.loads((tmp_path / "m/manifest.json").read_text())
    assert manifest["trainable_parameters"] == sum(tensor.numel() for tensor in saved.values())


@pytest.mark.parametrize("dual", [False, True])
def test_the_gain_is_what_reading_spares(run, dual):
    objective = {"name": "revela", "temperature": 0.1, "language_model_loss": dual}
    (entry,) = run("m", objective=objective | {"plain_loss_every": 1}, steps=1)
    loss = entry["loss"] - dual * entry["plain_loss"]  # the dual loss contains it
    assert entry["plain_loss_gain"] == pytest.approx(entry["plain_loss"] - loss, abs=1e-5)


@pytest.mark.parametrize(("kind", "warmup"), [("logarithmic", 0.5), ("linear", 4)])
def test_the_rates_are_those_of_the_schedule(run, kind, warmup):
    rates = [entry["learning_rate"] for entry in run("m", warmup_steps=warmup, warmup=kind)]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=5e-3)
    schedule = warmup_decay(optimizer, kind, 4, 8)
    expected = [5e-3 * schedule.lr_lambdas[0](step) for step in range(8)]
    assert rates == pytest.approx(expected)


def test_a_seed_changes_adapters_dropout_and_the_order_of_rows(run, tmp_path, monkeypatch):
    """Each batch of each step has its own dropout."""
    adapters, orders, seeds, seen = set(), set(), set(), []
    collate, seeded = BatchCollator.__call__, torch.manual_seed

    def collated(self, rows):
        seen.extend(row["index"] for row in rows)
        return collate(self, rows)

    monkeypatch.setattr(BatchCollator, "__call__", collated)
    monkeypatch.setattr(torch, "manual_seed", lambda n: seeds.add(n) or seeded(n))
    for number, seed in enumerate((0, 1, 0)):
        run(str(number), lora=LORA, learning_rate=1e-12, seed=seed, steps=2, batches_per_step=2)
        weights = load_file(tmp_path / f"{number}/retriever/adapter_model.safetensors")
        adapters.add(round(sum(float(w.sum()) for n, w in weights.items() if "lora_A" in n), 4))
        orders.add(tuple(seen))
        seen.clear()
    assert (len(adapters), len(orders)) == (2, 2)
    assert len({n for n in seeds if n > 2**32}) == 2 * 2 * 2  # seeds, steps, batches
