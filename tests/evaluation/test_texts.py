"""Retrieval tasks made from the chunks of a corpus."""

import pytest

from revela.common.errors import RevelaError
from revela.config.evaluation import TextsBenchmark
from revela.evaluation.benchmarks import local_task
from revela.evaluation.texts import write_task
from revela.text.chunking import SCHEMA
from revela.text.rows import write_parquet

LONG = "one two three four five six seven\neight nine ten"
CHUNKS = [
    ("a", "Of numbers", 0, LONG),
    ("a", "Of numbers", 1, "too short"),
    ("b", "", 0, "# Heading of this text\nIts first sentence is here for all to read."),
    ("c", "", 0, "This line has more than twelve words, which makes it no title at all.\nAnd on."),
    ("d", "Twice", 0, "x " * 8),
    ("e", "Twice", 0, "x " * 8),
    ("f", "", 0, "Heading alone"),
]


@pytest.fixture
def cut(tmp_path):
    chunks = tmp_path / "chunks.parquet"

    def write(rows):
        named = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
        write_parquet(chunks, SCHEMA, named)

    def of(task, **settings):
        tasks = {"mine": task} if settings else [task]
        benchmark = TextsBenchmark(source="texts", corpus="c", tasks=tasks, **settings)
        folder = tmp_path / f"{task}{len(list(tmp_path.iterdir()))}"
        sizes = write_task(benchmark, next(iter(tasks)), chunks, folder)
        found = local_task(task, folder, folder).dataset["default"]["test"]
        documents = {row["id"]: row["text"] for row in found["corpus"]}
        queries = {row["id"]: row["text"] for row in found["queries"]}
        assert sizes == {"documents": len(documents), "queries": len(queries)}
        answers = {
            queries[query]: [documents[name] for name in sorted(relevant)]
            for query, relevant in found["relevant_docs"].items()
        }
        return answers, documents

    of.write = write
    write(CHUNKS)
    return of


def test_halves_of_chunks(cut):
    answers, documents = cut("halves")
    assert answers["one two three four five"] == ["six seven\neight nine ten"]
    assert set(answers) == {
        "one two three four five",
        "# Heading of this text\nIts first",
        "This line has more than twelve words, which",
    }
    assert len(documents) == 5  # including those whose first halves are equal


def test_titles_of_documents(cut):
    answers, documents = cut("titles")
    assert answers == {
        "Of numbers": [LONG, "too short"],
        "Heading of this text": ["Its first sentence is here for all to read."],
    }
    assert len(documents) == 6  # a heading without a text is not a document


def test_a_text_does_not_repeat_its_title(cut):
    texts = ["# A Note\nIts text.", "a note on\nIts text."]
    cut.write([("0", "A note - Site", 0, texts[0]), ("1", "a note", 0, texts[1])])
    answers, _ = cut("titles")
    assert answers == {"A note - Site": ["Its text."], "a note": ["Its text."]}
    cut.write([("0", "Other", 0, texts[0])])
    assert cut("titles")[0] == {"Other": [texts[0]]}


def test_a_share_of_the_queries_has_all_documents(cut):
    cut.write([(str(n), f"Title {n}", 0, f"The text of number {n}.") for n in range(60)])
    parts = [cut("titles", queries=share) for share in ((0, 0.5), (0.5, 1))]
    assert not {*parts[0][0]} & {*parts[1][0]}
    assert sum(len(answers) for answers, _ in parts) == 60
    assert parts[0][1] == parts[1][1]


def test_queries_are_sampled(cut):
    some = [set(cut("halves", max_queries=2, seed=seed)[0]) for seed in range(9)]
    assert {len(one) for one in some} == {2}
    assert len({tuple(sorted(one)) for one in some}) > 1


def test_texts_without_a_query_are_an_error(cut):
    cut.write([("a", "", 0, "too short")])
    with pytest.raises(RevelaError, match="gives no queries for 'titles': no title occurs"):
        cut("titles")
    cut.write([("a", "", 0, LONG), ("b", "", 0, LONG)])
    with pytest.raises(RevelaError, match="no half of a chunk of 8 words occurs just once"):
        cut("halves")
