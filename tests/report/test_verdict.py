"""What `revela run` says in words of a table with `compared_to`."""

import json
from pathlib import Path

import pytest

from revela.config.read import parse_config
from revela.report.verdict import verdict

TRAINED = {"objective": {"name": "contriever"}, "data": "t", "retriever": "my/start"}
ENCODER = {"kind": "encoder", "retriever": "my/start"}
HYBRID = {"kind": "hybrid", "of": ["bm25", "start", "one", "two"], "tuned_on": "tune"}
SUITE = {"source": "texts", "corpus": "t", "tasks": {"mine": "halves"}}
NAMES = {"start": "Start", "other": "Other", "one": "One", "two": "Two", "best": "Best"}
CONFIG = {
    "corpora": {"t": {"source": "files", "path": "my texts"}},
    "pairs": {"t": {"corpora": ["t"]}},
    "experiments": {"one": TRAINED, "two": TRAINED},
    "models": {"bm25": {"kind": "bm25s"}, "start": ENCODER, "other": ENCODER, "best": HYBRID},
    "benchmarks": {"t": SUITE, "tune": SUITE | {"tasks": {"tuning": "halves"}}},
    "tables": {
        "t": {
            "caption": "c",
            "benchmark": "t",
            "compared_to": "start",
            "rows": [{"label": label, "model": name} for name, label in NAMES.items()],
        }
    },
}


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Write the differences of systems as (difference, p), and the hybrid's choice."""
    monkeypatch.chdir(tmp_path)

    def say(chosen: str, tuned_on: str = "tuning", **differences: tuple[float, float]) -> str:
        lines = ["system,column,score,difference,difference_low,difference_high,p"]
        lines += ["Start,Mean,50,,,,"]
        for name, (gain, p) in differences.items():
            lines += [f"{NAMES[name]},Mean,{50 + gain},{gain},{gain - 1},{gain + 1},{p}"]
        for folder in ("results/tables", "results/scores/best"):
            Path(folder).mkdir(parents=True, exist_ok=True)
        Path("results/tables/t_significance.csv").write_text("\n".join(lines))
        fused = {"fused": {"retriever": chosen, "weight": 0.5, "tuned_on": [tuned_on]}}
        Path("results/scores/best/mine.json").write_text(json.dumps(fused))
        return verdict(parse_config(CONFIG, "c.yaml"), "t")

    return say


def test_a_gain_is_told_with_the_commands_that_come_next(said):
    text = said("one", one=(2.0, 0.03), two=(3.0, 0.001))
    first, *others = text.splitlines()
    gain = "nDCG@10: Start 50.0; One 52.0, +2.0 (+1.0 to +3.0), p = 0.03."
    assert (
        first == f"t: by tasks cut from the texts, adapting Start is worth it. {gain}"
    )  # not of the best reported one
    assert others[1:3] == [
        "  revela export results/models/one/retriever t-encoder",
        "  revela index 'my texts' --model t-encoder --output t-index",
    ]
    compared = "--model my/start --model results/models/one/retriever --output t-both"
    assert f"  revela index 'my texts' {compared}" in others
    assert "  revela search t-both --queries FILE --compare" in others
    assert "--collection" in text


def test_real_queries_count_more_than_tasks_cut_from_the_texts(said, monkeypatch):
    real = {"source": "folder", "path": ".", "tasks": ["real"]}
    monkeypatch.setitem(CONFIG["benchmarks"], "r", real)
    monkeypatch.setitem(CONFIG["tables"], "r", CONFIG["tables"]["t"] | {"benchmark": "r"})
    text = said("one", one=(5.0, 0.001))
    assert text.endswith("p = 0.001. The table r, of real queries, decides.")
    Path("results/tables/t_significance.csv").rename("results/tables/r_significance.csv")
    text = verdict(parse_config(CONFIG, "c.yaml"), "r")
    assert text.startswith("r: adapting Start is worth it. ")
    assert text.endswith("\n  revela index 'my texts' --model t-encoder --output t-index")


@pytest.mark.parametrize(
    ("chosen", "difference", "says"),
    [
        ("one", (0.6, 0.9), "is not shown to be worth it: the difference may be chance. "),
        ("one", (-3.0, 0.001), "makes it worse. "),
        ("start", (1.0, 0.4), "is not worth it: Start was at least as good on the queries that "),
    ],
)
def test_no_gain_is_told_as_plainly(said, chosen, difference, says):
    text = said(chosen, one=difference, two=(0.1, 0.9))
    assert text.startswith(f"t: by tasks cut from the texts, adapting Start {says}")
    assert f"One {50 + difference[0]:.1f}, {difference[0]:+.1f} (" in text
    assert ("Two 50.1" in text) == (chosen == "start")
    assert "\nNext:\n  revela index 'my texts' --model my/start --output t-index\n" in text
    assert "revela export" not in text


@pytest.mark.parametrize("chosen", ["two", "start"])
def test_a_gain_that_the_table_shows_is_not_hidden_by_the_choice(said, chosen):
    text = said(chosen, one=(2.4, 0.0004), two=(1.2, 0.08))
    assert "adapting Start is worth it. nDCG@10: Start 50.0; One 52.4, +2.4 (" in text
    assert "revela export results/models/one/retriever" in text


def test_a_better_encoder_is_named(said):
    text = said("one", one=(2.0, 0.003), other=(4.0, 0.001))
    assert "Other 54.0, +4.0 (+3.0 to +5.0), p = 0.001. Other is the better start" in text


def test_a_hybrid_that_gains_is_named_even_if_adapting_does_not(said):
    text = said("one", one=(2.0, 0.2), best=(9.0, 0.001))
    assert text.startswith(
        "t: by tasks cut from the texts, adapting Start is not shown to be worth it"
    )
    assert "One 52.0, +2.0 (+1.0 to +3.0), p = 0.2; Best 59.0, +9.0 (+8.0 to +10.0)" in text


def test_a_choice_on_queries_of_the_table_is_no_choice(said):
    text = said("one", "mine", one=(2.0, 0.2), two=(3.0, 0.3))
    assert text.startswith(
        "t: by tasks cut from the texts, adapting Start is not shown to be worth it"
    )  # by the adjusted p
    assert "Two 53.0, +3.0" in text


def test_a_table_without_its_adapted_systems_says_nothing(said):
    assert said("start", other=(1.0, 0.5)) == ""
