"""Compare two arms from their files: a candidate with its base, or two arms of one study.

Predictions are compared by their gaps, scores of pairs by how often stereotypes are preferred.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias.config import Scope, Study
from raybias.errors import ConfigError, DataError
from raybias.measures import kinds, read
from raybias.measures.compare_pairs import SCOPE, score_changes
from raybias.measures.reading import held
from raybias.report import wording
from raybias.report.rules import out_of, rules_of_files
from raybias.report.summary_tables import SummaryTable, markdown_text, table
from raybias.report.tables import markdown
from raybias.stats.compare import ANSWERS, compare_arms
from raybias.stats.compare_arms import Matched, matched, read_arm
from raybias.stats.compare_gaps import VERDICTS, Verdict, overall
from raybias.stats.conclusive import refusal, refused
from raybias.stats.scopes import REDRAWN
from raybias.storage import Store
from raybias.study_record import Record, read_record
from raybias.table_files import csv_text

#: By which rows of scores are chosen.
_CHOICES: Final = ("model", "probe", "style")
#: The largest change of a gap or score that does not matter, where neither gate nor study says.
MARGIN: Final = 0.02
_DID: Final[Mapping[str, str]] = {
    "worse": "got worse",
    "unread": "cannot be told, since more answers cannot be read",
    "cannot tell": "cannot be told",
    "better": "got better",
    "equivalent": "changed by less than",
}


@dataclass(frozen=True)
class Comparison:
    """What a candidate does to the gaps and scores of its base."""

    base: str
    candidate: str
    changes: pl.DataFrame
    """A row per gap, and per score of pairs (`stats.compare.CHANGES`)."""
    answers: pl.DataFrame
    """A row per attribute of the predictions (`stats.compare.ANSWERS`)."""
    margin: float
    level: float
    notes: tuple[str, ...]
    """What the numbers cover, and what to know before one relies on them."""

    @property
    def verdict(self) -> Verdict:
        """Return worse, cannot tell, better or equivalent: the gravest that a gap has."""
        return overall(self.changes["verdict"].to_list())

    @property
    def headline(self) -> str:
        """Return the verdict in a sentence, with the number of gaps of each.

        Arms that cannot do their task come first.
        """
        unable = self.changes.filter(refused("needs"))["needs"].unique(maintain_order=True)
        first = [refusal(f"the {arm}", reason, "change")
                 for arm, _, reason in (text.partition(": ") for text in unable)]  # fmt: skip
        found = dict(self.changes["verdict"].value_counts().iter_rows())
        parts = [f"{found[name]} {_DID[name]}" for name in VERDICTS if name in found]
        if "equivalent" in found:
            parts[-1] += f" {self.margin:g}"
        scores = self.changes.filter(scope=SCOPE).height
        counts = {"gap": self.changes.height - scores, "score": scores}
        judged = [wording.counted(count, name) for name, count in counts.items() if count]
        if self.answers.height:
            share = float(self.answers["between"].to_numpy().max())
            first.append(f"Up to {share:.1%} of the answers on an attribute differ.")
        said = f"{self.verdict.capitalize()}: of {wording.listed(judged)}, {wording.listed(parts)}."
        return " ".join([*first, said])

    @property
    def tables(self) -> list[SummaryTable]:
        """Return the changes and the answers for people, gaps that did not stay first."""
        place = {name: index for index, name in enumerate(VERDICTS)}
        order = pl.col("verdict").replace_strict(place, return_dtype=pl.Int64)
        changes = self.changes.sort(order, maintain_order=True)
        keys = [key for key in ("model", "method", "dataset", "style", "probe")
                if changes[key].n_unique() > 1]  # fmt: skip
        shown = {key: key for key in (*keys, "attribute")}
        percent = f"{100 * self.level:g}%"
        tables = [
            table(
                f"Changes, with bands that hold {percent} of the time for all at once",
                changes,
                {
                    **shown,
                    "group": "group",
                    "rate": "rate",
                    "base": lambda row: wording.signed(row["base"]),
                    "candidate": lambda row: wording.signed(row["candidate"]),
                    "change": lambda row: wording.signed(row["change"]),
                    "band": _band,
                    "flips up, down": lambda row: f"{row['flips_up']}, {row['flips_down']}",
                    "p of flips": lambda row: wording.probability(row["p_flips"]),
                    "verdict": "verdict",
                    "what would tell": "needs",
                },
            )
        ]
        if self.answers.height:
            tables.append(self._answers(shown, percent))
        return tables

    def _answers(self, shown: Mapping[str, str], percent: str) -> SummaryTable:
        return table(
            "Answers that differ",
            self.answers,
            {
                **shown,
                "answers of a run": lambda row: f"{row['answers']:,}",
                "accuracy": lambda row: " → ".join(
                    wording.percent(row[f"{arm}_accuracy"]) for arm in ("base", "candidate")
                ),
                "unread": lambda row: " → ".join(
                    wording.percent(row[f"{arm}_unread"]) for arm in ("base", "candidate")
                ),
                "between the arms": lambda row: wording.percent(row["between"]),
                "between two runs of one": lambda row: wording.percent(row["within"]),
                f"excess and its {percent} interval": lambda row: " ".join(
                    (wording.signed(row["excess"]), wording.span(row["low"], row["high"]))
                ).strip(),
                "p of even spread over groups": lambda row: wording.probability(row["p_even"]),
            },
        )

    def markdown(self) -> str:
        """Return the comparison for a pull request; equivalent gaps are folded."""
        changes, *answers = self.tables
        place = changes.headers.index("verdict")
        still = tuple(row for row in changes.rows if row[place] == "equivalent")
        moved = tuple(row for row in changes.rows if row[place] != "equivalent")
        arms = markdown_text(f"{self.candidate} against {self.base}")
        parts = [f"## raybias: {arms}", f"**{self.headline}**"]
        if moved:
            parts.append(_markdown(SummaryTable(changes.title, changes.headers, moved)))
        if still:
            folded = _markdown(SummaryTable(changes.title, changes.headers, still))
            summary = wording.counted(len(still), "equivalent change")
            parts.append(f"<details><summary>{summary}</summary>\n\n{folded}\n</details>")
        parts += [
            *map(_markdown, answers),
            "\n".join(f"- {markdown_text(note)}" for note in self.notes),
        ]
        return "\n\n".join(parts) + "\n"

    def write(self, store: Store) -> None:
        """Write compare.csv, compare.md, compare.json and compare.html."""
        # Imported here: the drawing library would slow every other use.
        from raybias.report.compare_page import page

        content = {
            "base": self.base,
            "candidate": self.candidate,
            "verdict": self.verdict,
            "margin": self.margin,
            "level": self.level,
            "notes": self.notes,
            "changes": self.changes.to_dicts(),
            "answers": self.answers.to_dicts(),
        }
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        store.write_text("compare.csv", csv_text(self.changes))
        store.write_text("compare.md", self.markdown())
        store.write_text("compare.json", text + "\n")
        store.write_text("compare.html", page(self))

    def __str__(self) -> str:
        notes = "\n".join(self.notes)
        return "\n\n".join([*map(str, self.tables), notes, self.headline])

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.headline)}</b></p>{self.changes._repr_html_()}"


def _band(row: Mapping[str, Any]) -> str:
    return "no answer differs" if row["at_most"] == 0 else wording.span(row["low"], row["high"])


def _markdown(one: SummaryTable) -> str:
    # Titles stand above, since Markdown has no captions.
    frame = pl.DataFrame(one.rows, dict.fromkeys(one.headers, pl.String), orient="row")
    return f"{one.title}:\n\n{markdown(frame)}"


def compare(
    base: Sequence[str | Path],
    candidate: Sequence[str | Path],
    *,
    base_is: Mapping[str, str] | None = None,
    candidate_is: Mapping[str, str] | None = None,
    scope: Scope | None = None,
    margin: float | None = None,
) -> Comparison:
    """Compare the predictions and scores of two arms; see `raybias.compare`."""
    if margin is not None and not 0 < margin < 1:
        raise ConfigError(f"the margin {margin:g} is not between 0 and 1", cure="such as 0.02")
    paths = [[str(path) for path in arm] for arm in (base, candidate)]
    rules = rules_of_files([*paths[0], *paths[1]], options={"scope": scope})
    chosen = [dict(given or {}) for given in (base_is, candidate_is)]
    arms = [_Arm.of(*each) for each in zip(paths, chosen, strict=True)]
    _check_studies(*paths, probes=sorted({*arms[0].probes} & {*arms[1].probes}))
    names = [_named(*each) for each in zip(paths, chosen, strict=True)]
    within, level = margin or rules.statistics.margin or MARGIN, rules.statistics.level
    matches, found = [], []
    answers = pl.DataFrame(schema=ANSWERS)
    match [arm.predictions for arm in arms]:
        case [pl.DataFrame() as one, pl.DataFrame() as other]:
            matches = list(matched(one, other))
            gaps, answers = compare_arms(matches, rules, margin=within)
            found.append(gaps)
    match [arm.outcomes for arm in arms]:
        case [pl.DataFrame() as one, pl.DataFrame() as other]:
            found.append(score_changes(one, other, level=level, margin=within))
    if not found:
        raise DataError(
            f"the base has {arms[0].holds or 'nothing'}, and the candidate "
            f"{arms[1].holds or 'nothing'}",
            where=" and ".join(names), cure="choose arms that answer the same",
        )  # fmt: skip
    changes = pl.concat(found)
    notes = tuple(_notes(matches, changes, answers, within, level))
    return Comparison(names[0], names[1], changes, answers, within, level, notes)


@dataclass(frozen=True)
class _Arm:
    """What one side of a comparison holds; None of what it lacks."""

    predictions: pl.DataFrame | None
    outcomes: pl.DataFrame | None
    """Of scores of pairs (`Kind.outcomes`)."""

    @classmethod
    def of(cls, paths: Sequence[str], chosen: Mapping[str, str]) -> _Arm:
        """Read an arm, and of it the rows whose columns have the values chosen."""
        predictions: list[str] = []
        scores: list[pl.DataFrame] = []
        for path in paths:
            found = _outcomes(path)
            scores += found
            if not found or Store(path).exists("predictions"):
                predictions.append(path)
        outcomes = pl.concat(scores, how="diagonal_relaxed") if scores else None
        return cls(
            read_arm(predictions, chosen) if predictions else None,
            None if outcomes is None else _chosen(outcomes, chosen),
        )

    @property
    def holds(self) -> str:
        """Say what there is to compare."""
        kinds = {"predictions": self.predictions, "scores of pairs": self.outcomes}
        return " and ".join(name for name, found in kinds.items() if found is not None)

    @property
    def probes(self) -> list[str]:
        """Names of the probes."""
        held = [each for each in (self.predictions, self.outcomes) if each is not None]
        return [str(name) for frame in held for name in frame["probe"].unique()]


def _outcomes(path: str) -> list[pl.DataFrame]:
    """Return the outcomes of a path's paired answers; none where it holds no such answers."""
    found = []
    for name in held(path):
        of = kinds[name].outcomes
        if of is not None:
            found.append(of(read([path], name)[name]))
    return found


def _chosen(outcomes: pl.DataFrame, chosen: Mapping[str, str]) -> pl.DataFrame | None:
    """Leave out the rows whose columns have other values; None where no row is left."""
    for name, value in chosen.items():
        if name not in _CHOICES:
            raise ConfigError(
                f"{name!r} does not tell scores of pairs apart",
                cure=f"choose by {', '.join(_CHOICES)}",
            )
        outcomes = outcomes.filter(pl.col(name) == value)
    return None if outcomes.is_empty() else outcomes


def _named(paths: Sequence[str], chosen: Mapping[str, str]) -> str:
    what = ", ".join(f"{key} {value}" for key, value in chosen.items())
    return " ".join([*paths, f"({what})"] if what else paths)


def _check_studies(base: Sequence[str], candidate: Sequence[str], *, probes: Sequence[str]) -> None:
    """Refuse arms of studies that read other templates or label words, or have other profiles."""
    for one in filter(None, map(out_of, base)):
        for other in filter(None, map(out_of, candidate)):
            common = _alike(read_record(Store(one)), read_record(Store(other)), probes)
            for what, here, there in common:
                if here != there:
                    raise ConfigError(
                        f"{what} is {here!r} in {one} and {there!r} in {other}, so a change would "
                        "not be the candidate's alone",
                        cure="compare studies that differ in their models or methods only",
                    )


def _alike(
    one: Record, other: Record, probes: Sequence[str]
) -> Iterator[tuple[str, object, object]]:
    """Yield what two studies must have in common, and its value in each."""
    yield "the profile", one.study.profile, other.study.profile
    words, others = (study.verbalizer.model_dump() for study in (one.study, other.study))
    yield "the choice of label words", words, others
    for probe in sorted(probes):
        key = f"probe {probe}"
        if key in one.data and key in other.data:
            yield f"the content of {key}", one.data[key], other.data[key]
    first, second = _prompts(one.study), _prompts(other.study)
    for name in sorted({*first} & {*second}):
        yield f"the {name}", first[name], second[name]


def _prompts(study: Study) -> dict[str, object]:
    """Return what methods let a model read around a sentence, by its name in messages."""
    return {
        f"{field} of {method.name}": getattr(method, field)
        for method in study.methods
        for field in ("template", "label_words")
        if hasattr(method, field)
    }


def _notes(
    arms: Sequence[Matched],
    changes: pl.DataFrame,
    answers: pl.DataFrame,
    margin: float,
    level: float,
) -> Iterator[str]:
    for scope, redrawn in (*REDRAWN.items(), (SCOPE, "pairs are redrawn, in these very styles")):
        if scope in changes["scope"]:
            yield f"Intervals cover {scope}: {redrawn}."
    if SCOPE in changes["scope"]:
        yield (
            "A score of pairs is a share from 0 to 1, or a difference of shares; what is said of a "
            "gap holds for its distance from no bias, which is 0.5 for preferences and 0 for "
            "coreference."
        )
    yield (
        f"A gap is worse where it moved away from 0 and better where it moved towards it, by bands "
        f"that are wrong anywhere in {1 - level:.0%} of comparisons; it is equivalent where the "
        f"{2 * level - 1:.0%} interval of its change lies within {margin:g}."
    )
    yield from dict.fromkeys(map(_about_runs, arms))
    if any(not each.paired for each in arms):
        half = changes.select(((pl.col("high") - pl.col("low")) / 2).median()).item()
        if half is not None:
            yield (
                f"A true change of half the width of its band (median {half:.3f}) is found one "
                "time in two at most, a smaller one less often."
            )
    for row in answers.filter("masked").iter_rows(named=True):
        yield (
            f"Masked flips: {row['between']:.1%} of the answers on {row['attribute']} "
            f"{row['probe']} differ between the arms and {row['within']:.1%} between two runs of "
            "one, though no gap changed."
        )
    yield (
        "Flips count sentences or pairs on which the event became more or less frequent; their "
        "p (McNemar, exact) takes them as independent, which those of one template are not."
    )


def _about_runs(arms: Matched) -> str:
    counts = [arm["run_id"].n_unique() for arm in (arms.base, arms.candidate)]
    if arms.paired and counts[0] == 1:
        return "Each arm has one run: this says nothing of other seeds."
    if arms.paired:
        return f"The {counts[0]} runs of both arms are matched by seed or name."
    runs = f"{wording.counted(counts[0], 'run')} of the base and {counts[1]} of the candidate"
    more = "" if min(counts) > 1 else ", and one run cannot show a change for better or worse"
    return f"{runs} are not matched, since their seeds differ: the noise of both counts{more}."
