"""All results of a config as one page: tables with where each figure is from, figures, queries."""

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
from revela.config.local import collection_files
from revela.config.report import Table
from revela.evaluation.benchmarks import read_rows
from revela.report import significance, tables

_QUERIES = 8  # of a comparison, at each end
_CHARACTERS = 300  # of a text
_FACTS = ("git_commit", "finished", "host", "stage_version", "revision", "commits", "versions")


def write_page(config: Config, name: str, results: Path) -> str:
    """Return the page as HTML that loads nothing from elsewhere.

    Args:
        config: the configuration; tables and figures that are not made yet are skipped.
        name: its title.
        results: the folder of the results.

    Raises:
        RevelaError: nothing is made yet, or a result is damaged.
    """
    made = [one for one in config.tables if (results / f"tables/{one}.csv").exists()]
    drawn = {one: results / f"figures/{one}.png" for one in config.figures}
    figures = {one: path for one, path in drawn.items() if path.exists()}
    if not made and not figures:
        raise RevelaError(f"{results}: none of the tables and figures of {name} is made yet")
    page = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        Path(__file__).with_name("page.html.jinja").read_text(encoding="utf-8")
    )
    return page.render(
        title=name,
        tables=[_table(config, one, results) for one in made],
        figures=[
            (config.figures[one].caption, base64.b64encode(path.read_bytes()).decode())
            for one, path in figures.items()
        ],
    )


def _table(config: Config, name: str, results: Path) -> dict[str, Any]:
    table = config.table(name)
    frame = tables.compile_table(table, results / "scores")
    analysis = significance.read_analysis(results / f"tables/{name}.csv")
    tests = analysis.set_index(["system", "column"]).to_dict("index")
    rows = []
    for row, system in zip(table.rows, table.names(), strict=True):
        source = frame.at[system, tables.SOURCE]
        cells = [
            {
                "figure": frame.at[system, heading],
                "test": tests.get((system, heading)),
                "scores": [
                    _origin(paths.scores(model, task.partition(":")[0]), results)
                    for model, task in product(row.model, tasks)
                    if source == "measured"
                ],
            }
            for heading, tasks in [*table.columns, (table.mean, [])]
        ]
        rows.append({"system": system, "source": source, "cells": cells})
    return {
        "name": name,
        "caption": table.caption,
        "headings": frame.columns.drop(tables.SOURCE),
        "rows": rows,
        "comparisons": list(_comparisons(config, table, results)),
    }


def _below(results: Path, path: str) -> Path:
    """Return where a path lies if results are in a folder of another name."""
    return results / Path(path).relative_to("results") if paths.is_made_here(path) else Path(path)


def _origin(path: str, results: Path) -> dict[str, Any]:
    """Return how a score is made, and what its manifest records of how it was made."""
    manifest = _below(results, path).with_suffix(".manifest.json")
    found = read_json(manifest) if manifest.exists() else {}
    facts = {key: found[key] for key in _FACTS if found.get(key)}
    return {"command": f"snakemake --cores all {path}", "facts": facts}


def _comparisons(config: Config, table: Table, results: Path) -> Iterator[dict[str, Any]]:
    """Yield where the last system of a table wins and loses most against each of the others."""
    strata = significance.read_strata(table, results / "scores")
    *others, last = table.names()
    for heading, (first, *more) in table.columns:
        subsets = [frame for (task, _), frame in strata.items() if task == first]
        if more or not subsets:
            continue
        by_query = pd.concat(subsets).groupby("query").mean()
        systems = {
            name: by_query.reindex(columns=row.model).mean(axis=1, skipna=False)
            for name, row in zip(table.names(), table.rows, strict=True)
        }
        texts = _queries(config, first, results)
        for name in others:
            both = pd.DataFrame({"own": systems[last], "other": systems[name]}).dropna()
            gain = (both["own"] - both["other"]).sort_values(kind="stable")
            worst, best = gain[gain < 0].head(_QUERIES), gain[gain > 0].tail(_QUERIES)[::-1]
            if len(gain):
                yield {
                    "title": f"{heading}: {last} against {name}",
                    "better": (gain > 0).sum(),
                    "worse": (gain < 0).sum(),
                    "equal": (gain == 0).sum(),
                    "rows": [
                        (texts.get(query, query)[:_CHARACTERS], *both.loc[query])
                        for query in [*best.index, *worst.index]
                    ],
                }


def _queries(config: Config, task: str, results: Path) -> dict[str, str]:
    """Return the texts of a local task's queries by their ids, none for a task of the hub."""
    folder = config.collection(task)
    if folder is None or not (local := _below(results, folder)).exists():
        return {}
    return {row["id"]: row["text"] for row in read_rows(collection_files(local)[1])}
