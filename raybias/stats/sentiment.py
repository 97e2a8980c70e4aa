"""The classes of sentiment, as studies, Kohankhaki2024's files and tables of its words have them.

Nothing else in `stats` and `measures` knows a class by its number: other classes come from the
words of a table, or from the metadata of a file (`stats.classes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raybias import schema

#: Names of the classes, in the order of their numbers.
NAMES: Final = schema.LABELS
NEGATIVE: Final = int(schema.Label.NEGATIVE)
POSITIVE: Final = int(schema.Label.POSITIVE)
#: The name of each class by its number.
BY_CODE: Final[Mapping[int, str]] = dict(enumerate(NAMES))
#: The number of each class, by its name and by its number as text.
CODES: Final[Mapping[str, int]] = {
    **{name: number for number, name in enumerate(NAMES)},
    **{str(number): number for number in range(len(NAMES))},
}
