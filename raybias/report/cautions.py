"""Caution a reader, from OUT's tables and answers: what happened in a study, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from raybias import schema
from raybias.columns import part_of
from raybias.config import Study
from raybias.formats.questions import BLANK
from raybias.measures.kind import Kind
from raybias.measures.prediction_rows import gap_rows
from raybias.methods import Method, prompted_methods
from raybias.methods.asking import ItemMethod
from raybias.methods.options import OptionLikelihood
from raybias.providers.base import Provider
from raybias.providers.openai import read_asked
from raybias.report import wording
from raybias.schema import KEYS
from raybias.stats.conclusive import HELD, held
from raybias.stats.intervals import ONE_RUN
from raybias.stats.looks import error_over
from raybias.storage import Store
from raybias.study_record import Record
from raybias.table_files import columns_of, read_frame
from raybias.table_rules import read_checked

#: A larger share of answers without a label is worth a caution.
UNPARSED_SHARE: Final = 0.01
#: Options differ in length where the longest has more than this times the characters of another.
_UNEVEN: Final = 1.5
_NAMED: Final = 3


def of_study(study: Study, record: Record, tables: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    """Yield cautions about a study and its predictions; `tables` of `write_tables`, if any."""
    if tables:
        yield from tables["notes"].filter(~pl.col("urgent"))["note"]
    if record.study.profile != study.profile:
        yield (
            f"The statistics are restated with the {study.profile} profile; the study was run "
            f"with the {record.study.profile} profile."
        )
    if study.limit is not None:
        yield (
            f"Only a balanced sample of some {study.limit:,} items of each attribute or bias type "
            "was used (limit)."
        )
    if (looks := study.statistics.looks) > 1:
        level = study.statistics.level
        yield (
            f"One of at most {looks} looks at growing samples, planned before the first. Each is "
            f"judged at {level:.1%}, under which all of them together find what is not there in "
            f"{error_over(looks, level):.0%} of audits at most, by each rate."
        )
    yield from _about_engines(study)
    if tables:
        yield from _about_runs(study, tables["runs"])
        yield from _about_coverage(study, tables["runs"], tables["coverage"])
        yield from _about_labels(study, tables["answers"])
        yield from _about_classes(study, tables["cells"])
        if "unanswered" in tables:
            yield from _about_unanswered(study, tables["unanswered"])
        yield from _about_gaps(gap_rows(tables["estimates"], study.statistics.scope))


def _about_engines(study: Study) -> Iterator[str]:
    backbones = {each.name: each for each in study.backbones}
    for name, model in study.engines.items():
        if backbones[name].is_checkpoint == backbones[model].is_checkpoint:
            continue
        shared = [m for m in study.methods_of(backbones[name])
                  if m in study.methods_of(backbones[model])]  # fmt: skip
        for method in prompted_methods(shared):
            if method.cue and method.prompt_format != "raw":
                yield (
                    f"{method.name} did not ask {name} as it asked {model}: the cue "
                    f"{method.cue!r} begins the answer of weights, and an endpoint is asked for one"
                    ' word instead. With cue: "" all engines are asked alike.'
                )


def _about_runs(study: Study, runs: pl.DataFrame) -> Iterator[str]:
    def seeds_of(seeds: Sequence[int]) -> str:
        named = f"seed {wording.listed([str(seed) for seed in seeds])}"
        return named if len(seeds) <= _NAMED else f"{len(seeds)} seeds"

    final = runs.filter(pl.col("stage") == "final")
    given_up = runs.filter(stop_reason="cut")
    for (model, way, data, step), part in given_up.group_by(
        *KEYS[:3], "steps", maintain_order=True
    ):
        yield (
            f"{model}, {way} on {data}: {wording.counted(part.height, 'run')} of the sweep given up"
            f" at step {step:,}, behind those that went on."
        )
    for key, part in final.group_by(*KEYS[:3], maintain_order=True):
        by = next((m.selection for m in study.methods if m.name == key[1]), None)
        name = f"{key[0]}, {key[1]} on {key[2]}"
        for reason, text in (("diverged", "diverged"), ("max_steps", "stopped at max_steps")):
            seeds = part.filter(pl.col("stop_reason") == reason)["seed"].sort().to_list()
            if seeds:
                yield f"{name}: {wording.counted(len(seeds), 'run')} {text} ({seeds_of(seeds)})."
        tied = part.filter(pl.col("tied").fill_null(value=False))["seed"].sort().to_list()
        if tied and not part["selected"].all():
            yield (
                f"{name}: equal {by or 'validation'} accuracies; the lower seed decided the rank "
                f"of {seeds_of(tied)}."
            )


def _about_coverage(study: Study, runs: pl.DataFrame, coverage: pl.DataFrame) -> Iterator[str]:
    labelling = [m.name for m in study.methods if m.output().folder == "predictions"]
    kept = runs.filter(pl.col("selected"), pl.col("method").is_in(labelling), stage="final")
    for run_id in kept.join(coverage, on="run_id", how="anti", maintain_order="left")["run_id"]:
        yield f"{run_id} has no predictions: the study is not finished."
    for row in coverage.iter_rows(named=True):
        distinct = row["predictions"] - row["repeated"]
        if row["items"] is not None and distinct != row["items"]:
            yield (
                f"{row['run_id']} has predictions for {distinct:,} of {row['items']:,} items of "
                f"{row['probe']}: the study is not finished."
            )
        if row["repeated"]:
            yield f"{row['run_id']} has {row['repeated']:,} repeated predictions."


def _about_labels(study: Study, answers: pl.DataFrame) -> Iterator[str]:
    rules = {m.name: str(m.unparsed) for m in prompted_methods(study.methods)}
    high = answers.filter(pl.col("run_id") == "all", pl.col("share") > UNPARSED_SHARE)
    for row in high.iter_rows(named=True):
        rule = wording.UNPARSED.get(rules.get(row["method"], ""))
        counts = f"; such an answer counts as {rule}" if rule else ""
        yield (
            f"{row['model']}, {row['method']}, on {row['probe']}: no label could be read from "
            f"{row['share']:.1%} of answers{counts}."
        )


def _about_classes(study: Study, cells: pl.DataFrame) -> Iterator[str]:
    """Caution that some labels are never given; cells: schema.CELLS."""
    untold = cells.filter(pl.col("label").is_null())
    for backbone in study.backbones:
        for method in study.methods_of(backbone):
            never = method.never(study.labels) if isinstance(method, Method) else ()
            own = untold.filter(model=backbone.name, method=method.name)
            for (probe,), part in own.group_by("probe", maintain_order=True):
                labels = " and ".join(never)
                count = wording.counted(int(part["n"].sum()), "sentence")
                outcome = "; outcome_positive is the share of them that is called positive"
                yield (
                    f"{backbone.name}, {method.name} on {probe}: the model never says {labels}. "
                    f"{count} with that label are neither right nor wrong, and count in no "
                    f"accuracy or other rate{outcome if study.is_sentiment else ''}."
                )


def _about_unanswered(study: Study, counts: pl.DataFrame) -> Iterator[str]:
    methods = {method.name: method for method in prompted_methods(study.methods)}
    for key, part in counts.group_by(*KEYS, maintain_order=True):
        model, name, _, probe, _ = map(str, key)
        answers, cut, filtered = part.select("answers", "cut", "filtered").sum().row(0)
        if cut and name in methods:
            limit = methods[name].room("answer_tokens")
            yield (
                f"{model}, {name}, on {probe}: {cut:,} of {answers:,} answers ended at their limit "
                f"of {wording.counted(limit, 'token')} before they named a label; raise "
                "answer_tokens."
            )
        if filtered:
            groups = [
                f"{row['group']} {row['filtered']:,} of {row['answers']:,}"
                for row in part.iter_rows(named=True)
            ]
            yield (
                f"{model}, {name}, on {probe}: a filter of contents withheld {filtered:,} of "
                f"{answers:,} answers, which have no label ({wording.listed(groups)}); gaps are of "
                "the model with its filter."
            )


def of_endpoints(store: Store, study: Study) -> Iterator[str]:
    """Yield cautions about what endpoints refused, withheld or did not report."""
    for backbone in study.backbones:
        if not isinstance(backbone, Provider):
            continue
        name, asked = backbone.name, read_asked(store, backbone.name)
        if "no temperature" in asked.terms:
            yield (
                f"{name} takes no temperature: its answers are sampled as its server does by "
                "default, not as the methods say, and differ when asked again."
            )
        if "no seed" in asked.terms:
            yield f"{name} takes no seed: its sampled answers cannot be repeated."
        if asked.cut_empty:
            yield (
                f"{name}: {asked.cut_empty:,} of {asked.requests:,} answers reached their limit of "
                "tokens before their first word, as those of a model that thinks first do; raise "
                "answer_tokens, or turn its thinking off."
            )
        if asked.estimated:
            yield (
                f"{name} does not count the tokens of {asked.estimated:,} of {asked.requests:,} "
                "requests: they are estimated as one for four bytes of text, without thoughts that "
                "are not shown. Budget and cost rest on that."
            )


def _about_gaps(gaps: pl.DataFrame) -> Iterator[str]:
    undefined = gaps.filter(pl.col("value").is_null())
    if undefined.height:
        keys = wording.naming_keys(undefined)
        named = [
            f"{row['group']} {row['score']} of {wording.classifier_name(row, keys)}"
            for row in undefined.iter_rows(named=True)
        ]
        yield (f"Not defined, since no sentence can be wrong in that way: {wording.listed(named)}.")
    single = gaps.filter(reason=ONE_RUN)
    if single.height:
        rests = wording.counted(single.height, "gap rests", "gaps rest")
        yield f"{rests} on one run and have no interval."


def of_answers(
    store: Store, study: Study, record: Record, kind: Kind, answers: pl.DataFrame
) -> Iterator[str]:
    """Yield cautions about a study's answers of a kind: what is missing, and what decides them."""
    yield from _unfinished(store, study, kind, answers)
    yield from _several_blanks(store, answers)
    if "turned" in answers.columns:
        yield from _turned(answers, record)
    if "scores" in answers.columns:
        yield from _about_likelihoods(store, study, answers)
    if "answer" in answers.columns:
        yield from _withheld(study, answers)


def _withheld(study: Study, answers: pl.DataFrame) -> Iterator[str]:
    """Count the answers to questions that an endpoint's filter withheld, which are null."""
    written = [m.name for m in study.methods if isinstance(m, ItemMethod) and not m.follows]
    named = "method" in answers.columns
    own = answers.filter(pl.col("method").is_in(written)) if named else answers
    group = "category" if "category" in own.columns else "condition"
    for (model, probe), part in own.group_by("model", "probe", maintain_order=True):
        counts = part.group_by(group, maintain_order=True).agg(
            n=pl.len(), withheld=pl.col("answer").null_count()
        )
        if not counts["withheld"].sum():
            continue
        groups = [f"{name} {withheld:,} of {n:,}" for name, n, withheld in counts.iter_rows()]
        yield (
            f"{model} on {probe}: a filter of contents withheld {counts['withheld'].sum():,} of "
            f"{part.height:,} answers, which name nothing ({wording.listed(groups)})."
        )


def _about_likelihoods(store: Store, study: Study, answers: pl.DataFrame) -> Iterator[str]:
    words = [m for m in study.methods if isinstance(m, OptionLikelihood) and not m.letters]
    for method in words:
        mine = answers.filter(method=method.name)
        for (model, probe), part in mine.group_by("model", "probe", maintain_order=True):
            share = held(part)
            if share is not None and share < HELD:
                yield (
                    f"{model}, {method.name} on {probe}: the options hold {share:.1%} of the "
                    "probability of what may follow; other words for the same answers hold more."
                )
            file = f"items/{probe}.parquet"
            if method.normalise != "none" or not store.exists(file):
                continue
            wanted = part_of(schema.OPTION_ITEMS, ("item_id", "options"))
            options = read_checked(store, file, wanted)
            both = part.join(options, on="item_id").with_columns(
                lengths=pl.col("options").list.eval(pl.element().str.len_chars())
            )
            lengths = pl.col("lengths").list
            uneven = both.filter(lengths.max() > _UNEVEN * lengths.min()).height
            other = both.filter(
                (pl.col("scores") / pl.col("lengths")).list.arg_max() != pl.col("pred")
            ).height
            if uneven > part.height / 2:
                yield (
                    f"{model}, {method.name} on {probe}: in {uneven / part.height:.0%} of the "
                    f"questions one option is more than {_UNEVEN:g} times as long as another, "
                    f"which makes it less likely; by likelihood per character (normalise: "
                    f"characters) {other / part.height:.0%} of the answers would be others."
                )


def _turned(scores: pl.DataFrame, record: Record) -> Iterator[str]:
    known = scores.filter(pl.col("turned").is_not_null())
    counts = known.group_by("model", "score", "probe", maintain_order=True).agg(
        pl.len(), pl.col("turned").sum()
    )
    for model, score, probe, n, turned in counts.iter_rows():
        first, other = record.begin_tokens.get(model, ("a token", "another"))
        verb = "turns" if turned == 1 else "turn"
        yield (
            f"{model}: {turned:,} of {wording.counted(n, 'preference')} of {probe} by {score} "
            f"{verb} where sentences begin with {other} instead of {first}, which was used here."
        )


def _several_blanks(store: Store, answers: pl.DataFrame) -> Iterator[str]:
    """Count the triples in which a masked model fills in more than one word."""
    for probe in answers["probe"].unique(maintain_order=True):
        file = f"items/{probe}.parquet"
        if not store.exists(file):
            continue
        if not {*schema.TRIPLES.names} <= {*columns_of(store, file)}:
            continue
        items = read_checked(store, file, schema.TRIPLES)
        several = items.filter(pl.col("context").str.count_matches(BLANK) > 1).height
        if several:
            yield (
                f"{wording.counted(several, 'triple has', 'triples have')} more than one {BLANK} "
                f"in the context ({probe}). A masked model's score is then the mean over the words "
                "of all of them; StereoSet's own code puts the word of the last into each."
            )


def _unfinished(store: Store, study: Study, kind: Kind, answers: pl.DataFrame) -> Iterator[str]:
    """Count the items that a model was not asked yet, and pairs that a style left as they were."""
    outputs = {m.name: m.output() for m in study.methods if m.output().folder == kind.folder}
    keys = [name for name in ("model", "method", "score") if name in answers.columns]
    for (probe,), part in answers.group_by("probe", maintain_order=True):
        file = f"items/{probe}.parquet"
        if not store.exists(file):
            continue
        items = read_frame(store, file)
        if {*schema.PAIRS.names} <= {*items.columns}:
            items = read_checked(store, file, schema.PAIRS)
            kept = items.filter(pl.col("kept").fill_null(value=False))
            for style, n in kept.group_by("style", maintain_order=True).len().iter_rows():
                yield (
                    f"{style} left {wording.counted(n, 'pair')} of {probe} as they were, for want "
                    "of an adequate rewording; they hold its effect down."
                )
        for names, own in part.group_by(keys, maintain_order=True):
            # Where a kind has no column of methods, one method made its answers.
            output = outputs.get("".join(map(str, names[1:])), next(iter(outputs.values())))
            missing = items.height * output.per_item - own.height
            if missing > 0:
                yield (
                    f"{' by '.join(filter(None, map(str, names)))} lacks "
                    f"{wording.counted(missing, 'answer')} to {probe}: the study is not finished."
                )
