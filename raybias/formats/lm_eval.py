"""Parse the samples that lm-evaluation-harness logs (`--log_samples`), one JSON object a line.

A sample holds the document that was asked about and the log-likelihood of each continuation, in the
order of its `arguments`. The model is told by the folder that lm-eval writes a model's files to.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, TypeAdapter

from raybias.errors import DataError
from raybias.formats.bbq import Line, bbq_fields
from raybias.formats.json_files import parsed

_CURE: Final = "give a samples_TASK.jsonl of `lm-eval run --log_samples`"


#: A context and what it is continued by.
_Request = Annotated[list[Any] | dict[str, Any], Field(min_length=2)]


class _Sample(BaseModel):
    doc_id: int
    doc: dict[str, Any]
    arguments: dict[str, _Request] | list[_Request]
    filtered_resps: list[Any]


_SAMPLE: Final = TypeAdapter(_Sample)


def is_sample(line: bytes) -> bool:
    """Tell whether a line of JSON is a sample of lm-eval."""
    return b'"filtered_resps"' in line


def option_sample(text: bytes, where: str) -> tuple[Line, list[float] | str]:
    """Parse a sample of a BBQ task: the question, and each option's log-likelihood, or the answer.

    Continuations beyond the two named options are wordings of the unknown one, whose likeliest
    counts. An answer is what was generated, where the task generates one.

    Raises
    ------
    DataError: not such a sample, or an option without a continuation.
    """
    sample = parsed(_SAMPLE, text, where, _CURE)
    line = bbq_fields(sample.doc, where)
    if len(sample.filtered_resps) == 1 and isinstance(sample.filtered_resps[0], str):
        return line, sample.filtered_resps[0]
    unknown = line.unknown(where)
    scores: list[float | None] = [None] * 3
    for said, score in _continuations(sample, where):
        place = line.place_of(said)
        place = unknown if place is None else place
        known = scores[place]
        scores[place] = score if known is None else max(known, score)
    found = [score for score in scores if score is not None]
    if len(found) < len(scores):
        raise DataError("an option has no log-likelihood", where=where, cure=_CURE)
    return line, found


def pair_sample(text: bytes, where: str) -> dict[str, Any]:
    """Parse a sample of a CrowS-Pairs task into a row of schema.PAIR_SCORES, without its model.

    Raises
    ------
    DataError: not such a sample.
    """
    sample = parsed(_SAMPLE, text, where, _CURE)
    scores = dict(_continuations(sample, where))
    row: dict[str, Any] = {"pair_id": str(sample.doc.get("id", sample.doc_id))}
    for side, name in (("sent_more", "score_more"), ("sent_less", "score_less")):
        said = str(sample.doc.get(side, "")).strip()
        if said not in scores:
            raise DataError(f"{side} has no log-likelihood", where=where, cure=_CURE)
        row[name] = scores[said]
    for field, name in (("bias_type", "bias_type"), ("stereo_antistereo", "direction")):
        value = sample.doc.get(field)
        if not isinstance(value, str):
            raise DataError(f"doc.{field} is {value!r}, not its name", where=where, cure=_CURE)
        row[name] = value
    more, less = row["score_more"], row["score_less"]
    return {**row, "preference": None if more == less else int(more > less)}


def _continuations(sample: _Sample, where: str) -> list[tuple[str, float]]:
    """Return each continuation, without blanks around it, with its log-likelihood."""
    asked = sample.arguments
    each = asked.values() if isinstance(asked, dict) else asked
    texts = [list(a.values())[1] if isinstance(a, dict) else a[1] for a in each]
    try:
        scores = [float(r[0]) if isinstance(r, list) else float(r) for r in sample.filtered_resps]
    except (TypeError, ValueError, IndexError) as error:
        raise DataError("filtered_resps are no log-likelihoods", where=where, cure=_CURE) from error
    if len(texts) != len(scores):
        raise DataError(
            f"has {len(texts)} continuations and {len(scores)} responses", where=where, cure=_CURE
        )
    return [(str(text).strip(), score) for text, score in zip(texts, scores, strict=True)]
