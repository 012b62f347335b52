"""An index finds the right chunks, and reports its problems."""

import json
import math
import re
import shutil
import unicodedata

import pytest
from typer.testing import CliRunner

from revela.cli import app
from revela.common.errors import RevelaError
from revela.common.locks import locked
from revela.evaluation.fusion import fuse
from revela.retriever.encode import encode
from revela.search.build import build
from revela.search.index import Index
from tests.conftest import TEXTS, encoder_of, make_encoder
from tests.evaluation.common import bm25_scores
from tests.search.conftest import corpus_of
from tests.text.test_corpora import rows_file


def run(*arguments: object) -> tuple[str, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def indexed(texts, models, folder, language="english", **corpus):
    build(corpus_of(texts, **corpus), [str(model) for model in models], folder, 64, language, 1)
    return Index(folder)


def documents(index, query, by="bm25"):
    """Return the documents that are found, best first."""
    (hits,) = index.search([query], 9, by)
    return [index.row(hit)["document"] for hit in hits]


def test_a_second_indexing_into_a_folder_refuses_in_one_line(texts, backbone, tmp_path):
    folder = tmp_path / "index"
    with (
        locked(folder, "revela index"),
        pytest.raises(RevelaError, match=f"^{folder}: another revela index is using this folder$"),
    ):
        run("index", texts, "--model", backbone, "--output", folder)
    assert not folder.exists()


def test_the_nearest_chunks_are_those_of_a_plain_loop(index, backbone):
    encoder = encoder_of(backbone)
    query = encode(encoder, ["a river floods"], "query", 64)[0]
    texts = index.chunks["text"]
    scores = [float(encode(encoder, [text], "passage", 64)[0] @ query) for text in texts]
    (hits,) = index.search(["a river floods"], 3, "dense")
    best = sorted(range(len(scores)), key=lambda n: -scores[n])[:3]
    assert [hit.chunk for hit in hits] == best
    assert [hit.score for hit in hits] == pytest.approx([scores[n] for n in best], abs=1e-5)
    assert index.labels == [backbone.name, "trained"]
    own, *others = (
        sorted(hit.chunk for hit in index.near(hits[0].chunk, depth, model=0)) for depth in (1, 5)
    )
    assert hits[0].chunk not in own + others[0]
    assert others[0] == sorted(set(range(len(scores))) - {hits[0].chunk})


def test_bm25_is_lucene_s_formula(index):
    """Compared with a plain loop over stemmed words without stop words."""
    import bm25s.stopwords
    import Stemmer

    stem = Stemmer.Stemmer("english").stemWord
    stop = set(bm25s.stopwords.STOPWORDS_EN)
    words = {
        number: [stem(w) for w in re.findall(r"(?u)\b\w\w+\b", text.lower()) if w not in stop]
        for number, text in enumerate(index.chunks["text"])
    }
    expected = bm25_scores(words, {stem("sockets"), stem("close")}, k1=1.5, b=0.75)
    (hits,) = index.search(["sockets close"], 10, "bm25")
    assert {hit.chunk: hit.score for hit in hits} == pytest.approx(expected, rel=1e-4)
    assert index.search(["zzz qqq", ""], 10, "bm25") == [[], []]


def test_bm25_finds_words_in_scripts_without_spaces(backbone, tmp_path):
    texts = {
        "china.txt": "长城是中国古代的军事防御工程。",
        "panda.txt": "大熊猫主要生活在四川的山区，以竹子为食。",
        "sushi.txt": "東京は日本の首都です。Sushi 寿司は人気があります。",
        "food.txt": "ผัดไทยเป็นอาหารที่มีชื่อเสียง",
        "notes.txt": TEXTS[0],
    }
    (tmp_path / "texts").mkdir()
    for name, text in texts.items():
        (tmp_path / "texts" / name).write_text(text, encoding="utf-8")
    index = indexed(tmp_path / "texts", [backbone], tmp_path / "index")
    names = {"熊猫": "panda", "寿司": "sushi", "sushi": "sushi", "ไทย": "food"}
    for query, name in (names | {"parsers reading lines": "notes"}).items():
        assert documents(index, query) == [f"{name}.txt"]
    assert documents(index, "嗨") == []


def test_from_the_shell(texts, backbone, tmp_path):
    folder = tmp_path / "index"
    arguments = ["index", texts, "--model", backbone, "--output", folder]
    assert "6 documents, 6 chunks" in run(*arguments)[0]
    shard = folder / "embeddings" / "0" / "00000.safetensors"
    before = shard.stat().st_mtime_ns
    assert "1 of 1 shards exist" in run(*arguments)[0]
    assert shard.stat().st_mtime_ns == before
    out, _ = run("search", folder, "sockets and processes", "--by", "bm25")
    assert out.splitlines()[0].startswith(" 1. ")
    assert out.splitlines()[0].endswith("  text 1.md [0]")
    assert "A socket connects two processes." in out.splitlines()[1]
    rows = [json.loads(line) for line in run("search", folder, "rivers", "--json")[0].splitlines()]
    assert [row["rank"] for row in rows] == list(range(1, 7))
    assert rows[0]["text"] == TEXTS[2]
    for query in ("zzz qqq", " ", "\udce9"):  # the last one is an argument that is not UTF-8
        assert run("search", folder, query, "--by", "bm25") == ("", "nothing found\n")

    queries = tmp_path / "q.tsv"
    queries.write_text("query-id\ttext\na\trivers\nb\tthe worker's jobs\n")
    arguments = ["search", folder, "--queries", queries, "--depth", 2]
    run(*arguments, "--output", tmp_path / "x.trec")
    lines = [line.split(" ") for line in (tmp_path / "x.trec").read_text().splitlines()]
    system = f"bm25+{backbone.name}"
    assert [[*line[:2], line[3], *line[5:]] for line in lines] == [
        [query, "Q0", rank, system] for query in "ab" for rank in "12"
    ]
    assert lines[2][2] == "text%203.md"
    assert run(*arguments)[0] == (tmp_path / "x.trec").read_text()
    assert "b Q0 text%203.md#0 1 " in run(*arguments, "--chunks")[0]
    rows = [json.loads(line) for line in run(*arguments, "--json")[0].splitlines()]
    assert [(row["query"], row["rank"]) for row in rows] == [(q, n) for q in "ab" for n in (1, 2)]


def test_a_run_of_documents_is_judged_by_their_collection(backbone, tmp_path):
    """One document fills the first chunks, two have the same id, and one has an odd id."""
    import pytrec_eval

    rows = [
        ("long", "Rivers carry water to the sea. " * 40),
        ("Fluß/2#%20", f"Rivers flood. {TEXTS[3]}"),
        ("twice", TEXTS[0]),
        ("twice", "Rivers and parsers read files."),
    ]
    asked = {"q1": "rivers carry water to the sea", "q2": "the oldest job"}
    for file, texts in (("corpus", rows), ("queries", asked.items())):
        rows_file(tmp_path / f"{file}.jsonl", [{"_id": name, "text": text} for name, text in texts])
    folder, corpus = tmp_path / "index", tmp_path / "corpus.jsonl"
    run("index", corpus, "--model", backbone, "--output", folder, "--max-words", 6)
    index = Index(folder)
    best = {}  # of each document's chunks, by a plain loop
    for by in ("bm25", "dense", "hybrid"):
        out, _ = run("search", folder, "--queries", tmp_path / "queries.jsonl", "--by", by)
        found = {query: {} for query in asked}
        for query, _, document, rank, score, _ in map(str.split, out.splitlines()):
            assert int(rank) == len(found[query]) + 1
            assert found[query].setdefault(document, float(score)) == float(score)
            assert int(rank) == len(found[query])  # no document again
        for query, text in asked.items():
            if by == "hybrid":
                expected = fuse(best["dense", query], best["bm25", query], 0.5)
            else:
                (hits,) = index.search([text], 99, by, chunks=True)
                assert len(hits) > 40 or by == "bm25"
                expected = best[by, query] = {}
                for hit in hits:
                    expected.setdefault(index.trec_id(hit.chunk), hit.score)
            assert found[query] == pytest.approx(expected, abs=1e-3)  # scaled differences
        if by == "bm25":  # the model's weights are random
            qrels = {query: {"Fluß/2#%20": 1} for query in asked}
            judged = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(found)
            assert [judged[query]["ndcg_cut_10"] for query in asked] == [1 / math.log2(3), 1.0]


def test_titles_are_searched_and_shown(backbone, tmp_path):
    rows = [{"title": "Zebras", "text": TEXTS[0]}, {"text": TEXTS[1]}, {"text": TEXTS[2]}]
    file = rows_file(tmp_path / "rows.jsonl", rows)
    out, _ = run("index", file, "--model", backbone, "--output", tmp_path / "index")
    assert "3 documents" in out  # those without a title, too
    assert 'fields: {"title": "title"}' in out
    out, _ = run("search", tmp_path / "index", "zebras", "--by", "bm25")
    assert out.splitlines()[0].endswith("rows.jsonl:1 [0]  Zebras")


def test_a_killed_and_a_failed_call_leave_what_was_there(texts, backbone, tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / ".chunks.parquet.99999999.part").touch()
    arguments = ["index", texts, "--model", backbone, "--output", folder]
    (texts / "table.csv").touch()
    assert "1 other files not read, such as table.csv" in run(*arguments)[0]
    assert [file.name for file in folder.glob(".*")] == [".revela"]
    (texts / "broken.md").write_bytes(b"\xff" * 9)
    for name in range(8):
        (texts / f"{name}.md").write_bytes(b"\xff")
    with pytest.raises(RevelaError, match="9 of 15 files are bad"):
        run(*arguments)
    assert run("search", folder, "rivers", "--by", "bm25")[0]
    with pytest.raises(RevelaError, match="is in the folder of the texts"):
        run("index", texts, "--model", backbone, "--output", texts / "index")


def test_an_index_is_updated_from_any_folder(texts, backbone, tmp_path, monkeypatch):
    (texts / "empty.md").touch()
    folder = tmp_path / "index"
    out, _ = run("index", f"{texts}/", "--model", backbone, "--output", folder)
    assert "1 wordless" in out
    monkeypatch.chdir(texts)
    out, _ = run("index", ".", "--model", backbone, "--output", "../index")
    assert "1 of 1 shards exist" in out
    (texts / "new.txt").write_text("Bees make honey. Beekeepers take it.")
    run("index", ".", "--model", backbone, "--output", "../index")
    assert documents(Index(folder), "honey")[0].endswith("new.txt")
    assert len(documents(Index(folder), "honey", "dense")) == 7
    (texts / "new.txt").write_text("A river \x1b]0;taken\x07 of mud.")
    run("index", ".", "--model", backbone, "--output", "../index")
    assert run("search", folder, "mud")[0].replace("\n", "").isprintable()


def test_an_index_of_other_settings_is_kept(texts, backbone, tmp_path):
    index = indexed(texts, [backbone], tmp_path / "index")
    other = shutil.copytree(backbone, tmp_path / "another")
    for model, changes, message in (
        (backbone, {"max_words": 9}, "was made with max_words 120, not 9; remove it or give"),
        (backbone, {"language": "german"}, "was made with language 'english', not 'german'"),
        (other, {}, "was made with models"),
    ):
        with pytest.raises(RevelaError, match=message):
            indexed(texts, [model], tmp_path / "index", **changes)
    assert len(documents(index, "rivers", "dense")) == 6


def test_accents_are_found_as_a_letter_and_as_a_mark_of_their_own(texts, backbone, tmp_path):
    apart = unicodedata.normalize("NFD", "Die Universität öffnet ihre Türen.")
    (texts / "apart.md").write_text(apart, encoding="utf-8")
    index = indexed(texts, [backbone], tmp_path / "index", "german")
    for query in ("universität", unicodedata.normalize("NFD", "universität")):
        assert documents(index, query) == ["apart.md"]


def test_each_retriever_searches_its_own_shards(texts, backbone, tmp_path, monkeypatch):
    monkeypatch.setattr("revela.search.index.SHARD_SIZE", 4)
    other, folder = shutil.copytree(backbone, tmp_path / "other"), tmp_path / "index"
    make_encoder(other, pooling="mean")
    models = [backbone, other]
    for shards in (2, 1):
        index = indexed(texts, models, folder)
        assert len(list((folder / "embeddings/1").glob("[!.]*"))) == shards
        last = len(index.chunks) - 1
        for number, model in enumerate(models):
            encoder = encoder_of(model)
            vectors = encode(encoder, list(index.chunks["text"]), "passage", 64)
            query = encode(encoder, ["rivers"], "query", 64)[0]
            (hits,) = index.search(["rivers"], 9, "dense", number)
            scores = {hit.chunk: hit.score for hit in hits}
            assert scores == pytest.approx(dict(enumerate((vectors @ query).tolist())), abs=1e-5)
            near = {hit.chunk: hit.score for hit in index.near(last, 9, number)}
            expected = dict(enumerate((vectors @ vectors[last]).tolist()[:last]))
            assert near == pytest.approx(expected, abs=1e-5)
        for name in ("script.md", "text 0.md"):
            (texts / name).unlink(missing_ok=True)


@pytest.mark.parametrize("weight", [None, 0.1, 0.9])
def test_a_hybrid_fuses_whole_rankings(index, weight):
    queries = ["rivers, sockets and workers"]
    whole = (index.search(queries, 100, by)[0] for by in ("dense", "bm25"))
    dense, bm25 = ({hit.chunk: hit.score for hit in hits} for hits in whole)
    index.weights[1] = 0.3
    (found,) = index.search(queries, 2, model=1, dense_weight=weight)
    expected = list(fuse(dense, bm25, 0.3 if weight is None else weight).items())[:2]
    assert [(hit.chunk, hit.score) for hit in found] == expected


@pytest.mark.parametrize("german", ["Das Haus steht an dem Fluss und ist alt. " * 30, "Das Haus."])
def test_bm25_has_the_language_of_most_texts(texts, backbone, tmp_path, german):
    """It stays when the texts change."""
    (texts / "de.md").write_text(german, encoding="utf-8")
    language = "english" if german == "Das Haus." else "german"
    arguments = ["index", texts, "--model", backbone, "--output", tmp_path / "index"]
    for count in (1, 0):
        out, _ = run(*arguments)
        assert out.count(f"language of BM25: {language} (--language sets another)\n") == count
        index = Index(tmp_path / "index")
        assert index.described["language"] == language
        (texts / "de.md").write_text("Das Haus.", encoding="utf-8")
    assert len(documents(index, "Häusern")) == (language == "german")
    with pytest.raises(RevelaError, match="was made with language"):
        run(*arguments, "--language", "french")
