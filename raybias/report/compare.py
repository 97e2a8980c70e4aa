"""Compare two arms from their files, by gaps of predictions and by scores of other answers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias.config import Scope
from raybias.config.policy import MARGIN, Policy
from raybias.errors import ConfigError
from raybias.measures.class_rows import CLASS, class_of
from raybias.measures.compare import COMPARED, VERDICTS, Verdict, overall
from raybias.measures.compare_answers import Matched, matched
from raybias.measures.compare_classes import OF_EACH_CLASS, of_two_classes, split_classes
from raybias.measures.compare_gaps import (
    groups_without_rows,
)
from raybias.measures.kind import Items
from raybias.measures.reading import PREDICTIONS
from raybias.report import wording
from raybias.report.compare_arms import (
    Difference,
    arm_names,
    changed_since,
    check_accepted,
    check_studies,
    differences,
    listed_kinds,
    verify_arms,
)
from raybias.report.compare_cures import own_cures
from raybias.report.compare_kinds import (
    check_kinds,
    classes_of_arms,
    classifiers,
    held_kinds,
    judge_kinds,
    read_arm_by_kind,
)
from raybias.report.compare_notes import comparison_notes, engine_notes
from raybias.report.files import out_of, rules_of_files
from raybias.report.forest import forest_of
from raybias.report.policy import Decision, decided
from raybias.report.rendering import (
    Cell,
    Drawn,
    TextTable,
    markdown_text,
    rendered,
    same,
    slug,
    table,
    worded,
)
from raybias.stats.conclusive import refusal, refused
from raybias.stats.rated_class import RatedClass
from raybias.storage import Store
from raybias.table_files import csv_text

_DID: Final[Mapping[str, str]] = {
    "worse": "got worse",
    "unread": "cannot be told, since more answers cannot be read",
    "cannot tell": "cannot be told",
    "better": "got better",
    "equivalent": "changed by less than",
}
#: Columns of compare.csv and compare.json, and what they are called there.
_WRITTEN: Final = (
    *("probe", "attribute", "group", "score", "value", "low", "high", "flips_up", "flips_down"),
    *("verdict", "scope", "base", "candidate", "at_most", "p_flips", "reason", "still"),
    *("model", "method", "dataset", "style"),
)
#: Of these columns, what scores without a verdict lack.
_JUDGED: Final = ("verdict", "at_most", "still")
_CALLED: Final = {"score": "rate", "value": "change", "reason": "needs"}


@dataclass(frozen=True)
class Comparison:
    """Changes of gaps and scores from a base to a candidate."""

    base: str
    candidate: str
    changes: pl.DataFrame
    """A row per gap, and per score of pairs (`measures.compare.COMPARED`)."""
    answers: pl.DataFrame
    """A row per attribute of the predictions (`measures.compare_gaps.ANSWERS`)."""
    margin: float
    level: float
    notes: list[str]
    """The coverage of the intervals, and cautions."""
    differences: list[Difference]
    """What else differs between the arms than the model."""
    decision: Decision | None = None
    """What the policy says, if there is one."""
    rated: RatedClass = field(default_factory=RatedClass)
    """The class that rates are about."""
    others: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COMPARED))
    """Changes of scores that do not measure bias, without verdicts (`compare_scores`)."""

    @property
    def verdict(self) -> Verdict:
        """Return worse, cannot tell, better or equivalent: the gravest that a gap has."""
        return overall(self.changes["verdict"].to_list())

    @property
    def headline(self) -> str:
        """Return the verdict in a sentence with counts; arms that cannot do their task lead."""
        unable = self.changes.filter(refused("reason"))["reason"].unique(maintain_order=True)
        first = [refusal(f"the {arm}", reason, "change")
                 for arm, _, reason in (text.partition(": ") for text in unable)]  # fmt: skip
        found = dict(self.changes["verdict"].value_counts().iter_rows())
        parts = [f"{found[name]} {_DID[name]}" for name in VERDICTS if name in found]
        if "equivalent" in found:
            parts[-1] += f" {self.margin:g}"
        scores = self.changes.filter(pl.col("kind") != PREDICTIONS).height
        counts = {"gap": self.changes.height - scores, "score": scores}
        judged = [wording.counted(count, name) for name, count in counts.items() if count]
        if self.answers.height:
            share = float(self.answers["between"].to_numpy().max())
            first.append(f"Up to {share:.1%} of the answers on an attribute differ.")
        if self.differences:
            kinds = wording.listed(listed_kinds(self.differences))
            first.append(f"The arms differ in more than the model: {kinds}.")
        said = f"{self.verdict.capitalize()}: of {wording.listed(judged)}, {wording.listed(parts)}."
        if self.decision is not None:
            first.insert(0, self.decision.headline)
        return " ".join([*first, said])

    @property
    def tables(self) -> list[TextTable]:
        """Return a policy's rules, the changes, gaps that did not stay first, and the answers."""
        changes = self.changes.sort(pl.col("verdict").cast(pl.Enum(VERDICTS)), maintain_order=True)
        shown = same(*_keys(changes))
        percent = f"{100 * self.level:g}%"
        names: dict[str, Cell] = {**shown, **self._conditions}
        if (changes["group"].fill_null("") != "").any():
            names["group"] = worded(wording.spaced, "group")
        columns: dict[str, Cell] = {
            **names,
            "rate": "score",
            "base": worded(wording.signed, "base"),
            "candidate": worded(wording.signed, "candidate"),
            "change": worded(wording.signed, "value"),
            "band": _band,
            "flips up, down": worded("{}, {}".format, "flips_up", "flips_down"),
            "p of flips": worded(wording.probability, "p_flips"),
            "verdict": "verdict",
            "what would tell": "reason",
        }
        answers: dict[str, Cell] = {
            **shown,
            "answers of a run": worded("{:,}".format, "answers"),
            "accuracy": worded(_from_to, "base_accuracy", "candidate_accuracy"),
            "unread": worded(_from_to, "base_unread", "candidate_unread"),
            "between the arms": worded(wording.percent, "between"),
            "between two runs of one": worded(wording.percent, "within"),
            f"excess and its {percent} interval": worded(wording.interval, "excess", "low", "high"),
            "p of even spread over groups": worded(wording.probability, "p_even"),
        }
        others: dict[str, Cell] = {
            **names,
            "score": "score",
            "base": worded(wording.signed, "base"),
            "candidate": worded(wording.signed, "candidate"),
            f"change and its {percent} interval": worded(wording.interval, "value", "low", "high"),
        }
        title = f"Changes, with bands that hold {percent} of the time for all at once"
        parts = [table("Answers that differ", self.answers, answers)] if self.answers.height else []
        if self.others.height:
            parts.append(table("Scores that do not measure bias, not judged", self.others, others))
        rules = [] if self.decision is None else [self.decision.table]
        if self.differences:
            rows = [{"kind": each.kind, "difference": each.text} for each in self.differences]
            parts.append(TextTable.of("What else differs than the model", rows))
        return [*rules, table(title, changes, columns), *parts]

    def _figures(self) -> Iterator[Drawn]:
        moved = pl.when(pl.col("low").is_not_null()).then(
            (pl.col("low") > 0) | (pl.col("high") < 0)
        )
        changes = self.changes.with_columns(survives=pl.lit(None, pl.Boolean), significant=moved)
        for probe, attribute in wording.probe_order(changes):
            part = changes.filter(probe=probe, attribute=attribute)
            what = "gap" if (part["kind"] == PREDICTIONS).all() else "score"
            if drawn := forest_of(
                part,
                name=slug("compare", probe, attribute),
                title=f"{attribute}: changes of {what}s",
                axis=f"change of the {what}; shaded: within {self.margin:g}",
                panel=("model", "method", "dataset", "style", "condition", "score"),
                digits=3,
                band=(-self.margin, self.margin),
                keys=("filled: changed; hollow: change not shown",),
            ):
                yield drawn

    def markdown(self) -> str:
        """Return the comparison for a pull request; equivalent gaps are folded."""

        def titled(one: TextTable) -> str:
            # Markdown has no captions.
            return f"{one.title}:\n\n{one.markdown()}"

        tables, at = self.tables, int(self.decision is not None)
        changes = tables[at]
        place = changes.headers.index("verdict")
        still = tuple(row for row in changes.rows if row[place] == "equivalent")
        moved = tuple(row for row in changes.rows if row[place] != "equivalent")
        arms = markdown_text(f"{self.candidate} against {self.base}")
        parts = [f"## raybias: {arms}", f"**{self.headline}**", *map(titled, tables[:at])]
        if moved:
            parts.append(titled(replace(changes, rows=moved)))
        if still:
            summary = wording.counted(len(still), "equivalent change")
            folded = titled(replace(changes, rows=still))
            parts.append(f"<details><summary>{summary}</summary>\n\n{folded}\n</details>")
        parts += map(titled, tables[at + 1 :])
        parts.append("\n".join(f"- {markdown_text(note)}" for note in self.notes))
        return "\n\n".join(parts) + "\n"

    @property
    def rows(self) -> pl.DataFrame:
        """Return the changes under the names of compare.csv and compare.json."""
        return self._written(self.changes)

    def _written(self, changes: pl.DataFrame) -> pl.DataFrame:
        """Select and name the columns of compare.csv."""
        some = (self.changes["condition"].fill_null("") != "").any()
        condition = ("condition",) if some else ()
        return changes.select(*_WRITTEN, *condition).rename(_CALLED)

    @property
    def _conditions(self) -> dict[str, Cell]:
        """The column of classes, or of conditions such as contexts and tasks, if these vary."""
        conditions = self.changes["condition"].fill_null("")
        if conditions.str.starts_with(CLASS).any():
            return {"class": worded(class_of, "condition")}
        return {"condition": "condition"} if conditions.n_unique() > 1 else {}

    def write(self, store: Store) -> None:
        """Write compare.csv, compare.md, compare.json and compare.html."""
        said = {"base": self.base, "candidate": self.candidate, "verdict": self.verdict,
                "notes": self.notes}  # fmt: skip
        content = {
            **said,
            "margin": self.margin,
            "level": self.level,
            "changes": self.rows.to_dicts(),
            "others": self._written(self.others).drop(_JUDGED).to_dicts(),
            "answers": self.answers.to_dicts(),
            "differences": [asdict(each) for each in self.differences],
        }
        if (policy := self.decision) is not None:
            content["policy"] = {"verdict": policy.verdict, "unselected": policy.unselected,
                                 "rules": policy.rules.to_dicts()}  # fmt: skip
        with wording.describing_class(self.rated):
            figures = [*self._figures()]
        page = {
            **said,
            "verdict": self.verdict if policy is None else policy.verdict,
            "title": f"Comparison: {self.candidate} against {self.base}",
            "headline": self.headline,
            "figures": figures,
            "all_tables": self.tables,
        }
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        store.write_text("compare.csv", csv_text(self.rows))
        store.write_text("compare.md", self.markdown())
        store.write_text("compare.json", text + "\n")
        store.write_text("compare.html", rendered("compare.html.j2", page))

    def __str__(self) -> str:
        notes = "\n".join(self.notes)
        return "\n\n".join([*map(str, self.tables), notes, self.headline])

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.headline)}</b></p>{self.changes._repr_html_()}"


def _keys(changes: pl.DataFrame) -> list[str]:
    """Return the columns that name a change's classifier, probe and attribute, where they vary."""
    several = ("model", "method", "dataset", "style", "probe")
    return [*(key for key in several if changes[key].n_unique() > 1), "attribute"]


def _band(row: Mapping[str, Any]) -> str:
    """Write the band of a change, and that no unit shows any if that is so."""
    band = wording.span(row["low"], row["high"])
    return f"{row['still']}: {band}" if row["still"] else band


def _from_to(base: float | None, candidate: float | None) -> str:
    return f"{wording.percent(base)} → {wording.percent(candidate)}"


@own_cures()
def compare(
    base: Sequence[str | Path],
    candidate: Sequence[str | Path],
    *,
    base_is: Mapping[str, str] | None = None,
    candidate_is: Mapping[str, str] | None = None,
    scope: Scope | None = None,
    margin: float | None = None,
    policy: Policy | None = None,
    accept: Collection[str] | None = None,
    verify: bool = False,
    items: Items = None,
) -> Comparison:
    """Compare the answers of two arms, of every kind; see `raybias.compare`."""
    if margin is not None and not 0 < margin < 1:
        raise ConfigError(f"the margin {margin:g} is not between 0 and 1", cure="such as 0.02")
    paths = [[str(path) for path in arm] for arm in (base, candidate)]
    if verify:
        verify_arms([*paths[0], *paths[1]])
    rules = rules_of_files([*paths[0], *paths[1]], options={"scope": scope})
    chosen = [dict(given or {}) for given in (base_is, candidate_is)]
    names = arm_names(paths, chosen)
    holding = held_kinds([*paths[0], *paths[1]], items)
    classes = classes_of_arms(holding)
    (one, left_out), (other, _) = (
        read_arm_by_kind({path: holding[path] for path in arm}, of, classes, items)
        for arm, of in zip(paths, chosen, strict=True)
    )
    check_kinds((one, other), names)
    probes = [{*pl.concat(frame["probe"].cast(pl.String) for frame in arm.values())}
              for arm in (one, other)]  # fmt: skip
    check_studies(*paths, probes=sorted(probes[0] & probes[1]))
    matches = [*matched(one[PREDICTIONS], other[PREDICTIONS])] if PREDICTIONS in one else []
    differing = differences(paths[0], paths[1], classifiers(matches, one, other))
    if accept is not None or policy is not None:
        check_accepted(differing, accept or ())
    by_class: list[Matched] = []
    if matches and classes.names:
        able = not any(map(out_of, [*paths[0], *paths[1]]))
        by_class, rules = split_classes(matches, classes.names, rules, able=able)
    elif matches and not classes.is_sentiment:
        matches, rules = of_two_classes(matches, rules)

    judged = cache(partial(judge_kinds, one, other, (matches, by_class), rules))
    within = margin or (policy.margin if policy else rules.margin) or MARGIN
    changes, others, answers = judged(within)
    notes = [
        *changed_since(*paths),
        *comparison_notes(matches, changes, answers, within, rules.level),
        *engine_notes(matches, rules.engines),
    ]
    if left_out:
        notes.insert(0, f"Not compared, since --base names none of it: {', '.join(left_out)}.")
    if classes.sentence:
        notes.append(classes.sentence)
    lacking = groups_without_rows(matches, rules.metrics) if matches else []
    lacking += groups_without_rows(by_class, OF_EACH_CLASS) if by_class else []
    if lacking:
        notes.insert(0, f"No rows, and so no change: {', '.join(lacking)}.")
    decision = None
    if policy is not None:
        names_of = [*_keys(changes), "condition", "group", "score"]
        decision = decided(policy, lambda margin: judged(margin).changes, names_of)
        notes += decision.notes(rules.level)
    return Comparison(
        names[0],
        names[1],
        changes,
        answers,
        within,
        rules.level,
        notes,
        differing,
        decision,
        classes.rated or RatedClass(),
        others,
    )
