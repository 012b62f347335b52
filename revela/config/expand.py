"""Shorthands of a configuration, spelt out: `base:`, `grid:` and `seeds:`."""

import itertools
from typing import Any

from revela.common.errors import RevelaError, unknown_name
from revela.config.names import ModelName
from revela.config.steps import OBJECTIVES, Encoding, Experiment, Lora, Settings


def expand(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose experiments are one training each.

    What is no mapping is left as it is, for the schema to refuse.

    Raises:
        RevelaError: `base` names no entry or goes in a circle, `grid` is no mapping of keys to
            lists, or two entries would have one name; the message begins with the key.
    """
    sections = {
        section: _inherit(section, entries) if isinstance(entries, dict) else entries
        for section, entries in raw.items()
    }
    experiments = sections.get("experiments")
    if isinstance(experiments, dict):
        grids = {
            name: _grid(f"experiments.{name}", name, entry)
            for name, entry in experiments.items()
            if isinstance(entry, dict) and "grid" in entry
        }
        sections["experiments"] = _with_seeds(_with_grids(experiments, grids))
        if isinstance(sections.get("tables"), dict) and grids:
            sections["tables"] = {n: _rows(t, grids) for n, t in sections["tables"].items()}
    return sections


# ---------------------------------------------------------------------------- base


def _inherit(section: str, entries: dict[str, Any]) -> dict[str, Any]:
    """Resolve `base:` in the entries of a section: mappings merge, everything else replaces."""
    done: dict[str, Any] = {}

    def resolve(name: str, path: tuple[str, ...]) -> Any:
        where = f"{section}.{name}.base"
        if name in path:
            raise RevelaError(f"{where}: circular: {' → '.join((*path, name))}")
        if name not in done:
            entry = entries[name]
            if isinstance(entry, dict) and "base" in entry:
                base = entry["base"]
                if not isinstance(base, str) or base not in entries:
                    raise RevelaError(f"{where}: {unknown_name('entry', str(base), entries)}")
                own = {key: value for key, value in entry.items() if key != "base"}
                entry = _merge(resolve(base, (*path, name)), own)
            done[name] = entry
        return done[name]

    return {name: resolve(name, ()) for name in entries}


def _merge(base: Any, own: Any) -> Any:
    """Merge two mappings; one that changes what kind of thing it is starts afresh."""
    if isinstance(base, dict) and isinstance(own, dict):
        if any(own.get(tag, base.get(tag)) != base.get(tag) for tag in ("name", "source", "kind")):
            return own
        return {
            **base,
            **{key: _merge(base[key], own[key]) if key in base else own[key] for key in own},
        }
    return own


# ---------------------------------------------------------------------------- grid

Grid = dict[str, tuple[dict[str, str], dict[str, Any]]]
"""Name of a point → its values by key, for labels; the experiment that it is."""


def _grid(where: str, name: str, entry: dict[str, Any]) -> Grid:
    """Return the points of an experiment's grid, `<name>-<key>-<value>-…`.

    A key is one of the experiment or, in brief, of its objective, encoding or lora.
    """
    axes = entry["grid"]
    if not isinstance(axes, dict) or not all(isinstance(v, list) and v for v in axes.values()):
        raise RevelaError(f"{where}.grid: expected keys with lists of values; got {axes!r}")
    plain = {key: value for key, value in entry.items() if key != "grid"}
    points: Grid = {}
    for values in itertools.product(*axes.values()):
        point = dict(plain)
        for key, value in zip(axes, values, strict=True):
            point = _merge(point, _nested(f"{where}.grid", key, value, point))
        labels = {key: _label(value) for key, value in zip(axes, values, strict=True)}
        parts = [part for item in labels.items() for part in item]
        called = "-".join([name, *parts])
        if called in points:
            raise RevelaError(f"{where}.grid: two points are called {called!r}")
        points[called] = (labels, point)
    return points


def _nested(where: str, key: str, value: Any, entry: dict[str, Any]) -> dict[str, Any]:
    if key in Experiment.model_fields:
        return {key: value}
    objective = entry.get("objective")
    name = objective.get("name") if isinstance(objective, dict) else None
    groups: dict[str, type[Settings]] = {"encoding": Encoding, "lora": Lora}
    if name in OBJECTIVES:
        groups["objective"] = OBJECTIVES[name]
    for group, schema in groups.items():
        if key in schema.model_fields:
            return {group: {key: value}}
    schemas: list[type[Settings]] = [Experiment, *groups.values()]
    known = [key for schema in schemas for key in schema.model_fields]
    raise RevelaError(f"{where}: {unknown_name('key', key, known)}")


def _label(value: Any) -> str:
    """Return a value as part of a name: of a hub name or a folder the last part."""
    return f"{value:g}" if isinstance(value, float) else str(value).rpartition("/")[2]


def _with_grids(experiments: dict[str, Any], grids: dict[str, Grid]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, entry in experiments.items():
        points = (
            {n: point for n, (_, point) in grids[name].items()} if name in grids else {name: entry}
        )
        for point in points:
            if point in found or (point != name and point in experiments):
                raise RevelaError(f"experiments.{point}: defined twice, by the grid of {name!r}")
        found |= points
    return found


def _rows(table: Any, grids: dict[str, Grid]) -> Any:
    """Return a table whose rows of a grid are a row a point.

    `{key}` in label, group and size stands for the point's value; a label without any gets all.
    """
    if not isinstance(table, dict) or not isinstance(table.get("rows"), list):
        return table
    rows: list[Any] = []
    for row in table["rows"]:
        model = row.get("model") if isinstance(row, dict) else None
        if not isinstance(model, str) or model not in grids:
            rows.append(row)
            continue
        for point, (labels, _) in grids[model].items():
            texts = {k: str(row[k]) for k in ("label", "group", "size") if k in row}
            if not any(f"{{{key}}}" in text for key in labels for text in texts.values()):
                texts["label"] = " ".join([texts.get("label", ""), *labels.values()]).strip()
            for key, label in labels.items():
                texts = {k: text.replace(f"{{{key}}}", label) for k, text in texts.items()}
            rows.append(row | texts | {"model": point})
    return table | {"rows": rows}


# ---------------------------------------------------------------------------- seeds


def _with_seeds(experiments: dict[str, Any]) -> dict[str, Any]:
    """Add an entry for each further seed of an experiment with `seeds`."""
    found = dict(experiments)
    for name, entry in experiments.items():
        if not isinstance(entry, dict):
            continue
        seeds, first = entry.get("seeds", 1), entry.get("seed", 0)
        if type(seeds) is not int or type(first) is not int:
            continue  # refused by the schema
        for seed in range(first + 1, first + seeds):
            other = str(ModelName(name, seed))
            if other in found:
                raise RevelaError(f"experiments.{other}: is seed {seed} of {name!r}")
            found[other] = entry | {"seed": seed, "seeds": 1}
    return found
