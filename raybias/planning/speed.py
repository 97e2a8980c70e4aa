"""Estimate the seconds of passes on a device: roofline, launches of kernels, and the host's part.

A pass over few tokens takes as long as reading the weights or launching its kernels, so runs that
share it cost little more than one; over many tokens it takes as long as its FLOPs. This is why a
small backbone wants many runs in a pack and a large one few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from raybias.planning.inventory import Node


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Constants of one kind of device; times are in seconds, rates a second."""

    kind: str
    source: str
    """Where the constants are from, for people."""
    peak: float
    """FLOP/s of dense products."""
    bandwidth: float
    """Bytes/s of the device's memory."""
    reached: float
    """Share of the peak that a pass over many tokens reaches."""
    streamed: float = 0.5
    """Share of the bandwidth at which a pass reads weights."""
    launch: float = 0.25e-3
    """Of one block's kernels in a forward pass, on the host; as much again or a little more in a
    backward one."""
    token: float = 0.0
    """Of one token in a block beside its products, such as softmax and norms, where these are not
    hidden behind others."""
    score: float = 0.0
    """Of one attention score (a query, a key and a head of a block) in a forward pass, where no
    fused kernel hides it, as on GPUs."""
    step: float = 5e-3
    """Of the host in every step of a pack, however many runs it has."""
    run: float = 0.8e-3
    """Of the host in a step for each run: its batch, its AdamW, its bookkeeping."""
    shard: float = 8.7e-3
    """Of the host for one shard of predictions."""
    evaluation: float = 50e-3
    """Of a worker for one evaluation: its report and the checkpoint of its runs."""
    link: float = 12e9
    """Bytes/s between the devices of one node."""
    network: float = 5e9
    """Bytes/s between nodes, which all workers of a node share."""
    loading: float = 1e9
    """Bytes/s at which weights come from a node's disk to the device."""
    start: float = 15.0
    """Of a worker's process until it loads weights."""

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.peak / 1e12:,.3g} TFLOP/s of which long passes reach"
            f" {self.reached:.0%}, {self.bandwidth / 1e12:,.3g} TB/s ({self.source})"
        )

    def work(self, flops: float, read: float) -> float:
        """Return the seconds of the device for FLOPs and bytes read from its memory."""
        return flops / (self.peak * self.reached) + read / (self.bandwidth * self.streamed)

    def shared(self, workers: int) -> Speed:
        """Return what each of so many workers has of a device that all keep busy."""
        return replace(self, peak=self.peak / workers, bandwidth=self.bandwidth / workers)

    def load(self, weight_bytes: float) -> float:
        """Return the seconds until a new worker holds the weights."""
        return self.start + weight_bytes / self.loading


_SHEET: Final = "data sheet; share reached, launches and host assumed"


def _gpu(kind: str, tflops: float, terabytes: float, link: float = 12e9) -> Speed:
    return Speed(
        kind=kind,
        source=_SHEET,
        peak=tflops * 1e12,
        bandwidth=terabytes * 1e12,
        reached=0.55,
        link=link,
    )


#: By kind as Ray names it: dense 16-bit TFLOP/s and TB/s of memory of one GPU, and the bytes/s
#: between two GPUs of a node (NVLink in one direction, else PCIe), from the makers' data sheets.
GPUS: Final = {
    each.kind: each
    for each in (
        _gpu("V100", 125.0, 0.9, 150e9),
        _gpu("T4", 65.0, 0.32),
        _gpu("A10G", 70.0, 0.6),
        _gpu("L4", 121.0, 0.3),
        _gpu("L40S", 362.0, 0.864),
        _gpu("A100", 312.0, 2.0, 300e9),
        _gpu("A100-40G", 312.0, 1.555, 300e9),
        _gpu("A100-80G", 312.0, 2.0, 300e9),
        _gpu("H100", 989.0, 3.35, 450e9),
        _gpu("H200", 989.0, 4.8, 450e9),
        _gpu("B200", 2250.0, 8.0, 900e9),
    )
}
#: A GPU whose kind is not known.
UNKNOWN_GPU: Final = replace(
    GPUS["A10G"], kind="GPU of an unknown kind", source="taken to be as fast as an A10G"
)
#: One core, in float32.
CPU: Final = Speed(
    kind="CPU",
    source="one core of an EPYC in float32, measured; `python benchmarks/speed.py` measures yours",
    peak=100e9,
    bandwidth=10e9,
    reached=0.85,
    streamed=1.0,
    launch=0.6e-3,
    token=1e-6,
    score=14e-9,
    step=3e-3,
    run=3e-3,
    link=8e9,
    start=8.0,
    loading=0.5e9,
)


@dataclass(frozen=True)
class Machine:
    """The assumed speed of devices.

    Attributes
    ----------
    peak: TFLOP/s of one device, None to look it up by the device's kind.
    utilisation: the part of it that a large pass reaches, None for that of the kind.
    """

    peak: float | None = None
    utilisation: float | None = None

    def speed(self, nodes: Sequence[Node], *, gpus: int, threads: int) -> Speed:
        """Return the speed of one worker's device, the slowest of the nodes'.

        Parameters
        ----------
        gpus: of a worker; 0 computes on `threads` cores.
        """
        if gpus:
            kinds = {node.gpu for node in nodes if node.gpus}
            known = [GPUS.get(kind or "", UNKNOWN_GPU) for kind in sorted(kinds, key=str)]
            found = min(known, key=lambda each: each.peak, default=UNKNOWN_GPU)
        else:
            found = replace(CPU, peak=CPU.peak * threads)
        if self.peak is not None:
            found = replace(found, peak=self.peak * 1e12, source=f"{self.peak:g} TFLOP/s as given")
        if self.utilisation is not None:
            found = replace(found, reached=self.utilisation)
        return found
