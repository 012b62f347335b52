"""REPLUG and Contriever compared with plain loops; the components of Revela."""

import math
from random import Random

import pytest
import torch
import transformers

from bench.common import encoder_around
from revela.config.training import ContrieverObjective, ReplugObjective, RevelaObjective
from revela.inbatch.in_batch import in_batch_loss, in_batch_similarity
from revela.retriever.encode import embed, pad
from revela.retriever.load import load_tokenizer
from revela.retriever.source import Source
from revela.training.collators import BatchCollator
from revela.training.objectives.contriever import Contriever
from revela.training.objectives.replug import Replug, cross_losses
from revela.training.objectives.revela import Revela, chunks_to_read, similarity_measures
from tests.conftest import encoder_of, tiny_llama
from tests.training.common import experiment

CHUNKS = [[5, 9, 3, 7], [4, 4, 8], [6, 2, 11, 30, 7], [12]]


def encoder():
    return encoder_around(tiny_llama().model)


@pytest.mark.parametrize("bos", [[], [1]])
def test_cross_losses_equal_the_naive_form(both_ways, bos):
    """A BOS is at the beginning only, and not predicted."""
    model = tiny_llama(bos_token_id=1).double()
    losses = cross_losses(model, *pad([bos + chunk for chunk in CHUNKS], 0))
    for i, chunk in enumerate(CHUNKS):
        for j, prefix in enumerate(bos + prefix for prefix in CHUNKS):
            logits = model(input_ids=torch.tensor([prefix + chunk])).logits[0].log_softmax(-1)
            expected = -sum(logits[len(prefix) + t - 1, token] for t, token in enumerate(chunk))
            torch.testing.assert_close(losses[i, j].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("include_self", [True, False])
def test_replug_equals_a_plain_loop(include_self):
    temperatures = {"retriever_temperature": 0.2, "language_model_temperature": 3.0}
    settings = ReplugObjective(name="replug", include_self=include_self, **temperatures)
    replug = Replug(encoder(), tiny_llama(hidden_size=8), settings).train()
    ids, mask = pad(CHUNKS + [chunk[::-1] for chunk in CHUNKS], 0)
    model_ids, model_mask = pad(CHUNKS, 0)
    loss = replug(ids, mask, model_ids, model_mask)["loss"]
    embeddings = embed(replug.retriever, ids, mask)
    losses = cross_losses(replug.language_model, model_ids, model_mask)
    total = 0.0
    for i in range(4):
        others = [j for j in range(4) if include_self or j != i]
        score = {j: math.exp(float(embeddings[i] @ embeddings[4 + j]) / 0.2) for j in others}
        target = {j: math.exp(-float(losses[i, j]) / 3.0) for j in others}
        for j in others:
            p, q = target[j] / sum(target.values()), score[j] / sum(score.values())
            total += p * math.log(p / q) if p else 0.0
    assert float(loss) == pytest.approx(total / 4, rel=1e-4)
    loss.backward()
    assert not replug.language_model.training
    assert all(weight.grad is None for weight in replug.language_model.parameters())
    assert replug.retriever[0].model.layers[0].mlp.up_proj.weight.grad.abs().max() > 0


@pytest.mark.parametrize("encode_batch_size", [1, 2, 3, 100])
def test_contriever_encoded_in_batches_equals_one_pass(encode_batch_size, both_ways):
    generator = torch.Generator().manual_seed(0)
    lengths = (3, 9, 4, 6, 1, 5, 7)
    texts = [torch.randint(2, 99, (n,), generator=generator).tolist() for n in lengths]
    tensors = *pad(texts[:2], 0), *pad([*texts[2:], [8]], 0)
    found = []
    for size in (None, encode_batch_size):
        settings = ContrieverObjective(name="contriever", temperature=0.3, encode_batch_size=size)
        contriever = Contriever(encoder(), settings).double()
        rows = []
        contriever.retriever[0].model.register_forward_pre_hook(
            lambda _, args, kwargs, rows=rows: rows.append(len(kwargs["input_ids"])),
            with_kwargs=True,
        )
        loss = contriever(*tensors)["loss"]
        loss.backward()
        assert max(rows) <= (size or 6)
        found.append((loss, *(weight.grad for weight in contriever.parameters())))
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-9)


def test_contriever_equals_a_plain_loop():
    contriever = Contriever(encoder(), ContrieverObjective(name="contriever", temperature=0.3))
    queries, query_mask = pad(CHUNKS[:2], 0)
    passages, passage_mask = pad([*CHUNKS, [3, 3], [8, 1]], 0)  # three passages per query
    result = contriever(queries, query_mask, passages, passage_mask)
    query = embed(contriever.retriever, queries, query_mask)
    passage = embed(contriever.retriever, passages, passage_mask)
    total = 0.0
    for i in range(2):
        scores = [math.exp(float(query[i] @ passage[j]) / 0.3) for j in range(6)]
        total -= math.log(scores[3 * i] / sum(scores))
    assert float(result["loss"]) == pytest.approx(total / 2, rel=1e-5)


def test_similarity_is_not_symmetric_and_has_no_diagonal():
    revela = Revela(encoder(), tiny_llama(), RevelaObjective(name="revela", temperature=0.1))
    ids, mask = pad(CHUNKS + [[1, *chunk] for chunk in CHUNKS], 0)
    similarity = revela.similarity(ids, mask)
    embeddings = embed(revela.retriever, ids, mask)
    for i in range(4):
        scores = [float(embeddings[i] @ embeddings[4 + j]) / 0.1 for j in range(4)]
        total = sum(math.exp(s) for j, s in enumerate(scores) if j != i)
        for j in range(4):
            expected = 0.0 if i == j else math.exp(scores[j]) / total
            assert float(similarity[i, j]) == pytest.approx(expected, rel=1e-4)
    assert not torch.allclose(similarity, similarity.T)


def test_similarity_measures():
    similarity = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    measures = similarity_measures(similarity)
    assert float(measures["top_similarity"]) == pytest.approx(2.5 / 3)
    assert float(measures["rows_learning"]) == pytest.approx(1 / 3)


def test_a_chunk_reads_one_of_its_document_or_a_wrong_one():
    documents = ["a", "b", "a", None, "b", "a", None, "c"]
    for seed in range(20):
        right = chunks_to_read(documents, 0, Random(seed))
        wrong = chunks_to_read(documents, 1, Random(seed))
        for own, (near, far) in enumerate(zip(right, wrong, strict=True)):
            assert own not in (near, far)
            if documents[own] in ("a", "b"):
                assert documents[near] == documents[own] != documents[far]
    assert chunks_to_read(["a", "a"], 1, Random(0)) == [1, 0]  # no other document exists
    reads = chunks_to_read(["a"] * 2000 + ["b"] * 2000, 0.2, Random(0))
    assert sum(read >= 2000 for read in reads[:2000]) / 2000 == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("sizes", [None, [2, 2]])
def test_what_is_read_may_be_given_instead_of_a_retriever(sizes, both_ways):
    settings = RevelaObjective(name="revela", similarity="documents", value_norm=False)
    revela = Revela(encoder(), tiny_llama(hidden_size=8), settings)
    ids, mask = pad(CHUNKS, 0)
    reads = [[2, 0, 3, 1]] if sizes is None else [[1, 0], [1, 0]]
    similarity = torch.eye(4)[[2, 0, 3, 1] if sizes is None else [1, 0, 3, 2]]
    options = {"value_norm": False, "sizes": sizes}
    expected = in_batch_loss(revela.language_model, ids, mask, similarity, **options)
    found = revela(None, None, ids, mask, reads=reads, sizes=sizes)
    assert torch.equal(found["loss"], expected)
    found["loss"].backward()
    assert all(weight.grad is None for weight in revela.retriever.parameters())
    assert any(weight.grad is not None for weight in revela.language_model.parameters())


@pytest.mark.parametrize(
    "options", [{"value_norm": False}, {"value_norm": True}, {"reading": "joint"}]
)
def test_contrast_is_what_a_chunk_of_the_own_document_spares(both_ways, options):
    settings = RevelaObjective(name="revela", **options)
    revela = Revela(encoder(), tiny_llama(hidden_size=8), settings)
    ids, mask = pad(CHUNKS, 0)
    pulse = revela.pulse(ids, mask, [["a", "a", "b", "b"]])
    right, wrong = (
        in_batch_loss(revela.language_model, ids, mask, torch.eye(4)[reads], **options)
        for reads in ([1, 0, 3, 2], chunks_to_read(["a", "a", "b", "b"], 1, Random(0)))
    )
    torch.testing.assert_close(pulse["contrast"], (wrong - right).detach())
    assert "contrast" not in revela.pulse(ids, mask, [["a", "b", None, None]])


def test_options_of_revela_reach_in_batch_attention():
    ids, mask = pad(CHUNKS, 0)
    twice = torch.cat([ids, ids]), torch.cat([mask, mask])
    plain = RevelaObjective(name="revela", temperature=0.5)
    revela = Revela(encoder(), tiny_llama(), plain)
    similarity = revela.similarity(*twice).detach()
    found = set()
    for options in (
        {"value_norm": True},
        {"value_norm": False},
        {"value_norm": True, "min_similarity": 0.33},
        {"value_norm": True, "dual_loss": True},
        {"value_norm": False, "reading": "joint"},
    ):
        dual = options.get("dual_loss", False)
        revela.settings = plain.model_copy(update=options | {"language_model_loss": dual})
        expected = in_batch_loss(revela.language_model, ids, mask, similarity, **options)
        loss = revela(*twice, ids, mask)["loss"]
        torch.testing.assert_close(loss, expected)
        found.add(round(float(loss.detach()), 5))
    assert len(found) == 5


@pytest.mark.parametrize("kind", ["revela", "revela-bfloat16", "replug", "contriever"])
def test_similarities_are_exact_under_autocast(kind):
    """In bfloat16 the encoder computes, but not the cosines, unless that is asked for."""
    ids, mask = pad([[n, 2 * n + 1, n + 5] for n in range(3, 11)], 0)
    half, others, model = (ids[:4], mask[:4]), (ids[4:], mask[4:]), tiny_llama()
    if kind == "replug":
        settings = ReplugObjective(name="replug", retriever_temperature=0.01)
        objective, given = Replug(encoder(), model, settings), (ids, mask, *half)
    elif kind == "contriever":
        settings = ContrieverObjective(name="contriever", temperature=0.01)
        objective, given = Contriever(encoder(), settings), (*half, *others)
    else:
        precision = "bfloat16" if kind.endswith("bfloat16") else "float32"
        options = {"temperature": 0.01, "similarity_precision": precision}
        settings = RevelaObjective(name="revela", **options)
        objective, given = Revela(encoder(), model, settings), (ids, mask, *half)
    encoded: list[torch.Tensor] = []
    objective.retriever.register_forward_hook(
        lambda *call: encoded.append(call[-1]["sentence_embedding"])
    )
    with torch.autocast("cpu", torch.bfloat16):
        measures = objective(*given)["measures"]
    embeddings = torch.cat(encoded)
    if kind.endswith("bfloat16"):
        embeddings = embeddings.bfloat16()
    query, passage = embeddings.chunk(2)
    cosine = (query @ passage.T).float()
    own = kind == "contriever"
    expected = (cosine / 0.01).softmax(1) if own else in_batch_similarity(cosine, 0.01)
    assert float(measures["top_similarity"]) == pytest.approx(
        float(expected.detach().max(1).values.mean()), rel=1e-4
    )


@pytest.mark.parametrize("wrong_share", [0, 1])
def test_what_chunks_read_follows_their_documents(backbone, wrong_share):
    objective = {"name": "revela", "similarity": "documents", "wrong_share": wrong_share}
    tokenizer = load_tokenizer(Source(str(backbone)))
    settings = experiment(backbone, objective=objective)
    collate = BatchCollator(settings, encoder_of(backbone), tokenizer)
    documents = ["a", "a", "b", "b", "c", "c"]
    texts = [f"{document} {n}" for n, document in enumerate(documents)]
    row = {"texts": texts, "documents": documents, "source": "y"}
    rows = [row | {"index": n} for n in range(6)]
    made = collate(rows)
    for n, (own, reads) in enumerate(zip(made["documents"], made["reads"], strict=True)):
        ids = made["language_model_ids"][6 * n : 6 * n + 6]
        assert [tokenizer.decode(one).strip()[0] for one in ids] == own
        same = [own[one] == own[other] for one, other in enumerate(reads)]
        assert same == [not wrong_share] * 6
    reads = {tuple(one) for one in collate.tensors(rows)["reads"]}  # unshuffled
    assert len(reads) == (6 if wrong_share else 1)


def test_a_prefix_and_a_chunk_fit_into_a_sliding_window_together():
    shape = {"vocab_size": 50, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    mistral = transformers.MistralConfig(**shape, **heads, sliding_window=6)
    model = transformers.MistralForCausalLM(mistral)
    with pytest.raises(ValueError, match="attends to 6 tokens only, but 8 are needed"):
        cross_losses(model, *pad([[5, 9, 3, 7], [4, 4, 8]], 0))
