"""Miniatures of the data sets of mteb's retrieval tasks and of lm-eval's tasks."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.rehearsal.material import Rows, functions, write_card, write_jsonl, write_parquet


@dataclass(frozen=True)
class _Collection:
    documents: Rows  # _id, title, text
    queries: Rows  # _id, text, partition
    judgements: Rows  # query-id, corpus-id, score


def _collection(name: str) -> _Collection:
    """Make a small collection: a function's summary must retrieve its description, or its code."""
    code = "Code" in name or "CoIR" in name
    chosen = random.Random(name).sample(functions(), 20)
    documents = [
        {
            "_id": f"d{number}",
            "title": "" if code else function.name,
            "text": function.source if code else function.description,
        }
        for number, function in enumerate(chosen)
    ]
    if not code:  # as some of BEIR's
        documents.append({"_id": "d20", "title": "Of a title alone", "text": ""})
    queries = [
        {"_id": f"q{n}", "text": f.summary or f.name, "partition": "test" if n < 6 else "train"}
        for n, f in enumerate(chosen[:8])
    ]
    judgements = [
        {"query-id": f"q{n}", "corpus-id": f"d{document}", "score": grade}
        for n in range(6)
        for document, grade in ((n, 2), (n + 1, 1), (n + 2, 0))
    ]
    if name == "mteb/arguana":  # whose queries are in its corpus, with the same ids
        queries = [{**d, "partition": "test"} for d in documents[:6]]
        judgements = [{"query-id": f"d{n}", "corpus-id": f"d{n + 6}", "score": 1} for n in range(6)]
    return _Collection(documents, queries, judgements)


def write_task(folder: Path, name: str) -> None:
    """Write the data set of an mteb retrieval task, by its name, in a folder of data sets."""
    import mteb

    task = mteb.get_task(name)
    path = task.metadata.dataset["path"]
    if path.endswith("/BRIGHT"):
        _write_bright(folder / path)
        return
    suffix, write = (".parquet", write_parquet)
    if path.startswith("mteb/"):
        suffix, write = (".jsonl", write_jsonl)
    configs: dict[str, dict[str, str]] = {}
    for subset in task.hf_subsets:
        alone = subset == "default"
        collection = _collection(path if alone else f"{path}/{subset}")
        before = "" if alone else f"{subset}-"
        for config, splits in (
            (f"{before}corpus", {"corpus": collection.documents}),
            (f"{before}queries", {"queries": collection.queries}),
            ("default" if alone else f"{before}qrels",
             dict.fromkeys(task.eval_splits, collection.judgements)),
        ):  # fmt: skip
            configs[config] = {split: f"{config}/{split}{suffix}" for split in splits}
            for split, rows in splits.items():
                write(folder / path / configs[config][split], rows)
    write_card(folder / path, configs)


def _write_bright(folder: Path) -> None:
    """Write BRIGHT: one split per domain, some with documents that a query must not find."""
    from mteb.tasks.retrieval.eng.bright_retrieval import DOMAINS, DOMAINS_LONG

    configs: dict[str, dict[str, str]] = {}

    def write(config: str, domain: str, rows: Rows) -> None:
        file = f"{config}/{domain}-00000-of-00001.parquet"
        write_parquet(folder / file, rows)
        configs.setdefault(config, {})[domain] = file

    for domain in DOMAINS:
        collection = _collection(f"{folder.name}/{domain}")
        excludes = domain not in DOMAINS_LONG
        documents = [{"id": d["_id"], "content": d["text"]} for d in collection.documents]
        examples = [
            {
                "id": query["_id"],
                "query": query["text"],
                "reasoning": "N/A",
                "excluded_ids": ["d18", "d19"] if excludes else ["N/A"],
                "gold_ids": [f"d{number}", f"d{number + 1}"],
                "gold_ids_long": ["N/A"] if excludes else [f"d{number}"],
                "gold_answer": "N/A",
            }
            for number, query in enumerate(collection.queries)
        ]
        write("documents", domain, documents)
        write("examples", domain, examples)
        if domain in DOMAINS_LONG:
            write("long_documents", domain, documents)
    write_card(folder, configs)


Row = Callable[[int, str, list[str]], dict[str, Any]]


def _ai2(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    choices = {"text": answers, "label": list("ABCDEFG")[: len(answers)]}
    key = choices["label"][number % len(answers)]
    return {"id": str(number), "question": question, "choices": choices, "answerKey": key}


def _openbookqa(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    row = _ai2(number, question, answers)
    return {"question_stem": row.pop("question"), **row}


def _copa(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    asked = "cause" if number % 2 else "effect"
    row = {"premise": f"{question}.", "choice1": answers[0], "choice2": answers[1]}
    return {**row, "question": asked, "idx": number, "label": number % 2}


def _piqa(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    return {"goal": question, "sol1": answers[0], "sol2": answers[1], "label": number % 2}


def _rte(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    return {"sentence1": question, "sentence2": answers[0], "label": number % 2, "idx": number}


def _wic(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    word = question.split()[0]
    row = {"word": word, "sentence1": question, "sentence2": f"{word} {answers[0]}"}
    places = {"start1": 0, "start2": 0, "end1": len(word), "end2": len(word)}
    return {**row, **places, "idx": number, "label": number % 2}


def _winogrande(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    row = {"sentence": f"{question} because _ {answers[2]}", "answer": str(1 + number % 2)}
    return {**row, "option1": answers[0].split()[0], "option2": answers[1].split()[0]}


LANGUAGE_MODEL_TASKS: list[tuple[str, str, Row]] = [
    ("allenai/ai2_arc", "ARC-Easy", _ai2),
    ("allenai/ai2_arc", "ARC-Challenge", _ai2),
    ("allenai/openbookqa", "main", _openbookqa),
    ("allenai/winogrande", "winogrande_xl", _winogrande),
    ("aps/super_glue", "copa", _copa),
    ("aps/super_glue", "wic", _wic),
    ("baber/piqa", "default", _piqa),
    ("nyu-mll/glue", "rte", _rte),
]
"""Data sets of lm-eval's tasks: name, configuration, and how a row is made."""


def write_multiple_choice(folder: Path, subset: str, row: Row) -> None:
    """Write the splits of a multiple-choice data set, and add its configuration to the card."""
    summaries = [f.summary for f in functions() if len(f.summary.split()) > 3]
    texts = random.Random(subset).sample(summaries, 40)
    rows = [row(n, texts[4 * n], [*texts[4 * n + 1 : 4 * n + 4], "None"]) for n in range(8)]
    splits = {s: f"{subset}/{s}-00000-of-00001.parquet" for s in ("train", "validation", "test")}
    for file in splits.values():
        write_parquet(folder / file, rows)
    configs = {subset: splits}
    card = folder / "README.md"
    if card.exists():
        present = yaml.safe_load(card.read_text().split("---")[1])["configs"]
        configs |= {
            c["config_name"]: {f["split"]: f["path"] for f in c["data_files"]} for c in present
        }
    write_card(folder, configs)
