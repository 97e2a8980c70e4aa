"""`plan` and `run` refuse the same of 200 changed studies, in the same line (50 s).

Changes are made from the schema of a study, so that a new field is tried too. Nothing of `run` is
replaced but the begin of its work.
"""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml

from raybias.cli import main
from raybias.config import Study
from raybias.config.section import Section, plain_types
from raybias.runtime import study as running
from support import studies

#: Changed studies of each kind of change that are tried.
FIELDS, FILES = 150, 50
NUMBERS = (-1, 0, 1e30, 10**18, 0.5, float("nan"), float("inf"), "many")
TEXTS = ("", " ", "a\x1b[31mb", "{", "{x.__class__}", "{text!r}", "no/such", "n" * 300, "\u202e")
CONTENTS = (None, b"", b"\n", b"{}", b"[]", b"\xff\xfe\x00", b"text,label\n")
#: Values of a study's own in fields of text that name something.
WHOLE: dict[str, Any] = {
    "answers": "answers",
    "statistics": {"scope": "runs"},
    "styles": {"seed": 3},
    "resources": {"rows_per_shard": 16, "nodes": [{"memory": "8GiB"}]},
    "tracking": {},
}


class Began(BaseException):
    """The point at which `run` begins to work."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("alike")
    studies.save(root)
    return root


def sections(
    value: Any, kind: type[Section], at: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """Each section of a study with its place: its class, and the keys that lead to it."""
    yield at, kind
    for name, field in kind.model_fields.items():
        held = value.get(name) if isinstance(value, dict) else None
        many = held if isinstance(held, list) else [held]
        for number, each in enumerate(many):
            place = (*at, name, number) if isinstance(held, list) else (*at, name)
            if isinstance(each, dict) and (part := section_of(field.annotation, each)):
                yield from sections(each, part, place)


def section_of(annotation: Any, value: dict[str, Any]) -> type[Section] | None:
    """The section that a value is, of those that an annotation allows."""
    kinds = plain_types(annotation)
    inner = [each for kind in kinds for each in get_args(kind) if get_origin(kind) is tuple]
    found = [
        part
        for kind in (*kinds, *inner)
        for part in plain_types(kind)
        if isinstance(part, type) and issubclass(part, Section)
    ]
    named = [each for each in found if getattr(each.model_fields.get("kind"), "default", None) ==
             value.get("kind", "")]  # fmt: skip
    return next(iter(named or found), None)


def wrong_values(annotation: Any, value: Any) -> Iterator[Any]:
    """Values that a field of this type should not have, or hardly."""
    kinds = plain_types(annotation)
    if any(kind in (int, float) for kind in kinds):
        yield from NUMBERS
    if str in kinds:
        yield from TEXTS
    if any(get_origin(kind) is tuple for kind in kinds):
        yield []
        own = value if isinstance(value, list) else [value]
        yield [*own, *own]
        yield from ([each] for each in (*NUMBERS[:3], *TEXTS[3:6]))
    if any(get_origin(kind) is dict for kind in kinds):
        yield from ({}, {"": ""}, {"no_such": "no_such"}, {"0": "negative", " 0": "positive"})
    yield from ("no_such", None)


def changes(study: dict[str, Any]) -> list[tuple[tuple[Any, ...], Any]]:
    """Every field of a study with each wrong value: the keys that lead to it, and the value."""
    found = []
    for at, kind in sections(study, Study):
        inside = study
        for key in at:
            inside = inside[key]
        for name, field in kind.model_fields.items():
            for value in wrong_values(field.annotation, inside.get(name)):
                found.append(((*at, name), value))
    return found


def verdict(*arguments: str) -> tuple[object, list[str]]:
    """How a command ends, and the lines that it says of it."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        try:
            main(arguments)
            ended: object = 0
        except SystemExit as error:
            ended = error.code
        except Began:
            ended = 0
    refusals = [line for line in said.getvalue().splitlines() if line.startswith("raybias: ")]
    return ended, refusals if ended else []


def check(study: dict[str, Any], root: Path) -> None:
    """Hold `plan` to `run` on a study whose files are in a folder."""
    path, out = root / "changed.yaml", root / "out"
    path.write_text(yaml.safe_dump(study))
    planned = verdict("plan", str(path), "--out", str(out))
    ran = verdict("run", str(path), "--out", str(out), "--address", "none")
    assert planned == ran
    assert ran[0] in (0, 2)
    assert len(ran[1]) == (ran[0] == 2)
    assert "bug of raybias" not in str(ran)
    shutil.rmtree(out, ignore_errors=True)


def begins(*_: object, **__: object) -> None:
    raise Began


@pytest.mark.long
@pytest.mark.parametrize("kind", ["zero_shot", "few_shot", "soft_prompt", "lora", "full"])
def test_changed_fields(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running._Start, "run", begins)
    whole = {**WHOLE, **yaml.safe_load((folder / "methods.yaml").read_text())}
    whole["methods"] = [each for each in whole["methods"] if each["kind"] == kind]
    drawn = random.Random(kind).sample(changes(whole), FIELDS // 5)
    for place, value in drawn:
        changed: Any = deepcopy(whole)
        inside = changed
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = value
        try:
            check(changed, folder)
        except BaseException as error:
            error.add_note(f"{'.'.join(map(str, place))}: {value!r}")
            raise


@pytest.mark.long
def test_changed_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running._Start, "run", begins)
    whole = yaml.safe_load((folder / "methods.yaml").read_text())
    parts = ("tiny", "sentences", "probe.csv")
    files = [path for each in parts for path in (folder / each, *(folder / each).glob("*"))]
    tried = [(path, data) for path in files if path.is_file() for data in CONTENTS]
    for number, (path, data) in enumerate(random.Random(0).sample(tried, FILES)):
        root = tmp_path / str(number)
        shutil.copytree(folder, root)
        changed = root / path.relative_to(folder)
        if data is None:
            changed.unlink()
        else:
            changed.write_bytes(data)
        study = {**whole, "methods": whole["methods"][number % 6 :][:1]}
        try:
            check(study, root)
        except BaseException as error:
            error.add_note(f"{path.name}: {data!r}")
            raise
