"""In-batch attention and what libraries do to a model: adapters, autocast, compiling, saving."""

import pytest
import torch
import transformers

from revela.inbatch import decoder
from revela.inbatch.in_batch import in_batch_loss, in_batch_similarity, plain_loss
from revela.retriever.encode import pad
from tests.conftest import tiny_llama
from tests.inbatch.common import random_chunks


def test_recomputation_leaves_no_state_behind(both_ways):
    """Checkpointing ends a recomputation early, which must not affect the next call."""
    ids, mask = pad(random_chunks([5, 2, 4]), 0)
    model = tiny_llama(vocab_size=50).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    before = plain_loss(model, ids, mask)
    logits = model(input_ids=ids[:1]).logits
    similarity = in_batch_similarity(torch.rand(3, 3), 0.5)
    for after in (
        lambda: plain_loss(model, ids, mask) == before,
        lambda: torch.equal(model(input_ids=ids[:1]).logits, logits),
    ):
        in_batch_loss(model, ids, mask, similarity, value_norm=True).backward()
        assert after()


def test_plain_loss_equals_the_library(both_ways):
    chunks = random_chunks([5, 8, 3])
    ids, mask = pad(chunks, 0)
    model = tiny_llama(vocab_size=50).double()
    ours = plain_loss(model, ids, mask)
    model.set_attn_implementation("eager")
    labels = ids.masked_fill(mask == 0, -100)
    theirs = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reading", ["sum", "joint"])
def test_gradient_checkpointing_and_lora_change_nothing(both_ways, reading):
    from peft import LoraConfig, get_peft_model

    ids, mask = pad(random_chunks([5, 2, 4]), 0)
    cosine = torch.rand(3, 3, dtype=torch.float64)
    gradients = []
    for checkpointing in (False, True):
        model = get_peft_model(
            tiny_llama(vocab_size=50).double(),
            LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
        ).double()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora" in name:
                    parameter.copy_(torch.linspace(-0.1, 0.1, parameter.numel()).view_as(parameter))
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        model.train()
        scores = cosine.clone().requires_grad_()
        similarity = in_batch_similarity(scores, 0.5)
        in_batch_loss(model, ids, mask, similarity, reading=reading).backward()
        gradients.append(scores.grad)
    assert gradients[0].abs().max() > 0
    assert torch.equal(*gradients)


@pytest.mark.parametrize("reading", ["sum", "joint"])
def test_autocast_in_bfloat16_stays_close(both_ways, reading):
    ids, mask = pad(random_chunks([9, 8, 12, 4]), 0)
    similarity = in_batch_similarity(torch.rand(4, 4), 0.2)
    model = tiny_llama(vocab_size=50)
    exact = in_batch_loss(model, ids, mask, similarity, reading=reading)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = in_batch_loss(model, ids, mask, similarity, reading=reading)
    torch.testing.assert_close(coarse, exact, rtol=2e-2, atol=2e-2)


def test_a_prepared_model_behaves_as_before(both_ways):
    """Left padding, generation and a cache, after in-batch attention and between two uses of it."""
    ids, mask = pad(random_chunks([5, 2, 4]), 0)
    similarity = in_batch_similarity(torch.rand(3, 3), 0.5)
    model = tiny_llama(vocab_size=50).eval()
    prompts, prompt_mask = torch.tensor([[0, 0, 3, 4], [5, 6, 7, 8]]), torch.ones(2, 4)
    prompt_mask[0, :2] = 0

    def observed() -> list[torch.Tensor]:
        logits = model(input_ids=prompts, attention_mask=prompt_mask).logits[:, -1]
        new = model.generate(prompts, attention_mask=prompt_mask, max_new_tokens=4, do_sample=False)
        return [logits, new.float()]

    before = observed()
    found_losses = []
    for _ in range(2):
        found_losses.append(in_batch_loss(model, ids, mask, similarity, value_norm=True))
        assert model.config._attn_implementation == "sdpa"
        for expected, found in zip(before, observed(), strict=True):
            torch.testing.assert_close(found, expected)
    assert torch.equal(*found_losses)


def test_a_saved_model_has_its_own_attention(tmp_path):
    ids, mask = pad(random_chunks([5, 4]), 0)
    model = tiny_llama(vocab_size=50)
    in_batch_loss(model, ids, mask, torch.eye(2).roll(1, 0), value_norm=False)
    model.save_pretrained(tmp_path)
    assert decoder.NAME not in (tmp_path / "config.json").read_text()


def made(family: str, **changes: object) -> transformers.PreTrainedModel:
    shape = {"vocab_size": 50, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 2} | changes
    config = getattr(transformers, f"{family}Config")(**shape)
    return transformers.AutoModelForCausalLM.from_config(config)


ONE = {"num_key_value_heads": 1}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Bloom", {}, "attention interface"),
        ("Mistral", ONE | {"sliding_window": 4}, "attends to 4 tokens only"),
        ("Gemma2", ONE, "has attn_logit_softcapping"),
        ("Doge", ONE, "masks by itself"),
        ("Granite", ONE | {"logits_scaling": 8.0}, "scales its logits"),
        ("Cohere", ONE | {"logit_scale": 0.25}, "scales its logits"),
        ("Llama", {"attention_dropout": 0.1}, "has attention_dropout"),
        ("GptOss", ONE | {"head_dim": 4, "num_local_experts": 2}, "attends with s_aux"),
        (
            "Qwen3Next",
            ONE | {"layer_types": ["linear_attention"], "num_experts": 2},
            "layers of linear_attention",
        ),
    ],
)
def test_models_that_compute_otherwise_are_refused(family, changes, message):
    ids, mask = pad(random_chunks([9, 2]), 0)
    model = made(family, **changes)
    with pytest.raises(ValueError, match=message):
        in_batch_loss(model, ids, mask, torch.eye(2).roll(1, 0), value_norm=False)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Mistral", ONE | {"sliding_window": 12}, "attends to 12 tokens only, but 18 are needed"),
        ("GPT2", {}, "has no rotary positions"),
        ("OPT", {"ffn_dim": 8, "word_embed_proj_dim": 8}, "has no rotary positions"),
        ("Llama", {"max_position_embeddings": 17}, "has 17 positions, .* 9 tokens need 18"),
    ],
)
def test_models_that_cannot_read_jointly_are_refused(family, changes, message):
    ids, mask = pad(random_chunks([9, 2]), 0)
    model = made(family, **changes)
    with pytest.raises(ValueError, match=message):
        in_batch_loss(model, ids, mask, torch.eye(2).roll(1, 0), reading="joint")
    with pytest.raises(ValueError, match="joint reading has no value_norm"):
        in_batch_loss(model, ids, mask, torch.eye(2), reading="joint", value_norm=True)


def test_a_model_keeps_its_own_attention_and_its_layers_their_hooks():
    model = tiny_llama(attn_implementation="eager").eval()
    ids, mask = pad([[5, 9, 3, 7], [4, 4, 8], [6, 2, 11]], 0)
    similarity = in_batch_similarity(torch.eye(3), 0.5)
    before = model(input_ids=ids, attention_mask=mask).logits
    in_batch_loss(model, ids, mask, similarity, value_norm=True).backward()
    assert model.config._attn_implementation == "eager"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits, before)
