"""Configuration: every mistake gives one line with file, key, value and allowed values."""

import os
import re
import shutil
from pathlib import Path

import mteb
import pytest

from revela.common.errors import RevelaError
from revela.common.files import digest
from revela.config import load_config, parse_config
from revela.config.names import ModelName, ModelRef, references
from revela.config.settings import parse_settings
from revela.config.training import RevelaObjective
from revela.retriever.source import Source
from revela.start.local import check_local
from tests.config.common import DEMO, ROOT, SHARED, changed


@pytest.mark.parametrize("path", [*ROOT.glob("config*.yaml"), ROOT / "data/backbones/corpora.yaml"])
def test_shipped_configs_are_valid(path):
    assert load_config(path).corpora


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
            # The authors' code normalises the values of every Qwen2 language model.
            qwen = "Qwen" in experiment.language_model and not name.endswith("-as-written")
            value_norm = not on_code or qwen or name.endswith("-v-norm")
            assert (objective.temperature, objective.value_norm) == (1e-4, value_norm)
            assert (experiment.learning_rate, experiment.steps) == (1e-4, None)


def test_backbones_and_corpora_are_pinned():
    """All but Wikipedia, whose commit the authors do not name; CodeRAG-Bench as mteb has it."""
    config = load_config(ROOT / "config.yaml")
    released = (model for name, model in config.models.items() if name.startswith("released-"))
    for entry in (*config.experiments.values(), *released):
        for model in (entry.retriever, getattr(entry, "language_model", None)):
            if isinstance(model, ModelRef) and model.is_hub_name:
                assert re.fullmatch(r".+@[0-9a-f]{40}", model), model
    assert {name for name, corpus in config.corpora.items() if not corpus.revision} == {"wikipedia"}
    for task in ("StackoverflowPosts", "LibraryDocumentationSolutions", "OnlineTutorials"):
        data = mteb.get_task(f"CodeRAG{task}").metadata.dataset
        pinned = {c.revision for c in config.corpora.values() if c.dataset == data["path"]}
        assert pinned == {data["revision"]}


def test_steps_are_those_of_the_paper():
    """10,000 on Wikipedia and 11,211 on code, for batches of 16, 8 and 4; REPLUG has 4,500."""
    config = load_config(Path("config.yaml"))

    def batches(name):
        entry = config.batches[name]
        if not entry.sample_from:
            return getattr(entry.num_batches, "first", entry.num_batches)
        whole = config.batches[next(iter(entry.sample_from))].batch_size
        split = whole // entry.batch_size if entry.oversized == "split" else 1
        return split * sum(entry.sample_from.values())

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
    bright, official = (config.tables[name].rows for name in ("bright", "bright_official"))
    copied = {row.reported for row in bright if not row.model}
    makers = {name.partition("-")[0] for name in copied}
    assert makers == {"BM25", "E5", "Cohere", "OpenAI", "Voyage"}
    assert {row.reported for row in official if row.model and row.reported} == copied
    suite = config.benchmarks["bright-official"]
    assert set(suite.instructions) == set(suite.tasks)
    assert suite.max_length == config.models["e5-mistral"].max_length == 4096
    assert list(config.task("BrightPonyRetrieval").instructions) == ["BrightPonyRetrieval"]


def test_the_study_matches_chunks_and_steps():
    config = load_config(ROOT / "config.study.yaml")
    for name, experiment in config.experiments.items():
        size = 1 if experiment.data in config.pairs else config.batches[experiment.data].batch_size
        steps = 400 if name.startswith("study-long-") else 32
        seeds = 1 if name.startswith(("study-long-", "study-choice")) else 3
        assert (size * experiment.batches_per_step, experiment.steps) == (64, steps), name
        assert len(config.seeds_of(ModelName.parse(name).experiment)) == seeds, name


def test_prefixes_have_names():
    explicit = {"query_prefix": "Q: ", "pooling": "cls"}
    raw = changed("models/mine", {"base": "demo-untouched", "encoding": explicit})
    raw["models"]["renamed"] = {"base": "mine", "encoding": {"prefixes": "train"}}
    half = {"prefixes": "authors", "query_prefix": "Q: "}
    raw["models"]["half"] = {"base": "renamed", "encoding": half}
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


def test_a_new_key_leaves_the_settings_of_earlier_trainings_as_they_were():
    earlier = RevelaObjective(name="revela", value_norm=True)
    assert earlier.dump() == '{"name": "revela"}'
    joint = RevelaObjective(name="revela", reading="joint")
    assert not joint.value_norm
    assert parse_settings(RevelaObjective, joint.dump()) == joint


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
        ("a-seed01@5", ("a-seed01", None, 5)),
        ("a@05", ("a@05", None, None)),
        ("", ("", None, None)),
    ],
)
def test_names_of_trained_retrievers(name, parts):
    parsed = ModelName.parse(name)
    assert (parsed.experiment, parsed.seed, parsed.step) == parts
    assert str(parsed) == name
    assert parsed.training == name.removesuffix(f"@{parsed.step}")


def test_what_a_model_reference_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    assert ModelRef("small").is_entry
    assert ModelRef("org/name").is_hub_name
    assert ModelRef("org/name@v1").is_hub_name
    for name in ("./nowhere", "/abs/folder", "~/folder", "mine/new", "mine", "results/models/x"):
        ref = ModelRef(name)
        assert (ref.is_entry, ref.is_folder, ref.is_hub_name) == (False, True, False), name


def test_an_entry_knows_what_it_uses():
    config = parse_config(DEMO, "demo.yaml")
    used = {(name.section, str(name)) for name in references(config.experiments["demo-revela"])}
    assert used == {("batches", "python-packages"), ("", "data/backbones/5m")}
    data = "results/batches/python-packages.parquet"
    assert config.inputs("experiments", "demo-revela") == {"data": data}
    trained = "results/models/demo-revela/retriever"
    assert config.inputs("models", "demo-revela@8") == {"trained": trained}
    assert config.resolved("models", "demo-revela@8").retriever.endswith("demo-revela/steps/8")
    contriever = config.inputs("experiments", "demo-contriever")
    assert contriever["data"] == "results/pairs/python-packages.parquet"


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A config with local files of every kind, all of which exist."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("data").symlink_to(ROOT / "data")
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
    before = Source("model").fingerprint()
    os.utime(weights)
    shutil.copytree("model", "copy")
    assert Source("copy").fingerprint() == Source("model").fingerprint() == before
    weights.write_bytes(bytes(5_000_000) + b"x" * 5_000_000)
    assert Source("model").fingerprint() != before
    weights.write_bytes(bytes(10_000_000))
    Path("model/special_tokens.json").touch()
    assert Source("model").fingerprint() != before


def test_a_replaced_text_of_equal_size_and_age_is_another(tmp_path):
    texts = tmp_path / "a.txt"
    found = []
    for content in (b"one", b"two", b"one"):
        texts.write_bytes(content)
        os.utime(texts, (0, 0))
        found.append(digest((texts,)))
    assert found[0] == found[2] != found[1]


def test_a_retriever_of_this_config_may_be_given_by_its_folder(local):
    folder = "results/models/demo-revela/steps/8"
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


def test_a_hybrid_is_tuned_on_other_tasks_only(monkeypatch):
    both = {"kind": "hybrid", "of": ["bm25", "demo-revela"]}
    raw = changed("models/both", both)
    raw["models"] |= {"elsewhere": both | {"tuned_on": "hub"}}
    raw["models"]["api"] = {"kind": "api", "name": "x", "key": "SOME_KEY"}
    raw["models"]["with-api"] = both | {"of": ["bm25", "demo-revela", "api"]}
    raw["benchmarks"]["hub"] = SHARED
    raw["tables"]["demo"]["rows"] += ["both", "with-api"]
    config = parse_config(raw, "c")
    one, *others = config.benchmarks["pydocs"].tasks
    assert config.tuning_tasks("both", one) == others
    assert config.tuning_tasks("elsewhere", one) == SHARED["tasks"]
    inputs = config.fused("both", one)
    assert inputs[f"bm25/{others[0]}"] == f"results/runs/bm25/{others[0]}.trec"
    assert inputs[f"demo-revela/{one}"] == f"results/runs/demo-revela/{one}.trec"
    assert {name for name in inputs if "/" not in name} == set(others)
    assert len(inputs) == 2 * 3 + 2
    assert config.targets()[f"results/scores/both/{one}.json"] == ("scores", "both", one)
    monkeypatch.delenv("SOME_KEY", raising=False)
    assert config.table("demo").rows[-2].model == ["both"]
    assert config.table("demo").rows[-1].model == []
