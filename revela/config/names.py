"""Names of other entries: a setting's type determines the section that must define it."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_NAME_BYTES = 255  # at most, on Linux
_LEGAL = re.compile(r"[A-Za-z0-9][\w.+-]{0,149}", re.ASCII)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)


def legal_name(name: Any) -> str:
    """Return a name that an entry may have.

    Raises:
        ValueError: it may not.
    """
    if isinstance(name, str) and _LEGAL.fullmatch(name):
        return name
    hint = " (quote a number)" if isinstance(name, int | float) else ""
    raise ValueError(
        "a name must be letters, digits, '.', '_' and '-', begin with a letter or digit and have "
        f"at most 150 characters; got {name!r}{hint}"
    )


class Name(str):
    """The name of an entry of `section`, which is a `what`; both are empty for other models."""

    section = what = ""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls, core_schema.str_schema(min_length=1)
        )


def local_path(value: str) -> str:
    """Return a path, its `~` replaced by the user's home.

    Raises:
        ValueError: no file can have this name.
    """
    if "://" in value:
        raise ValueError("must be a path on this machine, not a URL")
    if any(len(name.encode(errors="surrogatepass")) > _NAME_BYTES for name in value.split("/")):
        raise ValueError(f"a file or folder name has at most {_NAME_BYTES} bytes")
    return os.path.expanduser(value)


class ModelRef(Name):
    """A model's weights: an entry (a name without a slash), a folder, a hub name.

    A hub name may end with `@` and a commit, branch or tag.
    """

    def __new__(cls, value: str) -> Self:
        """Return the name, its `~` replaced by the user's home."""
        return super().__new__(cls, local_path(value))

    @property
    def is_entry(self) -> bool:
        """Whether it can only name an entry of the configuration, which other names may do too."""
        return "/" not in self and not self.is_folder

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, or begins as a path does or with a folder that exists."""
        first, slash, _ = self.partition("/")
        known = first in ("", ".", "..", "results")
        return Path(self if not slash else first).is_dir() or (bool(slash) and known)

    @property
    def is_hub_name(self) -> bool:
        """Whether it is the name of a repository on the hub."""
        return not self.is_entry and not self.is_folder


def entry_name(name: Name, section: str, what: str) -> Name:
    """Return a name as one of `section`, where `what` is; the configuration looks it up."""
    if isinstance(name, ModelRef) and not name.is_entry:
        return _folder_or_hub(name)
    name.section, name.what = section, what
    return name


def _folder_or_hub(name: ModelRef) -> ModelRef:
    if not name.is_folder and not _HUB_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is neither a folder nor a hub name such as org/model")
    return name


def _of(section: str, what: str) -> AfterValidator:
    return AfterValidator(lambda name: entry_name(name, section, what))


CorpusName = Annotated[Name, _of("corpora", "corpus")]
SourceName = Annotated[Name, _of("sources", "corpus")]
BatchSetName = Annotated[Name, _of("batches", "batch set")]
ExperimentName = Annotated[Name, _of("experiments", "experiment")]
EvaluatedName = Annotated[Name, _of("evaluated", "model or experiment")]
BenchmarkName = Annotated[Name, _of("benchmarks", "benchmark")]
RetrievalTaskName = Annotated[Name, _of("retrieval_tasks", "retrieval task")]
TableName = Annotated[Name, _of("tables", "table")]
Weights = Annotated[
    ModelRef,
    AfterValidator(_folder_or_hub),
    Field(description="a hub name, org/name or org/name@commit, or a folder"),
]
LanguageWeights = Annotated[
    ModelRef,
    _of("language_models", "experiment that trains a language model"),
    Field(
        description="an experiment (whose trained language model is used), a hub name, org/name or "
        "org/name@commit, or a folder"
    ),
]


def references(value: Any) -> Iterator[Name]:
    """Yield every name of another entry in a setting, including nested ones."""
    if isinstance(value, Name):
        yield value
    elif isinstance(value, BaseModel):
        yield from references([field for _, field in value])
    elif isinstance(value, dict):
        yield from references([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references(item)


@dataclass(frozen=True)
class ModelName:
    """The name of a trained retriever: `<experiment>[-seed<seed>][@<step>]`."""

    experiment: str
    seed: int | None = None
    step: int | None = None

    @classmethod
    def parse(cls, name: str) -> "ModelName":
        """Parse a name; without a seed or a step it may be any model's."""
        number = r"(0|[1-9]\d*)"  # as it is written by `str`: x-seed01 is an experiment
        match = re.fullmatch(rf"(.+?)(?:-seed{number})?(?:@{number})?", name, re.ASCII)
        if match is None:
            return cls(name)
        seed, step = (None if number is None else int(number) for number in match.groups()[1:])
        return cls(match[1], seed, step)

    @property
    def training(self) -> str:
        """The training that it comes from: an entry of `experiments`."""
        return str(ModelName(self.experiment, self.seed))

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"-seed{self.seed}"
        return f"{self.experiment}{seed}{'' if self.step is None else f'@{self.step}'}"
