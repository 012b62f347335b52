"""What a model is: a folder or a repository of the hub, its files, and what identifies it."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError, reading
from revela.common.hub import commit, find_file, read_model_json
from revela.config.evaluation import EncoderModel
from revela.config.local import (
    check_model_folder,
    digest,
    model_files,
    not_a_language_model,
    not_an_encoder,
)


@dataclass(frozen=True)
class Source:
    """The weights, tokenizer and settings of a model, wherever they are.

    Attributes:
        name: a folder, or the name of a repository on the hub.
        revision: a commit of the repository; None is the latest.
        below: the model that an adapter's weights are put on, if the config names it.
    """

    name: str
    revision: str | None = None
    below: "Source | None" = None

    @classmethod
    def of(cls, model: EncoderModel) -> "Source":
        """Return the source of a retriever as it is written in a config."""
        if model.adapter:
            return cls(model.adapter, model.revision, cls(model.retriever))
        return cls(model.retriever, model.revision)

    @property
    def folder(self) -> Path | None:
        """Its folder, or None if it is on the hub."""
        return Path(self.name) if Path(self.name).is_dir() else None

    @functools.cached_property
    def base(self) -> "Source | None":
        """The model that it is an adapter of, or None if its weights are complete.

        Raises:
            RevelaError: the adapter's settings cannot be read.
        """
        if self.below:
            return self.below
        settings = self.read("adapter_config.json")
        if settings is None:
            return None
        with reading(self.name, "an adapter"):
            if not (base := settings["base_model_name_or_path"]):
                raise ValueError("its adapter_config.json names no base_model_name_or_path")
            return Source(str(base))

    @functools.cached_property
    def modules(self) -> list[dict[str, Any]] | None:
        """The modules that its sentence-transformers files list, or None without such files."""
        modules = self.read("modules.json")
        if modules is None:
            return None
        with reading(f"{self.name}/modules.json", "a list of modules"):
            return [{key: module[key] for key in ("name", "path", "type")} for module in modules]

    @property
    def subfolder(self) -> str:
        """The folder within it that holds the transformer: the first one of older models."""
        return str(self.modules[0]["path"]) if self.modules else ""

    def read(self, file: str) -> Any | None:
        """Return the content of one of its JSON files, or None if there is none.

        Raises:
            RevelaError: the folder is incomplete, the hub denies access, or it cannot be read.
        """
        check_model_folder(self.name)
        return read_model_json(self.name, file, self.revision)

    def has(self, file: str) -> bool:
        """Return whether it has a file."""
        return find_file(self.name, file, self.revision) is not None

    def check_is_language_model(self) -> None:
        """Raise a `RevelaError` if its files say that it does not predict the next token."""
        config = (self.base or self).read("config.json") or {}
        if problem := not_a_language_model(config, bool(self.modules)):
            raise RevelaError(f"model {self.name!r} {problem}")

    def check_is_encoder(self) -> None:
        """Raise a `RevelaError` if its files say that it cannot be computed as it is."""
        if problem := not_an_encoder(self.read):
            raise RevelaError(f"model {self.name!r} {problem}")

    def fingerprint(self) -> str:
        """Return what identifies its vectors: a hash of a folder's files, or a commit of the hub.

        An adapter's includes that of its base, if that is a folder.

        Raises:
            RevelaError: a folder is incomplete, or the hub denies access.
        """
        if not self.folder:
            check_model_folder(self.name)  # it may be written as a folder
            return commit(self.name, self.revision) or self.revision or "main"
        files = digest(tuple(model_files(self.folder)))
        base = self.base
        return f"{files}-{base.fingerprint()}" if base and (self.below or base.folder) else files

    def folders(self) -> list[Path]:
        """Return its folder and that of its base, as far as they are on this machine."""
        return [source.folder for source in (self, self.base) if source and source.folder]

    def commits(self) -> dict[str, str | None]:
        """Return the commits of the repositories that it is read from, by their names."""
        return {
            source.name: commit(source.name, source.revision)
            for source in (self.base, self)
            if source and not source.folder
        }
