"""YAML as a study has it: plain values only, and no key twice in one mapping."""

from __future__ import annotations

from typing import Any

import yaml


class _RepeatedKey(ValueError):
    """A key that a mapping has twice."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which by itself lets the last of two equal keys win."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse equal keys, before `<<` puts those of other mappings beside them."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if (first := lines.get((key.tag, key.value))) is not None:
                raise _RepeatedKey(
                    f"the key {key.value!r} of line {first} repeats in line {line}; keep one"
                )
            lines[key.tag, key.value] = line
        return node


def parse_yaml(text: str) -> Any:
    """Parse a YAML document into dicts, lists and plain values.

    Raises
    ------
    ValueError: says what is wrong; not YAML, a value that is no date or number though it looks
        like one, or a key that is twice in the same mapping.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except _RepeatedKey:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"not YAML ({error})") from error
    except RecursionError as error:
        raise ValueError("not YAML (nested too deeply)") from error
    finally:
        loader.dispose()
