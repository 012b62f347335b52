"""Every objective learns, and what changes no number changes none."""

import json
import signal
from pathlib import Path
from unittest import mock

import pytest
import torch
import transformers
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
from tests.training.common import LORA, REPLUG, assert_same_weights, experiment, weights_of


def test_revela_trains_and_records_each_step(backbone, data, tmp_path):
    train(
        experiment(backbone, steps=30, similarity_snapshot_steps=[0, 15, 30]), data, tmp_path / "m"
    )
    log = read_log(tmp_path / "m" / "log.jsonl")
    steps = [entry for entry in log if "loss" in entry]
    assert [entry["step"] for entry in steps] == list(range(1, 31))
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert {
        "loss", "learning_rate", "gradient_norm", "top_similarity", "rows_learning",
        "of", "tokens", "seconds", "tokens_per_second", "memory_gb", "plain_loss",
    } <= set(steps[0])  # fmt: skip
    assert "plain_loss" not in steps[1]
    snapshots = {entry["step"]: entry["snapshot"] for entry in log if "snapshot" in entry}
    assert list(snapshots) == [0, 15, 30]
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


@pytest.mark.parametrize("objective", ["replug", "contriever"])
def test_the_other_objectives_learn(backbone, data, pair_data, tmp_path, objective):
    if objective == "replug":
        settings, rows = experiment(backbone, objective=REPLUG, steps=30), data
    else:
        settings = experiment(
            backbone,
            objective={"name": "contriever", "temperature": 0.1},
            batches_per_step=6,
            batches_per_device=3,
            language_model=None,
            steps=9,
        )
        rows = pair_data
    train(settings, rows, tmp_path / "m")
    losses = [entry["loss"] for entry in read_log(tmp_path / "m" / "log.jsonl")]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert not (tmp_path / "m" / "language_model").exists()


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


def test_an_adapter_is_trained_further(backbone, data, tmp_path):
    train(experiment(backbone, lora=LORA, steps=2), data, tmp_path / "first")
    first = {key: str(tmp_path / "first" / key) for key in ("retriever", "language_model")}
    again = experiment(backbone, lora=LORA, steps=2, **first)
    train(again, data, tmp_path / "again")
    for key, causal in (("retriever", False), ("language_model", True)):
        before, after = (flat(tmp_path / run / key, causal) for run in ("first", "again"))
        untrained = flat(backbone, causal)
        # From the first training's weights, not from the backbone's.
        assert 0 < (after - before).norm() < (after - untrained).norm()
        settings = json.loads((tmp_path / "again" / key / "adapter_config.json").read_text())
        assert settings["base_model_name_or_path"] == str(backbone)
    other = experiment(backbone, lora=LORA | {"alpha": 5}, steps=2, **first)
    with pytest.raises(RevelaError, match=r"has rank 4, alpha \d+, .* set lora to the same values"):
        train(other, data, tmp_path / "other")


def test_accumulated_batches_have_equal_weight(backbone, data, tmp_path):
    """Four batches of one step give the mean of their gradients, and so of their losses."""
    train(experiment(backbone, steps=1, batches_per_step=4), data, tmp_path / "four")
    train(experiment(backbone, steps=4, learning_rate=1e-12), data, tmp_path / "one")
    (together,) = read_log(tmp_path / "four" / "log.jsonl")
    apart = read_log(tmp_path / "one" / "log.jsonl")
    mean = sum(entry["loss"] for entry in apart) / 4
    assert together["loss"] == pytest.approx(mean, rel=1e-4)
    assert together["gradient_norm"] < max(entry["gradient_norm"] for entry in apart)


@pytest.mark.parametrize(
    ("most", "similarity"), [(3, "retriever"), (8, "retriever"), (2, "documents")]
)
def test_several_batches_in_a_forward_pass_change_nothing(
    backbone, data, tmp_path, most, similarity
):
    objective = {"name": "revela", "temperature": 0.1, "similarity": similarity}
    settings = experiment(backbone, objective=objective, steps=3, batches_per_step=4)
    train(settings, data, tmp_path / "one")
    train(settings, data, tmp_path / "more", batches_per_forward=most)
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("one", "more")]
    for one, more in zip(*logs, strict=True):
        for name in ("loss", "gradient_norm", "top_similarity", "rows_learning"):
            assert more[name] == pytest.approx(one[name], rel=1e-4)
    one, more = (weights_of(tmp_path / name) for name in ("one", "more"))
    for name, weight in one.items():
        # Adam's first steps have the same length for any gradient: rounding errors are visible.
        torch.testing.assert_close(more[name], weight, atol=1e-3, rtol=0, msg=name)


@pytest.mark.parametrize("lora", [None, LORA | {"dropout": 0.0}])
def test_a_language_model_learns_to_read_before_there_is_a_retriever(
    backbone, data, tmp_path, lora
):
    reading = {"name": "revela", "similarity": "documents", "plain_loss_every": 2}
    kept = {"similarity_snapshot_steps": [0]}
    settings = experiment(
        backbone, objective=reading, lora=lora, steps=4, batches_per_step=2, **kept
    )
    train(settings, data, tmp_path / "reader")
    taught = tmp_path / "reader" / "language_model"
    assert not torch.equal(flat(backbone, causal=True), flat(taught, causal=True))
    assert torch.equal(flat(backbone), flat(tmp_path / "reader" / "retriever"))
    snapshot, *log = read_log(tmp_path / "reader" / "log.jsonl")
    assert snapshot["snapshot"]["top_similarity"] < 1  # the retriever's
    assert ["contrast" in entry for entry in log] == [True, False, True, False]

    def plain_loss(name: str, language_model: Path, frozen: bool) -> float:
        objective = {"name": "revela", "temperature": 0.1, "freeze_language_model": frozen}
        models = {"language_model": str(language_model), "lora": lora}
        after = experiment(backbone, objective=objective, steps=2, **models)
        train(after, data, tmp_path / name)
        return read_log(tmp_path / name / "log.jsonl")[0]["plain_loss"]

    frozen = plain_loss("frozen", taught, frozen=True)
    assert plain_loss("joint", taught, frozen=False) == pytest.approx(frozen, rel=1e-5)
    assert plain_loss("untaught", backbone, frozen=False) != pytest.approx(frozen, rel=1e-5)


def flat(folder: Path, causal: bool = False) -> torch.Tensor:
    model = (load_language_model if causal else load_model)(Source(str(folder)))
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_gradient_checkpointing_changes_nothing(backbone, objective, tmp_path):
    """In float32, with dropout: recomputed activations are the same."""
    settings, rows = experiment(backbone, **objective[0]), objective[1]
    for on in (False, True):
        train(settings, rows, tmp_path / str(on), gradient_checkpointing=on)
        manifest = json.loads((tmp_path / str(on) / "manifest.json").read_text())
        assert manifest["gradient_checkpointing"] is on
    assert_same_weights(tmp_path / "False", tmp_path / "True")


def test_loader_workers_change_nothing(backbone, objective, tmp_path, monkeypatch, capfd):
    # A snapshot before the first step uses tokenizers' threads, which forked workers do not have.
    snapshots = {"similarity_snapshot_steps": [0]}
    settings, rows = experiment(backbone, **objective[0], **snapshots), objective[1]
    monkeypatch.setattr(training, "devices", lambda: ["cuda:0"])  # a CPU uses none
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    signal.alarm(900)  # instead of waiting forever
    collated_in = []
    original = torch.utils.data.DataLoader.__iter__
    monkeypatch.setattr(
        torch.utils.data.DataLoader,
        "__iter__",
        lambda self: collated_in.append(self.num_workers) or original(self),
    )
    for workers in (0, 2):
        train(settings, rows, tmp_path / str(workers), loader_workers=workers)
        assert set(collated_in) == {workers}
        collated_in.clear()
    signal.alarm(0)
    assert_same_weights(tmp_path / "0", tmp_path / "2")

    assert "parallelism" not in capfd.readouterr().err


def test_the_code_for_gpus_trains_like_the_code_for_cpus(
    backbone, objective, tmp_path, monkeypatch, request
):
    """In bfloat16, with adapters, recomputed activations and several batches at a time."""
    lora = {"rank": 4, "dropout": 0.0}
    changes = objective[0] | {"lora": lora, "precision": "bfloat16", "steps": 1}
    settings, rows = experiment(backbone, **changes), objective[1]
    monkeypatch.setenv("REVELA_CPU_BFLOAT16", "1")
    monkeypatch.setattr("revela.retriever.encode._cpu_has_bfloat16", lambda: True)
    train(settings, rows, tmp_path / "cpu", gradient_checkpointing=True)
    request.getfixturevalue("flash")
    monkeypatch.setattr(training, "devices", lambda: ["cuda:0"])
    options = {"batches_per_forward": 2, "gradient_checkpointing": True, "loader_workers": 0}
    train(settings, rows, tmp_path / "gpu", **options)
    cpu, gpu = (read_log(tmp_path / name / "log.jsonl") for name in ("cpu", "gpu"))
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
    assert arguments.parallel_mode == transformers.training_args.ParallelMode.NOT_PARALLEL


def test_tensorboard_logs_stay(backbone, data, tmp_path, monkeypatch):
    monkeypatch.setenv("REVELA_TRACKERS", "tensorboard")
    train(experiment(backbone, steps=2), data, tmp_path / "m")
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


def one_step(backbone, data, folder, **changes) -> dict[str, torch.Tensor]:
    settings = {"steps": 1, "warmup_steps": 0, "learning_rate": 0.01} | changes
    train(experiment(backbone, **settings), data, folder)
    return load_file(folder / "retriever/model.safetensors")


def test_weights_decay_and_norms_do_not(backbone, data, tmp_path):
    start = load_model(Source(str(backbone))).state_dict()
    plain = one_step(backbone, data, tmp_path / "plain")
    decayed = one_step(backbone, data, tmp_path / "decayed", weight_decay=2.0)
    for name, weight in start.items():
        expected = torch.zeros_like(weight) if "norm" in name else -0.01 * 2 * weight
        torch.testing.assert_close(decayed[name] - plain[name], expected, atol=1e-6, rtol=0)


def test_gradients_are_clipped(backbone, data, tmp_path):
    """Adam moves by the learning rate, unless gradients are far below its epsilon, 1e-8."""
    start = load_model(Source(str(backbone))).state_dict()
    for bound, least, most in ((1.0, 0.009, 0.011), (1e-10, 0, 0.001)):
        made = one_step(backbone, data, tmp_path / str(bound), max_gradient_norm=bound)
        moved = max(float((made[name] - weight).abs().max()) for name, weight in start.items())
        assert least < moved < most


@pytest.mark.parametrize(("lora", "reading"), [(None, "sum"), (LORA, "sum"), (LORA, "joint")])
def test_a_frozen_language_model_is_neither_trained_nor_saved(
    backbone, data, tmp_path, lora, reading
):
    objective = {"name": "revela", "temperature": 0.1, "freeze_language_model": True}
    made = {"objective": objective | {"reading": reading}, "similarity_snapshot_steps": [0]}
    train(experiment(backbone, lora=lora, steps=1, **made), data, tmp_path / "m")
    snapshot, entry = read_log(tmp_path / "m/log.jsonl")
    assert snapshot["snapshot"]["loss"] != snapshot["snapshot"]["plain_loss"]
    assert {"plain_loss_gain", "top_similarity"} < entry.keys()
    saved = weights_of(tmp_path / "m")
    assert {name.split("/")[0] for name in saved} == {"retriever"}
    manifest = json.loads((tmp_path / "m/manifest.json").read_text())
    assert manifest["trainable_parameters"] == sum(tensor.numel() for tensor in saved.values())


@pytest.mark.parametrize("dual", [False, True])
def test_the_gain_is_what_reading_spares(backbone, data, tmp_path, dual):
    objective = {"name": "revela", "temperature": 0.1, "language_model_loss": dual}
    settings = experiment(backbone, objective=objective | {"plain_loss_every": 1}, steps=1)
    train(settings, data, tmp_path / "m")
    (entry,) = read_log(tmp_path / "m/log.jsonl")
    loss = entry["loss"] - dual * entry["plain_loss"]  # the dual loss contains it
    assert entry["plain_loss_gain"] == pytest.approx(entry["plain_loss"] - loss, abs=1e-5)


@pytest.mark.parametrize(("kind", "warmup"), [("logarithmic", 0.5), ("linear", 4)])
def test_the_rates_are_those_of_the_schedule(backbone, data, tmp_path, kind, warmup):
    train(experiment(backbone, warmup_steps=warmup, warmup=kind), data, tmp_path)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=5e-3)
    schedule = warmup_decay(optimizer, kind, 4, 8)
    expected = [5e-3 * schedule.lr_lambdas[0](step) for step in range(8)]
    rates = [entry["learning_rate"] for entry in read_log(tmp_path / "log.jsonl")]
    assert rates == pytest.approx(expected)


def test_each_batch_of_each_step_has_its_own_dropout(backbone, data, tmp_path, monkeypatch):
    drawn = []
    original = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda n: drawn.append(n) or original(n))
    for seed in (0, 1):
        settings = experiment(backbone, steps=2, batches_per_step=2, warmup_steps=1, seed=seed)
        train(settings, data, tmp_path / str(seed))
    assert len({n for n in drawn if n > 2**32}) == 2 * 2 * 2  # seeds, steps, batches


def test_a_seed_changes_adapters_and_the_order_of_rows(backbone, data, tmp_path, monkeypatch):
    adapters, orders, original = set(), set(), BatchCollator.__call__
    for number, seed in enumerate((0, 1, 0)):
        seen: list[int] = []

        def collate(self, rows, seen=seen):
            seen.extend(row["index"] for row in rows)
            return original(self, rows)

        monkeypatch.setattr(BatchCollator, "__call__", collate)
        settings = experiment(backbone, lora=LORA, learning_rate=1e-12, seed=seed)
        train(settings, data, tmp_path / str(number))
        weights = load_file(tmp_path / f"{number}/retriever/adapter_model.safetensors")
        adapters.add(round(sum(float(w.sum()) for n, w in weights.items() if "lora_A" in n), 4))
        orders.add(tuple(seen))
    assert (len(adapters), len(orders)) == (2, 2)
