"""Cells of the papers' tables: words for a net count, and the words that a style changed."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

import raybias
from raybias import schema
from support.report_outs import make_study, pair_study, write_out, write_pair_out


def test_net_significance_is_no_harm_unless_an_outcome_is_declared(tmp_path: Path) -> None:
    study = make_study(("a", "b"), profile="paper")
    undeclared = study.statistics.model_copy(update={"favourable": None})
    write_out(tmp_path, study.model_copy(update={"statistics": undeclared}), templates=12)
    raybias.write_report(tmp_path, figures="paper")
    path = tmp_path / "figures/paper/tian2023-table-1-net-significance.csv"
    net = pl.read_csv(path)
    rates = {"positive_fpr_planted", "negative_fpr_planted"}
    assert {*net.columns} == {"attribute", "group", *rates}
    assert net.filter(group="quixlan")["negative_fpr_planted"].item() == 2
    shown = path.with_suffix(".md").read_text()
    assert "+2" in shown
    assert not re.search("harm|benefit|favourable", shown)


def test_one_pair_is_shown_in_all_styles_with_the_changed_words_in_bold(tmp_path: Path) -> None:
    store = write_pair_out(tmp_path, pair_study(profile="paper"))
    sides = {"sent_more": "The old man is slow | he said.", "sent_less": "The young man is slow."}
    styled = {
        "question_answer": {side: f"Is this so? {text} Yes." for side, text in sides.items()},
        "prefix_1": {side: text.replace("slow", "very slow") for side, text in sides.items()},
        "original": sides,
    }
    rows = [
        {"pair_id": pair, "bias_type": "age", "direction": "stereo", "style": style,
         "kept": False, "cluster": None, **texts}
        for pair in ("first#repeat1", "lacking", "first", "second")
        for style, texts in styled.items() if (pair, style) != ("lacking", "original")
    ]  # fmt: skip
    items = pl.DataFrame(rows, pl.Schema(schema.PAIRS)).to_arrow()
    store.write_table("items/crows_pairs.parquet", items.cast(schema.PAIRS))
    raybias.write_report(tmp_path, figures="paper")
    path = tmp_path / "figures/paper/zhao2025-table-4-styles.csv"
    table = pl.read_csv(path)
    assert table["style"].to_list() == ["original", "prefix_1", "question_answer"]
    assert {*table["pair_id"]} == {"first"}
    for row in table.iter_rows(named=True):
        assert {side: row[side] for side in sides} == styled[row["style"]]
    *_, original, prefixed, asked = path.with_suffix(".md").read_text().splitlines()
    assert "**" not in original
    assert "The old man is **very** slow \\| he said." in prefixed
    assert "**Is this so?** The young man is slow. **Yes.**" in asked
    # With one style there is nothing to show.
    plain = pl.DataFrame(items).filter(style="original").to_arrow()
    store.write_table("items/crows_pairs.parquet", plain.cast(schema.PAIRS))
    raybias.write_report(tmp_path, figures="paper")
    assert not path.exists()
