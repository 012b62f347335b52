"""The files of a test collection that a user brought."""

import re
from pathlib import Path

from revela.common.errors import RevelaError, check_name
from revela.common.files import first_of


def collection_files(folder: Path, split: str = "test") -> list[list[Path]]:
    """Return the files of a collection's corpus, of its queries and of a split's judgements.

    They are in BEIR layout or, as Parquet files, in that of mteb's data sets.

    Raises:
        RevelaError: one is missing, or there in two formats.
    """
    texts = ("{}.jsonl", "{}.jsonl.gz", f"{{}}/{split}-*.parquet", "{}/*.parquet")
    corpus, queries = ([file.format(name) for file in texts] for name in ("corpus", "queries"))
    judgements = ["qrels.tsv", "qrels/{}.tsv", "qrels/{}-*.parquet", "data/{}-*.parquet"]
    qrels = [file.format(split) for file in judgements[split != "test" :]]
    judged = [file for pattern in judgements for file in folder.glob(pattern.format("*"))]
    splits = {re.split("[.-]", file.name)[0] for file in judged}
    splits = {"test" if name == "qrels" else name for name in splits}
    if splits:
        check_name(str(folder), "split", split, splits)
    for names in (corpus, queries, qrels):
        present = [name for name in names if any(folder.glob(name))]
        if len(present) > 1 and not present[0].endswith(".parquet"):
            raise RevelaError(f"{folder}: both {present[0]} and {present[1]} in it; keep one")
    return [first_of(folder, *names) for names in (corpus, queries, qrels)]
