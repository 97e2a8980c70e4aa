"""Questions with options, triples, decisions and sentences about people, and their scores."""

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
