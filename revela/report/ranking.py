"""A query of a collection, and the top documents of runs for it."""

from pathlib import Path

from revela.common.errors import check_name, reading
from revela.evaluation.benchmarks import read_qrels, read_queries, read_rows
from revela.evaluation.collections import collection_files
from revela.evaluation.fusion import read_run

_WIDTH = 90  # characters of a text


def first_ranked(
    folder: Path, runs: list[Path], query: str | None, depth: int, split: str = "test"
) -> str:
    """Return a query, by default the first judged one, and the top `depth` documents of each run.

    They are lines of text, those of relevant documents marked.
    """
    corpus, queries, qrels = collection_files(folder, split)
    asked = read_queries(queries)
    documents = {row["id"]: _short(f"{row['title']} {row['text']}") for row in read_rows(corpus)}
    judged = read_qrels(qrels, set(asked), set(documents))
    query = query or next(iter(judged))
    check_name(str(queries[0]), "query", query, asked)
    lines = [f"query: {_short(asked[query])}"]
    for path in runs:
        lines.append(f"{path}:")
        with reading(path, f"a TREC run of {folder}"):
            for document in [*read_run(path).get(query, {})][:depth]:
                mark = "✓" if judged.get(query, {}).get(document) else " "
                lines.append(f"  {mark} {documents[document]}")
    return "\n".join(lines)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _WIDTH else words[: _WIDTH - 2] + " …"
