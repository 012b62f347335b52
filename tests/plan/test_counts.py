"""Estimated sizes of corpora and data sets, compared with actual ones."""

import gzip
import json
import lzma
import random
from pathlib import Path

import pytest

from revela.config import Config, load_config, parse_config
from revela.config.text import First
from revela.plan.checks import check
from revela.plan.costs import Plan
from revela.plan.counts import CHUNK_FILL, Counts, _rows_of
from revela.plan.jobs import Job
from revela.plan.machine import Machine
from revela.text.batching import make_batches
from revela.text.chunking import chunk_corpus

ROOT = Path(__file__).parents[2]
KNOWN = ROOT / "data/paper"
MACHINE = Machine(4, 80, 64)


@pytest.fixture
def paper(monkeypatch) -> Config:
    monkeypatch.chdir(ROOT)
    return load_config(ROOT / "config.yaml")


def counts_of(config: Config, jobs: list[Job], known: Path = KNOWN) -> Counts:
    return Counts(config, jobs, known / "corpora.csv", offline=True)


def text_jobs(config: Config) -> list[Job]:
    made = {"chunk": config.corpora, "batch": config.batches, "pair": config.pairs}
    return [Job(rule, name) for rule, section in made.items() for name in section]


def with_sample(config: Config, documents: object) -> Config:
    wikipedia = config.corpora["wikipedia"].model_copy(update={"max_documents": documents})
    return config.model_copy(update={"corpora": config.corpora | {"wikipedia": wikipedia}})


def test_random_sample_of_wikipedia_is_too_small_for_the_paper(paper):
    jobs = text_jobs(paper)
    sampled = with_sample(paper, 339_409)
    counts = counts_of(sampled, jobs)
    text = counts.text("wikipedia")
    assert text.documents == 339_409
    assert text.words / text.documents == pytest.approx(21_015_324 * 100 / 3_232_908)
    assert 2.2e6 < text.chunks < 2.5e6
    assert counts.data("batches", "wikipedia").margin < 0.5
    found = check(Plan(sampled, text_jobs(sampled), MACHINE, KNOWN))
    (finding,) = [one for one in found if one.what == "batches wikipedia"]
    assert finding.verdict == "error"
    assert finding.message.startswith("num_batches requests 320,000 of about 141,")
    assert finding.jobs == [Job("batch", "wikipedia")]
    for others in ("batches code", "batches fineweb-edu", "pairs wikipedia", "pairs code"):
        assert not [one for one in found if one.what == others]


def test_first_articles_of_wikipedia_suffice_for_the_paper(paper):
    """The words of a first article are themselves derived from the paper's 320,000 batches."""
    counts = counts_of(with_sample(paper, First(first=339_409)), [])
    assert counts.data("batches", "wikipedia").margin == pytest.approx(1, abs=0.01)
    found = check(Plan(paper, text_jobs(paper), MACHINE, KNOWN))
    assert not [one for one in found if one.what.startswith("batches") and one.verdict == "error"]
    # Without a limit all articles of the file are read.
    whole = counts_of(with_sample(paper, None), []).text("wikipedia")
    assert whole.documents == 3_232_908
    assert whole.words == pytest.approx(21_015_324 * 100)


def test_steps_match_those_that_the_paper_reports(paper):
    counts = counts_of(paper, [])
    assert counts.steps("revela-wiki-1b") == 10_000
    assert counts.steps("revela-code-1b") == 11_211
    assert counts.steps("replug-wiki-1b") == 4_500
    # The first 8 (4) chunks of each 16.
    assert counts.steps("revela-wiki-3b") == counts.steps("revela-wiki-1b-bs4") == 10_000
    assert counts.steps("revela-wiki-1b-published") == 10_000
    assert counts.rows_trained("revela-code-1b") == 11_211 * 32


def documents(count: int, length: int) -> list[dict]:
    draw = random.Random(0)
    words = ["river", "water", "stone", "field", "winter", "harvest", "bridge", "market"]

    def sentence() -> str:
        return " ".join(draw.choices(words, k=draw.randint(8, 32))).capitalize() + "."

    def text() -> str:
        sentences: list[str] = []
        while sum(len(one.split()) for one in sentences) < length:
            sentences.append(sentence())
        return " ".join(sentences)

    return [{"title": f"t{n // 3}", "text": text()} for n in range(count)]


CONFIG = {
    "corpora": {"mine": {"source": "files", "path": "mine.jsonl"}},
    "batches": {
        "mine": {"corpora": ["mine"], "num_batches": 100},
        "half": {"sample_from": {"mine": 40}, "batch_size": 8},
        "heads": {"sample_from": {"mine": 40}, "batch_size": 8, "oversized": "truncate"},
        "more": {"sample_from": {"mine": 120}},
    },
    "pairs": {"mine": {"corpora": ["mine"], "num_pairs": 5_000}},
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, rows: list[dict]) -> None:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.jsonl.gz"])
def test_size_of_a_local_corpus_is_estimated_from_a_sample(folder, name):
    rows = documents(2_500, 150)
    write(folder / name, rows)
    config = parse_config(
        CONFIG | {"corpora": {"mine": {"source": "files", "path": name}}}, "config"
    )
    counts = counts_of(config, [])
    estimate = counts.text("mine")
    made = chunk_corpus(config.corpora["mine"], folder / "chunks.parquet", workers=1)
    assert estimate.documents == pytest.approx(made.documents, rel=0.1)
    assert estimate.words == pytest.approx(sum(len(r["text"].split()) for r in rows), rel=0.1)
    assert estimate.chunks == pytest.approx(made.chunks, rel=0.15)
    paths = {"mine": folder / "chunks.parquet"}
    batches = make_batches(config.batches["mine"], paths, folder / "b.parquet")
    available = counts.data("batches", "mine").available
    assert available == pytest.approx(batches.batches_before_sampling, rel=0.15)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_rows_of_a_long_file_are_estimated_from_its_beginning(folder, suffix):
    draw = random.Random(0)
    lines = [
        json.dumps({"text": draw.randbytes(draw.randint(30, 90)).hex()}) + "\n"
        for _ in range(40_000)
    ]
    compress = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path = folder / f"long.jsonl{suffix}"
    path.write_bytes(compress("".join(lines).encode()))
    estimate = _rows_of(path)
    assert estimate != 40_000
    assert estimate == pytest.approx(40_000, rel=0.1)
    path.write_bytes(compress("".join(lines[:3000]).encode()))
    assert _rows_of(path) == 3000  # a short file is counted exactly


def test_small_corpus_with_joined_titles_is_counted_exactly(folder):
    write(folder / "mine.jsonl", documents(300, 50))
    joined = {"source": "files", "path": "mine.jsonl", "fields": {"title": "title"},
              "join_title": True}  # fmt: skip
    counts = counts_of(parse_config(CONFIG | {"corpora": {"mine": joined}}, "config"), [])
    assert counts.text("mine").documents == 100  # it has fewer than a thousand rows
    longest = counts.text("mine").words / 100
    expected = 100 * (longest / (CHUNK_FILL * 120) + 0.5)
    assert counts.text("mine").chunks == pytest.approx(expected)


def test_existing_chunks_are_counted(folder):
    write(folder / "mine.jsonl", documents(700, 150))
    config = parse_config(CONFIG, "config")
    Path("results/chunks").mkdir(parents=True)
    made = chunk_corpus(config.corpora["mine"], Path("results/chunks/mine.parquet"), workers=1)
    counts = counts_of(config, [Job("batch", "mine")])
    assert counts.text("mine").chunks == made.chunks
    assert counts.data("batches", "mine").exact
    # Existing chunks that a job will replace are not counted.
    assert counts_of(config, [Job("chunk", "mine")]).text("mine").documents == 700

    def verdicts(asked: int) -> list[str]:
        asking = {"mine": {"corpora": ["mine"], "num_batches": asked}}
        own = parse_config(CONFIG | {"batches": asking}, "config")
        found = check(Plan(own, [Job("batch", "mine")], MACHINE, KNOWN))
        return [one.verdict for one in found if one.what == "batches mine"]

    enough = made.chunks // 16
    assert verdicts(enough) == []
    assert verdicts(enough + 1) == ["error"]


def test_no_batch_has_chunks_of_two_corpora(folder):
    names = ["one", "other"]
    write(folder / "mine.jsonl", [{"text": "A river."}] * 24)
    corpora = {name: CONFIG["corpora"]["mine"] for name in names}
    config = parse_config({"corpora": corpora, "batches": {"both": {"corpora": names}}}, "config")
    inputs = {name: folder / f"results/chunks/{name}.parquet" for name in names}
    inputs["one"].parent.mkdir(parents=True)
    for name, path in inputs.items():
        chunk_corpus(config.corpora[name], path, workers=1)
    made = make_batches(config.batches["both"], inputs, folder / "b.parquet")
    assert counts_of(config, []).data("batches", "both").available == made.batches == 2


def test_sampled_set_is_limited_by_the_sets_it_samples_from(folder):
    write(folder / "mine.jsonl", documents(2_000, 150))
    config = parse_config(CONFIG, "config")
    counts = counts_of(config, [])
    assert counts.data("batches", "half").count == 80  # each of 16 is split
    assert counts.data("batches", "half").margin == 100 / 40
    assert counts.data("batches", "half").available == 200  # two of each of the 100
    assert counts.data("batches", "heads").count == 40  # the first half of each
    jobs = [Job("batch", name) for name in config.batches]
    found = {one.what: one for one in check(Plan(config, jobs, MACHINE, KNOWN))}
    assert "batches half" not in found
    assert found["batches more"].verdict == "error"
    assert found["batches more"].message.startswith("sample_from requests 120 of mine")


def test_corpus_of_unknown_size_is_a_warning(folder):
    nowhere = {"mine": {"source": "hub", "dataset": "some/texts"}}
    config = parse_config(CONFIG | {"corpora": nowhere}, "config")
    found = check(Plan(config, [Job("pair", "mine")], MACHINE, KNOWN))
    assert [one.verdict for one in found if one.what == "pairs mine"] == ["warning"]


def test_margins_at_which_an_estimate_is_a_warning_or_an_error(folder):
    write(folder / "mine.jsonl", documents(2_000, 150))
    available = counts_of(parse_config(CONFIG, "config"), []).text("mine").chunks

    def verdicts(share: float) -> list[str]:
        pairs = {"mine": {"corpora": ["mine"], "num_pairs": int(available / share)}}
        config = parse_config(CONFIG | {"pairs": pairs}, "config")
        found = check(Plan(config, [Job("pair", "mine")], MACHINE, KNOWN))
        return [one.verdict for one in found if one.what == "pairs mine"]

    assert [verdicts(share) for share in (1.5, 1.3, 0.8, 0.6)] == [
        [],
        ["warning"],
        ["warning"],
        ["error"],
    ]


def test_every_corpus_of_the_paper_has_published_counts(paper):
    counts = counts_of(paper, [])
    for name, corpus in paper.corpora.items():
        assert counts.text(name).source == "published counts", name
        assert counts.text(name).download > 0, corpus.dataset
    for name in paper.batches:
        assert counts.data("batches", name), name


def test_a_part_of_a_corpus(folder):
    known = folder / "known.csv"
    head = "dataset,subset,rows,words_per_row,titles,words_per_first_document,bytes,source\n"
    known.write_text(f"{head}some/texts,,10000,200,,,5000,somebody\n")

    def size(corpus: dict, **changes: object) -> tuple:
        config = parse_config({"corpora": {"mine": corpus | changes}}, "c")
        text = Counts(config, [], known, offline=True).text("mine")
        return text.documents, text.download

    corpus = {"source": "hub", "dataset": "some/texts"}
    assert size(corpus) == (10_000, 5_000)
    assert size(corpus, share=[0, 0.25]) == (2_500, 5_000)
    assert size(corpus, max_documents=100) == (100, 10_000)  # counted, then sampled
    assert size(corpus, max_documents={"first": 100}) == (100, 50)
    write(folder / "mine.jsonl", [{"text": f"{n} rivers"} for n in range(4000)])
    local = size(CONFIG["corpora"]["mine"], share=[0, 0.5])
    assert local == (pytest.approx(2000, rel=0.1), 0)
