"""`raybias demo`: run the embedded calibration, which has a known answer."""

from __future__ import annotations

from typing import Annotated

import typer

from raybias.cli.options import Address, Debug, command_line
from raybias.cli.show import show


def demo(
    out: Annotated[str, typer.Option(help="Folder or URI of the results.")] = "out/demo",
    address: Address = None,
    debug: Debug = False,
) -> None:
    """Find a bias that was planted in a tiny embedded model; needs no download.

    The groups are invented and the answer is known: this is a calibration of the
    instrument, not a finding. Exits with 1 if the planted group was not found with the
    right sign, or another was flagged.
    """
    from raybias import api
    from raybias.probes.planted import plant
    from raybias.runtime.demo import verdict

    results = api.demo(out, address=address, command=command_line())
    show(results)
    print(verdict(results.gaps.collect(), plant()))
