"""Fused adapters and norms compute what those of peft and transformers compute."""

import copy
import importlib

import pytest
import torch

from revela.config.training import Lora
from revela.retriever.load import load_model
from revela.retriever.lora import add_lora
from revela.retriever.source import Source
from revela.training.fused import fuse, without_casts
from tests.conftest import tiny_llama


def learned(model):
    """Return a model whose new adapters change its output."""
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight.data)
    return model


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_adapters_and_norms(dropout, checkpointing):
    lora = Lora(rank=4, alpha=6, dropout=dropout)
    plain = tiny_llama(attention_bias=True)
    if checkpointing:
        plain.gradient_checkpointing_enable({"use_reentrant": False})
        plain.enable_input_require_grads()
    plain = learned(add_lora(plain, lora, 0).double().train())
    fused = copy.deepcopy(plain)
    fuse(fused)
    ids = torch.randint(2, 50, (3, 9))
    losses = []
    for model in (plain, fused):
        torch.manual_seed(2)
        losses.append(model(input_ids=ids, labels=ids).loss)
        losses[-1].backward()
    # transformers computes the norms in float32
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0)
    expected = {name: w.grad for name, w in plain.named_parameters() if w.requires_grad}
    for name, weight in fused.named_parameters():
        if weight.requires_grad:
            torch.testing.assert_close(weight.grad, expected[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "qwen3", "olmo2", "phi3"])
def test_norms_of_families(family):
    """In float32 they are equal; in bfloat16 no further from it than those of transformers."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    (kind,) = {vars(module)[name] for name in vars(module) if name.endswith("RMSNorm")}
    norm = kind(32, eps=1e-3)
    torch.manual_seed(3)
    torch.nn.init.normal_(norm.weight, mean=1)
    values, outer = torch.randn(2, 50, 32)

    def computed(fused: bool, dtype: torch.dtype) -> list[torch.Tensor]:
        one = copy.deepcopy(norm).to(dtype)
        if fused:
            fuse(one)
        x = values.to(dtype, copy=True).requires_grad_()
        output = one(x)
        output.backward(outer.to(dtype))
        assert output.dtype == dtype
        return [found.detach().float() for found in (output, x.grad, one.weight.grad)]

    exact = computed(False, torch.float32)
    torch.testing.assert_close(computed(True, torch.float32), exact, rtol=1e-5, atol=1e-5)
    both = (computed(fused, torch.bfloat16) for fused in (True, False))
    for ours, theirs, expected in zip(*both, exact, strict=True):
        assert (ours - expected).norm() < 1.05 * (theirs - expected).norm()


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("gemma", "GemmaRMSNorm"),  # multiplies by 1 + w
        ("cohere2", "Cohere2LayerNorm"),  # subtracts the mean
        ("deberta", "DebertaLayerNorm"),
        ("qwen3_next", "Qwen3NextRMSNormGated"),
    ],
)
def test_norms_with_another_formula_stay(family, kind):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    norm = getattr(module, kind)(8)
    fuse(norm)
    assert "forward" not in vars(norm)


def test_adapters_do_not_copy_their_input_under_autocast(backbone):
    """Copying every layer's input to float32 and back is a fifth of a GPU's memory traffic."""
    found = []
    for bare in (False, True):
        model = load_model(Source(str(backbone))).bfloat16()
        model = learned(add_lora(model, Lora(rank=4, dropout=0.0), 0))
        if bare:
            without_casts(model)
        kinds = []
        layer = next(m for name, m in model.named_modules() if name.endswith("q_proj.lora_A"))
        layer["default"].register_forward_pre_hook(
            lambda _, inputs, kinds=kinds: kinds.append(inputs[0].dtype)
        )
        with torch.autocast("cpu", torch.bfloat16):
            output = model(input_ids=torch.arange(2, 9)[None]).last_hidden_state
        found.append((kinds, output))
    assert [kinds for kinds, _ in found] == [[torch.float32], [torch.bfloat16]]
    assert torch.equal(found[0][1], found[1][1])
