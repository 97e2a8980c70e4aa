"""Quotes of libraries are one sentence; what they write themselves is held back on a refusal."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.cli.options import shown_warnings
from raybias.errors import ConfigError, DataError, RaybiasWarning, quoting, said_by
from raybias.storage import Store
from raybias.terminal import holding_stderr


@given(st.text(max_size=500))
def test_a_quote_is_one_line_of_at_most_200_characters(text: str) -> None:
    said = said_by(ValueError(text))
    assert 0 < len(said) <= 200
    assert len(said.splitlines()) == 1 or not text.isascii()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Cannot open it. Set `HF_TOKEN` to see more.", "Cannot open it"),
        ("version 1.5 of a.b is too old", "version 1.5 of a.b is too old"),
        ("first line\nsecond line\n\nA further paragraph", "first line second line"),
        ("", "ValueError"),
        ("x" * 300, f"{'x' * 198}.."),
    ],
)
def test_the_first_sentence_is_quoted(text: str, said: str) -> None:
    assert said_by(ValueError(text)) == said


def panics(text: str) -> None:
    """Write as Rust does, and raise."""
    os.write(2, b"thread panicked\n")
    raise ValueError(text)


def warns_and_refuses() -> None:
    warnings.warn("theirs", UserWarning, stacklevel=1)
    raise ConfigError("refused")


def test_what_is_written_before_a_refusal_is_held_back(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="cannot be read as x"), quoting(DataError):
        panics("cannot be read as x")
    assert capfd.readouterr().err == ""
    with holding_stderr():
        os.write(2, b"thread panicked\n")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "thread panicked\n"


def test_debugging_shows_all(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIAS_DEBUG", "1")
    with pytest.raises(DataError), quoting(DataError):
        panics("")
    assert capfd.readouterr().err == "thread panicked\n"


def test_a_damaged_table_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + b"\xff" * 40 + b"PAR1")
    with pytest.raises(DataError) as refused:
        Store(tmp_path).read_table("a.parquet")
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("always")
def test_warnings_of_libraries_wait_for_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_warnings():
        for _ in range(3):
            warnings.warn("ours\nin two lines", RaybiasWarning, stacklevel=1)
        warnings.warn("theirs", UserWarning, stacklevel=1)
        assert capsys.readouterr().err == "raybias: warning: ours in two lines\n"
    assert "UserWarning: theirs" in capsys.readouterr().err
    with pytest.raises(ConfigError), shown_warnings():
        warns_and_refuses()
    assert capsys.readouterr().err == ""
