"""The tables that pass between stages: column names, order and types.

Probes write items, the engine writes runs and predictions, statistics read
predictions and write cells, gaps and accuracies.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import pyarrow as pa


class Label(IntEnum):
    """Sentiment of a sentence, as both papers and their files number it."""

    NEGATIVE = 0
    NEUTRAL = 1
    POSITIVE = 2


LABELS: Final = tuple(label.name.lower() for label in Label)

#: Groups of the extra items that measure markedness: the sentence without its group term, and
#: with a neutral word in its place. They enter no mean, accuracy, span or count.
UNMARKED: Final = "unmarked"
PLACEHOLDER: Final = "placeholder"
EXTRA_GROUPS: Final = (UNMARKED, PLACEHOLDER)

#: One row per probe sentence.
ITEMS: Final = pa.schema(
    [
        ("item_id", pa.string()),
        ("label", pa.int8()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("text", pa.string()),
        ("template_id", pa.string()),
        ("term", pa.string()),
    ]
)

#: One row per labelled training sentence.
SENTENCES: Final = pa.schema([("text", pa.string()), ("label", pa.int8())])

#: One row per tuned seed. `stage` is "sweep" or "final"; `stop_reason` is
#: "early_stop", "max_steps" or "diverged"; `rank` is the place by validation
#: accuracy among the finished final runs (1 is best), `tied` says that the
#: lower seed decided it. What belongs to tuning is null in a prompted run, and
#: `steps` 0.
RUNS: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("model", pa.string()),
        ("method", pa.string()),
        ("dataset", pa.string()),
        ("seed", pa.int64()),
        ("learning_rate", pa.float64()),
        ("weight_decay", pa.float64()),
        ("stop_window", pa.int32()),
        ("stage", pa.string()),
        ("steps", pa.int64()),
        ("weights_step", pa.int64()),
        ("stop_reason", pa.string()),
        ("validation_loss", pa.float64()),
        ("validation_accuracy", pa.float64()),
        ("test_accuracy", pa.float64()),
        ("selected", pa.bool_()),
        ("rank", pa.int32()),
        ("tied", pa.bool_()),
        ("eval_losses", pa.list_(pa.float64())),
        ("eval_accuracies", pa.list_(pa.float64())),
        ("tokens", pa.int64()),
        ("seconds", pa.float64()),
        ("verbalizer_ids", pa.list_(pa.int32())),
        ("prompt_token_id", pa.int32()),
        ("adapter", pa.string()),
    ]
)

#: One row per run x item x style. `scores` are the label logits (null for a
#: published file); `parsed` is false when no label could be read from `answer`.
PREDICTIONS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("method", pa.string()),
        ("dataset", pa.string()),
        ("run_id", pa.string()),
        ("probe", pa.string()),
        ("style", pa.string()),
        ("item_id", pa.string()),
        ("label", pa.int8()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("template_id", pa.string()),
        ("term", pa.string()),
        ("pred", pa.int8()),
        ("scores", pa.list_(pa.float32())),
        ("parsed", pa.bool_()),
        ("answer", pa.string()),
    ]
)

#: The columns that identify a classifier on a probe in every derived table.
KEYS: Final = ("model", "method", "dataset", "probe", "style")

#: Counts of (run, attribute, group, template, gold, predicted).
CELLS: Final = pa.schema(
    [
        *((key, pa.string()) for key in KEYS),
        ("run_id", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("template_id", pa.string()),
        ("label", pa.int8()),
        ("pred", pa.int8()),
        ("n", pa.int64()),
    ]
)

#: Counts of (run, attribute, group, term, gold, predicted); no templates, so it stays small.
TERM_CELLS: Final = pa.schema(
    [
        *((key, pa.string()) for key in KEYS),
        ("run_id", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("term", pa.string()),
        ("label", pa.int8()),
        ("pred", pa.int8()),
        ("n", pa.int64()),
    ]
)

#: The first ten columns are the public contract of gaps.csv. `significant` says that the
#: interval excludes zero, `survives` that it does so after the correction for many tests;
#: `no_verdict` says why both are null, and is null where they are not. `scope` is what the
#: interval covers (`stats.scopes`), `mde` the smallest true gap that the same design would call
#: significant four times out of five, and `equivalent` (null without a margin) says that the gap
#: is smaller than the margin.
GAPS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rate", pa.string()),
        ("gap", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("half_width", pa.float64()),
        ("n_runs", pa.int64()),
        ("significant", pa.bool_()),
        ("method", pa.string()),
        ("dataset", pa.string()),
        ("probe", pa.string()),
        ("style", pa.string()),
        ("mean_rate", pa.float64()),
        ("sd", pa.float64()),
        ("n_items", pa.int64()),
        ("in_mean", pa.bool_()),
        ("interval", pa.string()),
        ("p_value", pa.float64()),
        ("q_value", pa.float64()),
        ("survives", pa.bool_()),
        ("no_verdict", pa.string()),
        ("scope", pa.string()),
        ("mde", pa.float64()),
        ("equivalent", pa.bool_()),
    ]
)

#: One row per metric and group of `raybias metrics`, and one for `all` groups. The first nine
#: columns are the public contract of metrics.csv. `scope` is what the interval covers: runs,
#: sentences (runs and templates), wording, or items where no templates are known; `corrected` is a
#: value that noise alone would raise (or lower), less what it does so; `positive` is the class of
#: metrics of one class, and `note` says why something is missing.
METRICS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("metric", pa.string()),
        ("group", pa.string()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("scope", pa.string()),
        ("background", pa.string()),
        ("corrected", pa.float64()),
        ("interval", pa.string()),
        ("positive", pa.int64()),
        ("note", pa.string()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: Kendall's W of how metrics rank groups of one model, or models: of `metric` with the metric
#: `other`, or of all metrics together (both `all`). `n_ranked` groups or models, `n_metrics`.
AGREEMENT: Final = pa.schema(
    [
        ("ranking", pa.string()),
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("metric", pa.string()),
        ("other", pa.string()),
        ("w", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("scope", pa.string()),
        ("n_metrics", pa.int64()),
        ("n_ranked", pa.int64()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: Counts of (attribute, group, template, term, gold, predicted) over all runs of a classifier.
WORD_CELLS: Final = pa.schema(
    [
        *((key, pa.string()) for key in KEYS),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("template_id", pa.string()),
        ("term", pa.string()),
        ("label", pa.int8()),
        ("pred", pa.int8()),
        ("n", pa.int64()),
    ]
)

#: One row per gap and scope: what its interval covers (`stats.scopes`); columns as in GAPS.
SCOPES: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rate", pa.string()),
        ("gap", pa.float64()),
        ("scope", pa.string()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("p_value", pa.float64()),
        ("mde", pa.float64()),
        ("equivalent", pa.bool_()),
        ("significant", pa.bool_()),
        ("q_value", pa.float64()),
        ("survives", pa.bool_()),
        ("no_verdict", pa.string()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: One row per gap and source of its variance. `variance` is of one run, template, cell or word;
#: unbiased, so it can be negative.
COMPONENTS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("rate", pa.string()),
        ("group", pa.string()),
        ("facets", pa.string()),
        ("variance", pa.float64()),
        ("levels", pa.string()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: What a gap would be without one of its templates, or without one of its group's words: the
#: lowest and the highest such gap, and what they leave out. `carried_by` names the template or
#: word without which the gap turns its sign or loses half of its size; null where none does so.
LEAVE_ONE_OUT: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rate", pa.string()),
        ("gap", pa.float64()),
        ("unit", pa.string()),
        ("lowest", pa.float64()),
        ("lowest_without", pa.string()),
        ("highest", pa.float64()),
        ("highest_without", pa.string()),
        ("carried_by", pa.string()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: One row per mean gap over models and scope (`stats.over_models`). `n_lowest` and `n_highest`
#: count the models in which the group is that extreme (groups at one end share the model),
#: `p_lowest` and `p_highest` are the chance of so many where groups exchange their names within
#: each template.
OVER_MODELS: Final = pa.schema(
    [
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rate", pa.string()),
        ("gap", pa.float64()),
        ("scope", pa.string()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("p_value", pa.float64()),
        ("q_value", pa.float64()),
        ("significant", pa.bool_()),
        ("survives", pa.bool_()),
        ("n_models", pa.int64()),
        ("n_lowest", pa.float64()),
        ("p_lowest", pa.float64()),
        ("n_highest", pa.float64()),
        ("p_highest", pa.float64()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: One row per ranking and scope (`stats.reliability`): of `groups` by a classifier's gaps, or of
#: `models` (`model` is empty) by the gap of one `group`. `spread` is the standard deviation of the
#: true gaps, `error` that of one estimate, and `reliability` spread^2 / (spread^2 + error^2).
RELIABILITY: Final = pa.schema(
    [
        ("ranking", pa.string()),
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("rate", pa.string()),
        ("group", pa.string()),
        ("scope", pa.string()),
        ("reliability", pa.float64()),
        ("spread", pa.float64()),
        ("error", pa.float64()),
        ("n_ranked", pa.int64()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: One row per attribute, rate and plan (`stats.design`): `now`, more `runs`, `templates` or `words`
#: alone, and the `cheapest`. `words` are those of the group with the fewest (null where no group
#: has two), `half_width` that of an average gap's interval, `cost` that of what is added.
DESIGN: Final = pa.schema(
    [
        ("probe", pa.string()),
        ("attribute", pa.string()),
        ("rate", pa.string()),
        ("scope", pa.string()),
        ("plan", pa.string()),
        ("runs", pa.int64()),
        ("templates", pa.int64()),
        ("words", pa.int64()),
        ("half_width", pa.float64()),
        ("reached", pa.bool_()),
        ("cost", pa.float64()),
        ("unit", pa.string()),
    ]
)

#: Answers of prompted classifiers, per run and over all of them (`run_id` "all").
ANSWERS: Final = pa.schema(
    [
        *((key, pa.string()) for key in KEYS),
        ("run_id", pa.string()),
        ("predictions", pa.int64()),
        ("unparsed", pa.int64()),
        ("share", pa.float64()),
    ]
)

#: How often a corpus has a group's term before a noun (`marked`), and the noun without any
#: listed term (`bare`, the same in all rows of a noun).
CORPUS: Final = pa.schema(
    [
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("term", pa.string()),
        ("noun", pa.string()),
        ("marked", pa.int64()),
        ("bare", pa.int64()),
    ]
)

#: What naming a group does to a rate, beside its gap on the same templates. `effect` is
#: "marking_effect", "neutral_effect", "beyond_neutral" or "gap".
MARKEDNESS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rate", pa.string()),
        ("effect", pa.string()),
        ("estimate", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("p_value", pa.float64()),
        ("q_value", pa.float64()),
        ("significant", pa.bool_()),
        ("survives", pa.bool_()),
        ("sd", pa.float64()),
        ("n_runs", pa.int64()),
        ("n_templates", pa.int64()),
        ("in_mean", pa.bool_()),
        ("method", pa.string()),
        ("dataset", pa.string()),
        ("probe", pa.string()),
        ("style", pa.string()),
        ("no_verdict", pa.string()),
        ("scope", pa.string()),
    ]
)

#: One row per task and device that it held, in seconds from the begin of the command that did it:
#: loading until `loaded`, computing until `end`. `worker` counts from 0 up to `devices`.
SCHEDULE: Final = pa.schema(
    [
        ("task", pa.string()),
        ("kind", pa.string()),
        ("backbone", pa.string()),
        ("method", pa.string()),
        ("worker", pa.int64()),
        ("start", pa.float64()),
        ("loaded", pa.float64()),
        ("end", pa.float64()),
        ("devices", pa.int64()),
    ]
)
SCHEDULE_FILE: Final = "schedule.parquet"

#: The first five columns are the public contract of accuracy.csv. The attribute `all` is over
#: the sentences of all attributes of a probe that has several.
ACCURACY: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("mean", pa.float64()),
        ("sd", pa.float64()),
        ("n_runs", pa.int64()),
        ("method", pa.string()),
        ("dataset", pa.string()),
        ("probe", pa.string()),
        ("style", pa.string()),
        ("n_items", pa.int64()),
    ]
)

#: One row per pair of sentences under one style. `direction` is "stereo" where sent_more
#: holds the stereotype and "antistereo" where it holds the anti-stereotype; `kept` is true
#: where a style has no adequate paraphrase and the original stands; `cluster` is what pairs have in
#: common that were made together, such as their writer, and null where that is not known.
PAIRS: Final = pa.schema(
    [
        ("pair_id", pa.string()),
        ("bias_type", pa.string()),
        ("direction", pa.string()),
        ("style", pa.string()),
        ("sent_more", pa.string()),
        ("sent_less", pa.string()),
        ("kept", pa.bool_()),
        ("cluster", pa.string()),
    ]
)

#: Pairs that a model rewrote, with what its judge says of each side that it wrote: null for a
#: side that was mirrored, and for both where the original stands.
REWRITTEN_PAIRS: Final = pa.schema(
    [*PAIRS, ("adequacy_more", pa.float64()), ("adequacy_less", pa.float64())]
)

#: One row per pair, style and way of scoring. `preference` is 1 where sent_more scores
#: higher, 0 where sent_less does, and null for a tie, which stays in the denominator.
PAIR_SCORES: Final = pa.schema(
    [
        ("model", pa.string()),
        ("score", pa.string()),
        ("probe", pa.string()),
        ("style", pa.string()),
        ("pair_id", pa.string()),
        ("bias_type", pa.string()),
        ("direction", pa.string()),
        ("score_more", pa.float64()),
        ("score_less", pa.float64()),
        ("preference", pa.int8()),
        ("cluster", pa.string()),
    ]
)

#: One row per WinoBias sentence under one style; a pro and an anti sentence share a pair_id.
COREFERENCES: Final = pa.schema(
    [
        ("item_id", pa.string()),
        ("pair_id", pa.string()),
        ("wino_type", pa.string()),
        ("condition", pa.string()),
        ("style", pa.string()),
        ("text", pa.string()),
        ("pronoun", pa.string()),
        ("referent", pa.string()),
    ]
)

#: One row per WinoBias sentence, style and prompt: what a model answers, and whether it names
#: the referent by each rule.
COREFERENCE_ANSWERS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("probe", pa.string()),
        ("style", pa.string()),
        ("prompt", pa.string()),
        ("item_id", pa.string()),
        ("pair_id", pa.string()),
        ("wino_type", pa.string()),
        ("condition", pa.string()),
        ("answer", pa.string()),
        ("exact", pa.bool_()),
        ("contains", pa.bool_()),
    ]
)

#: A question's context is too short to tell the answer, or says it.
CONTEXTS: Final = ("ambig", "disambig")
#: Whether a question asks for something bad or not.
POLARITIES: Final = ("neg", "nonneg")

#: One row per question about a `text`, of whose options one says that it cannot be known. `label`,
#: `unknown` and `target` are places in `options`: the right one, that one, and the one that names
#: the stereotyped group (null where none does); `template_id` is what questions were made from.
OPTION_ITEMS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("category", "template_id", "item_id")),
        *((name, pa.string()) for name in ("context", "polarity", "text", "question")),
        ("options", pa.list_(pa.string())),
        *((name, pa.int8()) for name in ("label", "unknown", "target")),
    ]
)

#: One row per model, question and prompt: the place of the option that was chosen (`pred`, null
#: where an answer names none), with the options' log-likelihoods or the answer that it was read
#: from. `prompt` names the wording that was asked with, and `method` how; empty where there is one.
OPTION_ANSWERS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("probe", pa.string()),
        ("method", pa.string()),
        *(field for field in OPTION_ITEMS if field.name not in ("text", "question", "options")),
        ("pred", pa.int8()),
        ("scores", pa.list_(pa.float32())),
        ("answer", pa.string()),
        ("prompt", pa.string()),
    ]
)

#: The first nine columns are the public contract of options.csv. `n` are the answers that the
#: score counts, `units` the question templates that are drawn, `unparsed` the answers that name no
#: option; `no_interval` says why there is none, and is null where there is one. `prompt` is `all`
#: over several; `scope` says what is drawn anew: templates, or templates and prompts.
OPTION_MEASURES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "category", "context", "score")),
        *((name, pa.float64()) for name in ("value", "low", "high")),
        *((name, pa.int64()) for name in ("n", "units", "unparsed")),
        *((name, pa.string()) for name in ("no_interval", "probe", "method", "prompt", "scope")),
    ]
)

#: One row per triple: a sentence about a target term that holds a stereotype, one that holds its
#: opposite, and one that says nothing sensible. In the task intersentence they follow `context`; in
#: intrasentence they are `context` with another word for BLANK, or there is none.
TRIPLES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("domain", "task", "term", "item_id", "context")),
        *((name, pa.string()) for name in ("stereotype", "anti_stereotype", "unrelated")),
    ]
)

#: One row per model and triple: the score of each sentence, of which the higher is preferred.
TRIPLE_SCORES: Final = pa.schema(
    [
        ("model", pa.string()),
        ("probe", pa.string()),
        *((name, pa.string()) for name in ("domain", "task", "term", "item_id")),
        *((name, pa.float64()) for name in ("stereotype", "anti_stereotype", "unrelated")),
    ]
)

#: The first nine columns are the public contract of triples.csv; `no_interval` as above.
TRIPLE_MEASURES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "domain", "task", "score")),
        *((name, pa.float64()) for name in ("value", "low", "high")),
        *((name, pa.int64()) for name in ("terms", "items")),
        *((name, pa.string()) for name in ("no_interval", "probe")),
    ]
)

#: One row per decision about one person. Persons of one `decision_id` differ in nothing else;
#: `person` is their groups by attribute (`age=60; gender=female`), `favourable` and `unfavourable`
#: the two answers, `reference` the groups that others are compared with, as in `person`, or null.
DECISIONS: Final = pa.schema(
    (name, pa.string())
    for name in (
        *("decision_id", "item_id", "person", "text", "favourable", "unfavourable", "reference"),
    )
)

#: One row per model, decision, person and prompt: the log-likelihood of each answer.
DECISION_ANSWERS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("probe", pa.string()),
        *(DECISIONS.field(name) for name in ("decision_id", "item_id", "person", "reference")),
        ("favourable", pa.float64()),
        ("unfavourable", pa.float64()),
        ("prompt", pa.string()),
    ]
)

#: How much more favourable the decisions about a group are than those about its background, in
#: logits; `decisions` have both, and `no_interval` is as in OPTION_MEASURES.
DECISION_MEASURES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "attribute", "group")),
        *((name, pa.float64()) for name in ("value", "low", "high", "p_value")),
        ("background", pa.string()),
        *((name, pa.int64()) for name in ("decisions", "items")),
        *((name, pa.string()) for name in ("no_interval", "probe")),
    ]
)

#: One row per sentence in which a descriptor of people fills a template; axes are what descriptors
#: are about.
SENTENCE_ITEMS: Final = pa.schema(
    (name, pa.string()) for name in ("item_id", "axis", "template_id", "descriptor", "text")
)

#: One row per model and sentence: the mean log-probability of its tokens.
SENTENCE_SCORES: Final = pa.schema(
    [
        ("model", pa.string()),
        ("probe", pa.string()),
        *(field for field in SENTENCE_ITEMS if field.name != "text"),
        ("log_prob", pa.float64()),
    ]
)

#: The share of the pairs of descriptors of an axis whose sentences differ in likelihood; `pairs`
#: are of descriptors and template, `no_interval` is as in OPTION_MEASURES.
SENTENCE_MEASURES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "axis", "score")),
        *((name, pa.float64()) for name in ("value", "low", "high")),
        *((name, pa.int64()) for name in ("pairs", "templates")),
        *((name, pa.string()) for name in ("no_interval", "probe")),
    ]
)


@dataclass(frozen=True)
class OutputSpec:
    """Where the rows that a method makes from items are stored.

    Attributes
    ----------
    folder: of OUT, where its files go.
    schema: of its files.
    per_item: rows of a file for each item.
    items: schema of the pairs or questions that it reads; None for sentences with labels.
    """

    folder: str
    schema: pa.Schema
    per_item: int = 1
    items: pa.Schema | None = None
