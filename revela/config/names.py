"""Names of other entries: a setting's type says in which section its value must be defined."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from revela.common.errors import unknown_name


class Name(str):
    """The name of an entry of `section`.

    It is checked where the validation context holds the names of that section, that is when a
    whole configuration is read.
    """

    section: ClassVar[str] = ""
    what: ClassVar[str] = ""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(
            cls.checked, core_schema.str_schema(min_length=1)
        )

    @classmethod
    def checked(cls, value: str, info: ValidationInfo) -> "Name":
        """Return a value as a name of this kind, refused where no entry is called so."""
        known = (info.context or {}).get(cls.section)
        if known is not None and value not in known:
            message = unknown_name(cls.what, value, known)
            raise PydanticCustomError("unknown_name", "{message}", {"message": message})
        return cls(value)


class CorpusName(Name):
    """An entry of `corpora`."""

    section, what = "corpora", "corpus"


class SourceName(Name):
    """An entry of `corpora`, or the `source` of ready-made batches."""

    section, what = "sources", "corpus"


class BatchSetName(Name):
    """An entry of `batches`."""

    section, what = "batches", "batch set"


class PairSetName(Name):
    """An entry of `pairs`."""

    section, what = "pairs", "set of pairs"


class BackboneName(Name):
    """An entry of `backbones`."""

    section, what = "backbones", "backbone"


class ExperimentName(Name):
    """An entry of `experiments`."""

    section, what = "experiments", "experiment"


class EvaluatedName(Name):
    """What can be a row of a table: an experiment, one of its kept steps, an entry of `models`."""

    section, what = "evaluated", "model or experiment"


class BenchmarkName(Name):
    """An entry of `benchmarks`."""

    section, what = "benchmarks", "benchmark"


class RetrievalTaskName(Name):
    """A task of a benchmark for retrievers."""

    section, what = "retrieval_tasks", "retrieval task"


class TableName(Name):
    """An entry of `tables`."""

    section, what = "tables", "table"


class ModelRef(Name):
    """A model's weights: an entry of `backbones` (a name without a slash), a folder, a hub name."""

    section, what = "backbones", "backbone"

    @classmethod
    def checked(cls, value: str, info: ValidationInfo) -> "Name":
        """Return a value as a reference; only names without a slash must be entries."""
        return cls(value) if "/" in value else super().checked(value, info)

    @property
    def is_entry(self) -> bool:
        """Whether it names an entry of the configuration."""
        return "/" not in self

    @property
    def is_folder(self) -> bool:
        """Whether it is a path, also where nothing is there yet.

        It is one if it begins as a path does or with a folder that exists.
        """
        first, *_ = self.split("/")
        return not self.is_entry and (
            first in ("", ".", "..", "~", "results") or Path(first).is_dir()
        )

    @property
    def is_hub_name(self) -> bool:
        """Whether it is the name of a repository on the hub."""
        return not self.is_entry and not self.is_folder


class LanguageModelRef(ModelRef):
    """As `ModelRef`, or an experiment: the language model that it trained."""

    section, what = "language_models", "backbone or experiment that trains a language model"


def references(value: Any) -> Iterator[Name]:
    """Yield every name of another entry in a setting, nested ones too."""
    if isinstance(value, Name):
        yield value
    elif isinstance(value, BaseModel):
        yield from references(list(value.__dict__.values()))
    elif isinstance(value, dict):
        yield from references([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references(item)


@dataclass(frozen=True)
class ModelName:
    """What a trained retriever is called: `<experiment>[-seed<seed>][@<step>]`."""

    experiment: str
    seed: int | None = None
    step: int | None = None

    @classmethod
    def parse(cls, name: str) -> "ModelName":
        """Read a name; one without a seed or a step is that of an experiment, or of any model."""
        found = re.fullmatch(r"(.+?)(?:-seed(\d+))?(?:@(\d+))?", name)
        if found is None:
            return cls(name)
        seed, step = (None if number is None else int(number) for number in found.groups()[1:])
        return cls(found[1], seed, step)

    @property
    def training(self) -> str:
        """The training that it comes from: an entry of `experiments`."""
        return str(ModelName(self.experiment, self.seed))

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"-seed{self.seed}"
        return f"{self.experiment}{seed}{'' if self.step is None else f'@{self.step}'}"
