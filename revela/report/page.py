"""All results of a config as one page: tables with the source of each score, figures, queries."""

import base64
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from revela.common.errors import RevelaError
from revela.common.outputs import read_json
from revela.config import paths
from revela.config.file import Config
from revela.config.report import Table
from revela.evaluation.benchmarks import read_queries
from revela.evaluation.collections import collection_files
from revela.report import significance, tables

_QUERIES = 8  # at each end of a comparison
_CHARACTERS = 300  # of a text
_FACTS = ("git_commit", "finished", "stage_version", "revision", "commits", "versions")
_SCORES = Path("results/scores")


def write_page(config: Config, name: str) -> str:
    """Return a page titled `name` as self-contained HTML, of the tables and figures in `results/`.

    Raises:
        RevelaError: there are none yet, or a result is damaged.
    """
    made = {table: Path(paths.made("tables", table)) for table in config.tables}
    drawn = {figure: Path(f"results/figures/{figure}.png") for figure in config.figures}
    listed = [_table(config, table, path) for table, path in made.items() if path.exists()]
    figures = [
        (config.figures[figure].caption, base64.b64encode(path.read_bytes()).decode())
        for figure, path in drawn.items()
        if path.exists()
    ]
    if not listed and not figures:
        raise RevelaError(f"results: no tables or figures of {name} yet")
    page = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        Path(__file__).with_name("page.html.jinja").read_text(encoding="utf-8")
    )
    return page.render(title=name, tables=listed, figures=figures)


def _table(config: Config, name: str, path: Path) -> dict[str, Any]:
    table = config.table(name)
    frame = tables.compile_table(table, _SCORES)
    tests = significance.read_analysis(path).set_index(["system", "column"]).to_dict("index")
    headings = frame.columns.drop(tables.SOURCE)
    tasks_of = dict(table.columns)  # the mean has none, nor has a table of reported figures alone
    rows = []
    for row, system in zip(table.rows, table.names(), strict=True):
        source = frame.at[system, tables.SOURCE]
        cells = [
            {
                "figure": frame.at[system, heading],
                "test": tests.get((system, heading)),
                "scores": [
                    _origin(paths.scores(model, task.partition(":")[0]))
                    for model, task in product(row.model, tasks_of.get(heading, []))
                    if source == "measured"
                ],
            }
            for heading in headings
        ]
        rows.append({"system": system, "source": source, "cells": cells})
    return {
        "name": name,
        "caption": table.caption,
        "headings": headings,
        "rows": rows,
        "comparisons": list(_comparisons(config, table)),
    }


def _origin(scores: str) -> dict[str, Any]:
    """Return the command that makes a score, and facts from its manifest."""
    path = Path(scores).with_suffix(".manifest.json")
    manifest = read_json(path) if path.exists() else {}
    facts = {key: manifest[key] for key in _FACTS if manifest.get(key)}
    return {"command": f"snakemake --cores all {scores}", "facts": facts}


def _comparisons(config: Config, table: Table) -> Iterator[dict[str, Any]]:
    """Yield the queries on which a task's last measured system differs most from each other one."""
    strata = significance.read_strata(table, _SCORES)
    for heading, (entry, *more) in table.columns:
        task, _, subset = entry.partition(":")
        subsets = [strata[s] for s in strata if s[0] == task and subset in ("", s[1])]
        if more or not subsets:
            continue
        by_query = pd.concat(subsets)
        means = (
            by_query.reindex(columns=row.model).mean(axis=1, skipna=False) for row in table.rows
        )
        systems = pd.concat(means, axis=1, keys=table.names()).dropna(axis=1)
        texts = _queries(config, task)
        *others, last = systems.columns
        for name in others:
            both = systems[[last, name]]
            gain = (both[last] - both[name]).sort_values(kind="stable")
            worst, best = gain[gain < 0].head(_QUERIES), gain[gain > 0].tail(_QUERIES)[::-1]
            shown = both.loc[[*best.index, *worst.index]]
            yield {
                "title": f"{heading}: {last} against {name}",
                "better": (gain > 0).sum(),
                "worse": (gain < 0).sum(),
                "equal": (gain == 0).sum(),
                "rows": [
                    (f"{subset} {texts.get(query, query)[:_CHARACTERS]}".strip(), own, other)
                    for (subset, query), own, other in shown.itertuples()
                ],
            }


def _queries(config: Config, task: str) -> dict[str, str]:
    """Return the texts of a local task's queries by id; empty for a hub task."""
    folder = config.collection(task)
    if folder is None or not Path(folder).exists():
        return {}
    split = getattr(config.task(task), "split", "test")
    return read_queries(collection_files(Path(folder), split)[1])
