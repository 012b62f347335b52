"""The model of a step: its counts for a tiny shape match known values."""

import pytest

from bench.modelled_step import Counter, model_step

BATCH, LENGTH, RANK = 3, 8, 8
TOKENS = 2 * BATCH * LENGTH  # query and passage forms; e and h rows


def parts(checkpointing=False, flops: float = 1e12, bandwidth: float = 1e12, fused=True):
    counter = Counter(flops, bandwidth)
    return model_step("SmolLM2-135M", BATCH, LENGTH, checkpointing, counter, True, fused)


def test_forward_passes_count_what_the_weights_ask_for():
    found = parts()["flop"]
    hidden, widest, keys, layers = 64, 128, 32, 2
    maps = [(hidden, hidden), (hidden, keys), (hidden, keys), (hidden, hidden)]
    maps += [(hidden, widest), (hidden, widest), (widest, hidden)]
    linear = layers * sum(a * b + RANK * (a + b) for a, b in maps)
    attention = layers * 2 * BATCH * 4 * LENGTH**2 * hidden / 2  # causal
    cosines = 2 * BATCH * BATCH * hidden
    expected = 2 * TOKENS * linear + attention + cosines
    assert found["retriever, forward"] == pytest.approx(expected)
    # Each chunk reads another: its queries get eight columns of V-norm's bias, in four heads.
    pairs = BATCH * LENGTH**2
    cross = layers * 2 * pairs * (hidden + 4 * 8 + hidden)
    assert found["cross-document attention, forward"] == pytest.approx(cross)


def test_time_is_the_longer_of_computing_and_moving():
    computing, moving = parts(bandwidth=1e30), parts(flops=1e30)
    assert computing["seconds"].sum() == pytest.approx(computing["flop"].sum() / 1e12)
    assert moving["seconds"].sum() == pytest.approx(moving["bytes"].sum() / 1e12)


def test_checkpointing_computes_the_forward_passes_again():
    more = parts(checkpointing=True)["flop"] - parts()["flop"]
    forward = parts()["flop"][["retriever, forward", "cross-document attention, forward"]].sum()
    assert more["backward"] > 1.5 * forward
    assert more.drop("backward").sum() == 0


def test_fused_adapters_and_norms_move_less_and_compute_the_same():
    plain, fused = parts(fused=False), parts()
    assert fused["flop"].sum() == pytest.approx(plain["flop"].sum())
    assert fused["bytes"].sum() < 0.9 * plain["bytes"].sum()
    assert fused["kernels"].sum() < 0.9 * plain["kernels"].sum()
