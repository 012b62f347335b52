"""What a config spells out: inherited keys, seeds, grids, patterns and columns."""

import copy

import pytest
import yaml

from revela.common.errors import RevelaError
from revela.config import parse_config
from tests.config.common import DEMO, ROOT, changed


def test_columns_are_spelt_out():
    raw = yaml.safe_load((ROOT / "config.yaml").read_text())
    subset = {"Pony": ["BrightRetrieval:standard/pony", "beir"]}
    raw["tables"]["mine"] = {"caption": "c", "columns": subset, "rows": ["bm25"]}
    table = parse_config(raw, "x").table("mine")
    assert dict(table.columns)["Pony"][:2] == ["BrightRetrieval:standard/pony", "ArguAna"]
    assert table.tasks()[:2] == ["BrightRetrieval", "ArguAna"]
    subset["Pony"] = ["BrightRetrieval:standard/poni"]
    with pytest.raises(RevelaError, match=r"subset of BrightRetrieval .*'standard/pony'"):
        parse_config(raw, "x")


def test_base_merges_within_the_same_objective():
    changes = {"base": "demo-revela", "objective": {"value_norm": False}}
    raw = changed("experiments/ablation", changes)
    config = parse_config(raw, "demo.yaml")
    ablation, original = config.experiments["ablation"], config.experiments["demo-revela"]
    assert not ablation.objective.value_norm
    assert ablation.objective.temperature == original.objective.temperature
    assert ablation.model_copy(update={"objective": original.objective}) == original
    assert config.experiments["demo-replug"].objective.name == "replug"


def test_base_merges_entries_of_one_kind_only():
    raw = copy.deepcopy(DEMO)
    raw["batches"]["a"] = {"hub": "org/a", "source": "c", "num_batches": 9, "batch_size": 8}
    raw["batches"]["b"] = {"base": "a", "hub": "org/b", "source": "other"}
    raw["corpora"]["a"] = {"source": "hub", "dataset": "org/a", "max_words": 50}
    raw["corpora"]["b"] = {"base": "a", "source": "files", "path": "texts"}
    config = parse_config(raw, "demo.yaml")
    b = config.batches["b"]
    assert (b.hub, b.source, b.num_batches, b.batch_size) == ("org/b", "other", 9, 8)
    assert config.corpora["b"].max_words != 50


def test_seeds_are_trainings_of_their_own_and_one_row():
    raw = changed("experiments/demo-revela/seeds", 3)
    raw["experiments"]["demo-revela"]["seed"] = 4
    raw["experiments"]["ablation"] = {"base": "demo-revela", "seeds": 1}
    raw["models"]["both"] = {"kind": "hybrid", "of": ["bm25", "demo-revela"]}
    config = parse_config(raw, "demo.yaml")
    names = ["demo-revela", "demo-revela-seed5", "demo-revela-seed6"]
    assert config.seeds_of("demo-revela") == names
    assert [config.experiments[name].seed for name in names] == [4, 5, 6]
    same = {config.experiments[name].model_copy(update={"seed": 0}).dump() for name in names}
    assert len(same) == 1
    assert config.seeds_of("demo-revela@8") == [f"{name}@8" for name in names]
    hybrids = ["both", "both-seed5", "both-seed6"]
    assert config.seeds_of("both") == hybrids
    assert [config.hybrids[name].of for name in hybrids] == [["bm25", one] for one in names]
    for single in ("ablation", "bm25", "both-seed5"):
        assert config.seeds_of(single) == [single]
    rows = {row.label: row.model for row in config.table("demo").rows}
    assert rows["Revela"] == names
    # The settings of the first seed do not depend on the number of seeds.
    raw["experiments"]["demo-revela"]["seeds"] = 1
    alone = parse_config(raw, "x").experiments["demo-revela"]
    assert alone.dump() == config.experiments["demo-revela"].dump()
    assert alone.model_dump() == config.experiments["demo-revela"].model_dump()  # in manifests


def test_a_name_that_is_a_seed_of_another():
    raw = changed("experiments/demo-revela/seeds", 2)
    raw["experiments"]["demo-revela-seed1"] = {"base": "demo-replug", "seeds": 1}
    with pytest.raises(RevelaError, match="seed1: the name is taken by seed 1 of 'demo-"):
        parse_config(raw, "x")


def test_a_grid_is_an_entry_a_point():
    raw = changed("experiments/sweep", {"base": "demo-revela"})
    raw["experiments"]["sweep"]["grid"] = {"temperature": [1.0e-4, 0.5], "seed": [1, 2]}
    raw["tables"]["sweep"] = {
        "caption": "c",
        "benchmark": "pydocs",
        "rows": [
            {"label": "BM25", "model": "bm25"},
            {"label": "τ {temperature}", "group": "seed {seed}", "model": "sweep"},
        ],
    }
    config = parse_config(raw, "demo.yaml")
    points = [f"sweep-temperature-{t}-seed-{s}" for t in ("0.0001", "0.5") for s in (1, 2)]
    assert [name for name in config.experiments if name.startswith("sweep")] == points
    point = config.experiments["sweep-temperature-0.5-seed-2"]
    assert (point.objective.temperature, point.seed) == (0.5, 2)
    assert point.learning_rate == config.experiments["demo-revela"].learning_rate
    rows = config.table("sweep").rows
    assert [(row.label, row.group, row.model) for row in rows[1:]] == [
        (f"τ {t}", f"seed {s}", [f"sweep-temperature-{t}-seed-{s}"])
        for t in ("0.0001", "0.5")
        for s in (1, 2)
    ]
    del raw["tables"]["sweep"]["rows"][1]["group"]
    raw["tables"]["sweep"]["rows"][1]["label"] = "Revela"
    labels = [row.label for row in parse_config(raw, "x").table("sweep").rows]
    assert labels[1:3] == ["Revela 0.0001 1", "Revela 0.0001 2"]


def test_rows_of_a_pattern_are_a_row_a_model():
    raw = copy.deepcopy(DEMO)
    raw["experiments"]["demo-revela-warm"] = {"base": "demo-revela", "seeds": 2}
    raw["experiments"]["demo-sweep"] = {"base": "demo-revela", "grid": {"seed": [3, 4]}}
    raw["tables"]["demo"]["rows"] = [
        "bm25",
        {"label": "Ours, {model}", "model": "demo-revela*"},
        "demo-sweep*",
        "demo-revela@8",
        "demo-revela-warm-seed1",
    ]
    rows = parse_config(raw, "demo.yaml").tables["demo"].rows
    assert [(row.label, row.model) for row in rows] == [
        ("bm25", ["bm25"]),
        ("Ours, demo-revela", ["demo-revela"]),
        ("Ours, demo-revela-warm", ["demo-revela-warm"]),
        ("demo-sweep-seed-3", ["demo-sweep-seed-3"]),
        ("demo-sweep-seed-4", ["demo-sweep-seed-4"]),
        ("demo-revela@8", ["demo-revela@8"]),
        ("demo-revela-warm-seed1", ["demo-revela-warm-seed1"]),
    ]
    raw["tables"]["demo"]["rows"] = ["demo-revel-*"]
    with pytest.raises(RevelaError, match="rows: no experiment or model matches 'demo"):
        parse_config(raw, "demo.yaml")


def test_a_mistake_that_others_inherit_counts_once():
    raw = changed("experiments/demo-revela/steps", 0)
    raw["experiments"]["a"] = raw["experiments"]["b"] = {"base": "demo-revela"}
    with pytest.raises(RevelaError, match=r"demo-revela.steps: .*; got 0$"):
        parse_config(raw, "c")
    raw["experiments"]["a"] = {"base": "demo-revela", "seed": -1}
    with pytest.raises(RevelaError, match=r"demo-revela.steps: .*; got 0 \(and 1 more\)$"):
        parse_config(raw, "c")
