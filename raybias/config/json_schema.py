"""Write the JSON Schema of a study file, for editors and other programs."""

from __future__ import annotations

from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from raybias.config.data import DEFAULT_API, Backbone
from raybias.config.method import DEFAULT_KIND
from raybias.config.study import Study

#: What a section is told from others of its union by, and which of them need not name it.
_TOLD_BY: Final = {"kind": DEFAULT_KIND, "api": DEFAULT_API}
_SCALARS: Final = ("string", "integer", "number")


def study_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a study file.

    Methods, those of installed packages too, are told apart by their `kind`, endpoints by their
    `api`. Shorthands are
    allowed: one value for a list of one, and a backbone's id for its section.
    """
    schema = Study.model_json_schema(schema_generator=_FileSchema)
    backbone = schema["$defs"][Backbone.__name__]
    schema["$defs"][Backbone.__name__] = {"anyOf": [{"type": "string"}, backbone]}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


class _FileSchema(GenerateJsonSchema):
    """What pydantic generates, with the shorthands of a study file."""

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        """Allow a single value beside a list of any number of them."""
        array = super().tuple_schema(schema)
        items = array.get("items", {})
        if items.get("type") in _SCALARS or Backbone.__name__ in str(items.get("oneOf")):
            return {"anyOf": [array, items]}
        return array

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Require `kind` of every method but those of the default kind, and `api` alike."""
        union = super().tagged_union_schema(schema)
        for reference in union["oneOf"]:
            section = self.get_schema_from_definitions(reference["$ref"]) or {}
            for name, least in _TOLD_BY.items():
                if section["properties"].get(name, {"default": least})["default"] != least:
                    section["required"] = [name, *section.get("required", ())]
        return union
