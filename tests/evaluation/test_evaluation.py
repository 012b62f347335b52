"""Evaluation by mteb of encoders and BM25."""

import csv
import json
import shutil
import sys
from types import SimpleNamespace

import mteb
import pytest
from datasets import Dataset
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from revela.common.errors import RevelaError
from revela.config.encoding import Encoding
from revela.config.evaluation import ApiModel, MtebBenchmark
from revela.evaluation import commands
from revela.evaluation import measure as evaluation
from revela.evaluation.bm25 import Bm25s
from revela.evaluation.search import instruction_of
from revela.retriever.source import Source
from tests.conftest import TEXTS, encoding_of, make_encoder
from tests.evaluation.common import (
    BM25,
    QRELS,
    SUITE,
    measured,
    model_of,
    ndcg,
    rows_of,
    searcher_of,
    task_of,
)  # fmt: skip


def test_scores_match_the_saved_run_and_the_saved_queries(backbone, collection, tmp_path):
    found = measured(model_of(backbone), tmp_path, collection)
    rows = rows_of(found.run)
    assert rows[0][1] == "Q0"
    assert [int(row[3]) for row in rows[:5]] == [1, 2, 3, 4, 5]
    queries = list(csv.DictReader(found.queries.splitlines()))
    assert [(row["subset"], row["query"]) for row in queries] == [("", query) for query in QRELS]
    for row in queries:
        ranked = [document for query, _, document, *_ in rows if query == row["query"]]
        expected = ndcg(ranked, QRELS[row["query"]])
        assert float(row["ndcg_at_10"]) == pytest.approx(expected, abs=1e-6)
    mean = sum(float(row["ndcg_at_10"]) for row in queries) / 3
    assert found.scores["ndcg_at_10"] == pytest.approx(mean, abs=1e-5)


def test_a_run_keeps_the_best_hundred_with_ties_as_in_trec_eval(collection, tmp_path):
    (collection / "corpus.jsonl.gz").unlink()
    with (collection / "corpus.jsonl").open("w") as stream:
        for n in range(150):
            text = "nothing" if n % 2 else "mud and rivers"
            stream.write(json.dumps({"_id": f"d{n:03}", "text": text}) + "\n")
    (collection / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td148\t1\n")
    found = measured(BM25, tmp_path, collection)
    rows = [row for row in rows_of(found.run) if row[0] == "q0"]
    even, odd = ([f"d{n:03}" for n in range(start, -1, -2)] for start in (148, 149))
    assert [row[2] for row in rows] == [*even, *odd][:100]
    assert found.scores["ndcg_at_10"] == 1


def test_mteb_reads_its_own_results_back(backbone, collection, tmp_path):
    model, folder = model_of(backbone), tmp_path / "mteb"
    outputs = (tmp_path / "scores.json", tmp_path / "cache")
    commands.evaluate(model, [SUITE], {"tiny-task": collection}, *outputs, mteb=folder, name="mine")
    (found,) = mteb.ResultCache(folder).load_results(include_remote=False).model_results
    (result,) = found.task_results
    own = json.loads((tmp_path / "scores.json").read_text(), parse_constant=pytest.fail)
    assert result.task_name == "tiny-task"
    assert result.scores["test"][0]["ndcg_at_10"] == own["ndcg_at_10"]
    named = ("revela/mine", Source.of(model).fingerprint())
    assert (found.model_name, found.model_revision) == named
    (path,) = folder.rglob("model_meta.json")
    meta = json.loads(path.read_text())
    weights = load_file(backbone / "model.safetensors").values()
    assert meta["n_parameters"] == sum(weight.size for weight in weights)
    assert (meta["embed_dim"], meta["max_tokens"]) == (16, 64)
    assert meta["similarity_fn_name"] == "cosine"
    assert meta["training_datasets"] is None  # unknown for models trained elsewhere


def test_a_restart_evaluates_what_is_not_done_in_the_same_process(
    backbone, collection, tmp_path, monkeypatch, capsys
):
    """Each task's files are there once it is done; common passages are encoded once."""
    suites = [SUITE.model_copy(update={"tasks": [task]}) for task in ("a", "b", "c")]
    folders = dict.fromkeys("abc", collection)
    given = (folders, tmp_path / "{task}.json", tmp_path / "cache", tmp_path / "{task}.trec")
    measure, tasks = evaluation.evaluate, []

    def killed(searcher, task):
        tasks.append(task.metadata.name)
        if tasks == ["a", "b"]:
            raise KeyboardInterrupt
        return measure(searcher, task)

    monkeypatch.setattr(evaluation, "evaluate", killed)
    with pytest.raises(KeyboardInterrupt):
        commands.evaluate(model_of(backbone), suites, *given)
    done = json.loads((tmp_path / "a.json").read_text())
    assert not (tmp_path / "b.json").exists()
    (tmp_path / "a.trec").unlink()  # as Snakemake does with outputs of a failed job
    commands.evaluate(model_of(backbone), suites, *given)
    assert tasks == ["a", "b", "b", "c"]
    assert capsys.readouterr().out.count("5 of 5 passages are already encoded") == 2
    for task in "abc":
        scores = json.loads((tmp_path / f"{task}.json").read_text())
        manifest = json.loads((tmp_path / f"{task}.manifest.json").read_text())
        assert (scores, manifest["task"]) == (done | {"task": task}, task)
    assert (tmp_path / "a.trec").exists()
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    other = [suites[0], suites[1].model_copy(update={"max_length": 32})]
    commands.evaluate(model_of(backbone), other, *given)  # a changed setting
    assert tasks[4:] == ["b"]


def test_several_tasks_need_a_file_each(collection, tmp_path):
    suite = SUITE.model_copy(update={"tasks": ["a", "b"]})
    with pytest.raises(RevelaError, match=r"--scores .*s.json: must contain {task} for 2 tasks"):
        commands.evaluate(BM25, [suite], {}, tmp_path / "s.json", tmp_path / "cache")


def test_the_score_of_several_subsets_is_their_mean(collection, tmp_path):
    task = task_of(collection)
    default = task.dataset["default"]["test"]
    few = default["queries"].select([0])
    other = dict(default, queries=few, relevant_docs={"q0": {"d4": 1}})
    task.dataset["other"] = {"test": other}
    languages = {subset: ["eng-Latn"] for subset in task.dataset}
    task.metadata = task.metadata.model_copy(update={"eval_langs": languages})
    task.hf_subsets = list(task.dataset)
    found = measured(BM25, tmp_path, task)
    names = {row[0] for row in rows_of(found.run)}
    assert names == {*(f"test/default/{query}" for query in QRELS), "test/other/q0"}
    queries = [(row["subset"], row["query"]) for row in csv.DictReader(found.queries.splitlines())]
    assert queries == [*(("test/default", query) for query in QRELS), ("test/other", "q0")]
    for measure in ("ndcg_at_10", "recall_at_1"):
        values = [scores[measure] for scores in found.scores["subsets"].values()]
        assert found.scores[measure] == sum(values) / 2
    assert values == [pytest.approx(5 / 6, abs=1e-5), 0]


def test_scores_match_sentence_transformers(backbone, collection, tmp_path):
    """mteb evaluates the same weights through its wrapper of sentence-transformers."""
    transformer = modules.Transformer(str(backbone), max_seq_length=64)
    pooling = modules.Pooling(transformer.get_embedding_dimension(), "mean")
    theirs = SentenceTransformer(
        modules=[transformer, pooling, modules.Normalize()],
        device="cpu",
        prompts={"query": "Query: ", "document": "Passage: "},
    )
    wrapped, folder = SentenceTransformerEncoderWrapper(theirs), tmp_path / "theirs"
    result = mteb.evaluate(wrapped, task_of(collection), cache=None, prediction_folder=folder)
    (path,) = folder.rglob("*_predictions.json")
    predictions = json.loads(path.read_text())["default"]["test"]
    model = model_of(backbone, encoding=Encoding(pooling="mean", append_eos=False))
    ours = measured(model, tmp_path, collection)
    for query, _, document, _, score, _ in rows_of(ours.run):
        assert float(score) == pytest.approx(predictions[query][document], abs=1e-5)
    (task_result,) = result.task_results
    for measure, value in task_result.scores["test"][0].items():
        if isinstance(value, float) and value == value:  # not all are defined for this task
            assert ours.scores[measure] == pytest.approx(value, abs=1e-4), measure


def test_the_encoding_is_read_from_the_model_folder(backbone, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(backbone, folder)
    mean = Encoding(pooling="mean", query_prefix="q: ")
    make_encoder(folder, 100, pooling="mean", query_prefix="q: ")
    found = searcher_of(model_of(folder), tmp_path)
    assert (encoding_of(found.encoder), found.prompt, found.max_length) == (mean, "q: ", 64)
    short = searcher_of(model_of(folder, max_length=50), tmp_path)
    assert (short.encoder.max_seq_length, short.max_length) == (50, 50)


@pytest.mark.parametrize("language", ["eng-Latn", "go-Code"])
def test_bm25_is_english_for_any_language_of_a_task(collection, tmp_path, language):
    """Stop words are ignored and words are stemmed, even in CoIR's `go-Code`."""
    (collection / "queries.jsonl").write_text(
        '{"_id": "q0", "text": "the and of"}\n{"_id": "q1", "text": "flooding of a field"}'
    )
    (collection / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td2\t1\n")
    task = task_of(collection)
    task.metadata = task.metadata.model_copy(update={"eval_langs": [language]})
    found = measured(BM25, tmp_path, task)
    scores = {(query, document): float(s) for query, _, document, _, s, _ in rows_of(found.run)}
    assert {score for (query, _), score in scores.items() if query == "q0"} == {0}
    assert [document for (query, document), s in scores.items() if query == "q1" and s] == ["d2"]


def test_bm25_reads_each_subset_in_its_own_script(collection):
    metadata = task_of(collection).metadata
    what = {"task_metadata": metadata, "hf_split": "test", "hf_subset": "default"}

    def found(texts, query):
        documents = Dataset.from_dict({"id": [*texts], "text": [*texts.values()]})
        queries = Dataset.from_dict({"id": ["q"], "text": [query]})
        bm25.index(documents, **what, encode_kwargs={})
        scores = bm25.search(queries, top_k=2, top_ranked=None, **what, encode_kwargs={})["q"]
        return {document for document, score in scores.items() if score}

    bm25 = Bm25s()
    assert found({"d0": "绿茶和红茶都很受欢迎。", "d1": "长城是古代的工程。"}, "红茶") == {"d0"}
    english = {"d0": "the of the of the", "d1": "fields that flood"}
    assert found(english, "the flooding of a field") == {"d1"}


@pytest.mark.parametrize("kind", ["bm25s", "encoder", "product"])
def test_excluded_documents_are_replaced_by_the_next_best(backbone, collection, tmp_path, kind):
    model = {
        "bm25s": BM25,
        "encoder": model_of(backbone),
        "product": model_of(backbone, times_bm25=True),
    }[kind]
    others = ["d0", "d1", "d3", "d4"]
    task = task_of(collection)
    permitted = {"q0": others, "q1": [*others, "d2"]}  # and q2 without a list: all documents
    task.dataset["default"]["test"]["top_ranked"] = permitted
    rows = rows_of(measured(model, tmp_path / "a", task).run)
    free = rows_of(measured(model, tmp_path / "b", collection).run)
    assert "d2" in [r[2] for r in free if r[0] == "q0"]
    assert {r[2] for r in rows if r[0] == "q0"} <= set(others)
    # Where all documents are permitted, nothing changes: queries are read in the same way.
    assert [r for r in rows if r[0] != "q0"] == [r for r in free if r[0] != "q0"]


def test_a_product_with_bm25(backbone, collection, tmp_path):
    """Each score is that of BM25 times that of the encoder."""

    def scores_of(model, folder):
        found = measured(model, tmp_path / folder, collection)
        return {(row[0], row[2]): float(row[4]) for row in rows_of(found.run)}

    lexical = scores_of(BM25, "a")
    dense = scores_of(model_of(backbone), "b")
    product = scores_of(model_of(backbone, times_bm25=True), "c")
    assert product.keys() == lexical.keys()
    for pair, score in product.items():
        assert score == pytest.approx(lexical[pair] * dense[pair], rel=1e-4, abs=1e-6)


def test_a_query_that_is_a_document_does_not_find_itself(backbone, collection, tmp_path, capsys):
    queries = (collection / "queries.jsonl").read_text()
    with (collection / "qrels.tsv").open("a") as stream:
        stream.write("d1\td0\t1\n")
    other = json.dumps({"_id": "d1", "text": "Equal ids may be a coincidence."}) + "\n"
    (collection / "queries.jsonl").write_text(queries + other)
    assert not task_of(collection).ignore_identical_ids
    itself = json.dumps({"_id": "d1", "text": TEXTS[1]}) + "\n"
    (collection / "queries.jsonl").write_text(queries + itself)
    task = task_of(collection)
    assert "1 queries are documents of the collection" in capsys.readouterr().out
    found = measured(model_of(backbone), tmp_path, task)
    assert "d1" not in [row[2] for row in rows_of(found.run) if row[0] == "d1"]
    queries = list(csv.DictReader(found.queries.splitlines()))
    mean = sum(float(row["ndcg_at_10"]) for row in queries) / 4
    assert found.scores["ndcg_at_10"] == pytest.approx(mean, abs=1e-4)
    task.dataset["default"]["test"]["relevant_docs"] = {"q0": {"d2": 1}, "no query": {"d0": 1}}
    assert measured(BM25, tmp_path, task).unjudged == 3


def test_missing_fields_of_a_data_set_are_reported(backbone, collection, tmp_path, monkeypatch):
    task = task_of(collection)
    monkeypatch.setattr(task, "load_data", lambda: {}["corpus-id"])
    with pytest.raises(RevelaError, match=r"data set '.*' lacks expected fields: 'corpus-id'"):
        measured(model_of(backbone), tmp_path, task)


def test_the_instruction_is_that_of_the_config_of_mteb_or_a_general_one():
    prompted = SimpleNamespace(name="NQ", prompt={"query": "Represent this post: "})
    without = SimpleNamespace(name="FiQA2018", prompt=None)
    own = MtebBenchmark(source="mteb", tasks=["NQ"], instructions={"NQ": "Given a post, answer"})
    plain = MtebBenchmark(source="mteb", tasks=["NQ"])
    assert instruction_of(prompted, own) == "Given a post, answer"
    assert instruction_of(prompted, plain) == "Represent this post:"
    assert "Retrieve text" in instruction_of(without, own)


def test_an_api_needs_its_key_and_its_package(tmp_path, monkeypatch):
    monkeypatch.delenv("SOME_KEY", raising=False)
    model = ApiModel(kind="api", name="Cohere/Cohere-embed-english-v3.0", key="SOME_KEY")
    with pytest.raises(RevelaError, match="needs the environment variable SOME_KEY"):
        searcher_of(model, tmp_path)
    monkeypatch.setenv("SOME_KEY", "-")
    monkeypatch.setitem(sys.modules, "cohere", None)
    with pytest.raises(RevelaError, match=r"^model 'tiny': .* missing .*cohere") as caught:
        searcher_of(model, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_revision_of_a_model_is_that_of_all_its_weights(backbone, tmp_path):
    adapters = [tmp_path / "a", tmp_path / "b"]
    for folder in adapters:
        folder.mkdir()
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_text(folder.name)
    models = [model_of(backbone), *(model_of(backbone, adapter=str(one)) for one in adapters)]
    assert len({Source.of(model).fingerprint() for model in models}) == 3
    alone, below = (
        model_of("a/b", revision="abc"),
        model_of("a/b@v1", adapter="a/c", revision="abc"),
    )
    assert Source.of(alone) == Source("a/b", "abc") == Source("a/b@abc")
    assert Source.of(below) == Source("a/c", "abc", Source("a/b", "v1"))
