"""Sentences in pairs, and what models make of them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

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
