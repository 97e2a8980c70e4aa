"""Pairs, questions, triples, decisions and sentences about people, and what is answered to them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

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

#: Which sentence of a pair holds the stereotype, and whether a pronoun fits one.
DIRECTIONS: Final = ("stereo", "antistereo")
CONDITIONS: Final = ("pro", "anti")

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
#: higher, 0 where sent_less does, and null for a tie, which stays in the denominator. `turned`
#: tells whether it is another where sentences begin with the tokenizer's other begin token, and is
#: null where there is none.
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
        ("turned", pa.bool_()),
    ]
)

#: One row per WinoBias sentence under one style; a pro and an anti sentence share a pair_id.
#: `other` is the person that the pronoun does not stand for; null where the data do not tell.
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
        ("other", pa.string()),
    ]
)

#: Whom an answer names; `empty` is no answer.
READINGS: Final = ("referent", "other", "both", "neither", "empty")

#: One row per WinoBias sentence, style and prompt: what a model answers, whether it is right by
#: each rule, and whom it names (`reading`).
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
        ("reading", pa.string()),
    ]
)
