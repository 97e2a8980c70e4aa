"""`--set key=value`: changes to what a study file says, before it is checked."""

from __future__ import annotations

from inspect import isclass
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from raybias.config.section import Section, listed, plain_types
from raybias.config.yaml_text import parse_yaml
from raybias.errors import ConfigError


def override(data: dict[str, Any], text: str, section: type[Section]) -> None:
    """Put `key=value` into the content of a file, defaults filled in on the way to the key.

    Parameters
    ----------
    data: the file's mapping, which is changed.
    text: dots go into sections, numbers into lists (`methods.0.keep=3`); the value is YAML.
    section: what the mapping will be checked against.

    Raises
    ------
    ConfigError: no `=`, a value that is not YAML, or an unknown place.
    """
    dotted, equals, raw = text.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {text!r} is not key=value", cure="such as methods.0.keep=3")
    *parents, last = dotted.split(".")
    node: Any = data
    annotation: Any = section
    try:
        value = parse_yaml(raw)
        for depth, part in enumerate(parents):
            key, below = _find(node, part, annotation, ".".join(parents[:depth]))
            if isinstance(node, dict) and node.get(key) is None:
                node[key] = _default(node, key, annotation)
            node[key] = listed(below, node[key])
            node, annotation = node[key], below
        key, _ = _find(node, last, annotation, ".".join(parents))
        node[key] = value
    except ValueError as error:
        raise ConfigError(str(error), where=f"--set {text!r}") from error


def _find(node: Any, part: str, annotation: Any, place: str) -> tuple[str | int, Any]:
    """Return the key or index that `part` names, and the annotation of its value."""
    if isinstance(node, dict):
        section = _section(annotation, node)
        if section is not None:
            section.check_key(part)
            return part, section.model_fields[part].annotation
        return part, _held(annotation, dict, 1)
    if isinstance(node, list):
        if not part.isdecimal() or int(part) >= len(node):
            raise ValueError(f"{place} has no entry {part!r}; it has {len(node)}, counted from 0")
        return int(part), _held(annotation, tuple, 0)
    raise ValueError(
        f"{place} is {node!r}, which has no keys; dots go into sections, numbers into lists, as in"
        " methods.0.keep=3"
    )


def _section(annotation: Any, node: dict[str, Any]) -> type[Section] | None:
    """Return the section that a mapping is checked against."""
    kinds = [each for each in _sections(annotation) if each.describes(node)]
    return kinds[0] if kinds else None


def _sections(annotation: Any) -> list[type[Section]]:
    return [each for each in plain_types(annotation) if isclass(each) and issubclass(each, Section)]


def _held(annotation: Any, container: type, place: int) -> Any:
    """Return the annotation of the values of a list, or of a mapping with free keys."""
    found = [each for each in plain_types(annotation) if get_origin(each) is container]
    return get_args(found[0])[place] if found else Any


def _default(node: dict[str, Any], key: str | int, annotation: Any) -> Any:
    """Return the default of a key that the file leaves out, as a file would write it."""
    section = _section(annotation, node)
    if section is None:
        return {}
    field = section.model_fields[str(key)]
    if field.is_required():
        return {} if _sections(field.annotation) else []
    try:
        # What a preset decides is no field's own default.
        return _written(getattr(section.model_validate(node), str(key)))
    except ValidationError:
        return _written(field.get_default(call_default_factory=True))


def _written(value: Any) -> Any:
    if isinstance(value, Section):
        # A name that was not given follows from the rest, which may yet be changed.
        return value.model_dump(mode="json", exclude_unset=True, exclude={"name"})
    if isinstance(value, tuple):
        return [_written(each) for each in value]
    return value
