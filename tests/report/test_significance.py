"""Intervals and significance tests, compared with plain loops on small tables."""

import io
import itertools
import math
import statistics
from statistics import mean

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from revela.config.report import Table
from revela.report import significance, tables
from tests.report.common import check_latex, write_score

# Two systems; one task has one subset, the other has two of different sizes.
QUERIES = {
    "one": {"a": {"": [0.9, 0.2, 0.7, 0.4]}, "b": {"s/x": [0.5, 1.0], "s/y": [0.3, 0.6, 0.8]}},
    "two": {"a": {"": [0.5, 0.3, 0.6, 0.1]}, "b": {"s/x": [0.4, 0.6], "s/y": [0.1, 0.7, 0.3]}},
}
COLUMNS = {"a": "a", "b": "b", "y": "b:s/y", "both": ["a", "b"]}


def write_queries(folder, system, tasks):
    for task, subsets in tasks.items():
        write_score(folder, system, task, mean(map(mean, subsets.values())))
        with (folder / system / f"{task}.queries.csv").open("w") as stream:
            stream.write("subset,query,ndcg_at_10\n")
            for subset, values in subsets.items():
                stream.writelines(f"{subset},q{n},{value}\n" for n, value in enumerate(values))


def table_of(*systems, columns=COLUMNS, **changes):
    rows = [{"label": system, "model": system} for system in systems]
    return Table.model_validate({"caption": "c", "columns": columns, "rows": rows} | changes)


@pytest.fixture
def scores(tmp_path):
    for system, tasks in QUERIES.items():
        write_queries(tmp_path, system, tasks)
    return tmp_path


def score(tasks, column):
    """Return a column's score as README defines it: a mean of means, × 100."""
    values = []
    for entry in [COLUMNS[column]] if isinstance(COLUMNS[column], str) else COLUMNS[column]:
        task, _, subset = entry.partition(":")
        subsets = [v for name, v in tasks[task].items() if subset in ("", name)]
        values.append(mean(map(mean, subsets)))
    return 100 * mean(values)


def flat(tasks):
    return [value for subsets in tasks.values() for values in subsets.values() for value in values]


def unflat(values):
    """Return values, in the order of `flat`, as tasks; the inverse of `flat`."""
    values = iter(values)
    return {
        task: {subset: [next(values) for _ in old] for subset, old in subsets.items()}
        for task, subsets in QUERIES["one"].items()
    }


def test_scores_are_weighted_sums_over_queries(scores):
    found = significance.analyse(table_of("one", "two"), scores, resamples=10)
    for system, tasks in QUERIES.items():
        expected = {column: score(tasks, column) for column in COLUMNS}
        expected["Mean"] = mean(expected.values())
        lines = found[found["system"] == system].set_index("column")
        assert lines["score"].to_dict() == pytest.approx(expected)
        assert lines["queries"].to_dict() == {"a": 4, "b": 5, "y": 3, "both": 9, "Mean": 9}


def test_p_matches_that_of_all_sign_flips(scores):
    found = significance.analyse(table_of("one", "two"), scores)
    p_values = found[found["system"] == "two"].set_index("column")["p"]
    differences = np.subtract(flat(QUERIES["one"]), flat(QUERIES["two"]))
    flips = [unflat(differences * signs) for signs in itertools.product((1, -1), repeat=9)]
    observed = unflat(differences)
    for column in (*COLUMNS, "Mean"):

        def statistic(tasks, column=column):
            columns = COLUMNS if column == "Mean" else [column]
            return abs(mean(score(tasks, name) for name in columns))

        reached = [statistic(flip) >= statistic(observed) - 1e-9 for flip in flips]
        assert p_values[column] == pytest.approx(np.mean(reached), abs=0.02), column
    assert found[found["system"] == "one"]["p"].isna().all()
    assert set(found[found["system"] == "two"]["compared_to"]) == {"one"}


def test_intervals_match_a_stratified_bootstrap(scores):
    found = significance.analyse(table_of("one"), scores).set_index("column")
    a, b = QUERIES["one"]["a"], QUERIES["one"]["b"]
    expected = scipy.stats.bootstrap(
        (a[""], b["s/x"], b["s/y"]),
        lambda a, x, y, axis: 50 * (a.mean(axis) + (x.mean(axis) + y.mean(axis)) / 2),
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert [*found.loc["both", ["ci_low", "ci_high"]]] == pytest.approx([*expected], abs=1.5)


def test_resampling_in_batches_gives_the_same_result(scores, monkeypatch):
    table = table_of("one", "two")
    whole = significance.analyse(table, scores)
    assert whole.equals(significance.analyse(table, scores))
    monkeypatch.setattr(significance, "_CELLS", 40)
    parts = significance.analyse(table, scores)
    for column, tolerance in (("p", 0.03), ("ci_low", 2), ("ci_high", 2)):
        np.testing.assert_allclose(parts[column], whole[column], rtol=0, atol=tolerance)


def test_p_is_adjusted_for_several_comparisons(tmp_path):
    assert significance.holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    assert significance.holm(np.array([0.9, 0.5])) == pytest.approx([1, 1])
    random = np.random.default_rng(0)
    base = random.random(60)
    values = {"best": base, "near": base - 0.06 * random.normal(0.2, 1, 60), "far": base / 2}
    for system, row in values.items():
        write_queries(tmp_path, system, {"a": {"": row.tolist()}})
    pair = significance.analyse(table_of("best", "near", columns={"a": "a"}), tmp_path)
    three = significance.analyse(table_of(*values, columns={"a": "a"}), tmp_path)
    alone = pair.set_index(["column", "system"])["p"]["a", "near"]
    adjusted = three.set_index(["column", "system"])["p"]["a"]
    assert alone > 1e-3
    assert adjusted["near"] == pytest.approx(max(alone, adjusted["far"]))
    assert adjusted["far"] == pytest.approx(2 / 10_001)


def test_systems_are_compared_to_the_best_of_their_scope(tmp_path):
    for number, system in enumerate("wxyz"):
        write_queries(tmp_path, system, {"a": {"": [0.1 * number, 0.2, 0.3]}})
    rows = [{"label": s, "model": s, "group": g} for s, g in zip("wxyz", "ggHH", strict=True)]
    table = table_of(columns={"a": "a"}, rows=rows, bold="group")
    found = significance.analyse(table, tmp_path, resamples=99).set_index("system")
    assert found["compared_to"].iloc[:4].to_dict() == {"w": "x", "x": "", "y": "z", "z": ""}
    rows = [row | {"ranked": row["label"] != "z"} for row in rows]
    table = table_of(columns={"a": "a"}, rows=rows)
    found = significance.analyse(table, tmp_path, resamples=99).set_index("system")
    assert found["compared_to"].iloc[:4].to_dict() == {"w": "y", "x": "y", "y": "", "z": ""}
    assert found["ci_low"].notna().all()


def test_differences_to_a_chosen_system(tmp_path):
    random = np.random.default_rng(0)
    base = random.random(80) * 0.8
    values = {"start": base, "better": base + 0.1, "noisy": base + random.normal(0, 0.1, 80)}
    for system, row in values.items():
        write_queries(tmp_path, system, {"a": {"": row.tolist()}})
    table = table_of(*values, columns={"a": "a"}, compared_to="start")
    analysis = significance.analyse(table, tmp_path)
    means = analysis[analysis["column"] == "Mean"].set_index("system")
    assert means["compared_to"].to_dict() == {"start": "", "better": "start", "noisy": "start"}
    assert means.loc["better", "difference"] == pytest.approx(10)
    assert means.loc["better", "difference_low"] == pytest.approx(10)  # each query gains as much
    noise = 100 * (values["noisy"] - base)
    expected = noise.mean() - 1.96 * noise.std() / math.sqrt(80)
    assert means.loc["noisy", "difference_low"] == pytest.approx(expected, abs=0.3)
    assert means.loc["better", "p"] == pytest.approx(2 / 10_001)
    markdown = tables.to_markdown(table, tables.compile_table(table, tmp_path), analysis)
    assert "| 95% interval | Difference to start |" in " ".join(markdown.split())
    assert "+10.0 (+10.0 to +10.0), p = 0.0002 |" in markdown
    assert "‡" not in markdown
    latex = tables.to_latex(table, tables.compile_table(table, tmp_path), analysis)
    check_latex(latex, tmp_path)
    with pytest.raises(ValueError, match="no row has the model 'other'"):
        table_of("start", compared_to="other")


def test_a_system_of_several_seeds_is_their_mean(scores):
    rows = [{"label": "both", "model": ["one", "two"]}, {"label": "one", "model": "one"}]
    found = significance.analyse(table_of(rows=rows), scores, resamples=2_000)
    found = found.set_index(["system", "column"])
    for column in COLUMNS:
        each = [score(tasks, column) for tasks in QUERIES.values()]
        line = found.loc["both", column]
        assert line["score"] == pytest.approx(mean(each))
        assert line["std"] == pytest.approx(statistics.stdev(each))
        assert math.isnan(found.loc["one", column]["std"])
    # The interval is that of each query's mean over the seeds.
    mean_Q = [*map(mean, zip(*(tasks["a"][""] for tasks in QUERIES.values()), strict=True))]
    spread = statistics.pstdev(mean_Q) / math.sqrt(len(mean_Q))
    line = found.loc["both", "a"]
    assert line["ci_high"] - line["ci_low"] == pytest.approx(100 * 2 * 1.96 * spread, rel=0.2)


def test_columns_without_query_scores_are_skipped(scores):
    (scores / "two" / "a.queries.csv").unlink()
    rows = [{"label": "both", "model": ["one", "two"]}, {"label": "one", "model": "one"}]
    for table, lacking in ((table_of("one", "two"), "two"), (table_of(rows=rows), "both")):
        found = significance.analyse(table, scores, resamples=9)
        assert set(found[found["system"] == lacking]["column"]) == {"b", "y"}
        assert not found[found["column"] == "a"]["p"].notna().any()
    (scores / "one" / "a.queries.csv").unlink()
    found = significance.analyse(table_of("one", "two"), scores, resamples=9)
    assert set(found["column"]) == {"b", "y"}
    other = table_of("one", "two", measure="recall_at_100")
    assert list(significance.analyse(other, scores)) == significance.COLUMNS


@pytest.mark.parametrize("transposed", [False, True])
def test_a_best_score_that_is_not_significant_is_marked(tmp_path, transposed):
    values = np.linspace(0.3, 0.8, 40)
    for system, *rows in (("one", values + 0.2, values), ("two", values, values[::-1] - 0.001)):
        tasks = zip(("clear", "unclear"), rows, strict=True)
        write_queries(tmp_path, system, {task: {"": row.tolist()} for task, row in tasks})
    columns = {"clear": "clear", "unclear": "unclear"}
    table = table_of("one", "two", columns=columns, transposed=transposed)
    frame = tables.compile_table(table, tmp_path)
    analysis = significance.analyse(table, tmp_path)
    assert significance.undecided(analysis) == {("one", "unclear"), ("two", "unclear")}
    markdown = tables.to_markdown(table, frame, analysis)
    assert "**75.0** |" in markdown
    assert "**55.0**‡ |" in markdown
    assert markdown.count("‡") == 2  # the mark and its note
    latex = tables.to_latex(table, frame, analysis)
    assert "\\textbf{55.0}$^{\\ddagger}$" in latex
    check_latex(latex, tmp_path)
    assert "‡" not in tables.to_csv(frame)
    assert "‡" not in tables.to_markdown(table, frame)
    plain = table.model_copy(update={"bold": "none"})
    assert "‡" not in tables.to_markdown(plain, frame, analysis)


def test_an_analysis_that_is_read_again_rounds_as_it_did_before():
    """4.946 as 4.95 would be 5.0 in words and 4.9 in the table."""
    line = dict.fromkeys(significance.COLUMNS, 4.946)
    read = pd.read_csv(io.StringIO(tables.analysis_to_csv(pd.DataFrame([line]))))
    assert f"{read['difference'][0]:.1f}" == "4.9"


def test_nothing_is_marked_without_a_comparison(scores):
    alone = significance.analyse(table_of("one"), scores, resamples=9)
    empty = significance.analyse(table_of("none"), scores)
    assert significance.undecided(alone) == significance.undecided(empty) == set()
    assert tables.analysis_to_csv(empty) == ",".join(significance.COLUMNS) + "\n"


def test_the_next_best_system_decides_whether_the_best_is_marked():
    """Not the one with the smallest or the largest p."""
    lines = [("best", 60.0, "", np.nan), ("next", 59.0, "best", 0.02), ("last", 50.0, "best", 0.2)]
    frame = pd.DataFrame(lines, columns=["system", "score", "compared_to", "p"])
    assert significance.undecided(frame.assign(column="a")) == set()
    frame["p"] = [np.nan, 0.05, 0.001]
    assert "best" in {name for name, _ in significance.undecided(frame.assign(column="a"))}
