"""YAML as a study has it: plain values only, no key twice in one mapping, and bounded."""

from __future__ import annotations

from typing import Any, Final

import yaml

_TAG: Final = "tag:yaml.org,2002:"
#: Dates and the like are text, as in YAML 1.2 and JSON.
_PLAIN: Final = {f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "merge")}
_KINDS: Final = {
    yaml.ScalarNode: _PLAIN,
    yaml.SequenceNode: {f"{_TAG}seq"},
    yaml.MappingNode: {f"{_TAG}map"},
}
_CHARACTERS: Final = 1 << 20
_DEPTH: Final = 32
#: Values of a document, those that an alias repeats counted again.
_VALUES: Final = 100_000
_NUMBERS: Final = {f"{_TAG}{kind}" for kind in ("int", "float")}
_DIGITS: Final = 70
#: Whole numbers have 64 bits.
_LARGEST: Final = 1 << 63


class _Refused(ValueError):
    """YAML that is more than a study may have."""

    def __init__(self, problem: str, node: Any) -> None:
        super().__init__(f"line {node.start_mark.line + 1}: {problem}")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without dates, tags of other types, bombs, and keys that repeat."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = self.values = 0
        self.sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a value within the bounds; an alias counts as what it repeats."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.depth == _DEPTH:
            raise _Refused(f"nested deeper than {_DEPTH} levels", event)
        before = self.values
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self.sizes:
                raise _Refused(f"*{event.anchor} stands inside of what it names", event)
            self.values += self.sizes[id(node)]
        else:
            _check_value(node)
            self.values += 1
            self.sizes[id(node)] = self.values - before
        if self.values > _VALUES:
            raise _Refused(f"more than {_VALUES:,} values", event)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse equal keys, before `<<` puts those of other mappings beside them."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused("a key is a list or mapping; give it a name", key)
            line = key.start_mark.line + 1
            if (first := lines.get((key.tag, key.value))) is not None:
                raise _Refused(f"the key {key.value!r} of line {first} repeats; keep one", key)
            lines[key.tag, key.value] = line
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value; one that is not what it is tagged as, or a huge number, is refused."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError) as error:
            raise _Refused(f"{node.value!r} is no {node.tag.removeprefix(_TAG)}", node) from error
        if type(value) is int and abs(value) >= _LARGEST:
            raise _Refused(f"the number {node.value} is too large", node)
        return value


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag in _PLAIN]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _check_value(node: Any) -> None:
    """Refuse a value that is no text, number, true, false, null, list or mapping."""
    if node.tag not in _KINDS[type(node)]:
        tag = node.tag.replace(_TAG, "!!")
        raise _Refused(f"{tag[:_DIGITS]} is no type that a study has", node)
    if not isinstance(node, yaml.ScalarNode):
        return
    if "\0" in node.value or any("\ud800" <= letter <= "\udfff" for letter in node.value):
        raise _Refused("a character that no text has", node)
    if node.tag in _NUMBERS and len(node.value) > _DIGITS:
        raise _Refused(f"a number of {len(node.value):,} digits", node)


def parse_yaml(text: str) -> Any:
    """Parse a YAML document into dicts, lists, text, numbers, true, false and null.

    Raises
    ------
    ValueError: says in which line is what; not YAML, a value of another type, a key that is twice
        in the same mapping, or more or deeper than a study can be.
    """
    if len(text) > _CHARACTERS:
        raise ValueError(f"has more than {_CHARACTERS:,} characters")
    try:
        loader = _Loader(text.removeprefix("\ufeff"))
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"not YAML ({line}{error.problem or error.context})") from error
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML ({error})") from error
