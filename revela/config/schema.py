"""The JSON schema of configuration files, for editors."""

import itertools
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from revela.config.expand import grid_keys
from revela.config.file import Config
from revela.config.problems import nested
from revela.config.training import Experiment


def written_schema() -> dict[str, Any]:
    """Return the schema of a configuration with `base:`, `grid:` and rows given as names.

    It covers keys and types of values; references between them are left to `revela check`.
    """
    schema = Config.model_json_schema(schema_generator=_Untitled)
    classes = schema["$defs"]
    for section in schema["properties"].values():
        entries = _any_of(section["additionalProperties"])
        for entry in entries.get("anyOf", [entries]):
            _allow_base(classes[entry["$ref"].rpartition("/")[2]])
    experiment, rows = classes["Experiment"]["properties"], classes["Table"]["properties"]["rows"]
    _any_of(experiment["objective"])
    for kind in itertools.chain(*nested(Experiment).values()):
        classes[kind.__name__].pop("required", None)  # the base's entry may have them
    experiment["grid"] = {
        "description": "keys with lists of values; one experiment for each combination",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"enum": sorted(grid_keys())},
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    rows["items"] = {"anyOf": [{"type": "string"}, rows["items"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False: the title of a key would be the key."""
        return False


def _any_of(choice: dict[str, Any]) -> dict[str, Any]:
    """Allow any kind of entry, because one that has a base need not name its kind."""
    if choice.pop("discriminator", None):
        choice["anyOf"] = choice.pop("oneOf")
    return choice


def _allow_base(entry: dict[str, Any]) -> None:
    entry["properties"]["base"] = {
        "description": "another entry of the section, whose keys this one inherits",
        "type": "string",
    }
    if required := entry.pop("required", None):
        entry["anyOf"] = [{"required": required}, {"required": ["base"]}]
