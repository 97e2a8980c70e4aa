"""(IA)3, the package of docs/examples, as if it were installed."""

import sys

from raybias.methods import methods
from support.documents import ROOT

sys.path[:0] = [str(ROOT / "docs" / "examples" / "raybias_ia3")]
from raybias_ia3.method import Ia3  # noqa: E402
from raybias_ia3.trainer import Ia3Trainer  # noqa: E402

__all__ = ["Ia3", "Ia3Trainer"]

#: Other tests list the kinds that raybias has by itself.
methods._entries.pop("ia3", None)
