"""Configuration: every mistake gives one line with file, key, value and allowed values."""

import copy
import os
import shutil
from pathlib import Path

import pytest
import yaml

from revela.common.errors import RevelaError
from revela.config import load_config, parse_config
from revela.config.check import check_local
from revela.config.local import fingerprint
from revela.config.names import ModelName, ModelRef, references

ROOT = Path(__file__).parents[2]
DEMO = yaml.safe_load((ROOT / "config.demo.yaml").read_text())
DEMO["backbones"] = {"small": {"corpora": ["python-packages"], "tokens": 1}}
DEMO["models"]["lm"] = {"kind": "language-model", "language_model": "data/backbone"}
SHARED = {"source": "mteb", "tasks": ["NQ", "FEVER"]}
LM = {"source": "lm-eval", "tasks": ["copa"]}
DEMO["benchmarks"]["lm"] = LM

PRINTED = {
    "caption": "c",
    "reported": "data/paper/coir.csv",
    "rows": [{"label": "BM25", "reported": "BM25"}],
}


def changed(path: str, value: object) -> dict:
    config = copy.deepcopy(DEMO)
    *parents, last = path.split("/")
    entry = config
    for key in parents:
        entry = entry[int(key)] if isinstance(entry, list) else entry[key]
    entry[last] = value
    return config


@pytest.fixture(autouse=True)
def _root(monkeypatch):
    monkeypatch.chdir(ROOT)  # paths in configs are relative to it


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("config*.yaml")))
def test_shipped_configs_are_valid(name):
    assert load_config(ROOT / name).corpora


def test_the_experiments_are_those_of_the_paper():
    config = load_config(Path("config.yaml"))
    for name, experiment in config.experiments.items():
        objective, on_code = experiment.objective, "-code-" in name
        assert (experiment.max_length, experiment.lora.rank) == (157, 256)
        if objective.name == "contriever":
            pairs = config.pairs[experiment.data]
            assert (pairs.num_pairs, pairs.negatives) == (359_000 if on_code else 500_000, 15)
            assert (objective.temperature, experiment.batches_per_step) == (0.01, 256)
            continue
        size = 8 if name.endswith(("-3b", "-bs8")) else 4 if name.endswith("-bs4") else 16
        assert config.batches[experiment.data].batch_size == size
        assert bool(experiment.first_half) != on_code
        assert experiment.batches_per_step == 32
        if objective.name == "replug":
            assert objective.retriever_temperature == objective.language_model_temperature == 1e-3
            assert (experiment.learning_rate, experiment.steps) == (5e-4, 4500)
        else:
            assert (objective.temperature, objective.value_norm) == (1e-4, not on_code)
            assert (experiment.learning_rate, experiment.steps) == (1e-4, None)


def test_steps_are_those_of_the_paper():
    """10,000 on Wikipedia and 11,211 on code, for batches of 16, 8 and 4; REPLUG has 4,500."""
    config = load_config(Path("config.yaml"))

    def batches(name):
        entry = config.batches[name]
        if entry.sample_from:
            split = 1
            if entry.oversized == "split":
                split = config.batches[next(iter(entry.sample_from))].batch_size // entry.batch_size
            return split * sum(entry.sample_from.values())
        return getattr(entry.num_batches, "first", entry.num_batches)

    for name, experiment in config.experiments.items():
        if "published" in name:
            continue
        if experiment.objective.name == "contriever":
            pairs = config.pairs[experiment.data].num_pairs
            steps = pairs // experiment.batches_per_step
            assert steps == (1402 if "-code-" in name else 1953), name
        elif experiment.objective.name == "replug":
            assert experiment.steps == 4500, name
        else:
            steps = batches(experiment.data) // experiment.batches_per_step
            assert steps == (11_211 if "-code-" in name else 10_000), name


def test_what_the_paper_copied_from_bright_stays_as_reported():
    """BRIGHT measured BM25, E5-Mistral and the APIs under its own protocol."""
    config = load_config(Path("config.yaml"))
    copied = {"BM25", "E5-Mistral", "Cohere", "OpenAI", "Voyage"}
    rows = {name: config.tables[name].rows for name in ("bright", "bright_official")}
    assert {row.label for row in rows["bright"] if not row.model} == copied
    assert all(row.model and row.reported for row in rows["bright_official"] if row.label in copied)
    suite = config.benchmarks["bright-official"]
    assert set(suite.instructions) == set(suite.tasks)
    assert config.task("BrightPonyRetrieval").instructions == {
        "BrightPonyRetrieval": "Given a pony question, retrieve relevant passages that help answer "
        "the question"
    }


def test_the_study_matches_chunks_and_steps():
    config = load_config(ROOT / "config.study.yaml")
    for name, experiment in config.experiments.items():
        size = 1 if experiment.data in config.pairs else config.batches[experiment.data].batch_size
        steps, seeds = (400, 1) if name.startswith("study-long-") else (32, 3)
        assert (size * experiment.batches_per_step, experiment.steps) == (64, steps), name
        assert len(config.seeds_of(ModelName.parse(name).experiment)) == seeds, name


def test_prefixes_have_names():
    named = parse_config(changed("models/demo-untouched/encoding", {"prefixes": "authors"}), "c")
    encoding = named.models["demo-untouched"].encoding
    assert (encoding.query_prefix, encoding.passage_prefix) == ("query:  ", "passage:  ")
    explicit = {"query_prefix": "Q: ", "pooling": "cls"}
    raw = changed("models/mine", {"base": "demo-untouched", "encoding": explicit})
    raw["models"]["renamed"] = {"base": "mine", "encoding": {"prefixes": "train"}}
    raw["models"]["half"] = {
        "base": "renamed",
        "encoding": {"prefixes": "authors", "query_prefix": "Q: "},
    }
    models = parse_config(raw, "c").models
    renamed, half = models["renamed"].encoding, models["half"].encoding
    assert (renamed.query_prefix, renamed.passage_prefix) == ("query: ", "passage: ")
    assert (half.query_prefix, half.passage_prefix) == ("Q: ", "passage:  ")
    assert renamed.pooling == half.pooling == "cls"
    with pytest.raises(RevelaError, match=r"encoding.prefixes: .*'paper'.*'x'"):
        parse_config(changed("models/demo-untouched/encoding", {"prefixes": "x"}), "c")


def test_an_api_is_measured_only_with_its_key(monkeypatch):
    config = load_config(ROOT / "config.yaml")
    keys = {row.label: row.model for row in config.tables["coir"].rows}
    assert keys["Ada-2"] == ["ada-002"]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert {r.label: r.model for r in config.table("coir").rows}["Ada-2"] == []
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    assert {r.label: r.model for r in config.table("coir").rows}["Ada-2"] == ["ada-002"]
    assert "a key" not in config.table("coir").dump()


def test_columns_are_spelt_out():
    raw = yaml.safe_load((ROOT / "config.yaml").read_text())
    subset = {"Pony": ["BrightRetrieval:standard/pony", "beir"]}
    raw["tables"]["mine"] = {
        "caption": "c",
        "columns": subset,
        "rows": [{"label": "BM25", "model": "bm25"}],
    }
    table = parse_config(raw, "x").table("mine")
    assert dict(table.columns)["Pony"][:2] == ["BrightRetrieval:standard/pony", "ArguAna"]
    assert table.tasks()[:2] == ["BrightRetrieval", "ArguAna"]
    subset["Pony"] = ["BrightRetrieval:standard/poni"]
    with pytest.raises(RevelaError, match=r"subset of BrightRetrieval .*'standard/pony'"):
        parse_config(raw, "x")


def test_base_inherits_all_but_what_is_given():
    config = parse_config(DEMO, "demo.yaml")
    revela, replug = (config.experiments[f"demo-{name}"] for name in ("revela", "replug"))
    assert replug.max_length == revela.max_length != 157
    assert replug.objective.name == "replug"


def test_base_merges_within_the_same_objective():
    raw = changed(
        "experiments/ablation", {"base": "demo-revela", "objective": {"value_norm": False}}
    )
    config = parse_config(raw, "demo.yaml")
    ablation, original = config.experiments["ablation"], config.experiments["demo-revela"]
    assert not ablation.objective.value_norm
    assert ablation.objective.temperature == original.objective.temperature
    assert ablation.model_copy(update={"objective": original.objective}) == original


def test_seeds_are_trainings_of_their_own_and_one_row():
    raw = changed("experiments/demo-revela/seeds", 3)
    raw["experiments"]["demo-revela"]["seed"] = 4
    raw["experiments"]["ablation"] = {"base": "demo-revela", "seeds": 1}
    config = parse_config(raw, "demo.yaml")
    names = ["demo-revela", "demo-revela-seed5", "demo-revela-seed6"]
    assert config.seeds_of("demo-revela") == names
    assert [config.experiments[name].seed for name in names] == [4, 5, 6]
    same = {config.experiments[name].model_copy(update={"seed": 0}).dump() for name in names}
    assert len(same) == 1
    assert config.seeds_of("demo-revela@12") == [
        "demo-revela@12",
        "demo-revela-seed5@12",
        "demo-revela-seed6@12",
    ]
    assert config.seeds_of("ablation") == ["ablation"]
    assert config.seeds_of("bm25") == ["bm25"]
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
    with pytest.raises(
        RevelaError, match=r"demo-revela-seed1: the name is taken by seed 1 of 'demo-"
    ):
        parse_config(raw, "x")


def test_settings_do_not_depend_on_the_order_of_keys():
    turned = dict(reversed(DEMO["experiments"]["demo-revela"].items()))
    for name in DEMO["experiments"]:
        settings = parse_config(changed("experiments/demo-revela", turned), "x").experiments[name]
        assert settings.dump() == parse_config(DEMO, "x").experiments[name].dump()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a", ("a", None, None)),
        ("a@0", ("a", None, 0)),
        ("a-seed2", ("a", 2, None)),
        ("a-seed2@100", ("a", 2, 100)),
        ("a-seed-b", ("a-seed-b", None, None)),
        ("", ("", None, None)),
    ],
)
def test_names_of_trained_retrievers(name, parts):
    parsed = ModelName.parse(name)
    assert (parsed.experiment, parsed.seed, parsed.step) == parts
    assert str(parsed) == name
    assert parsed.training == name.partition("@")[0]


def test_what_a_model_reference_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    kinds = {
        "small": "entry",
        "./nowhere": "folder",
        "/abs/folder": "folder",
        "~/folder": "folder",
        "mine/new": "folder",
        "results/models/x": "folder",
        "org/name": "hub",
    }
    for name, kind in kinds.items():
        ref = ModelRef(name)
        assert (ref.is_entry, ref.is_folder, ref.is_hub_name) == (
            kind == "entry",
            kind == "folder",
            kind == "hub",
        ), name


def test_an_entry_knows_what_it_uses():
    raw = changed("experiments/demo-revela/retriever", "small")
    config = parse_config(raw, "demo.yaml")
    used = {(name.section, str(name)) for name in references(config.experiments["demo-revela"])}
    assert used == {
        ("batches", "python-packages"),
        ("backbones", "small"),
        ("language_models", "data/backbone"),
    }
    assert config.inputs("experiments", "demo-revela") == {
        "data": "results/batches/python-packages.parquet",
        "retriever": "results/models/small/model.safetensors",
    }
    assert config.inputs("models", "demo-revela@8") == {
        "trained": "results/models/demo-revela/retriever",
        "retriever": "results/models/small/model.safetensors",
    }
    assert config.resolved("experiments", "demo-revela").retriever == "results/models/small"
    assert config.resolved("models", "demo-revela@8").retriever.endswith("demo-revela/steps/8")
    contriever = config.inputs("experiments", "demo-contriever")
    assert contriever["data"] == "results/pairs/python-packages.parquet"


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
    ]
    rows = parse_config(raw, "demo.yaml").tables["demo"].rows
    assert [(row.label, row.model) for row in rows] == [
        ("bm25", ["bm25"]),
        ("Ours, demo-revela", ["demo-revela"]),
        ("Ours, demo-revela-warm", ["demo-revela-warm"]),
        ("demo-sweep-seed-3", ["demo-sweep-seed-3"]),
        ("demo-sweep-seed-4", ["demo-sweep-seed-4"]),
    ]
    raw["tables"]["demo"]["rows"] = ["demo-revel-*"]
    with pytest.raises(RevelaError, match="rows: no experiment or model matches 'demo"):
        parse_config(raw, "demo.yaml")
    raw["tables"]["demo"]["rows"] = ["demo-revel"]
    with pytest.raises(RevelaError, match="unknown model or experiment 'demo-revel'; did you"):
        parse_config(raw, "demo.yaml")


def test_a_mistake_that_others_inherit_counts_once():
    raw = changed("experiments/demo-revela/steps", 0)
    raw["experiments"]["a"] = raw["experiments"]["b"] = {"base": "demo-revela"}
    with pytest.raises(RevelaError, match=r"demo-revela.steps: .*; got 0$"):
        parse_config(raw, "c")
    raw["experiments"]["a"] = {"base": "demo-revela", "seed": -1}
    with pytest.raises(RevelaError, match=r"demo-revela.steps: .*; got 0 \(and 1 more\)$"):
        parse_config(raw, "c")


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A config with local files of every kind, all of which exist."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for file in (
        *("texts/a.txt", "ready.jsonl", "mine/t/corpus.jsonl.gz", "mine/t/queries.jsonl"),
        *("mine/t/qrels/test.tsv", "model/config.json", "model/model.safetensors"),
        *("model/tokenizer.json", "adapter/adapter_config.json", "adapter/a.safetensors"),
    ):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text("{}")
    return {
        "corpora": {"c": {"source": "files", "path": "~/texts"}},
        "batches": {"b": {"file": "ready.jsonl", "source": "c"}},
        "benchmarks": {"m": {"source": "folder", "path": "mine", "tasks": ["t"]}},
        "models": {"x": {"kind": "encoder", "retriever": "./model", "adapter": "~/adapter"}},
    }


def test_local_models_are_known_by_their_content(local, tmp_path):
    config = parse_config(local, "c")
    check_local(config)
    assert config.corpora["c"].path == str(tmp_path / "texts")
    assert config.local_models("models", "x") == [Path("model"), tmp_path / "adapter"]
    weights = Path("model/model.safetensors")
    weights.write_bytes(bytes(10_000_000))
    before = fingerprint(Path("model"))
    os.utime(weights)
    shutil.copytree("model", "copy")
    assert fingerprint(Path("copy")) == fingerprint(Path("model")) == before
    weights.write_bytes(bytes(5_000_000) + b"x" * 5_000_000)
    fingerprint.cache_clear()  # results are cached per process
    assert fingerprint(Path("model")) != before
    weights.write_bytes(bytes(10_000_000))
    Path("model/special_tokens.json").touch()
    fingerprint.cache_clear()
    assert fingerprint(Path("model")) != before


def test_a_retriever_of_this_config_may_be_given_by_its_folder(local):
    folder = "results/models/demo-revela/steps/12"
    raw = changed("models/again", {"kind": "encoder", "retriever": folder})
    raw["models"]["elsewhere"] = {"kind": "encoder", "retriever": "results/models/other/retriever"}
    config = parse_config(raw, "c")
    trained = "results/models/demo-revela/retriever"
    assert config.inputs("models", "again") == {"retriever": trained}
    assert config.local_models("models", "again") == []
    # Of another config: known by its content, as any folder.
    assert config.inputs("models", "elsewhere") == {}
    assert config.local_models("models", "elsewhere") == [Path("results/models/other/retriever")]


def test_a_language_model_may_come_from_another_experiment():
    config = changed("experiments/demo-revela/language_model", "reader")
    config["experiments"]["reader"] = DEMO["experiments"]["demo-revela"]
    config = parse_config(config, "x.yaml")
    resolved = config.resolved("experiments", "demo-revela")
    assert resolved.language_model == "results/models/reader/language_model"
    needed = config.inputs("experiments", "demo-revela")
    assert needed["language_model"] == "results/models/reader/retriever"
    assert "language_model" not in config.inputs("experiments", "reader")
