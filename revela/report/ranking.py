"""A query of a collection, and the top documents of runs for it."""

import csv
from pathlib import Path

import pandas as pd

from revela.common.errors import check_name, reading
from revela.config.local import collection_files
from revela.evaluation.benchmarks import read_qrels, read_rows

_WIDTH = 90  # characters of a text


def first_ranked(folder: Path, runs: list[Path], query: str | None, depth: int) -> str:
    """Return a query and each run's top documents, relevant ones marked, as lines of text.

    Args:
        folder: a collection in BEIR layout.
        runs: TREC runs, labelled by their folder.
        query: id of the query; None uses the first one with a judgement.
        depth: documents per run.

    Raises:
        RevelaError: a file cannot be read, or the collection has no such query.
    """
    corpus, queries, qrels = collection_files(folder)
    texts = {row["id"]: f"{row['title']} {row['text']}".strip() for row in read_rows(corpus)}
    asked = {row["id"]: row["text"] for row in read_rows(queries)}
    judged = read_qrels(qrels, set(asked), set(texts))
    query = query or next(iter(judged))
    check_name(str(queries[0]), "query", query, asked)
    lines = [f"query: {_short(asked[query])}"]
    for path in runs:
        with reading(path, "a TREC run"):
            run = pd.read_csv(
                path,
                sep=" ",
                header=None,
                dtype=str,
                usecols=[0, 2],
                keep_default_na=False,  # an id may be `NA`
                quoting=csv.QUOTE_NONE,
            )
        lines.append(f"{path.parent.name}:")
        for document in run[run[0] == query][2].head(depth):
            mark = "✓" if judged.get(query, {}).get(document) else " "
            lines.append(f"  {mark} {_short(texts.get(document, document))}")
    return "\n".join(lines)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _WIDTH else words[: _WIDTH - 2] + " …"
