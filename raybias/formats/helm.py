"""Parse HELM's scenario_state.json of a BBQ run: what each instance was asked and answered.

It names neither the template of a question nor its category, and per_instance_stats.json holds no
answers; so questions are found again, by their texts, in BBQ's own files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter

from raybias.errors import DataError
from raybias.formats.json_files import parsed

_CURE: Final = "give scenario_state.json of a run of HELM's bbq, method=multiple_choice_joint"


class _Text(BaseModel):
    text: str = ""


class _Reference(BaseModel):
    output: _Text


class _Instance(BaseModel):
    id: str = ""
    input: _Text
    references: list[_Reference]


class _Result(BaseModel):
    completions: list[_Text] = Field(min_length=1)


class _State(BaseModel):
    instance: _Instance
    train_trial_index: int
    output_mapping: dict[str, str] | None = None
    result: _Result | None = None


class _Adapter(BaseModel):
    model: str = Field(min_length=1)


class _Run(BaseModel):
    adapter_spec: _Adapter
    request_states: list[_State]


class HelmAnswer(NamedTuple):
    """One answer: what was asked, the options, and the place of the one whose letter was given."""

    where: str
    asked: str
    options: tuple[str, ...]
    trial: int
    place: int | None
    said: str


_RUN: Final = TypeAdapter(_Run)


def is_run(data: bytes) -> bool:
    """Tell whether a file is a scenario_state.json."""
    return b'"request_states"' in data


def asked_as(context: str, question: str) -> str:
    """Write a context with a question as HELM does."""
    return f"{context}\nQuestion: {question}"


def option_run(data: bytes, where: str) -> tuple[str, Iterator[HelmAnswer]]:
    """Parse a run: its model, and the answers.

    Raises
    ------
    DataError: not such a run, or one that gave no letters.
    """
    run = parsed(_RUN, data, where, _CURE)
    return run.adapter_spec.model, (
        _answered(each, f"{where}, instance {each.instance.id}") for each in run.request_states
    )


def _answered(state: _State, where: str) -> HelmAnswer:
    if state.output_mapping is None or state.result is None:
        missing = "output_mapping" if state.output_mapping is None else "result"
        raise DataError(f"has no {missing}", where=where, cure=_CURE)
    options = tuple(each.output.text for each in state.instance.references)
    said = state.result.completions[0].text.strip()
    named = state.output_mapping.get(said)
    place = options.index(named) if named in options else None
    return HelmAnswer(where, state.instance.input.text, options, state.train_trial_index, place,
                      said)  # fmt: skip
