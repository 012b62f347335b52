"""Settings of an encoding: how a text becomes a vector."""

from typing import Any, Literal

from pydantic import Field, model_validator

from revela.config.settings import Settings

Pooling = Literal["last", "mean", "cls"]
PREFIXES = {
    "paper": ("Query: ", "Passage: "),
    "train": ("query: ", "passage: "),
    "authors": ("query:  ", "passage:  "),
}


class EncodingKeys(Settings):
    """Keys of an encoding that override the model's sentence-transformers files.

    For a model without such files, other keys have the defaults of an experiment. `prefixes` sets
    both prefixes at once: those of the paper (`paper`), of the authors' training code (`train`), or
    of the authors' evaluation (`authors`, with two spaces).
    """

    query_prefix: str | None = Field(None, description="`{instruction}` stands for a task's prompt")
    passage_prefix: str | None = None
    pooling: Pooling | None = None
    append_eos: bool | None = None
    normalize: bool | None = Field(None, description="true: cosine similarity; false: dot product")
    prefixes: Literal["paper", "train", "authors"] | None = Field(None, exclude=True)
    """sets both prefixes at once"""

    @model_validator(mode="before")
    @classmethod
    def _named_prefixes(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or (name := str(raw.get("prefixes"))) not in PREFIXES:
            return raw
        query, passage = PREFIXES[name]
        return {"query_prefix": query, "passage_prefix": passage} | raw


class Encoding(EncodingKeys):
    """How a text becomes a vector, in training and evaluation alike."""

    query_prefix: str = "Query: "
    passage_prefix: str = "Passage: "
    pooling: Pooling = "last"
    append_eos: bool = True
    normalize: bool = Field(True, description="true: cosine similarity; false: dot product")
