"""What a table, a listing or a figure is told: systems, columns, what is printed beside them."""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from revela.config.names import (
    BackboneName,
    BenchmarkName,
    EvaluatedName,
    ExperimentName,
    RetrievalTaskName,
    TableName,
)
from revela.config.steps import Settings

_listed = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
OneOrMore = Annotated[list[str], _listed]
Evaluated = Annotated[list[EvaluatedName], _listed]


def _pairs(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


K = TypeVar("K")
V = TypeVar("V")
# A mapping, kept as a list of pairs: its order must survive the sorting of keys that `dump` does.
Ordered = Annotated[list[tuple[K, V]], BeforeValidator(_pairs)]


class Row(Settings):
    """One system of a table: measured here (`model`), printed elsewhere (`reported`), or both.

    A system with both is shown as measured, and compared with what was printed.
    """

    label: str
    size: str = Field("", description="of the model, printed under the label")
    group: str = Field("", description="a heading over neighbouring systems")
    model: Evaluated = Field([], description="of several, e.g. seeds, the mean is shown")
    reported: str | None = Field(None, description="its name in the table's `reported` file")
    shaded: bool = Field(False, description="on grey in LaTeX, e.g. what is supervised")
    ranked: bool = Field(True, description="may be in bold; false for what does not compete")

    @model_validator(mode="after")
    def _some_source(self) -> Self:
        if not self.model and self.reported is None:
            raise ValueError("give model, reported or both")
        return self


class Table(Settings):
    """Systems × tasks and their mean, nDCG@10 × 100.

    `benchmark` shows each of its tasks under its own name, `columns` chooses and names them. A
    table that only reports may have neither: it shows the tasks of its `reported` file.
    """

    caption: str
    rows: list[Row] = Field(min_length=1)
    benchmark: BenchmarkName | None = None
    columns: Ordered[str, OneOrMore] = Field(
        [], description="heading → task, task:split/subset, benchmark, or a list: their mean"
    )
    reported: str | None = Field(
        None, description="CSV of printed figures; `task` or `model` heads its first column"
    )
    mean: str = Field("Mean", description="heading of the mean, here and in the reported file")
    bold: Literal["table", "group", "none"] = Field("table", description="best of which systems")
    transposed: bool = Field(False, description="print tasks as rows, systems as columns")
    tolerance: float = Field(1.0, ge=0, description="points within which a figure is reproduced")
    measure: str = "ndcg_at_10"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.benchmark and self.columns:
            raise ValueError("give at most one of benchmark, columns")
        if not self.benchmark and not self.columns and any(row.model for row in self.rows):
            raise ValueError("measured rows need benchmark or columns")
        if (self.reported is not None) != any(row.reported for row in self.rows):
            raise ValueError("reported, a CSV file, and rows with reported need each other")
        names = self.names()
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two rows are called {min(twice)!r}: change label, size or group")
        return self

    def names(self) -> list[str]:
        """Return what each row is called: label and size, after its group where it needs one.

        A group needs its name where a row of it would clash with one of another group.
        """
        short = [f"{row.label} {row.size}".strip() for row in self.rows]
        named = list(zip(self.rows, short, strict=True))
        groups = {row.group for row, name in named if row.group and short.count(name) > 1}
        return [f"{row.group} / {name}" if row.group in groups else name for row, name in named]

    def tasks(self) -> list[str]:
        """Return the tasks that a measured row needs, without their subsets, each once."""
        return list(dict.fromkeys(c.partition(":")[0] for _, cs in self.columns for c in cs))


class Listing(Settings):
    """A table of the paper that lists instead of measuring."""

    caption: str
    file: str = Field(description="CSV whose first line is the headings")
    columns: list[str] = Field([], description="headings to print; all if not given")
    links: dict[str, str] = Field({}, description="heading → column with its addresses")
    group: str | None = Field(None, description="column: a line is drawn where it changes")


class CurvesFigure(Settings):
    """Training curves: loss, loss without in-batch attention, mean top similarity."""

    kind: Literal["curves"]
    caption: str
    experiments: Ordered[ExperimentName, str] = Field(
        min_length=1, description="experiment → label"
    )

    def inputs(self) -> list[str]:
        """Return the names of what it is drawn from: training logs."""
        return [name for name, _ in self.experiments]


class DynamicsFigure(Settings):
    """In-batch similarities of one batch at several steps (paper, figure 6)."""

    kind: Literal["dynamics"]
    caption: str
    experiment: ExperimentName

    def inputs(self) -> list[str]:
        """Return the names of what it is drawn from: a training log."""
        return [self.experiment]


class LearningFigure(Settings):
    """What experiments score on a task at the steps whose retriever they keep, and at the end."""

    kind: Literal["learning"]
    caption: str
    task: RetrievalTaskName
    experiments: Ordered[ExperimentName, str] = Field(
        min_length=1, description="experiment → label"
    )
    measure: str = "ndcg_at_10"

    def inputs(self) -> list[str]:
        """Return the names of what it is drawn from: logs; scores are beside them."""
        return [f"{name}.log" for name, _ in self.experiments]


class PretrainingFigure(Settings):
    """A backbone's loss, in training and on held-out documents, over the tokens seen."""

    kind: Literal["pretraining"]
    caption: str
    backbone: BackboneName

    def inputs(self) -> list[str]:
        """Return the names of what it is drawn from: a training log."""
        return [self.backbone]


class BarsFigure(Settings):
    """Means of tables, a panel a table and a bar a system (paper, figure 3)."""

    kind: Literal["bars"]
    caption: str
    tables: Ordered[TableName, str] = Field(min_length=1, description="table → title")

    def inputs(self) -> list[str]:
        """Return the names of what it is drawn from: tables."""
        return [name for name, _ in self.tables]


class TrendFigure(Settings):
    """Means of tables against the rows' labels, a line a group of rows (paper, figures 4 and 5)."""

    kind: Literal["trend"]
    caption: str
    tables: Ordered[TableName, str] = Field(min_length=1, description="table → title")
    x_label: str = Field(description="what the labels are, e.g. batch size")

    def inputs(self) -> list[str]:
        """Return the names of what it is drawn from: tables."""
        return [name for name, _ in self.tables]


class StepCostFigure(Settings):
    """Time and memory of a step of REPLUG and Revela as the batch grows (paper, appendix C.7)."""

    kind: Literal["step-cost"]
    caption: str
    sizes: list[Annotated[int, Field(ge=2)]] = Field([2, 4, 8, 16, 32], min_length=2)

    def inputs(self) -> list[str]:
        """Return the names of what it is drawn from: a bench."""
        return ["step-cost"]


AnyFigure = Annotated[
    BarsFigure
    | StepCostFigure
    | CurvesFigure
    | DynamicsFigure
    | LearningFigure
    | PretrainingFigure
    | TrendFigure,
    Field(discriminator="kind"),
]
