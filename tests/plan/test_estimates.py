"""Estimates of memory and hours, from the shapes of models."""

import json

import pytest
import torch
import transformers

from revela.config import load_config
from revela.config.training import Lora
from revela.plan import estimates
from revela.plan.counts import Counts
from revela.plan.estimates import GB, PAPER_TFLOPS, UNCERTAINTY, Shape
from revela.plan.machine import Machine
from revela.retriever.encode import add_lora
from tests.plan.common import LLAMA_1B, ROOT, SMOLLM2_135M, decoder, experiment, shape_of


@pytest.mark.parametrize(
    "described",
    [
        transformers.LlamaConfig(**LLAMA_1B),
        transformers.LlamaConfig(**(LLAMA_1B | {"tie_word_embeddings": False, "head_dim": 128})),
        transformers.Qwen2Config(**(SMOLLM2_135M | {"num_key_value_heads": 1})),
    ],
)
def test_shape_of_a_decoder_matches_the_model(described):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(described)
        bare = transformers.AutoModel.from_config(described)
    shape = shape_of(described)
    assert shape.weights(head=True) == model.num_parameters()
    assert shape.weights() == bare.num_parameters()
    # Matrices are all weights but embeddings, norms and biases.
    norms = described.hidden_size * (2 * described.num_hidden_layers + 1)
    biases = sum(p.numel() for n, p in bare.named_parameters() if n.endswith("bias"))
    embedding = described.vocab_size * described.hidden_size
    assert shape.matrices == bare.num_parameters() - embedding - norms - biases
    width = getattr(described, "head_dim", 0) or described.hidden_size // 9
    assert shape.keys == described.num_key_value_heads * width
    assert shape.widest == described.intermediate_size
    adapted = add_lora(bare, Lora(), seed=0)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert shape.adapter(Lora()) == trained


@pytest.mark.parametrize("described", [transformers.BertConfig(), transformers.DistilBertConfig()])
def test_shape_of_an_encoder_matches_the_model(described):
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(described)
    shape = shape_of(described)
    assert shape.weights() == model.num_parameters()
    assert (shape.hidden, shape.widest) == (768, 3072)
    assert shape.file_bytes == 4 * model.num_parameters()


def test_models_of_the_paper_are_shipped_with_their_shapes():
    """The numbers of parameters are those that the models' authors and mteb report."""
    known = json.loads((ROOT / "data/paper/models.json").read_text())
    sizes = {
        "HuggingFaceTB/SmolLM2-135M": 134_515_008,
        "Qwen/Qwen2.5-0.5B": 494_032_768,
        "meta-llama/Llama-3.2-1B": 1_235_814_400,
        "meta-llama/Llama-3.2-3B": 3_212_749_824,
        "facebook/contriever": 109_482_240,
        "intfloat/e5-mistral-7b-instruct": 7_110_660_096,
    }
    for name, parameters in sizes.items():
        assert Shape.of(known[name]["config"]).parameters == parameters, name
    config = load_config(ROOT / "config.yaml")
    used = {e.retriever for e in config.experiments.values()}
    used |= {e.language_model for e in config.experiments.values() if e.language_model}
    used |= {m.retriever for m in config.models.values() if m.kind == "encoder"}
    assert used <= set(known)


def test_training_memory_is_near_the_measured_one():
    """Measured in `bench/RESULTS.md`: two SmolLM2-135M in float32, without an optimizer."""
    shape = decoder(SMOLLM2_135M)
    for size, measured in ((64, 12.2), (128, 12.8)):
        all_weights = experiment(lora=None)
        models = [shape, shape]
        whole = estimates.training_memory(all_weights, models, size, True, True)
        # The benchmark's step has gradients, but neither weights nor AdamW's moments.
        step = whole - 12 * estimates.trained_parameters(all_weights, models)
        assert measured / UNCERTAINTY < step / GB < measured * UNCERTAINTY


def test_training_memory_grows_with_batch_and_trained_weights():
    models = [decoder(LLAMA_1B), decoder(LLAMA_1B)]

    def memory(size: int = 16, checkpointing: bool = True, **changes: object) -> float:
        return estimates.training_memory(experiment(**changes), models, size, True, checkpointing)

    assert memory() < memory(32) < memory(32, checkpointing=False)
    assert memory() < memory(lora=None)
    # Weights, gradients and two moments of both models in float32, whatever the batch.
    assert memory(1, lora=None) > 16 * 2 * 1.2e9
    frozen = {"name": "revela", "freeze_language_model": True}
    assert memory(objective=frozen) < memory()


@pytest.mark.parametrize("has", [True, False])
def test_bfloat16_on_a_cpu_halves_the_memory(monkeypatch, has):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("REVELA_CPU_BFLOAT16", "1")
    monkeypatch.setattr("revela.retriever.encode._cpu_has_bfloat16", lambda: has)
    half = Machine(gpus=0, gpu_gb=None, ram_gb=16).has_bfloat16
    shape = decoder(LLAMA_1B)
    weights = 2 * shape.weights() if has else 4 * shape.weights()
    assert weights < estimates.encoding_memory(shape, half, gpu=False) < 1.3 * weights
    models = [shape, shape]
    states = 2 * weights + 16 * estimates.trained_parameters(experiment(), models)
    assert states < estimates.training_memory(experiment(), models, 2, half, True) < 1.2 * states


@pytest.mark.parametrize(("name", "hours"), [("revela-wiki-1b", 44), ("revela-code-1b", 48)])
def test_modelled_hours_match_the_paper(name, hours, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load_config(ROOT / "config.yaml")
    trained = config.experiments[name]
    rows = Counts(config, [], ROOT / "data/paper/corpora.csv", offline=True).rows_trained(name)
    models = [decoder(LLAMA_1B), decoder(LLAMA_1B)]
    flops = estimates.training_flops(trained, models, 16, rows)
    assert flops / (PAPER_TFLOPS * 1e12) / 3600 / 4 == pytest.approx(hours, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "of_matrices", "of_head"),
    [
        ({}, 6 * (2 + 2), 6),
        ({"first_half": ["wiki"]}, 6 * (1.5 + 2), 6),
        ({"lora": None}, 8 * (2 + 2), 8),
        ({"objective": {"name": "replug"}}, 6 * 2 + 2 * (1 + 16), 2 * (1 + 16)),
        ({"objective": {"name": "contriever"}, "language_model": None}, 6, 0),
    ],
)
def test_operations_per_token_of_each_objective(changes, of_matrices, of_head):
    """Two in each forward pass and for each gradient; REPLUG reads each text after all others."""
    shape, training = decoder(LLAMA_1B), experiment(**changes)
    models = [shape] * (2 if training.language_model else 1)
    found = estimates.training_flops(training, models, 16, 10) / (10 * 16 * training.max_length)
    assert found == pytest.approx(of_matrices * shape.matrices + of_head * shape.head)


def test_memory_of_a_training_depends_on_its_settings():
    shape = decoder(LLAMA_1B)

    def memory(models: int, row: int = 17, **changes: object) -> float:
        return estimates.training_memory(experiment(**changes), [shape] * models, row, True, True)

    # All weights are trained, none are frozen.
    states = 16 * 2 * shape.weights()
    assert states < memory(2, 1, lora=None) < 1.05 * states
    assert memory(2, precision="float32") > memory(2) + 4 * shape.weights()
    pairs = {"objective": {"name": "contriever"}, "language_model": None}
    some = {"objective": {"name": "contriever", "encode_batch_size": 17}, "language_model": None}
    assert memory(1, **pairs) < memory(1, **pairs, batches_per_device=8)
    assert memory(1, **some) == memory(1, **some, batches_per_device=8) == memory(1, **pairs)
