"""Shared by the tests of tables, listings and figures."""

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def write_score(folder, model, task, value):
    (folder / model).mkdir(exist_ok=True)
    (folder / model / f"{task}.json").write_text(json.dumps({"ndcg_at_10": value}))


def squeezed(markdown):
    """Return the lines of Markdown without the spaces that align columns."""
    return [re.sub("-+", "-", re.sub(" +", " ", line)) for line in markdown.splitlines()]


def check_latex(text, folder):
    """Compile the table if LaTeX is installed; check braces and columns in any case."""
    plain = re.sub(r"\\[{}]", "", text)
    assert plain.count("{") == plain.count("}")
    assert text.isascii()
    body = text[text.index("\\toprule") :]
    columns = re.search(r"begin\{tabular\}\{((?:[lr]|p\{.+?\})+)\}", text).group(1)
    columns = re.sub(r"p\{.+?\}", "p", columns)
    for line in body.splitlines():
        if line.endswith("\\\\"):
            spans = [int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            assert len(re.findall(r"(?<!\\)&", line)) + sum(spans) + 1 == len(columns), line
    if engine := shutil.which("pdflatex") or shutil.which("tectonic"):
        head = "\\documentclass{article}\\usepackage{booktabs}\\usepackage[table]{xcolor}"
        head += "\\usepackage{hyperref}"
        (folder / "t.tex").write_text(f"{head}\\begin{{document}}{text}\\end{{document}}")
        options = ["-halt-on-error"] if "pdflatex" in engine else []
        subprocess.run([engine, *options, "t.tex"], cwd=folder, check=True, capture_output=True)


LISTINGS = ["bright_tasks", "checkpoints", "coir_tasks", "embedding_models"]
PAPER_TABLES = sorted(
    path.stem
    for path in (ROOT / "data" / "paper").glob("*.csv")
    if path.stem not in [*LISTINGS, "example_batch", "corpora", "usage"]
)


def rows_of(name):
    """Return the paper's figures by system, in the order in which they are printed."""
    with (ROOT / "data" / "paper" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.reader(stream))
    lines = lines if lines[0][0] == "model" else [list(line) for line in zip(*lines, strict=True)]
    return lines[0][1:], {line[0]: line[1:] for line in lines[1:]}
