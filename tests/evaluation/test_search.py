"""Exact search, and the shards of embeddings that it reads."""

import os
from types import SimpleNamespace
from unittest import mock

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from revela.common.errors import RevelaError
from revela.config.encoding import Encoding
from revela.config.evaluation import EncoderModel
from revela.evaluation import embeddings, search
from revela.evaluation.embeddings import encode_corpus
from revela.evaluation.search import DenseSearch, exact_search
from revela.retriever.encode import encode
from revela.retriever.load import load_encoder
from tests.conftest import TEXTS, encoder_of
from tests.evaluation.common import SUITE


@settings(deadline=None, max_examples=50)
@given(
    documents=st.integers(1, 30),
    queries=st.integers(1, 5),
    depth=st.integers(1, 12),
    block=st.integers(1, 11),
    part=st.integers(1, 5),
    restricted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_search_in_blocks_matches_sorting_all_scores(
    documents, queries, depth, block, part, restricted, seed
):
    random = np.random.default_rng(seed)
    # Small integers: ties are common, products exact.
    corpus = torch.tensor(random.integers(-3, 4, (documents, 3))).half()
    asked = torch.tensor(random.integers(-3, 4, (queries, 3))).float()
    shares = [0.5 if restricted and n % 2 else 1 for n in range(queries)]
    allowed = [np.flatnonzero(random.random(documents) < share) for share in shares]
    given = allowed if restricted else None
    with mock.patch.object(search, "_QUERIES_AT_A_TIME", part):
        scores, numbers = exact_search(asked, corpus.split(block), depth, given)
    for query in range(queries):
        products = {
            n: sum(float(a * b) for a, b in zip(asked[query], corpus[n], strict=True))
            for n in allowed[query].tolist()
        }
        pairs = zip(scores[query].tolist(), numbers[query].tolist(), strict=True)
        found = [(s, n) for s, n in pairs if s > -np.inf]
        assert [s for s, _ in found] == sorted(products.values(), reverse=True)[:depth]
        assert all(products[n] == s for s, n in found)
        assert len({n for _, n in found}) == len(found)


PASSAGES = [f"{text} Number {n}." for n in range(5) for text in TEXTS]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setitem(embeddings._SHARD_SIZES, "cpu", 7)


def encoded(load, folder, texts=PASSAGES, made_by="r1", devices=("cpu",)):
    shards = encode_corpus(load, texts, 32, folder, made_by, list(devices))
    return torch.cat([shard.load() for shard in shards])


class Loader:
    """Loads the encoder in any process, and changes it."""

    def __init__(self, folder, change=None):
        self.model = EncoderModel(kind="encoder", retriever=str(folder), encoding=Encoding())
        self.change = change

    def __call__(self, device):
        encoder = load_encoder(self.model, "float32", device)
        return self.change(encoder) if self.change else encoder


def test_shards_match_the_encoder_on_one_or_two_devices(backbone, tmp_path):
    expected = encode(encoder_of(backbone), PASSAGES, "passage", 32)
    one = encoded(Loader(backbone), tmp_path / "one")
    two = encoded(Loader(backbone), tmp_path / "two", devices=("cpu", "cpu"))
    torch.testing.assert_close(one, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(two, one, rtol=0, atol=0)


def test_a_restart_skips_complete_shards(backbone, tmp_path, capsys):
    first = encoded(Loader(backbone), tmp_path)
    files = sorted(tmp_path.glob("[!.]*"))
    assert [file.name for file in files] == [f"{n:05}.safetensors" for n in range(4)]
    kept = os.stat(files[0]).st_mtime_ns
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-10])  # half-written
    save_file({"embeddings": torch.zeros(4, 16)}, files[3])  # of another program
    torch.testing.assert_close(encoded(Loader(backbone), tmp_path), first, rtol=0, atol=0)
    assert os.stat(files[0]).st_mtime_ns == kept
    assert "1 of 4 shards exist" in capsys.readouterr().out


def test_shards_of_other_texts_or_weights_are_encoded_again(backbone, tmp_path):
    first = encoded(Loader(backbone), tmp_path)
    changed = [*PASSAGES[:8], "Something else altogether.", *PASSAGES[9:]]
    second = encoded(Loader(backbone), tmp_path, changed)
    assert [n for n in range(25) if not torch.equal(first[n], second[n])] == [8]
    before = os.stat(tmp_path / "00000.safetensors").st_mtime_ns
    encoded(Loader(backbone), tmp_path, changed, made_by="r2")
    assert os.stat(tmp_path / "00000.safetensors").st_mtime_ns > before


def broken(encoder):
    encoder[0].model.norm.weight.data.fill_(float("nan"))
    return encoder


def killed(_):
    os._exit(9)


@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "cpu")])
def test_an_embedding_that_is_not_finite_is_an_error_with_its_text(backbone, tmp_path, devices):
    with pytest.raises(RevelaError, match=r"the embedding of '.*' is zero or not finite"):
        encoded(Loader(backbone, broken), tmp_path, devices=devices)
    assert not list(tmp_path.glob("[!.]*"))


def test_a_killed_process_is_reported(backbone, tmp_path):
    with pytest.raises(RevelaError, match="an encoding process was killed"):
        encoded(Loader(backbone, killed), tmp_path, devices=("cpu", "cpu"))


def test_half_precision_is_stored_in_float16(backbone, tmp_path):
    encoded(Loader(backbone, lambda encoder: encoder.bfloat16()), tmp_path)
    assert load_file(tmp_path / "00000.safetensors")["embeddings"].dtype == torch.float16


def searched(model, folder, texts, similar=(), revision="r1", max_length=32, prompt=None):
    """Return the scores of documents, by their ids."""
    suite = SUITE.model_copy(update={"max_length": max_length})
    searcher = DenseSearch(model, "m", revision, suite, folder, similar)
    rows = {"id": [f"d{n}" for n in range(len(texts))], "text": texts}
    searcher.index(datasets.Dataset.from_dict(rows), hf_split="test", hf_subset="default")
    queries = datasets.Dataset.from_dict({"id": ["q"], "text": ["rivers and mud"]})
    metadata = SimpleNamespace(name="t", prompt=prompt)
    return searcher.search(queries, task_metadata=metadata, top_k=40)["q"]


def test_passages_of_a_similar_corpus_are_not_encoded_again(backbone, tmp_path, capsys):
    """The scores do not change, even if the order differs and passages are new or repeated."""
    model, lent = Loader(backbone).model, tmp_path / "lent"
    searched(model, lent, PASSAGES)
    texts = [*reversed(PASSAGES[3:]), "Something new.", PASSAGES[7], "Something else."]
    alone = searched(model, tmp_path / "alone", texts)
    capsys.readouterr()
    shared = searched(model, tmp_path / "own", texts, [lent])
    assert "23 of 25 passages are already encoded" in capsys.readouterr().out
    (file,) = (tmp_path / "own").rglob("*.safetensors")
    assert len(load_file(file)["embeddings"]) == 2
    assert shared == pytest.approx(alone, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "count"),
    [({}, 5), ({"max_length": 16}, 0), ({"revision": "r2"}, 0), ({"pooling": "mean"}, 0)],
)
def test_embeddings_of_other_settings_are_not_reused(backbone, tmp_path, capsys, changes, count):
    (tmp_path / "0/other").mkdir(parents=True)
    (tmp_path / "0/other/cut.safetensors").write_bytes(b"cut")
    save_file({"digests": torch.zeros(1, 16)}, tmp_path / "0/other/foreign.safetensors")
    model = Loader(backbone).model
    searched(model, tmp_path / "0", TEXTS)
    if pooling := changes.pop("pooling", None):
        model = model.model_copy(update={"encoding": Encoding(pooling=pooling)})
    searched(model, tmp_path / "1", TEXTS, [tmp_path / "0"], **changes)
    assert f"{count} of 5 passages are already encoded" in capsys.readouterr().out


def test_queries_are_encoded_with_the_instruction_of_the_task(backbone, tmp_path):
    scores = []
    for prefix in ("{instruction}: ", "Find a river: "):
        encoding = Encoding(query_prefix=prefix)
        model = Loader(backbone).model.model_copy(update={"encoding": encoding})
        prompt = {"query": "Find a river"}
        scores.append(searched(model, tmp_path / str(len(scores)), TEXTS, prompt=prompt))
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_embeddings_too_large_for_half_precision_are_an_error(backbone, tmp_path):
    def large(encoder):
        encoder.similarity_fn_name = "dot"
        encoder[2].forward = lambda features: (
            features | {"sentence_embedding": features["sentence_embedding"] * 1e6}
        )
        return encoder.bfloat16()

    with pytest.raises(RevelaError, match="too large for float16: use float32"):
        encoded(Loader(backbone, large), tmp_path)
    assert not list(tmp_path.glob("[!.]*"))
