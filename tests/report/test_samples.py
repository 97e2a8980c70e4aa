"""Scores of pairs are written as lm-eval logs them, and read again as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

import raybias
from raybias.cli import main
from raybias.measures import read
from support.pair_outs import pair_study, write_pair_out


def test_scores_of_pairs_come_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_pair_out(out, pair_study())
    files = raybias.samples(out, tmp_path / "samples")
    assert files
    before = read([out], "pairs")["pairs"]
    for file in files:
        again = read([tmp_path / "samples" / file])["pairs"]
        same = before.filter(model=again["model"][0]).join(
            again, on=["pair_id", "bias_type", "direction", "score_more", "score_less"], how="semi"
        )
        assert same.height >= again.height


def test_an_out_without_either_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path), "--samples", str(tmp_path / "samples")])
    assert end.value.code == 2
    assert "has no answers to questions with three options" in capsys.readouterr().err
    assert not (tmp_path / "samples").exists()
