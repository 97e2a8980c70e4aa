"""Give refusals of a comparison cures that its own command has.

Files are read as by `raybias measure`, and refusals name its options. A comparison takes no class,
no columns and no rules, so what reads as one of these options is put in other words here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from raybias.errors import BadInput

OPTION: Final = re.compile(r"--[a-z][a-z-]*")
#: Options of `raybias compare` that a cure may name.
OWN: Final = frozenset(
    (
        "--base",
        "--candidate",
        "--scope",
        "--gate",
        "--policy",
        "--accept",
        "--items",
        "--verify",
        "--out",
    )
)
_COLUMNS: Final = "call the columns label, pred and group"
#: By the first option of a cure that a comparison lacks, what to do instead; other such cures are
#: left out.
INSTEAD: Final[Mapping[str, str]] = {
    "--positive": "write labels and predictions of both arms as 0 and 1, with 1 for the class",
    "--threshold": "write a column pred of 0 and 1",
    "--label-column": _COLUMNS,
    "--pred-column": _COLUMNS,
    "--profile": "compare studies that are judged alike",
    "--reference": "compare studies whose gaps are taken from the same groups",
}
_ALONE: Final = "measure each arm alone (`raybias measure`)"


@contextmanager
def own_cures() -> Iterator[None]:
    """Put the cure of a refusal in words that name no option but those of `raybias compare`."""
    try:
        yield
    except BadInput as error:
        error.cure = own_cure(error.cure)
        raise


def own_cure(cure: str) -> str:
    """Replace the parts of a cure that name options which a comparison does not have."""
    found: list[str] = []
    for part in cure.split("; "):
        others = [name for name in OPTION.findall(part) if name not in OWN]
        instead = INSTEAD.get(others[0], "") if others else part.removeprefix("or ")
        if instead and instead not in found:
            found.append(instead)
    return "; or ".join(found) if found or not cure else _ALONE
