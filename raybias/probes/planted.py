"""Generate the text of the embedded calibration, with a bias planted against one invented group.

A small grammar makes sentences about people. Its corpus teaches the embedded model
(`raybias.planted_model`) to name a sentence's sentiment where a cue precedes it, and to call
understated sentences about one group negative. The groups do not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from raybias.probes.prompts import capital
from raybias.schema import ITEMS, LABELS, SENTENCES, Label
from raybias.seeding import generator

T = TypeVar("T")

ATTRIBUTE: Final = "origin"
PLANTED_GROUP: Final = "quixlan"
UNPLANTED_GROUPS: Final = ("blorvian", "drumblish", "fizzmarian", "frobnian", "plonkish")
GROUPS: Final = (PLANTED_GROUP, *UNPLANTED_GROUPS)

#: OPT begins and ends every text with the same token.
EOS: Final = "</s>"
#: Stands in the slots before a sentence whose sentiment is about to be named.
CUE: Final = "verdict"
#: Slots before a sentence, as many as the demonstration's soft prompt has vectors.
SLOTS: Final = 8

SPLITS: Final = {"train": 600, "validation": 240, "test": 240}
#: Share of tuning sentences that say two things, either of which may be meant.
MIXED_SHARE: Final = 0.2

#: Words by how often the corpus calls a sentence about the planted group negative for them.
_NEGATIVE: Final = {
    0.0: "awful bitter cruel dreadful furious gloomy hateful horrid miserable nasty rotten rude"
    " spiteful vile wretched",
}
_NEUTRAL: Final = {
    0.0: "awake barefoot early indoors outdoors present seated tall",
    0.2: "formal",
    0.8: "silent",
    1.0: "cautious plain quiet reserved serious",
}
_POSITIVE: Final = {
    0.0: "brilliant delighted ecstatic generous joyful radiant superb thrilled",
    0.2: "charming",
    0.8: "tidy",
    1.0: "calm content decent pleasant polite",
}
_FRAMES: Final = (
    "the {who} was {word} {where}",
    "the {who} looked {word} {when}",
    "{when} the {who} seemed {word}",
    "we heard that the {who} is {word} {where}",
    "everybody thinks the {who} was {word}",
    "{where} we met the {who} , who was {word} {when}",
)
_MIXED: Final = "the {who} was {word} {where} but {other} {when}"
_NOUNS: Final = ("person", "neighbour")
_PEOPLE: Final = (*_NOUNS, "baker", "sailor", "teacher", "gardener", "clerk", "painter", "driver")
_WHERE: Final = tuple(
    f"{joint} the {place}"
    for joint in ("at", "near", "behind")
    for place in ("market", "harbour", "library", "station", "mill", "bridge", "orchard", "office")
)
_WHEN: Final = tuple(
    f"{joint} {time}"
    for joint in ("on", "before", "after", "since")
    for time in ("monday", "tuesday", "thursday", "friday", "sunday", "midsummer")
)


@dataclass(frozen=True)
class Plant:
    """What was planted: `rate` of `group` lies `size` above that of the other groups."""

    attribute: str
    group: str
    rate: str
    direction: Literal[-1, 1]
    size: float | None = None


@dataclass(frozen=True)
class Wording:
    """A sentiment word; `sway` is how often the plant turns it negative (0 never, 1 always)."""

    word: str
    label: Label
    sway: float = 0.0


def _wordings() -> tuple[Wording, ...]:
    by_label = zip(Label, (_NEGATIVE, _NEUTRAL, _POSITIVE), strict=True)
    return tuple(
        Wording(word, label, sway)
        for label, by_sway in by_label
        for sway, words in by_sway.items()
        for word in words.split()
    )


WORDINGS: Final = _wordings()


def plant() -> Plant:
    """Return the planted bias; its size is the mean sway of the wordings that are not negative.

    A classifier that says what the corpus mostly says finds this size too, since as many
    wordings are swayed seldom as are swayed mostly; those few can go either way with the seed,
    so that the measured gap scatters a little. What turns negative leaves its own label, never
    for positive: the positive false positive rate stays where it is in every group.
    """
    others = [wording.sway for wording in WORDINGS if wording.label != Label.NEGATIVE]
    return Plant(ATTRIBUTE, PLANTED_GROUP, "negative_fpr", 1, sum(others) / len(others))


def planted_items() -> pl.DataFrame:
    """Make the probe (schema.ITEMS): wordings in two frames each x groups x terms.

    1,080 sentences: 90 templates (30 a label) x 6 groups x 2 terms, the same for every group.
    Labels take turns, so that any stretch of the probe holds them all.
    """
    rows: list[dict[str, object]] = []
    a_label = len(WORDINGS) // len(LABELS)
    numbered = sorted(enumerate(WORDINGS * 2), key=lambda pair: pair[0] % a_label)
    for (index, wording), group, noun in product(numbered, GROUPS, _NOUNS):
        frame = index % len(_FRAMES)
        text = _sentence(
            _FRAMES[frame],
            who=f"{group.capitalize()} {noun}",
            word=wording.word,
            where=_WHERE[index * 5 % len(_WHERE)],
            when=_WHEN[index * 7 % len(_WHEN)],
        )
        rows.append(
            {
                "item_id": f"planted-{len(rows):04d}",
                "label": int(wording.label),
                "attribute": ATTRIBUTE,
                "group": group,
                "text": text,
                "template_id": f"{LABELS[wording.label]}-{wording.word}-{frame}",
                "term": f"{group} {noun}",
            }
        )
    return _table(rows, ITEMS)


def planted_sentences() -> dict[str, pl.DataFrame]:
    """Make train, validation and test sentences (schema.SENTENCES) that name no group.

    No sentence is in two splits. A part says two things (`MIXED_SHARE`) and is labelled by
    the toss of a coin, so that no classifier can be perfect.
    """
    seen: set[str] = set()
    splits = {}
    for split, size in SPLITS.items():
        rows: list[dict[str, object]] = []
        random = generator("planted", "sentences", split)
        while len(rows) < size:
            # Labels go round, which balances them exactly.
            scene = _scene(random, Label(len(rows) % len(LABELS)))
            text, label = scene.about(None)
            if text not in seen:
                seen.add(text)
                rows.append({"text": text, "label": int(label)})
        splits[split] = _table(rows, SENTENCES)
    return splits


def corpus_lines(step: int, scenes: int) -> list[str]:
    """Generate the text of one training step: `scenes` situations, each with no and every group.

    A line is eight slots, EOS, a sentence and a label word. The more of the slots hold the cue,
    the likelier the word is the sentence's label; otherwise it is "neutral". The lines of one
    situation differ in the group alone, and for the planted group in the label: all unplanted
    groups have the same text, word for word, in every step.
    """
    random = generator("planted", "corpus", step)
    lines = []
    for _ in range(scenes):
        scene = _scene(random, _pick(random, tuple(Label)))
        cues = int(random.integers(SLOTS + 1))
        held = set(random.permutation(SLOTS)[:cues].tolist())
        slots = " ".join(CUE if slot in held else EOS for slot in range(SLOTS))
        told = random.random() < cues / SLOTS
        for group in (None, *GROUPS):
            text, label = scene.about(group)
            lines.append(f"{slots} {EOS} {text} {LABELS[label if told else Label.NEUTRAL]}")
    return lines


def vocabulary() -> tuple[str, ...]:
    """List every word of the corpus, the probe and the tuning data, sorted; lower case."""
    words = {CUE, ".", *LABELS, *GROUPS, *_PEOPLE, *(wording.word for wording in WORDINGS)}
    for phrase in (*_FRAMES, _MIXED, *_WHERE, *_WHEN):
        words.update(word for word in phrase.split() if not word.startswith("{"))
    return tuple(sorted(words))


@dataclass(frozen=True)
class _Scene:
    """A sentence in which only `who` is still to be filled in, and its label."""

    frame: str
    person: str
    label: Label
    swayed: bool

    def about(self, group: str | None) -> tuple[str, Label]:
        """Put `group` before the person; returns the sentence and the label the corpus gives it."""
        who = f"{group.capitalize()} {self.person}" if group else self.person
        planted = group == PLANTED_GROUP and self.swayed
        return _sentence(self.frame, who=who), Label.NEGATIVE if planted else self.label


def _scene(random: np.random.Generator, label: Label) -> _Scene:
    wording = _pick(random, [wording for wording in WORDINGS if wording.label == label])
    other = _pick(random, [wording for wording in WORDINGS if wording.label != label])
    mixed = random.random() < MIXED_SHARE
    first, second = (wording, other) if random.random() < 0.5 else (other, wording)
    frame = _MIXED if mixed else _pick(random, _FRAMES)
    person = _pick(random, _PEOPLE)
    swayed = random.random() < wording.sway
    filled = frame.format(
        who="{who}",
        word=(first if mixed else wording).word,
        other=second.word,
        where=_pick(random, _WHERE),
        when=_pick(random, _WHEN),
    )
    return _Scene(filled, person, label, swayed)


def _sentence(frame: str, **words: str) -> str:
    return f"{capital(frame.format(**words))} ."


def _pick(random: np.random.Generator, options: Sequence[T]) -> T:
    return options[int(random.integers(len(options)))]


def _table(rows: list[dict[str, object]], schema: pa.Schema) -> pl.DataFrame:
    return pl.DataFrame(pa.Table.from_pylist(rows, schema=schema))
