"""Parse logs of inspect_ai as JSON (`inspect log dump LOG`), of inspect_evals' BBQ task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, Field, TypeAdapter

from raybias.errors import DataError
from raybias.formats.bbq import Line, bbq_fields
from raybias.formats.json_files import parsed

_CURE: Final = "give what `inspect log dump` writes of a log of inspect_evals/bbq"


class _Eval(BaseModel):
    model: str = Field(min_length=1)


class _Score(BaseModel):
    answer: str | None = None


class _Sample(BaseModel):
    id: int | str
    epoch: int = 1
    choices: list[str] = Field(min_length=3, max_length=3)
    target: str | list[str]
    metadata: dict[str, Any]
    scores: dict[str, _Score] | None = None


class _Log(BaseModel):
    run: _Eval = Field(alias="eval")
    samples: list[_Sample]


_LOG: Final = TypeAdapter(_Log)


def option_log(text: bytes, where: str) -> tuple[str, Iterator[tuple[Line, int, str]]]:
    """Parse a log: its model, and each question with the epoch and the letter that was answered.

    Raises
    ------
    DataError: not such a log, or a sample that lacks fields of BBQ in its metadata.
    """
    log = parsed(_LOG, text, where, _CURE)
    return log.run.model, (_answered(each, f"{where}, sample {each.id}") for each in log.samples)


def _answered(sample: _Sample, where: str) -> tuple[Line, int, str]:
    target = sample.target[0] if isinstance(sample.target, list) else sample.target
    if target not in ("A", "B", "C"):
        raise DataError(f"has the target {target!r}, not a letter", where=where, cure=_CURE)
    if not sample.scores:
        raise DataError("was not scored", where=where, cure="retry the eval, then dump its log")
    texts = {f"ans{n}": text for n, text in enumerate(sample.choices)}
    named = {"example_id": sample.metadata.get("source_id", sample.id)}
    fields = {**named, **sample.metadata, **texts, "label": ord(target) - ord("A")}
    (score, *_) = sample.scores.values()
    return bbq_fields(fields, where), sample.epoch, (score.answer or "").strip().upper()
