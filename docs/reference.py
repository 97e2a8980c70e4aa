"""Generate docs/reference from the package: `python docs/reference.py`, or `make docs`.

study.md comes from the JSON Schema of the study file, commands.md from the command line, and
python.md from the docstrings of the public names. A test holds the pages to this.
"""

from __future__ import annotations

import inspect
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer
import yaml
from typer.cli import get_docs_for_click

import raybias
from raybias.cli import app

FOLDER: Final = Path(__file__).parent / "reference"
PROFILES: Final = ("paper", "strict")
#: By kind of method, the fields that have no default.
NEEDED: Final = {"continuation": {"judge": {"model": "judge"}}}
#: What a study must have, with one of each optional section, so that all defaults are read.
LEAST: Final = {
    "name": "reference",
    "backbones": [{"id": "planted"}],
    "training": [{"source": "planted"}],
    "probes": [{"source": "planted"}],
    "pairs": [{"source": "pairs", "data": "pairs.csv"}],
    "questions": [{"source": "options", "data": "questions.csv"}],
    "styles": {
        "names": ["original", "formal"],
        "rewriting": {"formal": {"model": "model", "adequacy": {"model": "judge"}}},
    },
    "resources": {"nodes": [{"memory": "192GiB"}]},
}

Schema = dict[str, Any]


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, "utf-8")


def pages() -> dict[str, str]:
    """Generate each page by its file name."""
    return {"study.md": study_page(), "commands.md": commands_page(), "python.md": python_page()}


def commands_page() -> str:
    """Document every command with its options."""
    command = typer.main.get_command(app)
    with command.context_class(command, info_name="raybias") as context:
        text = get_docs_for_click(obj=command, ctx=context, name="raybias")
    lines = [line for line in text.splitlines() if "--help`: Show this message" not in line]
    return "\n".join(lines).replace("\n**Options**:\n\n\n", "\n").strip() + "\n"


def python_page() -> str:
    """Document the public names of `raybias`."""
    parts = ["# `raybias` from Python", "What `import raybias` gives; everything else may change."]
    for name in raybias.__all__:
        public = getattr(raybias, name)
        is_section = hasattr(public, "model_fields")
        parts.append(f"## `raybias.{name}`")
        if is_section:
            parts.append(f"{inspect.getdoc(public)} Its fields are in [study.md](study.md).")
        else:
            parts.append(_documented(name, public))
        if public is raybias.Results:
            for attribute, member in vars(public).items():
                if not attribute.startswith("_"):
                    parts += [f"### `Results.{attribute}`", _documented(attribute, member)]
    return "\n\n".join(parts) + "\n"


def _documented(name: str, public: Any) -> str:
    if isinstance(public, property):
        signature = f": {inspect.signature(public.fget).return_annotation}"
    else:
        # Annotations that are not evaluated are shown in quotes.
        signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(public)))
    return f"```text\n{name}{signature}\n\n{inspect.getdoc(public)}\n```"


def study_page() -> str:
    """Document every field of a study file: type, default per profile and meaning."""
    schema = raybias.Study.model_json_schema()
    parts = [
        "# The study file",
        "Every section and field. Where the profile `paper` or `strict` decides a default, both are"
        " shown; a default that the backbone or the study decides is described.",
        "`raybias plan --schema` prints the same as a JSON Schema.",
        *_section("study", schema, schema, _values()),
    ]
    return "\n\n".join(parts) + "\n"


def _values() -> dict[str, dict[str, Any]]:
    """Read by profile what a study says that leaves all it can to its defaults."""
    found = {}
    kinds = [section["properties"]["kind"]["const"] for section in _methods()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.yaml"
        for profile in PROFILES:
            methods = [{"kind": kind, **NEEDED.get(kind, {})} for kind in kinds]
            content = {**LEAST, "profile": profile, "methods": methods}
            file.write_text(yaml.safe_dump(content))
            found[profile] = raybias.load_study(file).model_dump(mode="json")
            # A place that this study had to name is no default.
            for each in (*found[profile]["pairs"], *found[profile]["questions"]):
                each["data"] = None
    return found


def _methods() -> list[Schema]:
    schema = raybias.Study.model_json_schema()
    sections = (_resolved(each, schema) for each in _sections(schema["properties"]["methods"]))
    return [section for section in sections if "const" in section["properties"].get("kind", {})]


def _section(
    title: str, section: Schema, schema: Schema, values: Mapping[str, Any]
) -> Iterator[str]:
    """Document one section, then those in its fields."""
    yield f"## {title}"
    yield str(section["description"])
    required = section.get("required", ())
    rows = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in section["properties"].items():
        default = _default(name, field, values) if name not in required else "required"
        cells = (
            f"`{name}`",
            _type(field, schema),
            default,
            " ".join(field.get("description", "Names the kind of method.").split()),
        )
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    yield "\n".join(rows)
    for name, field in section["properties"].items():
        for reference in _sections(field):
            inner = _resolved(reference, schema)
            told = inner["properties"].get("kind") or inner["properties"].get("api", {})
            kind = told.get("const")
            place = f"{title}.{name}".removeprefix("study.")
            part = {profile: _part(value.get(name), kind) for profile, value in values.items()}
            yield from _section(f"{place}: {kind}" if kind else place, inner, schema, part)


def _part(value: Any, kind: str | None) -> Mapping[str, Any]:
    """Find a section's values: those of a method, of the first of a list, or of a mapping."""
    if isinstance(value, list):
        value = next(
            (each for each in value if kind is None or kind in (each.get("kind"), each.get("api"))),
            {},
        )
    if isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
        value = next(iter(value.values()))
    return value if isinstance(value, dict) else {}


def _default(name: str, field: Schema, values: Mapping[str, Mapping[str, Any]]) -> str:
    """Show a field's default, or that of either profile where they differ."""
    if _sections(field):
        return ""  # in the table of the section
    by_profile = {profile: _value(value.get(name)) for profile, value in values.items()}
    if name != "profile" and len(set(by_profile.values())) > 1:
        return ", ".join(f"{profile}: {value}" for profile, value in by_profile.items())
    default = field.get("default")
    if default is None:
        default = values["strict"].get(name)
    return "" if default in (None, "", [], {}) else _value(default)


def _value(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def _type(field: Schema, schema: Schema) -> str:
    """Name the type of a field, with its limits."""
    if "const" in field or "enum" in field:
        return ", ".join(map(_value, field.get("enum", [field.get("const")])))
    if "$ref" in field:
        return "section"
    for union in ("anyOf", "oneOf"):
        if union in field:
            kinds = [_type(each, schema) for each in field[union] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), schema)}"
    if field.get("type") == "object":
        return f"mapping to {_type(field.get('additionalProperties', {}), schema)}"
    limits = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {field[name]:g}" for name, sign in limits.items() if name in field]
    return " ".join([str(field.get("type", "any")), ", ".join(bounds)]).strip()


def _sections(field: Any) -> list[str]:
    """List the references to sections in a field."""
    if isinstance(field, dict):
        if "$ref" in field:
            return [field["$ref"]]
        return [ref for key, each in field.items() if key != "default" for ref in _sections(each)]
    return [ref for each in field for ref in _sections(each)] if isinstance(field, list) else []


def _resolved(reference: str, schema: Schema) -> Schema:
    section: Schema = schema["$defs"][reference.rpartition("/")[2]]
    return section


if __name__ == "__main__":
    main()
