"""The tables that pass between stages: columns, their types, and what their values may be.

`raybias.table_rules` reads every table against these rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import pyarrow as pa

from raybias.columns import declared, declared_field


class Label(IntEnum):
    """Sentiment of a sentence, as both papers and their files number it."""

    NEGATIVE = 0
    NEUTRAL = 1
    POSITIVE = 2


#: Stands for all levels of a column, where there are several.
ALL: Final = "all"

LABELS: Final = tuple(label.name.lower() for label in Label)

#: Groups of the extra items that measure markedness: the sentence without its group term, and
#: with a neutral word in its place. They enter no mean, accuracy, span or count.
UNMARKED: Final = "unmarked"
PLACEHOLDER: Final = "placeholder"
EXTRA_GROUPS: Final = (UNMARKED, PLACEHOLDER)

#: One row per probe sentence. Templates of one `family` were written from one opening; null where
#: that is not known.
ITEMS: Final = declared("item_id label:count16 attribute group text template_id? term? family?")

#: One row per labelled training sentence.
SENTENCES: Final = declared("text label:count16")

#: One row per question about a `text`, of whose options one says that it cannot be known. `label`,
#: `unknown` and `target` are places in `options`: the right one, that one, and the one that names
#: the stereotyped group (null where none does); `template_id` is what questions were made from.
OPTION_ITEMS: Final = declared(
    """
    category template_id item_id context:context polarity:polarity text question options:texts
    label:count8 unknown:count8 target:count8?
    """
)

#: One row per model, question and prompt: the place of the option that was chosen (`pred`, null
#: where an answer names none), with the options' log-likelihoods or the answer that it was read
#: from. `prompt` names the wording that was asked with, and `method` how; empty where there is one.
OPTION_ANSWERS: Final = declared(
    """
    model probe method category template_id item_id context:context polarity:polarity label:count8
    unknown:count8 target:count8? pred:count8? scores:log_probs32? answer? prompt
    """
)

#: One row per triple of sentences about a target term. In the task intersentence they follow
#: `context`; in intrasentence they are `context` with another word for BLANK, or there is none.
TRIPLES: Final = declared("domain task term item_id context stereotype anti_stereotype unrelated")

#: One row per model and triple: the score of each sentence, of which the higher is preferred.
TRIPLE_SCORES: Final = declared(
    """
    model probe domain task term item_id stereotype:float anti_stereotype:float unrelated:float
    """
)

#: One row per decision about one person, whose groups by attribute `person` is (`age=60;
#: gender=female`), with the two answers; `reference` are the groups that others are compared with,
#: as in `person`, or null.
DECISIONS: Final = declared("decision_id item_id person text favourable unfavourable reference?")

#: One row per model, decision, person and prompt: the log-likelihood of each answer.
DECISION_ANSWERS: Final = declared(
    """
    model probe decision_id item_id person reference? favourable:log_prob unfavourable:log_prob
    prompt
    """
)

#: One row per sentence in which a descriptor of people fills a template; axes are what descriptors
#: are about.
SENTENCE_ITEMS: Final = declared("item_id axis template_id descriptor text")

#: One row per model and sentence: the mean log-probability of its tokens.
SENTENCE_SCORES: Final = declared(
    "model probe item_id axis template_id descriptor log_prob:log_prob"
)

#: One row per model, association test and text of one of its sets. `method` says how texts were
#: embedded, such as `mean` of the last hidden states; empty if there is one way.
EMBEDDINGS: Final = declared("model probe method test set:set item_id embedding:float32s")

#: One row per pair of sentences under one style. `direction` is "stereo" where sent_more holds the
#: stereotype; `kept` is true where a style has no adequate paraphrase and the original stands;
#: `cluster` is what pairs that were made together share, such as their writer, or null.
PAIRS: Final = declared(
    "pair_id bias_type direction:direction style sent_more sent_less kept:bool cluster?"
)

#: Ends the id of a pair that is put into a style once more, with draws of its own.
REPEAT: Final = r"#repeat\d+$"

#: Pairs that a model rewrote, with what its judge says of each side that it wrote: null for a
#: side that was mirrored, and for both where the original stands.
REWRITTEN_PAIRS: Final = pa.schema([*PAIRS, *declared("adequacy_more:float? adequacy_less:float?")])

#: One row per pair, style and way of scoring. `preference` is 1 where sent_more scores higher, 0
#: where sent_less does, and null for a tie, which stays in the denominator. `turned` tells whether
#: it changes with the tokenizer's other begin token, and is null where there is none.
PAIR_SCORES: Final = declared(
    """
    model score probe style pair_id bias_type direction:direction score_more:float?
    score_less:float? preference:preference? cluster? turned:bool?
    """
)

#: One row per WinoBias sentence under one style; a pro and an anti sentence share a pair_id.
#: `other` is the person that the pronoun does not stand for; null where the data do not tell.
COREFERENCES: Final = declared(
    "item_id pair_id wino_type condition:condition style text pronoun referent other?"
)

#: One row per WinoBias sentence, style and prompt: what a model answers, whether it is right by
#: each rule, and whom it names (`reading`).
COREFERENCE_ANSWERS: Final = declared(
    """
    model probe style prompt item_id pair_id wino_type condition:condition answer? exact:bool
    contains:bool? reading:reading?
    """
)

#: The columns that identify a classifier on a probe in every derived table.
KEYS: Final = ("model", "method", "dataset", "probe", "style")
#: What names one run of one classifier on one probe, and one classifier on one attribute.
RUN_KEYS: Final = (*KEYS, "run_id")
TABLE: Final = (*KEYS, "attribute")

#: Ends the method name of the second reading of a prompted classifier.
LIKELIHOOD: Final = "+likelihood"

#: One row per tuned seed. `stage` is "sweep" or "final"; `stop_reason` is "early_stop", "diverged",
#: "max_steps" or "cut" (given up by the sweep); `adapter_rank` and `target` are those of LoRA's
#: factors, `prompt_length` is a soft prompt's or prefix's; `tuned_parameters` counts the weights of
#: the run's adapter or model. `rank` is the place by validation accuracy among the finished final
#: runs (1 is best), `tied` says that the lower seed decided it. `eval_losses` and `eval_accuracies`
#: begin with step 0, before tuning. What belongs to tuning is null in a prompted run, `steps` is 0.
RUNS: Final = declared(
    """
    run_id:path! model method dataset seed:int64? learning_rate:amount? weight_decay:amount?
    stop_window:count32? adapter_rank:count32? target? prompt_length:count32? stage:stage
    steps:count weights_step:count? stop_reason?
    validation_loss:float? validation_accuracy:share? untuned_accuracy:share? test_accuracy:share?
    selected:bool rank:count32? tied:bool? eval_losses:curve? eval_accuracies:share_curve?
    tokens:count? tuned_parameters:count? seconds:amount? verbalizer_ids:counts32?
    prompt_token_id:count32? adapter:path?
    """
)

#: One row per run x item x style. `scores` are the label logits, of prompted runs the uncalibrated
#: log-probabilities of the label words, of judged texts the probability of the verdict alone;
#: `parsed` is false when no label could be read from `answer`, and `unread` says why: it names
#: none, several, or one that is negated; it was cut off, or filtered by an endpoint.
PREDICTIONS: Final = declared(
    """
    model method dataset run_id probe style item_id label:count16 attribute group template_id? term?
    family? pred:count16? scores:float32s? parsed:bool unread? answer?
    """
)

#: Answers of prompted classifiers, per run and over all of them (`run_id` "all"); of those that
#: are unparsed, `several` name more than one label and `negated` deny the one they name.
ANSWERS: Final = declared(
    """
    model method dataset probe style run_id predictions:count unparsed:count several:count
    negated:count share:share
    """
)

#: Answers of prompted classifiers by group, and those of them that say nothing of the model's
#: judgement: `cut` ended at the limit of tokens before they named a label, `filtered` were withheld
#: by an endpoint's filter of contents.
UNANSWERED: Final = declared(
    """
    model method dataset probe style attribute group answers:count cut:count filtered:count
    """
)

#: One row per answer that a study keeps. `address` is a hash of all that decides the answer,
#: `scores` are the log-probabilities of its labels, and `bounds` the numbers of the labels that
#: have an upper bound for a score.
REMEMBERED: Final = declared("address:address text scores:log_probs bounds:bounds finish_reason")

#: A row for each time in which a task held so many of the `devices`, in seconds from the begin of
#: the command that did it.
SCHEDULE: Final = declared(
    """
    task kind backbone method held:count start:amount end:amount devices:count
    """
)

SCHEDULE_FILE: Final = "schedule.parquet"
#: The ways of asking that an audit tried, the most accurate first.
PILOT_FILE: Final = "pilot.json"


@dataclass(frozen=True)
class OutputSpec:
    """Where the rows that a method makes from items are stored."""

    folder: str
    """Of OUT."""
    schema: pa.Schema
    per_item: int = 1
    """Rows for each item."""
    items: pa.Schema | None = None
    """Of the pairs or questions that it reads; None for sentences with labels."""


#: Counts of (run, attribute, group, template, gold, predicted).
CELLS: Final = declared(
    """
    model method dataset probe style run_id attribute group template_id? label:count16?
    pred:count16? n:count
    """
)

#: Counts of (run, attribute, group, term, gold, predicted); no templates, so it stays small.
TERM_CELLS: Final = declared(
    """
    model method dataset probe style run_id attribute group term label:count16? pred:count16?
    n:count
    """
)

#: Counts of (attribute, group, template, term, gold, predicted) over all runs of a classifier.
WORD_CELLS: Final = declared(
    """
    model method dataset probe style attribute group template_id term label:count16? pred:count16?
    n:count
    """
)

#: One row per gap and source of its variance. `variance` is of one run, template, cell or word;
#: unbiased, so it can be negative.
COMPONENTS: Final = declared(
    "model attribute score group facets variance:float? levels method dataset probe style"
)

#: One row per attribute and score of a model that several engines read: its `gaps` that have a
#: verdict with every engine, those that `turned`, and the largest difference between two engines,
#: with its group and engines. `sd_engine` is the root of the component's mean over groups (0 where
#: that is negative), `half_width` the mean of the intervals.
ENGINES: Final = declared(
    """
    model attribute score engines:count gaps:count turned:count furthest:amount? group? low_engine?
    high_engine? sd_engine:amount? half_width:amount? method dataset probe style
    """
)

#: One row per attribute, score and plan of `stats.design`. `words` are those of the group with the
#: fewest (null where no group has two), `half_width` that of an average gap's interval (four times
#: of five from `half_low` to `half_high`), `cost` that of what is added.
DESIGN: Final = declared(
    """
    probe attribute score scope plan runs:count? templates:count? words:count? half_width:amount?
    reached:bool? cost:float? unit half_low:float? half_high:float?
    """
)

#: What names one judged text.
TEXT_KEYS: Final = (*KEYS, "run_id", "item_id")

#: One row per text that a person labelled. `row` names it on the sheet, `human` is the person's
#: label (schema.Label), null where the sheet is not filled in yet.
LABELLED: Final = declared(
    """
    row! model method dataset probe style run_id item_id attribute group template_id? label:count16
    pred:count16? human:count16?
    """
)

#: One row per estimate. Text that does not apply is empty. `condition` is the context, task or
#: background that the score belongs to, `style` the style or prompt (`all`: over several);
#: `statistic` is a rate, gap, difference, ratio or score, `scope` what the interval resamples. `n`
#: are the answers that count, `units` what is resampled of them. `p` is two-sided, `q` corrected
#: for many tests; `reason` says why there is no interval or verdict, or names the margin.
ESTIMATES: Final = declared(
    """
    kind model method dataset probe style condition attribute group score statistic scope
    value:float? low:float? high:float? p:share? q:share? significant:bool? survives:bool?
    mde:amount? n:count? units:count? reason?
    """
)


def composition_of(labels: Sequence[str]) -> pa.Schema:
    """Return the schema of the sizes of a probe's groups, for classes of these names.

    `items` are those of one run, `predictions` those of all runs of one classifier, by right label
    and together; `fraction` is the group's share of an attribute's items, null for EXTRA_GROUPS.
    """
    ends = [*(f"_{label}" for label in labels), ""]
    counts = [
        declared_field(f"{what}{end}", "count") for what in ("items", "predictions") for end in ends
    ]
    return pa.schema([*declared("probe attribute group"), *counts, *declared("fraction:share?")])


#: The tables of OUT/tables whose columns are the same in every study.
TABLES: Final = {
    "estimates": ESTIMATES,
    "components": COMPONENTS,
    "engines": ENGINES,
    "design": DESIGN,
    "answers": ANSWERS,
    "unanswered": UNANSWERED,
    "cells": CELLS,
}
