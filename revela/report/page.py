"""All results of a config as one page: tables with where each figure is from, figures, queries."""

import base64
import json
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from revela.common.errors import RevelaError, reading
from revela.config import paths
from revela.config.file import Config
from revela.config.local import collection_files
from revela.config.report import Table
from revela.evaluation.benchmarks import read_rows
from revela.report import tables
from revela.report.render import MISSING

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
    made = [one for one in config.tables if Path(paths.made("tables", one)).exists()]
    figures = {
        one: Path(f"results/figures/{one}.png")
        for one in config.figures
        if Path(f"results/figures/{one}.png").exists()
    }
    if not made and not figures:
        raise RevelaError(f"{results}: none of the tables and figures of {name} is made yet")
    page = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        Path(__file__).with_name("page.html.jinja").read_text(encoding="utf-8")
    )
    return page.render(
        title=name,
        tables=[_table(config, one, results / "scores") for one in made],
        figures=[
            (config.figures[one].caption, base64.b64encode(path.read_bytes()).decode())
            for one, path in figures.items()
        ],
    )


def _table(config: Config, name: str, scores: Path) -> dict[str, Any]:
    table = config.table(name)
    frame = tables.compile_table(table, scores)
    analysis = _analysis(Path(paths.made("tables", name)))
    rows = []
    for row, system in zip(table.rows, table.names(), strict=True):
        source = frame.at[system, tables.SOURCE]
        cells = []
        for heading, tasks in [*table.columns, (table.mean, [])]:
            value = frame.at[system, heading]
            cell: dict[str, Any] = {"text": MISSING if pd.isna(value) else f"{value:.1f}"}
            cell |= analysis.get((system, heading), {})
            if source == "measured":
                cell["scores"] = [
                    _origin(scores / model / f"{task.partition(':')[0]}.json")
                    for model, task in product(row.model, tasks)
                ]
            cells.append(cell)
        rows.append({"system": system, "source": source, "cells": cells})
    return {
        "name": name,
        "caption": table.caption,
        "headings": [*(heading for heading, _ in table.columns), table.mean],
        "rows": rows,
        "comparisons": _comparisons(config, table, scores),
    }


def _analysis(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Return the interval and the test of each (system, column) as texts."""
    file = path.with_name(f"{path.stem}_significance.csv")
    if not file.exists():
        return {}
    with reading(file, "a table of intervals"):
        rows = pd.read_csv(file).to_dict("records")
    return {
        (row["system"], row["column"]): {
            "interval": f"{row['ci_low']:.1f} to {row['ci_high']:.1f}",
            "test": "" if pd.isna(row["p"]) else f"p = {row['p']:.4f} against {row['compared_to']}",
        }
        for row in rows
    }


def _origin(path: Path) -> dict[str, Any]:
    """Return how a score is made, and what its manifest says of how it was."""
    origin: dict[str, Any] = {"command": f"snakemake --cores all {path}", "facts": {}}
    manifest = path.with_suffix(".manifest.json")
    if manifest.exists():
        with reading(manifest, "a manifest"):
            found = json.loads(manifest.read_text(encoding="utf-8"))
        origin["facts"] = {key: found[key] for key in _FACTS if found.get(key)}
    return origin


def _comparisons(config: Config, table: Table, scores: Path) -> list[dict[str, Any]]:
    """Return where the last system of a table wins and loses most against each of the others."""
    *others, last = [(row, name) for row, name in zip(table.rows, table.names(), strict=True)]
    found = []
    for heading, tasks in table.columns:
        if len(tasks) > 1 or ":" in tasks[0]:
            continue
        (task,) = tasks
        texts = _queries(config, task)
        own = _by_query(last[0].model, task, scores)
        for row, name in others:
            other = _by_query(row.model, task, scores)
            if own is None or other is None:
                continue
            gain = (own - other).dropna().sort_values(kind="stable")
            worst, best = gain[gain < 0].head(_QUERIES), gain[gain > 0].tail(_QUERIES)[::-1]
            found.append(
                {
                    "title": f"{heading}: {last[1]} against {name}",
                    "better": int((gain > 0).sum()),
                    "worse": int((gain < 0).sum()),
                    "equal": int((gain == 0).sum()),
                    "rows": [
                        {
                            "query": texts.get(query, query)[:_CHARACTERS],
                            "own": f"{100 * own[query]:.0f}",
                            "other": f"{100 * other[query]:.0f}",
                        }
                        for query in [*best.index, *worst.index]
                    ],
                }
            )
    return found


def _by_query(models: list[Any], task: str, scores: Path) -> pd.Series | None:
    """Return each query's nDCG@10, the mean of some models; None where one is not measured."""
    files = [scores / model / f"{task}.queries.csv" for model in models]
    if not files or not all(file.exists() for file in files):
        return None
    each = []
    for file in files:
        with reading(file, "scores of queries"):
            frame = pd.read_csv(file, dtype={"query": str, "subset": str})
        each.append(frame.groupby("query")["ndcg_at_10"].mean())
    return pd.concat(each, axis=1).mean(axis=1)


def _queries(config: Config, task: str) -> dict[str, str]:
    """Return the texts of a local task's queries by their ids, none for a task of the hub."""
    folder = config.collection(task)
    if folder is None or not Path(folder).exists():
        return {}
    return {row["id"]: row["text"] for row in read_rows(collection_files(Path(folder))[1])}
