"""Describe what was asked of endpoints, from OUT/endpoints."""

from __future__ import annotations

from raybias.config import Study
from raybias.providers.base import Provider
from raybias.providers.openai import read_asked
from raybias.report.summary_tables import SummaryTable
from raybias.storage import Store


def endpoints(store: Store, study: Study) -> SummaryTable:
    """Say what was asked of each endpoint, what it called itself, and how steady it was."""
    rows = []
    for backbone in study.backbones:
        if not isinstance(backbone, Provider):
            continue
        asked = read_asked(store, backbone.name)
        rows.append(
            (
                backbone.name,
                backbone.place,
                f"{asked.requests:,}",
                f"{asked.tokens:,}",
                f"{backbone.prices.of(asked.read, asked.written):,.2f}",
                f"{asked.same:,} of {asked.twice:,}",
                f"{asked.furthest:.2g}",
                ", ".join(asked.models),
                ", ".join(asked.fingerprints) or "none",
            )
        )
    headers = (
        "model", "endpoint", "requests", "tokens", "cost", "the same answer when asked again",
        "furthest likelihoods of one text", "calls itself", "system fingerprints",
    )  # fmt: skip
    return SummaryTable("Endpoints", headers, tuple(rows))
