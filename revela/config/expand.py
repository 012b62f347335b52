"""Expands the shorthands of a configuration: `base:`, `grid:`, `seeds:`, patterns of rows."""

import fnmatch
import functools
import itertools
import re
from typing import Any

from revela.common.errors import RevelaError, check_name
from revela.config.names import ModelName, legal_name
from revela.config.problems import nested
from revela.config.training import Experiment

Grid = dict[str, tuple[dict[str, str], dict[str, Any]]]
"""Name of a point → its values by key, for labels; its experiment."""

_TAGS = {
    "corpora": "source",
    "benchmarks": "source",
    "models": "kind",
    "figures": "kind",
    "objective": "name",
}
"""The key that gives the kind of a section's entries, or of an experiment's objective."""


def expand(written: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return all sections of a configuration, in which each experiment is one training.

    Raises:
        RevelaError: `base` names no entry or is circular, `grid` is not a mapping of keys to lists,
            two entries would have the same name, or a point's name is none that an entry may have;
            the message begins with the key.
    """
    sections = {
        section: {name: _inherit(section, entries, name) for name in entries}
        for section, entries in written.items()
    }
    experiments = sections["experiments"]
    grids = {name: _grid(name, entry) for name, entry in experiments.items() if "grid" in entry}
    single = {name: entry for name, entry in experiments.items() if name not in grids}
    for name, grid in grids.items():
        for point, (_, entry) in grid.items():
            _add("experiments", single, point, entry, f"a point of the grid of {name!r}")
    trainings, seeds_of = dict(single), {}
    for name, entry in single.items():
        first, seeds = entry.get("seed", 0), entry.get("seeds", 1)
        valid = type(first) is type(seeds) is int and seeds <= 100  # else Experiment says so
        seeds_of[name] = range(first + 1, first + seeds) if valid else range(0)
        for seed in seeds_of[name]:
            again = entry | {"seed": seed, "seeds": 1}
            called = str(ModelName(name, seed))
            _add("experiments", trainings, called, again, f"seed {seed} of {name!r}")
    models = dict(sections["models"])
    for name, entry in sections["models"].items():
        for seed, parts in _seeds_of_hybrid(entry, seeds_of).items():
            again, called = entry | {"of": parts}, str(ModelName(name, seed))
            _add("models", models, called, again, f"seed {seed} of {name!r}")
    names = [*single, *sections["models"]]
    tables = {
        name: _rows(f"tables.{name}", table, grids, names)
        for name, table in sections["tables"].items()
    }
    return sections | {"experiments": trainings, "models": models, "tables": tables}


def _add(section: str, entries: dict[str, Any], name: str, entry: Any, what: str) -> None:
    if name in entries:
        raise RevelaError(f"{section}.{name}: the name is taken by {what}")
    entries[name] = entry


def _seeds_of_hybrid(entry: dict[str, Any], seeds_of: dict[str, range]) -> dict[int, list[str]]:
    """Return the parts of a hybrid for each further seed of one of them."""
    of = entry.get("of") if entry.get("kind") == "hybrid" else None
    parts = [ModelName.parse(str(part)) for part in of] if isinstance(of, list) else []
    own = [seeds_of.get(part.training, range(0)) for part in parts]
    return {
        seed: [
            str(ModelName(part.training, seed, part.step) if seed in seeds else part)
            for part, seeds in zip(parts, own, strict=True)
        ]
        for seed in itertools.chain(*own)
    }


def _inherit(
    section: str, entries: dict[str, dict[str, Any]], name: str, path: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return an entry merged into its `base:`; `path` holds the entries that led to it."""
    where = f"{section}.{name}.base"
    if name in path:
        raise RevelaError(f"{where}: circular: {' → '.join((*path, name))}")
    entry = dict(entries[name])
    if "base" not in entry:
        return entry
    base = str(entry.pop("base"))
    check_name(where, "entry", base, entries)
    return _merge(section, _inherit(section, entries, base, (*path, name)), entry)


def _merge(where: str, base: Any, entry: Any) -> Any:
    """Merge mappings, replace other values; a mapping of a different kind is not merged.

    `where` is the section that holds them, or the key.
    """
    if not isinstance(base, dict) or not isinstance(entry, dict):
        return entry
    tag = _TAGS.get(where)
    if entry.get(tag, base.get(tag)) != base.get(tag):
        return entry
    if "prefixes" in entry:  # which sets both
        base = {key: value for key, value in base.items() if not key.endswith("_prefix")}
    return base | {key: _merge(key, base.get(key), value) for key, value in entry.items()}


def _grid(name: str, entry: dict[str, Any]) -> Grid:
    """Return the points of an experiment's grid, `<name>-<key>-<value>-…`.

    A key belongs to the experiment or, without a prefix, to its objective, encoding or lora.
    """
    where, axes = f"experiments.{name}.grid", entry["grid"]
    lists = axes.values() if isinstance(axes, dict) else [None]
    if not axes or not all(isinstance(values, list) and values for values in lists):
        raise RevelaError(f"{where}: expected keys with lists of values; got {axes!r}")
    groups = grid_keys()
    for key in axes:
        check_name(where, "key", str(key), groups)
    points: Grid = {}
    for values in itertools.product(*axes.values()):
        point = {key: value for key, value in entry.items() if key != "grid"}
        labels = {key: _label(value) for key, value in zip(axes, values, strict=True)}
        for key, value in zip(axes, values, strict=True):
            group = groups[key]
            point = _merge("experiments", point, {group: {key: value}} if group else {key: value})
        called = "-".join([name, *(part for item in labels.items() for part in item)])
        try:
            legal_name(called)
        except ValueError as error:
            raise RevelaError(f"{where}: {error}") from error
        if called in points:
            raise RevelaError(f"{where}: two points are called {called!r}")
        points[called] = (labels, point)
    return points


def grid_keys() -> dict[str, str | None]:
    """Return the keys that a grid can vary, each with the key of the experiment that holds it."""
    keys: dict[str, str | None] = {}
    for group, kinds in nested(Experiment).items():
        for kind in kinds:
            keys |= dict.fromkeys(kind.model_fields, group)
    return keys | dict.fromkeys(Experiment.model_fields)


def _label(value: Any) -> str:
    """Return a value as part of a name; of a hub name or a folder only the last component."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.rpartition("/")[2].partition("@")[0]


def _rows(where: str, table: dict[str, Any], grids: dict[str, Grid], names: list[str]) -> Any:
    """Return a table with a row for each point of a grid, and for each model of a pattern.

    `{key}` in label, group and size stands for the point's value, `{model}` for the model's name;
    if none is used, all values are appended to the label. A row that is just a name or a pattern
    has the label `{model}`.

    Raises:
        RevelaError: no model matches a pattern.
    """
    if not isinstance(table.get("rows"), list):
        return table
    rows: list[Any] = []
    for row in table["rows"]:
        if isinstance(row, str):
            row = {"label": "{model}" if "*" in row else row, "model": row}
        model = row.get("model") if isinstance(row, dict) else None
        if isinstance(model, str) and model in grids:
            rows += [_row(row, point, labels) for point, (labels, _) in grids[model].items()]
        elif isinstance(model, str) and "*" in model:
            matching = fnmatch.filter(names, model)
            if not matching:
                raise RevelaError(f"{where}.rows: no experiment or model matches {model!r}")
            rows += [_row(row, name, {"model": name}) for name in matching]
        else:
            rows.append(row)
    return table | {"rows": rows}


def _row(row: dict[str, Any], model: str, labels: dict[str, str]) -> dict[str, Any]:
    texts = {key: str(row[key]) for key in ("label", "group", "size") if key in row}
    fill = functools.partial(re.sub, r"{(\w+)}", lambda key: labels.get(key[1], key[0]))
    filled = {key: fill(text) for key, text in texts.items()}
    if filled == texts:
        filled["label"] = " ".join([texts.get("label", ""), *labels.values()]).strip()
    return row | filled | {"model": model}
