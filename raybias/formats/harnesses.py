"""Parse what other harnesses log of a run: HELM, inspect_ai, and lm-evaluation-harness.

HELM's scenario_state.json of a BBQ run names neither the template of a question nor its category,
so questions are found again, by their texts, in BBQ's own files. Logs of inspect_ai are of
inspect_evals' BBQ task: a zip file of JSON (`.eval`), or one JSON (`inspect log dump LOG`). A
sample of lm-evaluation-harness (`--log_samples`) is a JSON object a line, with the document and the
log-likelihood of each continuation, in the order of its `arguments`; its folder names the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

from pydantic import AliasPath, BaseModel, Field, TypeAdapter

from raybias.errors import DataError
from raybias.formats import has_keys, parsed
from raybias.formats.archives import Archive
from raybias.formats.questions import Line, bbq_fields
from raybias.table_rules import is_log_probability

_HELM: Final = "give scenario_state.json of a run of HELM's bbq, method=multiple_choice_joint"


class _Reference(BaseModel):
    text: str = Field("", validation_alias=AliasPath("output", "text"))


class _HelmState(BaseModel):
    id: str = Field("", validation_alias=AliasPath("instance", "id"))
    asked: str = Field(validation_alias=AliasPath("instance", "input", "text"))
    references: list[_Reference] = Field(validation_alias=AliasPath("instance", "references"))
    train_trial_index: int
    output_mapping: dict[str, str] | None = None
    result: str | None = Field(None, validation_alias=AliasPath("result", "completions", 0, "text"))


class _Run(BaseModel):
    model: str = Field(min_length=1, validation_alias=AliasPath("adapter_spec", "model"))
    request_states: list[_HelmState]


#: A question's position and text, its options, the trial, and the option named by what was said.
HelmAnswer = tuple[str, str, tuple[str, ...], int, int | None, str]


_RUN: Final = TypeAdapter(_Run)
#: A key of a scenario_state.json, and of a sample of lm-eval.
HELM_KEY: Final = "request_states"
LM_EVAL_KEY: Final = "filtered_resps"


def helm_run(data: bytes, where: str) -> tuple[str, Iterator[HelmAnswer]]:
    """Parse a run: its model, and the answers; `DataError` where it gave no letters."""
    run = parsed(_RUN, data, where, _HELM)

    def answer(state: _HelmState) -> HelmAnswer:
        place = f"{where}, instance {state.id}"
        if state.output_mapping is None or state.result is None:
            missing = "output_mapping" if state.output_mapping is None else "result"
            raise DataError(f"has no {missing}", where=place, cure=_HELM)
        options = tuple(each.text for each in state.references)
        said = state.result.strip()
        named = state.output_mapping.get(said)
        option = options.index(named) if named in options else None
        return place, state.asked, options, state.train_trial_index, option, said

    return run.model, map(answer, run.request_states)


_INSPECT: Final = "give a log of inspect_evals/bbq, as .eval or as `inspect log dump` writes it"
#: Ends the names of logs that are zip files.
EVAL_ENDING: Final = ".eval"
#: Members of such a file: what was run, written at the end and at the start, and the samples.
_HEADERS: Final = ("header.json", "_journal/start.json")
_SAMPLES: Final = "samples/"


#: Times that a question is asked, at most.
_MOST_EPOCHS: Final = 10_000


class _Verdict(BaseModel):
    answer: str | None = None


class _Logged(BaseModel):
    id: int | str
    epoch: int = Field(1, ge=1, le=_MOST_EPOCHS)
    choices: list[str] = Field(min_length=3, max_length=3)
    target: str | Annotated[list[str], Field(min_length=1)]
    metadata: dict[str, Any]
    scores: dict[str, _Verdict] | None = None


class _Header(BaseModel):
    model: str = Field(min_length=1, validation_alias=AliasPath("eval", "model"))


class _Log(_Header):
    samples: list[_Logged]


_LOG: Final = TypeAdapter(_Log)
_HEADER: Final = TypeAdapter(_Header)
_LOGGED: Final = TypeAdapter(_Logged)
#: A field of BBQ's questions that no other task's samples have in their metadata.
_OF_BBQ: Final = b'"question_polarity"'
#: A question, the epoch in which it was asked, and the letter of the answer.
InspectAnswer = tuple[Line, int, str]


def inspect_log(data: bytes, where: str) -> tuple[str, Iterator[InspectAnswer]] | None:
    """Parse a log of BBQ in JSON into its model and answers; None for other JSON or another task.

    Raises DataError: a log of BBQ in which a field is missing or wrong.
    """
    if not (has_keys(data, "eval", "samples") and _OF_BBQ in data):
        return None
    log = parsed(_LOG, data, where, _INSPECT)
    return log.model, _inspect_answers((sample, where) for sample in log.samples)


def inspect_archive(data: bytes, where: str) -> tuple[str, Iterator[InspectAnswer]] | None:
    """Parse a log of BBQ in a zip file as `inspect_log`; None for the log of another task."""
    archive = Archive(data, where)
    headers = [name for name in _HEADERS if name in archive.names]
    names = [name for name in archive.names if name.startswith(_SAMPLES)]
    if not headers or not names or _OF_BBQ not in archive.read(names[0]):
        return None
    header = parsed(_HEADER, archive.read(headers[0]), f"{where}, {headers[0]}", _INSPECT)

    def parse_sample(name: str) -> tuple[_Logged, str]:
        member = f"{where}, {name}"
        return parsed(_LOGGED, archive.read(name), member, _INSPECT), member

    return header.model, _inspect_answers(map(parse_sample, names))


def _inspect_answers(samples: Iterable[tuple[_Logged, str]]) -> Iterator[InspectAnswer]:
    """Yield the answers of samples, each given with its place; `DataError` for one given twice."""
    seen: set[tuple[str, int]] = set()
    for sample, where in samples:
        key = str(sample.id), sample.epoch
        if key in seen:
            problem = f"sample {sample.id} of epoch {sample.epoch} is given twice"
            raise DataError(problem, where=where, cure=_INSPECT)
        seen.add(key)
        yield _inspect_answer(sample, where)


def _inspect_answer(sample: _Logged, where: str) -> InspectAnswer:
    """Check one sample of BBQ; `DataError` for one without a letter as its target, or unscored."""
    location = f"{where}, sample {sample.id}"
    target = sample.target[0] if isinstance(sample.target, list) else sample.target
    if target not in ("A", "B", "C"):
        raise DataError(f"has the target {target!r}, not a letter", where=location, cure=_INSPECT)
    if not sample.scores:
        raise DataError(
            "was not scored", where=location, cure="retry the eval: `inspect eval-retry LOG`"
        )
    texts = {f"ans{n}": text for n, text in enumerate(sample.choices)}
    identity = {"example_id": sample.metadata.get("source_id", sample.id)}
    fields = {**identity, **sample.metadata, **texts, "label": ord(target) - ord("A")}
    (score, *_) = sample.scores.values()
    return bbq_fields(fields, location), sample.epoch, (score.answer or "").strip().upper()


_LM_EVAL: Final = "give a samples_TASK.jsonl of `lm-eval run --log_samples`"


#: A context and what it is continued by.
_Request = Annotated[list[Any] | dict[str, Any], Field(min_length=2)]


class _Sample(BaseModel):
    doc_id: int
    doc: dict[str, Any]
    arguments: dict[str, _Request] | list[_Request]
    filtered_resps: list[Any]


_SAMPLE: Final = TypeAdapter(_Sample)


def is_lm_eval(data: bytes, field: str) -> bool:
    """Return whether the first line is a sample of lm-eval, of a task with a field of this name."""
    line = next((line for line in data.split(b"\n", 64) if line.strip()), b"")
    return has_keys(line, LM_EVAL_KEY, "doc") and f'"{field}"'.encode() in line


def lm_eval_options(text: bytes, where: str) -> tuple[Line, list[float] | str]:
    """Parse a sample of a BBQ task: the question, and each option's log-likelihood, or the answer.

    Continuations beyond the two named options are wordings of the unknown one, whose likeliest
    counts; an option without any is a `DataError`. An answer is the generated text, where the task
    generates one.
    """
    sample = parsed(_SAMPLE, text, where, _LM_EVAL)
    line = bbq_fields(sample.doc, where)
    if len(sample.filtered_resps) == 1 and isinstance(sample.filtered_resps[0], str):
        return line, sample.filtered_resps[0]
    unknown = line.unknown(where)
    scores: dict[int, float] = {}
    for said, score in _continuations(sample, where):
        place = line.place_of(said)
        place = unknown if place is None else place
        scores[place] = max(score, scores.get(place, score))
    if len(scores) < len(line.named):
        raise DataError("an option has no log-likelihood", where=where, cure=_LM_EVAL)
    return line, [scores[place] for place in range(len(scores))]


def lm_eval_pair(text: bytes, where: str) -> dict[str, Any]:
    """Parse a sample of a CrowS-Pairs task into a row of schema.PAIR_SCORES, without its model."""
    sample = parsed(_SAMPLE, text, where, _LM_EVAL)
    scores = dict(_continuations(sample, where))
    row: dict[str, Any] = {"pair_id": str(sample.doc.get("id", sample.doc_id))}
    for side, name in (("sent_more", "score_more"), ("sent_less", "score_less")):
        said = str(sample.doc.get(side, "")).strip()
        if said not in scores:
            raise DataError(f"{side} has no log-likelihood", where=where, cure=_LM_EVAL)
        row[name] = scores[said]
    for field, name in (("bias_type", "bias_type"), ("stereo_antistereo", "direction")):
        value = sample.doc.get(field)
        if not isinstance(value, str):
            raise DataError(f"doc.{field} is {value!r}, not its name", where=where, cure=_LM_EVAL)
        row[name] = value
    more, less = row["score_more"], row["score_less"]
    return {**row, "preference": None if more == less else int(more > less)}


def _number_in(text: str) -> float | None:
    """Parse a number; None for any other text."""
    try:
        return float(text)
    except ValueError:
        return None


def _continuations(sample: _Sample, where: str) -> list[tuple[str, float]]:
    """Return each continuation, without blanks around it, with its log-likelihood."""
    asked = sample.arguments
    each = asked.values() if isinstance(asked, dict) else asked
    texts = [list(a.values())[1] if isinstance(a, dict) else a[1] for a in each]
    scores = [r[0] if isinstance(r, list) and r else r for r in sample.filtered_resps]
    # Older versions write numbers as text.
    scores = [_number_in(score) if isinstance(score, str) else score for score in scores]
    if wrong := [score for score in scores if not is_log_probability(score)]:
        raise DataError(
            f"filtered_resps has {str(wrong[0])!r}, which is no log-likelihood",
            where=where,
            cure=_LM_EVAL,
        )
    if len(texts) != len(scores):
        raise DataError(
            f"has {len(texts)} continuations and {len(scores)} responses",
            where=where,
            cure=_LM_EVAL,
        )
    return [(str(text).strip(), float(score)) for text, score in zip(texts, scores, strict=True)]
