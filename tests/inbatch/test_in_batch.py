"""In-batch attention against a plain-loop transcription of the paper's equations."""

import doctest
import itertools

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import revela.inbatch.in_batch as attention
from revela.inbatch import losses
from revela.inbatch.in_batch import in_batch_loss, in_batch_similarity, plain_loss
from revela.retriever.encode import pad
from tests.conftest import tiny_llama
from tests.inbatch.common import MODELS, TEMPERATURES, random_chunks
from tests.inbatch.reference import in_batch_losses

READINGS = {
    "sum": {"value_norm": False},
    "sum, value_norm": {"value_norm": True},
    "joint": {"reading": "joint"},
}


def compare(model, chunks, cosine, temperature, reading, min_similarity=1e-12, way="padded"):
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
            loss, _ = in_batch_losses(
                model, chunks, similarity, epsilon=epsilon, **READINGS[reading]
            )
        else:
            options = READINGS[reading] | {"min_similarity": min_similarity}
            loss = in_batch_loss(model, ids, mask, similarity, **options)
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


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("sharpness", TEMPERATURES)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_equations(name, sharpness, reading, both_ways):
    chunks = random_chunks([5, 3, 7, 1])
    cosine = torch.rand(4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    compare(MODELS[name](), chunks, cosine, TEMPERATURES[sharpness], reading, way=both_ways)


@pytest.mark.parametrize("reading", ["sum, value_norm", "joint"])
def test_equals_the_equations_with_ties(reading, both_ways):
    cosine = torch.zeros(4, 4, dtype=torch.float64)
    cosine[0, 1] = cosine[0, 2] = cosine[1, 3] = cosine[2, 3] = 1.0
    compare(
        tiny_llama(vocab_size=50), random_chunks([4, 4, 6, 2]), cosine, 1e-3, reading, way=both_ways
    )


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the same for all examples
)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=9),
    temperature=st.sampled_from([1e-4, 0.1, 10.0]),
    reading=st.sampled_from(list(READINGS)),
    seed=st.integers(0, 1000),
)
def test_equals_the_equations_for_any_shape(both_ways, lengths, temperature, reading, seed):
    predictions = sum(lengths) - len(lengths)
    size = len(lengths)
    generator = torch.Generator().manual_seed(seed)
    cosine = torch.rand(size, size, generator=generator, dtype=torch.float64) * 2 - 1
    model = tiny_llama(vocab_size=50, num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    chunks = random_chunks(lengths, seed)
    if predictions:
        compare(model, chunks, cosine, temperature, reading, way=both_ways)
    else:
        similarity = in_batch_similarity(cosine.float(), temperature)
        assert in_batch_loss(model, *pad(chunks, 0), similarity, **READINGS[reading]) == 0


@pytest.mark.parametrize("reading", ["sum, value_norm", "joint"])
def test_skipping_pairs_equals_the_dense_result(reading, both_ways):
    chunks = random_chunks([6, 5, 4, 7, 3])
    cosine = torch.rand(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for threshold in (0.0, 1e-12):
        compare(tiny_llama(vocab_size=50), chunks, cosine, 0.01, reading, threshold, both_ways)


def test_what_nobody_reads_is_not_computed(monkeypatch):
    """One document is read by all others, and reads one itself."""
    original, pairs, rows, model = attention.cross_document, [], [], tiny_llama()
    monkeypatch.setattr(
        attention,
        "cross_document",
        lambda *a: pairs.append(sum(r.token_NM.numel() for r in a[-2])) or original(*a),
    )
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    similarity = torch.zeros(5, 5)
    similarity[:, 2] = 1.0
    similarity[2] = torch.tensor([1.0, 0, 0, 0, 0])
    in_batch_loss(model, *pad(random_chunks([4] * 5), 0), similarity, value_norm=False)
    assert pairs == [20, 20]  # one document per reader, at each of two layers
    assert rows == [4 * (2 + 5)]


@pytest.mark.parametrize("reading", ["sum, value_norm", "joint"])
@pytest.mark.parametrize("dual_loss", [False, True])
def test_several_batches_in_one_pass_have_equal_weight(both_ways, dual_loss, reading):
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
                min_similarity=0.0,
                dual_loss=dual_loss,
                sizes=own,
                **READINGS[reading],
            )
            (loss / len(groups)).backward()
            total += loss.detach() / len(groups)
            plain += plain_loss(model, ids, mask, own).detach() / len(groups)
        found.append([total, plain, scores.grad, *(p.grad.clone() for p in model.parameters())])
    for together, apart in zip(*found, strict=True):
        torch.testing.assert_close(together, apart, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("reading", ["sum, value_norm", "joint"])
def test_dual_loss_has_the_gradients_of_the_equations(both_ways, reading):
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
            losses = in_batch_losses(model, chunks, weights, epsilon=epsilon, **READINGS[reading])
            loss = sum(losses)
        else:
            ids, mask = pad(chunks, 0)
            loss = in_batch_loss(model, ids, mask, weights, dual_loss=True, **READINGS[reading])
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
    for options in READINGS.values():
        similarity = weights.clone().requires_grad_()
        loss = in_batch_loss(model, ids, mask, similarity, **options)
        loss.backward()
        step = torch.zeros(3, 3, dtype=torch.float64)
        step[0, 1], step[0, 2] = 1e-2, -1e-2  # rows still sum to one
        above, below = (
            in_batch_loss(model, ids, mask, weights + sign * step, **options) for sign in (1, -1)
        )
        slope = (above - below) / 2
        torch.testing.assert_close(slope, (similarity.grad * step).sum(), rtol=1e-2, atol=1e-8)


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
    for temperature, reading in itertools.product((1e-4, 1e6), ("sum", "joint")):
        model = tiny_llama(vocab_size=50, intermediate_size=16)
        similarity = in_batch_similarity(torch.rand(size, size), temperature)
        with Largest() as largest:
            in_batch_loss(model, ids, mask, similarity, reading=reading).backward()
        # A block has B pairs, all readers of one document, or one reader of all documents.
        assert largest.elements <= 2 * size * heads * length * length
        assert largest.logits <= 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(ids=b["ids"][:1], mask=b["mask"][:1]), "at least two chunks"),
        (lambda b: b["mask"][1].zero_(), "no token"),
        (lambda b: b.update(mask=b["mask"].flip(1)), "padded on the right"),
        (lambda b: b["similarity"].copy_(torch.eye(4)), "nonzero diagonal"),
        (lambda b: b["similarity"].mul_(0.5), "sum to one"),
        (lambda b: b.update(similarity=torch.zeros(2, 3)), "expected"),
        (lambda b: b.update(sizes=[3, 1]), "at least two chunks"),
        (lambda b: b.update(sizes=[2, 3]), r"sizes \[2, 3\] do not sum to 4"),
        (lambda b: b.update(sizes=[2, 2]), "nonzero between batches"),
    ],
)
def test_bad_input_is_refused(change, message):
    ids, mask = pad(random_chunks([5, 2, 4, 3]), 0)
    batch = {"ids": ids, "mask": mask, "similarity": torch.eye(4).roll(1, 0), "sizes": None}
    change(batch)
    ids, mask, similarity, sizes = batch.values()
    with pytest.raises(ValueError, match=message):
        in_batch_loss(tiny_llama(), ids, mask, similarity, value_norm=False, sizes=sizes)


@pytest.mark.parametrize("reading", ["sum", "joint"])
def test_a_similarity_that_is_not_finite_gives_a_loss_that_is_not_finite(both_ways, reading):
    """An error would be raised in one process only, and the others would wait for it."""
    ids, mask = pad(random_chunks([5, 2, 4]), 0)
    cosine = torch.rand(3, 3)
    cosine[1, 2] = float("nan")
    similarity = in_batch_similarity(cosine.requires_grad_(), 0.1)
    loss = in_batch_loss(tiny_llama(), ids, mask, similarity, reading=reading)
    loss.backward()
    assert loss.isnan()
    assert cosine.grad.isnan().any()


def test_the_documented_example_runs():
    failed, attempted = doctest.testmod(attention)
    assert attempted
    assert not failed
