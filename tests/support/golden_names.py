"""What today's tables were called when tests/golden.parquet was stored."""

from __future__ import annotations

from typing import Final

import polars as pl

Tables = dict[str, pl.DataFrame]

#: By kind: the old names of columns, and the columns of the old table.
_QUESTIONS: Final = {
    "options": {"attribute": "category", "condition": "context", "style": "prompt"},
    "triples": {"attribute": "domain", "condition": "task", "units": "terms", "n": "items"},
    "decisions": {"condition": "background", "p": "p_value", "units": "decisions", "n": "items"},
    "sentences": {"attribute": "axis", "units": "templates", "n": "pairs"},
}
_KEPT: Final = {
    "options": ("model", "category", "context", "score", "value", "low", "high", "n", "units",
                "no_interval", "probe", "method", "prompt", "scope", "unparsed"),
    "triples": ("model", "domain", "task", "score", "value", "low", "high", "terms", "items",
                "no_interval", "probe"),
    "decisions": ("model", "attribute", "group", "value", "low", "high", "p_value", "background",
                  "decisions", "items", "no_interval", "probe"),
    "sentences": ("model", "axis", "score", "value", "low", "high", "pairs", "templates",
                  "no_interval", "probe"),
}  # fmt: skip
PAIRED: Final = {"method": "score", "attribute": "bias_type", "p": "p_value", "q": "q_value"}
_CLASSIFIER: Final = ("method", "dataset", "probe", "style")
_LESS: Final = "_less_noise"
_WIDTH: Final = {"runs": 0, "sentences": 1, "items": 1, "wording": 2}
_METRIC: Final = ("model", "score", "probe", "bias_type")
_JUDGED: Final = ("low", "high", "p_value", "q_value", "survives")
#: Of paired outcomes, the value that means no bias.
_NEUTRAL: Final = {"preference": 50.0, "pro_less_anti": 0.0}
_SPREAD: Final = {"between pairs": "sd_pair", "between styles": "sd_style",
                  "a pair's own way with a style": "sd_pair_x_style"}  # fmt: skip


#: What changes of a comparison have beside the columns that they had.
_NEW: Final = ("kind", "condition", "statistic", "p", "q", "significant", "survives", "mde", "n",
               "units")  # fmt: skip


def as_stored(tables: Tables) -> Tables:
    """Give estimates the tables of their kinds, and changes their columns, beside other tables."""
    found = {}
    for name, frame in tables.items():
        before, _, last = name.rpartition(": ")
        if last == "changes":
            found[name] = frame.drop(_NEW).rename(
                {"score": "rate", "value": "change", "reason": "needs"}
            )
            continue
        if last != "estimates":
            found[name] = frame
            continue
        for table, part in {**_asked(frame), **_pairs(frame), **metric_tables(frame)}.items():
            found[f"{before}: {table}" if before else table] = part
    return found


def metric_tables(frame: pl.DataFrame) -> Tables:
    """The tables of metrics of predictions, and of how far they agree."""
    frame = frame.filter(pl.col("kind") == "predictions", pl.col("score") != "unread")
    if frame.is_empty():
        return {}
    agreed = frame.filter(score="agreement")
    pair = pl.col("group").str.split_exact(", ", 1).struct
    agreement = agreed.select(
        ranking="condition", model=pl.col("model").replace("all", ""), metric=pair.field("field_0"),
        other=pl.coalesce(pair.field("field_1"), "group"), w="value", n_metrics="units",
        n_ranked="n", **{n: pl.col(n) for n in ("attribute", "low", "high", "scope", *_CLASSIFIER)},
    )  # fmt: skip
    one = frame.filter(pl.col("score") != "agreement", pl.col("model") != "all")
    less = one.filter(pl.col("score").str.ends_with(_LESS))
    place = ["model", *_CLASSIFIER, "attribute", "condition", "group", "score"]
    corrected = less.select(*place, corrected="value").with_columns(
        pl.col("score").str.strip_suffix(_LESS)
    )
    contrasts = one.filter(
        pl.col("statistic").is_in(["score", "ratio"]),
        ~pl.col("score").str.ends_with(_LESS),
        ~pl.col("condition").str.contains("^(by|ranking of) "),
        ~pl.col("score").str.contains("_in_models$|^meaningless_|^withheld$"),
    ).join(corrected, on=place, how="left")
    wide = pl.col("scope").replace_strict(_WIDTH, default=-1, return_dtype=pl.Int64)
    gaps = one.filter(
        pl.col("statistic") == "gap",
        ~pl.col("scope").str.contains("families"),
        ~pl.col("condition").str.contains("^(word:|without) "),
    )
    widest = gaps.sort(wide, maintain_order=True).unique(place, keep="last", maintain_order=True)
    differences = widest.with_columns(
        condition=pl.col("condition").replace("", "mean_of_groups"),
        reason=pl.when(pl.col("low").is_null()).then("reason"),
    )
    measured = pl.concat([contrasts, differences], how="diagonal").select(
        "model", "attribute", "group", "value", "low", "high", "corrected", metric="score",
        scope=pl.when(pl.col("low").is_not_null()).then("scope"), background="condition",
        note="reason", **{n: pl.col(n) for n in _CLASSIFIER},
    )  # fmt: skip
    return {"metrics": measured, "agreement": agreement}


def _asked(frame: pl.DataFrame) -> Tables:
    """The tables of questions, triples, decisions and sentences."""
    found = {}
    for kind, names in _QUESTIONS.items():
        part = frame.filter(kind=kind)
        on = ["model", "probe", "method", "attribute", "condition", "style", "scope"]
        counted = (pl.col("value") * pl.col("n")).round()
        unread = part.filter(score="unread").select(*on, unparsed=counted)
        part = part.filter(pl.col("score") != "unread").join(unread, on=on, how="left")
        found[kind] = part.rename({**names, "reason": "no_interval"}).select(_KEPT[kind])
    return {name: part for name, part in found.items() if part.height}


def _pairs(frame: pl.DataFrame) -> Tables:
    """The tables of pairs and coreference."""
    frame = frame.filter(pl.col("kind").is_in(["pairs", "coreference"]))
    if frame.is_empty():
        return {}
    clusters = pl.when(pl.col("scope").str.starts_with("clusters")).then("units")
    outcome, whole = pl.col("score").is_in([*_NEUTRAL]), pl.col("condition") == ""
    neutral = pl.col("score").replace_strict(_NEUTRAL, default=None, return_dtype=pl.Float64)
    sized = frame.with_columns(clusters=clusters, neutral=neutral)
    paired = sized.drop("score").rename(PAIRED).with_columns(what=frame["score"])
    one = (pl.col("model") != "all") & (pl.col("statistic") == "score")
    outcome = pl.col("what").is_in([*_NEUTRAL])
    scores = paired.filter(outcome, one, pl.col("style") != "all")
    effects = paired.filter(outcome, statistic="difference")
    on = [*_METRIC, "style", "condition"]
    ties = _rate(paired, "ties", on)
    judged = scores.join(ties, on=on, how="left").rename({"mde": "resolvable"})
    flips = paired.filter(what="flips").select(*on, flip_share=pl.col("value") / 100)
    changed = effects.join(flips, on=on, how="left").rename(
        {"value": "effect", "mde": "resolvable"}
    )
    scopes = paired.filter(outcome, one, whole, style="all").rename({"mde": "detectable"})
    wider = pl.when(pl.col("scope").str.contains("styles")).then(pl.lit("styles"))
    moved = paired.filter(whole, what="styles_that_move_it").rename(
        {"value": "moved", "n": "n_styles", "reason": "verdict"}
    )
    return {
        "bias_scores": judged.filter(whole).select(
            *_METRIC, "style", "n", "clusters", "ties", "value", "neutral", "resolvable",
            "significant", *_JUDGED,
        ),
        "style_effects": changed.filter(whole).select(
            *_METRIC, "style", "n", "clusters", "effect", "neutral", "flip_share", "resolvable",
            *_JUDGED,
        ),
        "style_scopes": scopes.with_columns(scope=wider.otherwise(pl.lit("pairs"))).select(
            *_METRIC, "scope", "n", "clusters", "value", "neutral", "detectable", "significant",
            *_JUDGED,
        ),
        "stability": moved.select(*_METRIC, "moved", "n_styles", "verdict"),
        **_preferences(paired.filter(kind="pairs"), scores, effects),
        **_by_prompt(paired.filter(kind="coreference")),
        **_others(paired),
    }  # fmt: skip


def _rate(paired: pl.DataFrame, name: str, on: list[str]) -> pl.DataFrame:
    counted = (pl.col("value") * pl.col("n") / 100).round()
    return paired.filter(what=name).select(*on, counted.alias(name))


def _preferences(paired: pl.DataFrame, scores: pl.DataFrame, effects: pl.DataFrame) -> Tables:
    """Tables 8 and 9 of Zhao2025."""
    on = [*_METRIC, "style", "condition"]
    found = scores.filter(kind="pairs").select(*on, "value", "low", "high", "n")
    delta = {"value": "delta", "low": "delta_low", "high": "delta_high", "n": "moved_n"}
    changed = effects.filter(kind="pairs").select(*on, *delta).rename(delta)
    found = found.join(changed, on=on, how="left")
    for name in ("ties", "turned"):
        found = found.join(_rate(paired, name, on), on=on, how="left")
    for name in ("of_untied", "of_scored"):
        other = paired.filter(what=name).select(*on, pl.col("value").alias(name),
                                                pl.col("n").alias(f"n_{name}"))  # fmt: skip
        found = found.join(other, on=on, how="left")
    origin = pl.col("style") == "original"
    same = origin | (pl.col("moved_n") == pl.col("n"))
    ends = ("delta_low", "delta_high")
    return {
        "tables8_9_scores": found.with_columns(
            *(pl.when(same).then(name) for name in ends),
            delta=pl.when(origin).then(0.0).when(same).then("delta"),
            k=_of_all_pairs((pl.col("value") * pl.col("n") / 100).round()),
            unscored=pl.col("n") - pl.col("n_of_scored"),
            part=pl.when(pl.col("condition") == "").then(pl.lit("all")).otherwise("condition"),
        ).drop("condition", "moved_n", "n_of_untied", "n_of_scored")
    }


def _of_all_pairs(k: pl.Expr) -> pl.Expr:
    """Count for the mean of types what there is of all pairs, as the table did."""
    over = ("model", "score", "probe", "style", "condition")
    whole = k.filter(pl.col("bias_type") == "avg_weighted").first().over(over)
    return pl.when(pl.col("bias_type") == "avg_unweighted").then(whole).otherwise(k)


def _by_prompt(paired: pl.DataFrame) -> Tables:
    """Tables 3 and 10 to 17."""
    names = {"pro_accuracy": "pro", "anti_accuracy": "anti", "difference": "diff",
             "absolute_difference": "abs_diff"}  # fmt: skip
    keys = ["model", "probe", "wino_type", "style", "rule", "prompt"]
    named = paired.rename({"score": "rule", "bias_type": "wino_type", "group": "prompt"})
    detail = named.filter(pl.col("what").is_in([*names])).select(keys).unique()
    for old, new in names.items():
        ends = {"low": f"{new}_low", "high": f"{new}_high"}
        if new == "diff":
            ends = {"low": "low", "high": "high"}
        if new == "abs_diff":
            ends = {"low": "abs_low", "high": "abs_high"}
        count = {"n": f"n_{new}"} if new in ("pro", "anti") else {}
        part = named.filter(what=old).rename({"value": new, **ends, **count})
        detail = detail.join(part.select(*keys, new, *ends.values(), *count.values()), on=keys)
    for reading in ("other", "both", "neither", "empty"):
        part = named.filter(what=f"names_{reading}").rename({"value": f"answers_{reading}"})
        detail = detail.join(part.select(*keys, f"answers_{reading}"), on=keys, how="left")
    if detail.is_empty():
        return {}
    mean = detail.filter(prompt="mean").drop("prompt", "n_pro", "n_anti")
    return {"tables10_17_winobias": detail, "table3_winobias": mean}


def _others(paired: pl.DataFrame) -> Tables:
    """Lists of sentence scores, components of variance and trends with model size."""
    lists = paired.filter(what="t").with_columns(
        pl.col("group").str.split_exact(" - ", 1).struct.rename_fields(["first", "second"])
    ).unnest("group")  # fmt: skip
    keys = [*_METRIC, "condition", "n"]
    spread = paired.filter(what="sd").with_columns(pl.col("group").replace(_SPREAD))
    wide = spread.select(*keys, "group", "value").pivot("group", index=keys, values="value")
    found = {
        "tables6_7_t_values": lists.select(
            *_METRIC, "first", "second", "n", "p_value", t_value="value", marked="significant"
        ),
        "variance": wide.rename({"condition": "quantity", "n": "n_pairs"}),
        "size": sizes(paired.filter(model="all")),
    }
    return {name: frame for name, frame in found.items() if frame.height}


def sizes(trends: pl.DataFrame) -> pl.DataFrame:
    """Trends with model size, of estimates whose columns have the old names."""
    named = trends.rename({"group": "quantity", "n": "n_models"})
    by = ["score", "probe", "bias_type", "style", "quantity", "n_models"]
    slopes = named.filter(what="slope").select(*by, "low", "high", slope="value")
    ranks = named.filter(what="rank_correlation")
    return slopes.join(ranks.select(*by, "p_value", "q_value", spearman="value"), on=by)
