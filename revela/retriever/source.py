"""What a model is: a folder or a repository of the hub, its files, and what identifies it."""

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from revela.common.errors import RevelaError, errors_at, reading
from revela.common.files import digest, first_of
from revela.common.hub import commit, find_file
from revela.common.outputs import read_json
from revela.config.evaluation import EncoderModel
from revela.config.names import ModelRef

_OF_A_MODEL = {".safetensors", ".json", ".txt", ".model"}
_OTHER_WEIGHTS = {".bin": "pickled", ".gguf": "GGUF", ".onnx": "ONNX"}


@dataclass(frozen=True)
class Source:
    """The weights, tokenizer and settings of a model, wherever they are.

    Attributes:
        name: a folder, or the name of a repository on the hub, which may end with `@revision`.
        revision: a commit of the repository; None is the latest.
        below: the model that an adapter's weights are put on, if the config names it.
    """

    name: str
    revision: str | None = None
    below: "Source | None" = None

    def __post_init__(self) -> None:
        """Take the revision from the name, if it has one."""
        name, at, revision = self.name.partition("@")
        if at and ModelRef(self.name).is_hub_name:
            vars(self).update(name=name, revision=revision)

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
        if not (base := settings.get("base_model_name_or_path")):
            raise RevelaError(f"{self.name}: not an adapter: missing 'base_model_name_or_path'")
        return Source(base, settings.get("revision"))

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

    def find(self, file: str) -> Path | None:
        """Return the path of one of its files, or None if it has none."""
        return find_file(self.name, file, self.revision)

    def read(self, file: str) -> Any | None:
        """Return the content of one of its JSON files, or None if there is none.

        Raises:
            RevelaError: a folder is incomplete, the hub denies access, or it cannot be read.
        """
        check_model_folder(self.name)
        path = self.find(file)
        if path is None:
            return None
        with reading(path, "JSON"):
            return json.loads(path.read_text(encoding="utf-8"))

    def check_is_language_model(self) -> None:
        """Raise a `RevelaError` if its files say that it does not predict the next token."""
        config = (self.base or self).read("config.json") or {}
        self._refuse_code(_own_code(config))
        kinds = config.get("architectures") or ["ForCausalLM"]
        if self.modules or not any("CausalLM" in k or "LMHeadModel" in k for k in kinds):
            what = "an encoder" if self.modules else kinds[0]
            raise RevelaError(f"model {self.name!r} is {what}, not a causal language model")

    def check_is_encoder(self) -> None:
        """Raise a `RevelaError` if its files say that it cannot be computed as it is."""
        self._refuse_code(_own_code(self.read(os.path.join(self.subfolder, "config.json")) or {}))
        width = None
        for module in self.modules or []:
            package, _, kind = module["type"].rpartition(".")
            if package.partition(".")[0] != "sentence_transformers":
                self._refuse_code(module["type"])
            settings = self.read(os.path.join(module["path"], "config.json")) or {}
            if kind == "Pooling":
                mode = settings.get("pooling_mode")  # or, in older files, a key for each mode
                older = [key for key in settings if key.startswith("pooling_mode_")]
                count = len(mode) if isinstance(mode, list) else sum(settings[k] for k in older)
                size = settings.get(
                    "embedding_dimension", settings.get("word_embedding_dimension", 0)
                )
                width = size * (count or 1)
            elif kind == "Dense":
                if width not in (None, inputs := settings.get("in_features")):
                    problem = f"a Dense layer of {inputs} inputs, but what it gets has {width}"
                    raise RevelaError(f"model {self.name!r} has {problem}")
                width = settings.get("out_features")

    def _refuse_code(self, code: str | None) -> None:
        if code:
            problem = f"has code of its own ({code}), which is never run"
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


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model's folder that determine its vectors, in order.

    Raises:
        RevelaError: it lacks a configuration, weights in safetensors or a tokenizer, or its first
            module is no Transformer.
    """
    folders, home = [folder], folder
    if (listed := folder / "modules.json").is_file():
        with reading(listed, "a list of modules"):
            modules = json.loads(listed.read_text(encoding="utf-8"))
            folders += [folder / module["path"] for module in modules if module["path"]]
            kind, home = modules[0]["type"].rpartition(".")[2], folder / modules[0]["path"]
        if kind != "Transformer":
            raise RevelaError(f"{folder}: begins with a module {kind}, not with a Transformer")
    (described,) = first_of(home, "config.json", "adapter_config.json")
    read_json(described)
    if not any(home.glob("*.safetensors")):
        others = (kind for end, kind in _OTHER_WEIGHTS.items() if any(folder.rglob(f"*{end}")))
        hint = "".join(f"; it has {kind} ones, which are not read" for kind in others)
        raise RevelaError(f"{folder}: no safetensors weights in it{hint}")
    if described.name == "config.json":
        first_of(home, "tokenizer.json", "tokenizer_config.json")
    files = {file for place in folders for file in place.glob("[!.]*")}
    return sorted(file for file in files - {folder / "manifest.json"} if file.suffix in _OF_A_MODEL)


def _own_code(config: Mapping[str, Any]) -> str | None:
    """Return the class in the model's own code that a `config.json` asks for, if there is one."""
    if not (own := config.get("auto_map")):
        return None
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    stock = MODEL_MAPPING_NAMES.get(config.get("model_type", ""), ())
    stock = (stock,) if isinstance(stock, str) else stock
    code = own.get("AutoModel") or ("" if stock else own.get("AutoConfig") or str(own))
    return code if code.rpartition(".")[2] not in ("", *stock) else None


def check_model_folder(name: str) -> None:
    """Check that a model given by a folder is there and complete.

    Raises:
        RevelaError: it is not; the message begins with the model.
    """
    if (folder := ModelRef(name)).is_folder:
        with errors_at(f"model {name!r}"):
            if not Path(folder).is_dir():
                raise RevelaError("no such folder")
            model_files(Path(folder))
