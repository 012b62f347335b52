"""The base of all settings: immutable, with no unknown keys; types of numbers and paths."""

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from revela.common.errors import RevelaError
from revela.config.names import local_path
from revela.config.problems import first_problem, unknown_key


class Settings(BaseModel):
    """Base of every entry: immutable, unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, raw: Any) -> Any:
        for key, value in raw.items() if isinstance(raw, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(unknown_key(str(key), cls))
            if isinstance(value, bool) and cls.model_fields[key].annotation is float:
                raise ValueError(f"{key} must be a number; got {value}")
        return raw

    def dump(self) -> str:
        """Return the settings as one line of JSON with sorted keys, as rules pass them on.

        Defaults are omitted, so that a new setting in the schema does not change earlier jobs.
        """
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)


def _in_order(share: tuple[float, float]) -> tuple[float, float]:
    if share[0] >= share[1]:
        raise ValueError("the first number must be below the second")
    return share


# Strict: `true` is not a number.
Positive = Annotated[int, Field(gt=0, strict=True)]
Natural = Annotated[int, Field(ge=0, strict=True)]
Tokens = Annotated[int, Field(ge=8, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**32, strict=True)]
Temperature = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Range = Annotated[tuple[Share, Share], AfterValidator(_in_order)]
Precision = Annotated[
    Literal["float32", "bfloat16"],
    Field(description="bfloat16 is used on GPUs that support it, elsewhere float32"),
]
LocalPath = Annotated[str, Field(min_length=1), AfterValidator(local_path)]


def parse_settings(model: Any, text: str, option: str = "--settings") -> Any:
    """Read the JSON settings of a command as an entry of type `model`.

    Raises:
        RevelaError: not JSON, or not the settings of this command.
    """
    try:
        raw = json.loads(text)
        return TypeAdapter(model).validate_python(raw)
    except json.JSONDecodeError as error:
        raise RevelaError(f"{option}: not valid JSON: {error}") from error
    except ValidationError as error:
        raise RevelaError(f"{option}: {first_problem(error, raw)}") from error
