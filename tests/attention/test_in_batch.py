"""In-batch attention against a plain-loop transcription of the paper's equations."""

import doctest

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import revela.attention.in_batch as attention
from revela.attention import decoder, losses
from revela.attention.in_batch import in_batch_loss, in_batch_similarity, plain_loss
from revela.encoder import pad
from tests.attention.reference import in_batch_losses
from tests.conftest import count_host_reads, tiny_llama

TEMPERATURES = {"uniform": 1e6, "warm": 0.5, "sharp": 0.05, "one-hot": 1e-4}


def tiny_qwen2() -> transformers.Qwen2ForCausalLM:
    torch.manual_seed(1)
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=1,
        )
    )


MODELS = {
    "llama": lambda: tiny_llama(vocab_size=50, num_key_value_heads=4),
    "llama-gqa": lambda: tiny_llama(vocab_size=50, tie_word_embeddings=False),
    "qwen2": tiny_qwen2,
}


def random_chunks(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, 50, (n,), generator=generator).tolist() for n in lengths]


def compare(model, chunks, cosine, temperature, value_norm, min_similarity=1e-12, way="padded"):
    """Compare losses and all gradients, for the retriever with respect to the cosines."""
    model = model.double()
    epsilon = 1e-6 if way == "padded" else 0.0
    ids, mask = pad(chunks, 0)
    results = []
    for reference in (False, True):
        scores = cosine.clone().requires_grad_()
        model.zero_grad()
        similarity = in_batch_similarity(scores, temperature)
        if reference:
            model.set_attn_implementation("eager")
            loss, _ = in_batch_losses(model, chunks, similarity, value_norm, epsilon)
        else:
            loss = in_batch_loss(
                model, ids, mask, similarity, value_norm=value_norm, min_similarity=min_similarity
            )
        loss.backward()
        weights = {name: p.grad.clone() for name, p in model.named_parameters()}
        results.append((loss.detach(), scores.grad, weights))
    (loss, cosine_gradient, gradients), (expected, expected_cosine, expected_gradients) = results
    torch.testing.assert_close(loss, expected, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(cosine_gradient, expected_cosine, rtol=1e-4, atol=1e-7)
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, expected_gradients[name], rtol=1e-4, atol=1e-7, msg=name
        )


@pytest.mark.parametrize("value_norm", [False, True])
@pytest.mark.parametrize("sharpness", TEMPERATURES)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_equations(name, sharpness, value_norm, both_ways):
    chunks = random_chunks([5, 3, 7, 1])
    cosine = torch.rand(4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    compare(MODELS[name](), chunks, cosine, TEMPERATURES[sharpness], value_norm, way=both_ways)


def test_equals_the_equations_with_ties(both_ways):
    cosine = torch.zeros(4, 4, dtype=torch.float64)
    cosine[0, 1] = cosine[0, 2] = cosine[1, 3] = cosine[2, 3] = 1.0
    compare(
        tiny_llama(vocab_size=50), random_chunks([4, 4, 6, 2]), cosine, 1e-3, True, way=both_ways
    )


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the same for all examples
)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=9),
    temperature=st.sampled_from([1e-4, 0.1, 10.0]),
    value_norm=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_the_equations_for_any_shape(both_ways, lengths, temperature, value_norm, seed):
    predictions = sum(lengths) - len(lengths)
    size = len(lengths)
    generator = torch.Generator().manual_seed(seed)
    cosine = torch.rand(size, size, generator=generator, dtype=torch.float64) * 2 - 1
    model = tiny_llama(vocab_size=50, num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    chunks = random_chunks(lengths, seed)
    if predictions:
        compare(model, chunks, cosine, temperature, value_norm, way=both_ways)
    else:
        similarity = in_batch_similarity(cosine.float(), temperature)
        assert in_batch_loss(model, *pad(chunks, 0), similarity, value_norm=value_norm) == 0


def test_skipping_pairs_equals_the_dense_result(both_ways):
    chunks = random_chunks([6, 5, 4, 7, 3])
    cosine = torch.rand(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for threshold in (0.0, 1e-12):
        compare(tiny_llama(vocab_size=50), chunks, cosine, 0.01, True, threshold, both_ways)


def test_skipped_pairs_are_not_computed(monkeypatch):
    tokens = []
    original = attention.cross_document
    monkeypatch.setattr(
        attention,
        "cross_document",
        lambda *a: tokens.append(sum(r.token_NM.numel() for r in a[-2])) or original(*a),
    )
    ids, mask = pad(random_chunks([4] * 6), 0)
    one_hot = torch.eye(6).roll(1, dims=1)
    in_batch_loss(tiny_llama(), ids, mask, one_hot, value_norm=False)
    assert tokens == [24, 24]  # one document per reader, at each of two layers


def test_documents_nobody_reads_have_no_row(monkeypatch):
    ids, mask = pad(random_chunks([4] * 5), 0)
    similarity = torch.zeros(5, 5)
    similarity[:, 2] = 1.0
    similarity[2] = torch.tensor([1.0, 0, 0, 0, 0])
    model = tiny_llama()
    tokens = []
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    in_batch_loss(model, ids, mask, similarity, value_norm=False)
    assert tokens == [4 * (2 + 5)]


def test_padding_never_changes_a_result(both_ways):
    chunks = random_chunks([5, 2, 4])
    similarity = in_batch_similarity(torch.rand(3, 3), 0.5)
    model = tiny_llama(vocab_size=50)
    short, wide = pad(chunks, 0), pad([*chunks, [1] * 30], 7)
    both = [
        in_batch_loss(model, ids[:3], mask[:3], similarity, value_norm=True)
        for ids, mask in (short, wide)
    ]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("dual_loss", [False, True])
def test_several_batches_in_one_pass_have_equal_weight(both_ways, dual_loss):
    """Loss and gradients are the mean of those of the single batches, whatever their sizes."""
    sizes, chunks = [3, 2, 4], random_chunks([5, 2, 4, 7, 6, 3, 1, 2, 9])
    generator = torch.Generator().manual_seed(5)
    cosine = torch.rand(9, 9, generator=generator, dtype=torch.float64)
    model = tiny_llama(vocab_size=50).double()
    found = []
    for groups in ([range(9)], [range(3), range(3, 5), range(5, 9)]):
        model.zero_grad()
        scores, total, plain = cosine.clone().requires_grad_(), 0.0, 0.0
        for group in groups:
            own = sizes if len(groups) == 1 else None
            ids, mask = pad([chunks[i] for i in group], 0)
            mine = slice(group.start, group.stop)
            similarity = in_batch_similarity(scores[mine, mine], 0.1, sizes=own)
            loss = in_batch_loss(
                model,
                ids,
                mask,
                similarity,
                value_norm=True,
                min_similarity=0.0,
                dual_loss=dual_loss,
                sizes=own,
            )
            (loss / len(groups)).backward()
            total += loss.detach() / len(groups)
            plain += plain_loss(model, ids, mask, own).detach() / len(groups)
        found.append([total, plain, scores.grad, *(p.grad.clone() for p in model.parameters())])
    for together, apart in zip(*found, strict=True):
        torch.testing.assert_close(together, apart, rtol=1e-6, atol=1e-9)


def test_dual_loss_adds_the_plain_loss(both_ways):
    ids, mask = pad(random_chunks([5, 2, 4]), 0)
    similarity = in_batch_similarity(torch.rand(3, 3), 0.5)
    model = tiny_llama(vocab_size=50).double()
    arguments = (model, ids, mask, similarity.double())
    both = in_batch_loss(*arguments, value_norm=True, dual_loss=True)
    parts = in_batch_loss(*arguments, value_norm=True) + plain_loss(model, ids, mask)
    torch.testing.assert_close(both, parts)


def test_dual_loss_has_the_gradients_of_the_equations(both_ways):
    chunks = random_chunks([5, 2, 4])
    model = tiny_llama(vocab_size=50).double()
    similarity = in_batch_similarity(torch.rand(3, 3, dtype=torch.float64), 0.5)
    found = []
    for reference in (False, True):
        model.zero_grad()
        weights = similarity.clone().requires_grad_()
        if reference:
            model.set_attn_implementation("eager")
            epsilon = 1e-6 if both_ways == "padded" else 0.0
            loss = sum(in_batch_losses(model, chunks, weights, True, epsilon))
        else:
            ids, mask = pad(chunks, 0)
            loss = in_batch_loss(model, ids, mask, weights, value_norm=True, dual_loss=True)
        loss.backward()
        found.append([loss, *(p.grad.clone() for p in model.parameters())])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-7)


def test_values_of_another_width_than_queries(both_ways):
    shape = {
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 16,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 7,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "first_k_dense_replace": 2,
    }
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**shape)).double()
    ids, mask = pad(random_chunks([5, 2, 4]), 0)
    weights = in_batch_similarity(torch.rand(3, 3, dtype=torch.float64), 0.5)
    for value_norm in (False, True):
        similarity = weights.clone().requires_grad_()
        loss = in_batch_loss(model, ids, mask, similarity, value_norm=value_norm)
        loss.backward()
        step = torch.zeros(3, 3, dtype=torch.float64)
        step[0, 1], step[0, 2] = 1e-2, -1e-2  # rows still sum to one
        above, below = (
            in_batch_loss(model, ids, mask, weights + sign * step, value_norm=value_norm)
            for sign in (1, -1)
        )
        slope = (above - below) / 2
        torch.testing.assert_close(slope, (similarity.grad * step).sum(), rtol=1e-2, atol=1e-8)


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


def test_gradient_checkpointing_and_lora_change_nothing(both_ways):
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
        in_batch_loss(model, ids, mask, similarity, value_norm=True).backward()
        gradients.append(scores.grad)
    assert gradients[0].abs().max() > 0
    assert torch.equal(*gradients)


def test_autocast_in_bfloat16_stays_close(both_ways):
    ids, mask = pad(random_chunks([9, 8, 12, 4]), 0)
    similarity = in_batch_similarity(torch.rand(4, 4), 0.2)
    model = tiny_llama(vocab_size=50)
    exact = in_batch_loss(model, ids, mask, similarity, value_norm=True)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = in_batch_loss(model, ids, mask, similarity, value_norm=True)
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
        assert model.config._attn_implementation == decoder.NAME
        for expected, found in zip(before, observed(), strict=True):
            torch.testing.assert_close(found, expected)
        model.set_attn_implementation("sdpa")
    assert torch.equal(*found_losses)


def test_compiled_layers_change_nothing():
    cosine = torch.rand(4, 4, generator=torch.Generator().manual_seed(4))
    gradients = []
    for compiled in (False, True):
        model = tiny_llama(vocab_size=50)
        if compiled:
            for layer in model.model.layers:
                layer.compile(dynamic=True, backend="aot_eager")
        for lengths in ([9, 8, 12, 4], [3, 5, 2, 7]):
            ids, mask = pad(random_chunks(lengths), 0)
            scores = cosine.clone().requires_grad_()
            similarity = in_batch_similarity(scores, 0.2)
            in_batch_loss(model, ids, mask, similarity, value_norm=True).backward()
            gradients.append(scores.grad)
    for plain, other in zip(gradients[:2], gradients[2:], strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-6)


def test_the_whole_batch_has_no_tensor_of_all_pairs_or_all_logits(monkeypatch):
    """The largest tensor, recorded at the creation of tensors."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = logits = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.elements = max(self.elements, result.numel())
                if result.dim() == 2 and result.shape[-1] == 50:
                    self.logits = max(self.logits, result.numel())
            return result

    size, length, heads = 12, 32, 4
    monkeypatch.setattr(losses, "_LOGITS_AT_A_TIME", 1000)
    ids, mask = pad(random_chunks([length] * size), 0)
    for temperature in (1e-4, 1e6):
        model = tiny_llama(vocab_size=50, intermediate_size=16)
        similarity = in_batch_similarity(torch.rand(size, size), temperature)
        with Largest() as largest:
            in_batch_loss(model, ids, mask, similarity, value_norm=True).backward()
        # A block has B pairs, or all readers of one document.
        assert largest.elements <= 2 * size * heads * length * length
        assert largest.logits <= 1000


def test_a_step_reads_the_device_once(monkeypatch, both_ways):
    ids, mask = pad(random_chunks([5, 2, 4, 9]), 0)
    model = tiny_llama(vocab_size=50)
    waits = count_host_reads(monkeypatch)
    similarity = in_batch_similarity(torch.rand(4, 4, requires_grad=True), 0.1)
    in_batch_loss(model, ids, mask, similarity, value_norm=True).backward()
    assert waits == ["cpu"]


def test_a_saved_model_has_its_own_attention(tmp_path):
    ids, mask = pad(random_chunks([5, 4]), 0)
    model = tiny_llama(vocab_size=50)
    in_batch_loss(model, ids, mask, torch.eye(2).roll(1, 0), value_norm=False)
    model.save_pretrained(tmp_path)
    assert decoder.NAME not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(ids=b["ids"][:1], mask=b["mask"][:1]), "at least two chunks"),
        (lambda b: b["mask"][1].zero_(), "no token"),
        (lambda b: b.update(mask=b["mask"].flip(1)), "padded on the right"),
        (lambda b: b["similarity"].copy_(torch.eye(3)), "nonzero diagonal"),
        (lambda b: b["similarity"].mul_(0.5), "sum to one"),
        (lambda b: b.update(similarity=torch.zeros(2, 3)), "expected"),
        (lambda b: b.update(sizes=[2, 1]), "at least two chunks"),
        (lambda b: b.update(sizes=[2, 2]), r"sizes \[2, 2\] do not sum to 3"),
    ],
)
def test_bad_input_is_refused(change, message):
    ids, mask = pad(random_chunks([5, 2, 4]), 0)
    batch = {"ids": ids, "mask": mask, "similarity": torch.eye(3).roll(1, 0), "sizes": None}
    change(batch)
    with pytest.raises(ValueError, match=message):
        in_batch_loss(
            tiny_llama(),
            batch["ids"],
            batch["mask"],
            batch["similarity"],
            value_norm=False,
            sizes=batch["sizes"],
        )


def test_a_similarity_between_batches_is_refused():
    ids, mask = pad(random_chunks([5, 2, 4, 3]), 0)
    similarity = in_batch_similarity(torch.rand(4, 4), 0.5)
    with pytest.raises(ValueError, match="nonzero between batches"):
        in_batch_loss(tiny_llama(), ids, mask, similarity, value_norm=False, sizes=[2, 2])


def test_a_similarity_that_is_not_finite_gives_a_loss_that_is_not_finite(both_ways):
    """An error would be raised in one process only, and the others would wait for it."""
    ids, mask = pad(random_chunks([5, 2, 4]), 0)
    cosine = torch.rand(3, 3)
    cosine[1, 2] = float("nan")
    similarity = in_batch_similarity(cosine.requires_grad_(), 0.1)
    loss = in_batch_loss(tiny_llama(), ids, mask, similarity, value_norm=True)
    loss.backward()
    assert loss.isnan()
    assert cosine.grad.isnan().any()


def test_models_whose_attention_cannot_be_replaced_are_refused():
    ids, mask = pad(random_chunks([9, 2]), 0)
    shape = {"vocab_size": 50, "hidden_size": 8}
    bloom = transformers.BloomConfig(**shape, n_layer=1, n_head=2)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 8}
    mistral = transformers.MistralConfig(**shape, **heads, num_hidden_layers=1, sliding_window=4)
    gemma = transformers.Gemma2Config(**shape, **heads, num_hidden_layers=1)
    for model, message in (
        (transformers.BloomForCausalLM(bloom), "attention interface"),
        (transformers.MistralForCausalLM(mistral), "attends to 4 tokens only"),
        (transformers.Gemma2ForCausalLM(gemma), "has attn_logit_softcapping"),
    ):
        with pytest.raises(ValueError, match=message):
            in_batch_loss(model, ids, mask, torch.eye(2).roll(1, 0), value_norm=False)


def test_the_documented_example_runs():
    failed, attempted = doctest.testmod(attention)
    assert attempted
    assert not failed
