"""What trainings used, beside the paper's figures."""

import json
from pathlib import Path

import pytest

from revela.report import commands
from tests.report.common import ROOT


@pytest.fixture
def results(tmp_path) -> Path:
    """One training on four GPUs, and one of an earlier version on a CPU."""
    memory = {"peak_gpu_memory_gb": 30.0, "peak_memory_gb": 5.0}
    used = {"steps": 10_000, "tokens": 8e8, "hours": 44.0, "gpus": 4, "gpu": "H100"} | memory
    used |= {"settings": {"batches_per_step": 32}, "gpu_hours": 176.0}
    old = {"steps": 7, "hours": 0.5, "gpus": 0, "gpu_hours": 0.0, "peak_memory_gb": 3.0}
    for name, manifest in {"ours": used, "old": old}.items():
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def test_usage_stands_beside_the_claims_of_the_paper(results, tmp_path):
    commands.usage(results, tmp_path / "usage.csv", ROOT / "data/paper/usage.csv")
    head, old, ours, *_ = (tmp_path / "usage.csv").read_text().splitlines()
    assert head == (
        "experiment,steps,rows,tokens,hours,gpus,gpu,gpu_hours,peak_memory_gb,rows_ratio,"
        "gpu_hours_ratio"
    )
    assert old == "old,7,,,0.5,0,,0,3,,"
    # 270 million pairs to 320,000 batches; 64 GPUs for 48 hours to 4 for 44.
    assert ours == "ours,10000,320000,8e+08,44,4,H100,176,30,843.75,17.4545"
    cells = [line.split("|") for line in (tmp_path / "usage.md").read_text().splitlines()]
    rows = {line[1].strip(): [cell.strip() for cell in line[2:-1]] for line in cells if line[1:]}
    ratios = {name: row[-2:] for name, row in rows.items() if "reported" in name}
    assert ratios == {
        "Revela, Wikipedia, as reported": ["843.8", "17.5"],
        "Revela, code, as reported": ["752.6", "16.0"],
    }
    assert rows["old"] == ["7", "–", "–", "0.5", "0", "–", "0.0", "3.0", "–", "–"]


def test_usage_of_no_training_is_empty(tmp_path, capsys):
    commands.usage(tmp_path)
    assert capsys.readouterr().out.startswith("experiment,steps,rows,tokens")
