"""A query of a collection, and the top documents of runs for it."""

import csv
from pathlib import Path

import pandas as pd

from revela.common.errors import RevelaError, check_name, reading
from revela.config.local import collection_files
from revela.evaluation.benchmarks import read_qrels, read_queries, read_rows

_WIDTH = 90  # characters of a text


def first_ranked(
    folder: Path, runs: list[Path], query: str | None, depth: int, split: str = "test"
) -> str:
    """Return a query and each run's top documents, relevant ones marked, as lines of text.

    TREC runs are labelled by their folder and show `depth` documents; the query is the id of one,
    or None for the first with a judgement.

    Raises:
        RevelaError: a file cannot be read, or the collection has no such query.
    """
    corpus, queries, qrels = collection_files(folder, split)
    asked = read_queries(queries)
    if query:
        check_name(str(queries[0]), "query", query, asked)
    tops = [_top(path, query, depth) for path in runs]
    printed = set().union(*(top["document"] for top in tops))
    documents, texts = set(), {}  # the texts of a whole corpus may not fit in memory
    for row in read_rows(corpus):
        documents.add(row["id"])
        if row["id"] in printed:
            texts[row["id"]] = f"{row['title']} {row['text']}".strip()
    for path, top in zip(runs, tops, strict=True):
        if unknown := sorted({*top["document"]} - documents):
            raise RevelaError(f"{path}: no document {unknown[0]!r} in {folder}")
    judged = read_qrels(qrels, set(asked), documents)
    query = query or next(iter(judged))
    lines = [f"query: {_short(asked[query])}"]
    for path, top in zip(runs, tops, strict=True):
        lines.append(f"{path.parent.name}:")
        for document in top.loc[top["query"] == query, "document"]:
            mark = "✓" if judged.get(query, {}).get(document) else " "
            lines.append(f"  {mark} {_short(texts.get(document, document))}")
    return "\n".join(lines)


def _top(path: Path, query: str | None, depth: int) -> pd.DataFrame:
    """Return query and document of the first lines of a query, or of each one, in a TREC run.

    Raises:
        RevelaError: it is not a TREC run.
    """
    with reading(path, "a TREC run"):
        run = pd.read_csv(
            path,
            sep=" ",
            header=None,
            dtype=str,
            keep_default_na=False,  # an id may be `NA`
            quoting=csv.QUOTE_NONE,
        ).set_axis(["query", "Q0", "document", "rank", "score", "tag"], axis="columns")
        run[["rank", "score"]].astype(float)
    if query:
        run = run[run["query"] == query]
    return run.groupby("query").head(depth)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _WIDTH else words[: _WIDTH - 2] + " …"
