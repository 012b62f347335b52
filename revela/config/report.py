"""The settings of tables, listings and figures."""

from typing import Annotated, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from revela.config.names import (
    BatchSetName,
    BenchmarkName,
    EvaluatedName,
    ExperimentName,
    RetrievalTaskName,
    TableName,
)
from revela.config.settings import Settings

K = TypeVar("K")
V = TypeVar("V")
OneOrMore = Annotated[
    list[V],
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=str | list[str],
    ),
]
# A mapping, kept as a list of pairs: its order must survive the sorting of keys that `dump` does.
Ordered = Annotated[
    list[tuple[K, V]],
    BeforeValidator(
        lambda value: list(value.items()) if isinstance(value, dict) else value,
        json_schema_input_type=dict[str, str | list[str]],
    ),
]
Trainings = Annotated[
    Ordered[ExperimentName, str], Field(min_length=1, description="experiment → label")
]
Means = Annotated[Ordered[TableName, str], Field(min_length=1, description="table → title")]


class Captioned(Settings):
    """Keys of all tables, listings and figures."""

    caption: str


class Row(Settings):
    """One system of a table: measured here (`model`), reported by the paper (`reported`), or both.

    With both, the table shows the measured figures and compares them with the reported ones.
    """

    label: str
    size: str = Field("", description="size of the model, printed below the label")
    group: str = Field("", description="heading above adjacent systems of the same group")
    model: OneOrMore[EvaluatedName] = Field([], description="several are shown by their mean")
    reported: str | None = Field(None, description="name of the system in the `reported` file")
    shaded: bool = Field(False, description="grey in LaTeX, e.g. for supervised models")
    ranked: bool = Field(True, description="takes part in bold marking and significance tests")

    @model_validator(mode="after")
    def _some_source(self) -> Self:
        if not self.model and self.reported is None:
            raise ValueError("give model, reported or both")
        return self


class Table(Captioned):
    """Systems × tasks with a mean: nDCG@10 × 100, or another `measure`.

    `benchmark` shows all tasks of a benchmark; `columns` selects and names tasks. A table without
    measured rows may have neither: it shows the tasks of its `reported` file.
    """

    rows: list[Row] = Field(min_length=1)
    benchmark: BenchmarkName | None = Field(None, description="show all tasks of this benchmark")
    columns: Ordered[str, OneOrMore[str]] = []
    """heading → task, task:split/subset or benchmark, or a list to average"""
    reported: str | None = None
    """CSV of printed figures whose first column is headed `task` or `model`"""
    notes: str | None = Field(
        None,
        description="CSV of system, task, note on its printed figure (`copied` from another paper, "
        "`misplaced`: that of another task) and, if misplaced, the right figure",
    )
    mean: str = Field("Mean", description="heading of the mean, here and in the reported file")
    bold: Literal["table", "group", "none"] = "table"
    """scope within which the best figure is bold"""
    transposed: bool = Field(False, description="print tasks as rows, systems as columns")
    compared_to: EvaluatedName | None = None
    """model of a row; the table shows intervals, and each row's difference to it"""
    tolerance: float = Field(1.0, ge=0, description="largest difference in points if reproduced")
    measure: str = "ndcg_at_10"
    """as mteb or lm-eval names it, e.g. recall_at_100, acc"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.benchmark and self.columns:
            raise ValueError("give at most one of benchmark, columns")
        if not self.benchmark and not self.columns and any(row.model for row in self.rows):
            raise ValueError("measured rows need benchmark or columns")
        if (self.reported is not None) != any(row.reported for row in self.rows):
            raise ValueError("a reported file and rows with reported require each other")
        if self.compared_to and not any(self.compared_to in row.model for row in self.rows):
            raise ValueError(f"compared_to: no row has the model {self.compared_to!r}")
        for heading, shown in self.columns:
            if not shown:
                raise ValueError(f"column {heading!r} has no task")
            if heading in (self.mean, "source"):
                raise ValueError(f"a column cannot be called {heading!r}: the table adds one")
        names = self.names()
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two rows are called {min(twice)!r}: change label, size or group")
        return self

    def names(self) -> list[str]:
        """Return the rows' names: label and size, preceded by the group where names would clash."""
        short = [f"{row.label} {row.size}".strip() for row in self.rows]
        named = list(zip(self.rows, short, strict=True))
        groups = {row.group for row, name in named if row.group and short.count(name) > 1}
        return [f"{row.group} / {name}" if row.group in groups else name for row, name in named]

    def tasks(self) -> list[str]:
        """Return the tasks of a measured row, without subsets and duplicates."""
        return list(dict.fromkeys(c.partition(":")[0] for _, cs in self.columns for c in cs))


BATCH_COLUMNS = ["Document", "Text here"]
"""What a listing of a batch adds to its file's columns."""


class Listing(Captioned):
    """A table of text, e.g. the paper's list of tasks."""

    file: str = Field(description="CSV file with a header")
    batches: BatchSetName | None = None
    """batch set; its batch that shares the most words with the file is shown next to it"""
    columns: list[str] = Field([], description="headings to print; all by default")
    links: dict[str, str] = Field({}, description="heading → column with the URLs of its cells")
    group: str | None = Field(None, description="a rule is drawn where this column changes")


class CurvesFigure(Captioned):
    """Training curves: loss, gain of in-batch attention, similarity weights."""

    kind: Literal["curves"]
    experiments: Trainings


class DynamicsFigure(Captioned):
    """In-batch similarities of one batch at several steps (paper, figure 6)."""

    kind: Literal["dynamics"]
    experiment: ExperimentName


class LearningFigure(Captioned):
    """Scores of experiments on a task, at the steps in `save_retriever_steps` and at the end."""

    kind: Literal["learning"]
    task: RetrievalTaskName
    experiments: Trainings
    start: EvaluatedName | None = Field(None, description="start of all of them, shown at step 0")
    measure: str = Field("ndcg_at_10", description="as mteb names it, e.g. recall_at_100")


class BarsFigure(Captioned):
    """Means of tables as bars: one panel per table, one bar per system (paper, figure 3)."""

    kind: Literal["bars"]
    tables: Means


class TrendFigure(Captioned):
    """Means of tables by row label, one line per group (paper, figures 4 and 5)."""

    kind: Literal["trend"]
    tables: Means
    x_label: str = Field(description="what the row labels are, e.g. batch size")


class StepCostFigure(Captioned):
    """Time and memory of a step of REPLUG and Revela by batch size (paper, appendix C.7)."""

    kind: Literal["step-cost"]
    sizes: list[Annotated[int, Field(ge=2)]] = Field([2, 4, 8, 16, 32], min_length=2)
    """batch sizes"""


AnyFigure = Annotated[
    BarsFigure | StepCostFigure | CurvesFigure | DynamicsFigure | LearningFigure | TrendFigure,
    Field(discriminator="kind"),
]
