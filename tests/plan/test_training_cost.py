"""The table of training costs, and the paper's claims about them."""

import csv
import json
from pathlib import Path

import pytest

from revela.config import Config, load_config, parse_config
from revela.config.read import read_yaml
from revela.config.settings import parse_settings
from revela.plan import commands
from revela.plan.training_cost import check_claims, render, training_costs
from tests.report.common import check_latex

ROOT = Path(__file__).parents[2]


@pytest.fixture
def paper(monkeypatch, tmp_path):
    """Return the settings of the paper's table, and change to a folder without results."""
    monkeypatch.chdir(ROOT)
    settings = load_config(Path("config.yaml")).resolved("costs", "training_cost").dump()
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    return parse_settings(Config, settings)


def costs_of(config, results=Path("results")):
    entry = config.costs["training_cost"]
    return entry, training_costs(config, entry, results, Path("data/paper"))


def read(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def write_manifest(model, **facts):
    path = Path("results/models") / model / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(facts))


def test_costs_are_modelled_without_results(paper):
    entry, costs = costs_of(paper)
    rows = costs.set_index("training")
    assert list(rows["label"].items()) == entry.experiments
    of_1b = rows.loc["revela-wiki-1b"]
    assert (of_1b["batches"], of_1b["texts"]) == (320_000, 5_120_000)
    assert of_1b["tokens"] == 5_120_000 * 157
    # Six operations per weight and token: the retriever encodes a chunk and its first half, the
    # language model computes e and h, and the head only h.
    weights, head = 973_078_528, 128_256 * 2048
    operations = 6 * (1.5 * weights + 2 * weights + head)
    assert of_1b["eflop"] == pytest.approx(5_120_000 * 157 * operations / 1e18, rel=1e-3)
    assert of_1b["modelled_gpu_hours"] == pytest.approx(4 * 44, rel=0.2)
    assert rows.loc["revela-code-1b", "modelled_gpu_hours"] == pytest.approx(4 * 48, rel=0.2)
    assert rows.loc["revela-wiki-3b", "texts"] == 320_000 * 8
    assert rows.loc["replug-wiki-1b", "batches"] == 4500 * 32
    reported = rows["reported_gpu_hours"]
    assert reported["revela-wiki-3b"] == 176  # its smaller batches are split from the reported ones
    assert reported["revela-code-0.1b"] == 192
    assert reported.filter(like="replug").isna().all()
    assert rows["measured_gpu_hours"].isna().all()


def test_measured_hours_come_from_manifests(paper):
    write_manifest("revela-wiki-3b", gpu_hours=150.25, gpu="NVIDIA A100", gpus=4, settings={})
    write_manifest("revela-wiki-1b", gpu_hours=0.0, gpu=None, gpus=0, settings={})  # on a CPU
    files = Path("out/training_cost.csv")
    commands.cost(paper, files, Path("data/paper"))
    rows = {row["training"]: row for row in read(files)}
    assert rows["revela-wiki-3b"]["measured_gpu_hours"] == "150.25"
    assert rows["revela-wiki-1b"]["measured_gpu_hours"] == ""
    markdown = files.with_suffix(".md").read_text()
    (line,) = [line for line in markdown.splitlines() if line.startswith("| Revela 3B")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:5] == ["wikipedia-bs8", "320,000", "2.56", "402"]
    assert cells[7:] == ["150.2", "NVIDIA A100", "176"]
    claims = read(Path("out/training_cost_claims.csv"))
    (measured,) = [claim for claim in claims if "measured here" in claim["compared"]]
    assert float(measured["ratio"]) == pytest.approx(64 * 48 / 150.25)
    assert measured["verdict"] == "more than claimed"


def test_claims_of_the_paper_are_checked(paper, tmp_path):
    entry, costs = costs_of(paper)
    claims = check_claims(entry, costs)
    ratios = [270e6 / 339_409, 270e6 / 320_000, 540e6 / 2.56e6, 64 * 48 / 176, 1231 / 176]
    assert list(claims["ratio"][:5]) == pytest.approx(ratios)
    assert claims["ratio"][5:].isna().all()
    assert list(claims["verdict"]) == [
        *["as claimed"] * 2, "less than claimed", *["as claimed"] * 2, *["not checkable"] * 2
    ]  # fmt: skip
    for table in render(entry, costs, claims)[1].split("\\end{table}\n")[:-1]:
        check_latex(f"{table}\\end{{table}}\n", tmp_path)


def test_settings_change_only_with_the_trainings_of_the_table(monkeypatch):
    monkeypatch.chdir(ROOT)
    raw = read_yaml(Path("config.yaml"))
    config = parse_config(raw, "config.yaml")
    settings = config.resolved("costs", "training_cost").dump()
    trained = config.inputs("costs", "training_cost")
    assert trained["revela-wiki-3b"] == "results/models/revela-wiki-3b/retriever"
    assert len(trained) == 13
    raw["experiments"]["revela-fineweb-1b"]["seed"] = 7
    assert parse_config(raw, "config.yaml").resolved("costs", "training_cost").dump() == settings
    raw["experiments"]["revela-wiki-3b"]["steps"] = 7000
    assert parse_config(raw, "config.yaml").resolved("costs", "training_cost").dump() != settings
