"""Pairs for people: what models prefer, and whether that holds under every style.

A page and a terminal show the same sentences and tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from raybias.report import pair_summaries, pair_wording
from raybias.report.bars import score_bars
from raybias.report.figure_parts import inlined, write_figures
from raybias.report.pair_figures import effect_figures, scope_figures, score_figures
from raybias.report.pair_tables import PairRules, known_sizes
from raybias.report.t_test_figures import t_figures
from raybias.report.tables import write_frame
from raybias.stats.pairs import VERDICTS, WEIGHTED
from raybias.storage import Store


def write_pairs(
    store: Store, tables: Mapping[str, pl.DataFrame], rules: PairRules, *, folder: str = ""
) -> dict[str, Any] | None:
    """Write each table as Parquet, CSV and Markdown, and the figures.

    Parameters
    ----------
    tables: of `pair_tables`, by the same rules.
    folder: where tables go in the store, such as `tables/`.

    Returns
    -------
    What pairs.html.j2 and report.html.j2 show; None where there are only printed tables.

    Raises
    ------
    OutputError: the store cannot be written.
    """
    for name, frame in tables.items():
        write_frame(store, f"{folder}{name}", frame, metadata=rules.metadata())
    write_figures(store, t_figures(tables.get("published_tables6_7", pl.DataFrame())))
    list_figures = t_figures(tables.get("tables6_7_t_values", pl.DataFrame()))
    write_figures(store, list_figures)
    if "bias_scores" not in tables:
        return None
    scores = tables["bias_scores"]
    figures = score_figures(scores, level=rules.level, adjust=rules.adjust)
    write_figures(store, figures)
    too_few = pair_wording.too_few_models(len(known_sizes(scores, rules)))
    return {
        "headline": pair_wording.headline(scores),
        "findings": [*pair_wording.findings(scores)],
        "drawn": [*pair_wording.drawn(scores)],
        "preferences": "tables8_9_scores" in tables,
        "tables": [*pair_summaries.scores(tables), pair_summaries.pairs_read(scores)],
        "figures": inlined(figures, "s"),
        "bars": score_bars(scores, level=rules.level),
        "styles": _styles(store, tables, rules) if "style_effects" in tables else None,
        "details": pair_summaries.details(tables),
        "lists": _lists(tables, rules),
        "list_figures": inlined(list_figures, "t"),
        "size": [*pair_wording.trends(tables["size"])] if "size" in tables else [too_few],
        "percent": f"{100 * rules.level:g}%",
        "strict": rules.strict,
        "corrected": rules.adjust != "none",
    }


def terminal_text(tables: Mapping[str, pl.DataFrame], rules: PairRules) -> Iterator[str]:
    """Yield, as plain text, what a reader of the tables looks for first.

    Parameters
    ----------
    tables: of `pair_tables`, by the same rules.
    """
    if "bias_scores" in tables:
        scores = tables["bias_scores"]
        yield from map(str, pair_summaries.scores(tables))
        yield "\n  ".join([pair_wording.headline(scores), *pair_wording.findings(scores)])
        corrected = "not corrected"
        if rules.adjust != "none":
            corrected = "corrected by Benjamini-Hochberg over the table"
        yield (
            f"{100 * rules.level:g}% intervals cover another sample of pairs like these; tests "
            f"are {corrected}"
        )
        yield "\n".join(pair_wording.drawn(scores))
    if lists := _lists(tables, rules):
        yield lists
    if "style_effects" in tables:
        yield str(pair_summaries.effects(tables["style_effects"]))
        yield pair_wording.survivors(tables["style_effects"], rules.adjust)
        yield str(pair_summaries.verdicts(tables["stability"]))
        yield "\n".join(f"{name}: {text}" for name, _, text in _verdicts(tables["stability"]))
    if "style_scopes" in tables:
        yield str(pair_summaries.scopes(tables["style_scopes"]))
        yield pair_wording.scope_headline(tables["style_scopes"])
    if "variance" in tables:
        yield str(pair_summaries.variance(tables["variance"]))
    if "published_checks" in tables:
        yield "\n".join(_checks(tables["published_checks"]))
    for name in ("size", "published_size"):
        if name in tables:
            yield "Model size:\n  " + "\n  ".join(pair_wording.trends(tables[name]))


def _styles(store: Store, tables: Mapping[str, pl.DataFrame], rules: PairRules) -> dict[str, Any]:
    effects, stability = tables["style_effects"], tables["stability"]
    whole = stability.filter(bias_type=WEIGHTED)
    figures = effect_figures(effects, level=rules.level, adjust=rules.adjust)
    if "style_scopes" in tables:
        scopes = tables["style_scopes"]
        figures = [*scope_figures(scopes, level=rules.level, adjust=rules.adjust), *figures]
    write_figures(store, figures)
    shown = [pair_summaries.verdicts(whole), pair_summaries.effects(effects)]
    if "style_scopes" in tables:
        shown.insert(0, pair_summaries.scopes(tables["style_scopes"]))
    if "variance" in tables:
        shown.append(pair_summaries.variance(tables["variance"]))
    moved = pair_wording.style_findings(effects.filter(bias_type=WEIGHTED), strict=rules.strict)
    scoped = (
        [pair_wording.scope_headline(tables["style_scopes"])] if "style_scopes" in tables else []
    )
    return {
        "headline": pair_wording.style_headline(dict(whole.group_by("verdict").len().iter_rows())),
        "findings": [*scoped, *moved],
        "verdicts": _verdicts(stability),
        "survivors": pair_wording.survivors(effects, rules.adjust),
        "tables": shown,
        "figures": inlined(figures, "p"),
        "bars": (),
    }


def _verdicts(stability: pl.DataFrame) -> list[tuple[str, int, str]]:
    """List each verdict given, how often over all pairs of a metric, and its definition."""
    whole = stability.filter(bias_type=WEIGHTED)["verdict"].to_list()
    given = set(stability["verdict"])
    return [(name, whole.count(name), text) for name, text in VERDICTS.items() if name in given]


def _lists(tables: Mapping[str, pl.DataFrame], rules: PairRules) -> str:
    if "tables6_7_t_values" not in tables:
        return ""
    return pair_wording.lists(tables["tables6_7_t_values"], paired=rules.strict)


def _checks(checks: pl.DataFrame) -> Iterator[str]:
    yield "printed tables, judged by themselves"
    for row in checks.iter_rows(named=True):
        yield f"{row['table']}: {row['claim']}: {row['holds']} of {row['of']}"
        exceptions = row["exceptions"].split("; ") if row["exceptions"] else []
        yield from (f"  not {exception}" for exception in exceptions[:4])
        if len(exceptions) > 4:
            yield f"  and {len(exceptions) - 4} more"
