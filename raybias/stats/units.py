"""Units that stand in the column `template_id` of tables in which no templates are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Begins a `template_id` that is a block of items, which are drawn anew where no templates are
#: known. A thousand blocks vary their mean as much as drawing items one by one.
BLOCK: Final = "items "
#: Begins one that is a block of clusters of rows, such as those about one person.
CLUSTER: Final = "clusters "
#: Begins of units that hold what a user knows of rows, where no templates are known, by the scope
#: that draws them.
UNITS: Final[Mapping[str, str]] = {"items": BLOCK, "clusters": CLUSTER}
