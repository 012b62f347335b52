"""What a table says in words: whether adapting an encoder was worth it, and what comes next."""

import shlex
from pathlib import Path
from typing import Any

import pandas as pd

from revela.common.outputs import read_json
from revela.config import paths
from revela.config.evaluation import EncoderModel, TextsBenchmark
from revela.config.file import Config
from revela.config.report import Table
from revela.config.text import FilesCorpus
from revela.report.significance import read_analysis
from revela.report.tables import difference

_SIGNIFICANT = 0.05


def verdict(config: Config, name: str) -> str:
    """Return what a compiled table with `compared_to` says of its experiments; "" if nothing.

    An adapted system whose gain is significant in the table, adjusted for its other rows, makes it
    worth it: if several are, the one that a hybrid of the table chose on other queries, else the
    best. Other encoders and hybrids with a significant gain are named as well. If the texts are the
    user's own, it also says what to do next, unless another table has real queries.
    """
    table = config.table(name)
    lines = _means(table, read_analysis(Path(paths.made("tables", name))))
    start, rows = str(table.compared_to), {model: line.name for model, line in lines.items()}
    trained = [model for model in lines if model in config.experiments]
    if not trained or start not in lines:
        return ""
    gaining = [model for model in trained if _sign(lines[model]) > 0]
    chosen = _chosen(table)
    if chosen not in (gaining or [*trained, start]):
        chosen = max(gaining or trained, key=lambda model: lines[model]["difference"])
    if gaining:
        says = "is worth it"
    elif chosen == start:
        says = f"is not worth it: {rows[start]} was at least as good on the queries that choose"
    elif _sign(lines[chosen]) < 0:
        says = "makes it worse"
    else:
        says = "is not shown to be worth it: the difference may be chance"
    encoders = [m for m in lines if isinstance(config.models.get(m), EncoderModel) and m != start]
    better = [model for model in encoders if _sign(lines[model]) > 0]
    hybrids = [model for model in lines if model in config.hybrids and _sign(lines[model]) > 0]
    shown = [*([chosen] if chosen in trained else trained), *better, *hybrids]
    figures = (f"{rows[m]} {lines[m]['score']:.1f}, {difference(lines[m])}" for m in shown)
    untouched = f"{rows[start]} {lines[start]['score']:.1f}"
    measure = table.measure.replace("ndcg_at_", "nDCG@")
    cut = _is_cut_from_texts(config, name)
    by = "by tasks cut from the texts, " if cut else ""
    adapting = f"{name}: {by}adapting {rows[start].removesuffix(' untouched')} {says}"
    text = f"{adapting}. {measure}: {'; '.join([untouched, *figures])}."
    if better:
        text += f" {rows[better[0]]} is the better start: name it first."
    others = [other for other, entry in config.tables.items() if entry.compared_to == start]
    real = [other for other in others if not _is_cut_from_texts(config, other)]
    if cut and real:
        return f"{text} The table {real[0]}, of real queries, decides."
    return f"{text}{_next(config, start, shown[0], bool(gaining), cut)}"


def _is_cut_from_texts(config: Config, table: str) -> bool:
    suites = (config.benchmarks[config.tasks[task]] for task in config.table(table).tasks())
    return any(isinstance(suite, TextsBenchmark) for suite in suites)


def _next(config: Config, start: str, trained: str, gains: bool, cut: bool) -> str:
    """Return the commands that come next, if the texts are the user's own."""
    data = config.experiments[trained].data
    corpora: list[str] = getattr(config, data.section)[data].corpora
    name = corpora[0] if corpora else ""
    corpus, model = config.corpora.get(name), config.models.get(start)
    if not isinstance(corpus, FilesCorpus) or not isinstance(model, EncoderModel):
        return ""
    encoder, adapted = shlex.quote(model.retriever), paths.retriever(trained)
    index = f"  revela index {shlex.quote(corpus.path)} --model"
    lines = ["\nNext:"]
    if gains:
        lines += [f"  revela export {adapted} {name}-encoder"]
        lines += [f"{index} {name}-encoder --output {name}-index"]
    else:
        lines += [f"{index} {encoder} --output {name}-index"]
        lines += [f'  revela search {name}-index "A QUESTION"']
    if cut:
        lines += [
            "Real questions may gain more, less or nothing. To know, give `revela new` judged ones",
            "(--collection), or compare the answers to yours:",
            f"{index} {encoder} --model {adapted} --output {name}-both",
            f"  revela search {name}-both --queries FILE --compare",
        ]
    return "\n".join(lines)


def _means(table: Table, analysis: pd.DataFrame) -> dict[str, Any]:
    """Return the line of an analysis on the mean of each measured row, by the row's first model."""
    means = analysis[analysis["column"] == table.mean].set_index("system")
    rows = dict(zip(table.names(), table.rows, strict=True))
    return {rows[str(name)].model[0]: line for name, line in means.iterrows()}


def _chosen(table: Table) -> str | None:
    """Return the retriever that a hybrid chose on tasks that are not in the table, if one did."""
    for row in table.rows:
        scores = Path(paths.scores(row.model[0], table.tasks()[0])) if row.model else Path()
        fused = read_json(scores).get("fused") if scores.is_file() else None
        if fused and not {*fused["tuned_on"]} & {*table.tasks()}:
            return str(fused["retriever"])
    return None


def _sign(line: Any) -> int:
    """Return 1 for a significantly better system, -1 for a worse one, else 0."""
    return (1 if line["difference"] > 0 else -1) if line["p"] < _SIGNIFICANT else 0
