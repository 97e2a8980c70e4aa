"""Read YAML, put `--set key=value` into it, and check it against a section."""

from __future__ import annotations

from collections.abc import Collection
from io import StringIO
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML, MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from raybias.config.section import Section
from raybias.errors import ConfigError
from raybias.opening import read_written

_TAG: Final = "tag:yaml.org,2002:"
#: Dates and `=` are text, as in JSON.
_TEXTS: Final = ("timestamp", "value")
_SCALARS: Final = ("null", "bool", "int", "float", "str", "merge", *_TEXTS)
_KINDS: Final = {
    ScalarNode: {f"{_TAG}{kind}" for kind in _SCALARS},
    SequenceNode: {f"{_TAG}seq"},
    MappingNode: {f"{_TAG}map"},
}
_CHARACTERS: Final = 1 << 20
_DEPTH: Final = 32
#: Most values of a document, with aliases expanded.
_VALUES: Final = 100_000
_DIGITS: Final = 70
#: Whole numbers have 64 bits.
_LARGEST: Final = 1 << 63


class _Refused(ValueError):
    """YAML that is more than a study may have."""

    def __init__(self, problem: str, part: Any) -> None:
        super().__init__(f"line {part.start_mark.line + 1}: {problem}")


class _Constructor(SafeConstructor):
    """Make text, numbers, true, false, null, lists and mappings with named keys, nothing else."""

    def construct_document(self, node: Any) -> Any:
        """Construct a document; refuse one of too many values."""
        _Sizes().of(node)
        return super().construct_document(node)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Construct a value; refuse one that its tag does not fit, and huge numbers."""
        if node.tag not in _KINDS[type(node)]:
            tag = node.tag.replace(_TAG, "!!")
            raise _Refused(f"{tag[:_DIGITS]} is no type that a study has", node)
        text = node.value if isinstance(node, ScalarNode) else ""
        if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise _Refused("a character that no text has", node)
        if node.tag in (f"{_TAG}int", f"{_TAG}float") and len(text) > _DIGITS:
            raise _Refused(f"a number of {len(text):,} digits", node)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError) as error:
            raise _Refused(f"{text!r} is no {node.tag.removeprefix(_TAG)}", node) from error
        if type(value) is int and abs(value) >= _LARGEST:
            raise _Refused(f"the number {text} is too large", node)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Construct a mapping; a key that is one itself, or a list, is refused."""
        if wrong := [key for key, _ in node.value if not isinstance(key, ScalarNode)]:
            raise _Refused("a key is a list or mapping; give it a name", wrong[0])
        return super().construct_mapping(node, deep)


class _Sizes:
    """Count the values of a document's nodes; an alias counts as the values that it repeats."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._around: list[int] = []

    def of(self, node: Any) -> int:
        """Return how many values a node holds, itself among them; refuse too many."""
        key = id(node)
        if key in self._around:
            raise _Refused(f"*{node.anchor} refers to itself", node)
        if key in self._sizes:
            return self._sizes[key]
        self._around.append(key)
        values = 1
        for part in _parts(node):
            values += self.of(part)
            if values > _VALUES:
                raise _Refused(f"more than {_VALUES:,} values", node)
        self._around.pop()
        self._sizes[key] = values
        return values


def _parts(node: Any) -> list[Any]:
    """List the nodes in a node: items, or keys and values."""
    if isinstance(node, MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, SequenceNode) else []


for _kind in _TEXTS:
    _Constructor.add_constructor(f"{_TAG}{_kind}", SafeConstructor.construct_yaml_str)


def parse_yaml(text: str) -> Any:
    """Parse a YAML 1.2 document into dicts, lists, text, numbers, true, false and null.

    `ValueError` says in which line is a value of another type, a key that is twice in the same
    mapping, or more or deeper than a study can be.
    """
    if len(text) > _CHARACTERS:
        raise ValueError(f"has more than {_CHARACTERS:,} characters")
    text = text.removeprefix("\ufeff")
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _Constructor
    reader.max_depth = _DEPTH
    try:
        return reader.load(text)
    except MaxDepthExceededError as error:
        line = error.problem_mark.line + 1
        raise ValueError(f"line {line}: nested deeper than {_DEPTH} levels") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        # Of a key that repeats, ruamel.yaml shows both values, however long.
        problem = str(error.problem or error.context).split(" with value ")[0]
        raise ValueError(f"not YAML ({line}{problem})") from error
    except YAMLError as error:
        raise ValueError(f"not YAML ({' '.join(str(error).split())})") from error


def to_yaml(content: Any, width: int = 100) -> str:
    """Write dicts, lists, text and numbers as YAML, one key a line."""
    writer: Any = YAML(typ="safe", pure=True)
    writer.default_flow_style = writer.sort_base_mapping_type_on_output = False
    writer.width = width
    text = StringIO()
    writer.dump(content, text)
    return text.getvalue()


#: Messages in place of pydantic's that name types of Python, by its type of error; with the values
#: of its context.
_MESSAGES: Final = {
    "tuple_type": "needs a list",
    "model_type": "needs keys with values",
    "dict_type": "needs keys with values",
    "too_long": "has {actual_length:,} values, and at most {max_length:,} are allowed",
}
AnySection = TypeVar("AnySection", bound=Section)


def yaml_mapping(text: str, *, where: str, cure: str) -> dict[str, Any]:
    """Parse YAML that holds keys with values; `ConfigError` where it does not."""
    try:
        data = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(str(error), where=where) from error
    if not isinstance(data, dict):
        raise ConfigError("holds no keys", where=where, cure=cure)
    return data


def read_mapping(path: str | Path, *, cure: str) -> dict[str, Any]:
    """Read a YAML file that holds keys with values; `ConfigError` where it does not."""
    try:
        text = read_written(path)
    except OSError as error:
        raise ConfigError(f"cannot read ({error.strerror})", where=str(path)) from error
    except ValueError as error:
        raise ConfigError(str(error), where=str(path)) from error
    return yaml_mapping(text, where=str(path), cure=cure)


def parse_section(
    kind: type[AnySection],
    data: dict[str, Any],
    *,
    where: str,
    hidden: Collection[str] = (),
    folder: Path | None = None,
) -> AnySection:
    """Check a mapping against a section; one `ConfigError` line names all that is wrong.

    Parameters
    ----------
    hidden: parts of pydantic's places that no file has.
    folder: relative paths in the mapping start there; without it they stay as they are.
    """
    try:
        return kind.model_validate(data, context=folder)
    except ValidationError as error:
        # Defaults that follow from a wrong value are no faults of their own.
        wrong = [e for e in error.errors() if e["type"] != "default_factory_not_called"]
        said: dict[str, str] = {}
        for each in wrong:
            loc, depth = each["loc"], len(each["loc"])
            # A wrong entry also makes the list around it too short; that is no second fault.
            if any(e["loc"][:depth] == loc and len(e["loc"]) > depth for e in wrong):
                continue
            place = ".".join(str(part) for part in loc if part not in hidden)
            own = _MESSAGES.get(each["type"], "").format_map(each.get("ctx", {}))
            message = own or each["msg"].removeprefix("Value error, ")
            told = each["type"] in ("value_error", "missing", "too_long")
            given = "" if told else f" (got {each['input']!r})"
            said.setdefault(place, f"{place + ': ' if place else ''}{message}{given}")
        raise ConfigError("; ".join(said.values()), where=where) from error


def override(data: dict[str, Any], text: str) -> None:
    """Change the mapping of a file by `key=value`, before it is checked.

    Dots go into sections, numbers into lists (`methods.0.keep=3`). What the file leaves out is
    begun with the value, and defaults fill the rest of a section.

    `ConfigError` where there is no `=`, the value is not YAML, or there is no such place.
    """
    dotted, equals, raw = text.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {text!r} is not key=value", cure="such as methods.0.keep=3")
    try:
        _put(data, dotted.split("."), parse_yaml(raw))
    except ValueError as error:
        raise ConfigError(str(error), where=f"--set {text!r}") from error


def _put(node: Any, path: list[str], value: Any, place: str = "") -> None:
    """Put a value at a path into mappings and lists, and begin those that are missing."""
    part, *rest = path
    key: str | int = part
    if isinstance(node, list):
        if not part.isdecimal() or int(part) >= max(1, len(node)):
            raise ValueError(f"{place} has no entry {part!r}; it has {len(node)}, counted from 0")
        key = int(part)
        node += [None] * (not node)
    elif not isinstance(node, dict):
        raise ValueError(
            f"{place} is {node!r}, which has no keys; dots go into sections, numbers into lists,"
            " as in methods.0.keep=3"
        )
    if not rest:
        node[key] = value
        return
    held = node.get(key) if isinstance(node, dict) else node[key]
    if held is None:
        held = [] if rest[0].isdecimal() else {}
    elif rest[0].isdecimal() and not isinstance(held, dict | list):
        # A single value stands for a list of one.
        held = [held]
    node[key] = held
    _put(held, rest, value, f"{place}.{part}".lstrip("."))
