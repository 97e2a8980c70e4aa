"""Training sets: published formats, the papers' label maps, own files and the hub."""

from __future__ import annotations

from pathlib import Path

import datasets
import polars as pl
import pytest

from raybias.config import TrainingSet
from raybias.errors import DataError
from raybias.probes import training_sentences


def training(source: str, data: Path | None, **options: object) -> TrainingSet:
    return TrainingSet.model_validate({"source": source, "data": data and str(data), **options})


def only(folder: Path, pattern: str, into: Path) -> Path:
    """A folder that holds one of the two forms of SST-5."""
    for path in folder.glob(pattern):
        target = into / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(path)
    return into


def test_sst5_trees_and_tabular_agree(shared: Path, tmp_path: Path) -> None:
    published = shared / "data" / "sst5"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    trees = training_sentences(training("sst5", only(published, "trees/*.txt", tmp_path / "a")))
    tabular = training_sentences(training("sst5", only(published, "sst_*.txt", tmp_path / "b")))
    assert {split: len(frame) for split, frame in trees.items()} == {
        "train": 8544,
        "validation": 1101,
        "test": 2210,
    }
    for split, frame in trees.items():
        assert frame.equals(tabular[split]), split
    counts = trees["train"]["label"].value_counts().sort("label")["count"].to_list()
    assert counts == [1092 + 2218, 1624, 2322 + 1288]


def test_a_broken_sst5_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "sst_train.txt").write_text("__label__1\tbad\n__label__6\tgood\n")
    with pytest.raises(DataError, match=r"sst_train\.txt row 2.*'__label__6"):
        training_sentences(training("sst5", tmp_path))
    (tmp_path / "sst_train.txt").rename(tmp_path / "other.txt")
    with pytest.raises(DataError, match=r"neither sst_train\.txt nor trees/train\.txt"):
        training_sentences(training("sst5", tmp_path))


def semeval(path: Path, classes: list[str]) -> None:
    lines = ["ID\tTweet\tAffect Dimension\tIntensity Class"]
    lines += [f'2018-En-{n}\t"quoted\u2028 #{n}\tvalence\t{one}' for n, one in enumerate(classes)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\r\n".join(lines) + "\r\n", "utf-8", newline="")


def test_semeval_keeps_the_papers_wide_neutral(tmp_path: Path) -> None:
    written = [f"{number}: some emotional state can be inferred" for number in range(-3, 4)]
    semeval(tmp_path / "2018-Valence-oc-En-train.txt", written)
    # Archives unpack into folders of their own.
    semeval(tmp_path / "2018-Valence-oc-En-dev" / "2018-Valence-oc-En-dev.txt", written[:1])
    splits = training_sentences(training("semeval2018", tmp_path))
    assert list(splits) == ["train", "validation"]
    assert splits["train"]["label"].to_list() == [0, 0, 1, 1, 1, 2, 2]
    assert splits["train"]["text"][0] == '"quoted\u2028 #0'


@pytest.mark.parametrize("wrong", ["4: ecstatic", "NONE", "-: x", ""])
def test_a_semeval_class_outside_is_named(tmp_path: Path, wrong: str) -> None:
    semeval(tmp_path / "2018-Valence-oc-En-train.txt", ["0: neutral", wrong])
    with pytest.raises(DataError, match=r"train\.txt row 2"):
        training_sentences(training("semeval2018", tmp_path))


def test_own_files_with_a_map(tmp_path: Path) -> None:
    frame = pl.DataFrame({"review": ["a", "b"], "stars": [1, 5]})
    frame.write_csv(tmp_path / "train.csv")
    options = {
        "labels": {"1": "negative", "5": "positive"},
        "text_column": "review",
        "label_column": "stars",
    }
    with pytest.raises(DataError, match=r"no validation\.csv or validation\.parquet"):
        training_sentences(training("file", tmp_path, **options))
    frame.write_parquet(tmp_path / "validation.parquet")
    splits = training_sentences(training("file", tmp_path, **options))
    assert [splits[split].rows() for split in splits] == [[("a", 0), ("b", 2)]] * 2
    with pytest.raises(DataError, match=r"train\.csv row 2: stars '5' is none of 1"):
        training_sentences(training("file", tmp_path, **{**options, "labels": {"1": "neutral"}}))


def test_one_file_is_a_pool(shared: Path, tmp_path: Path) -> None:
    columns = {"text_column": "Text", "label_column": "Valence"}
    labels = {"Negative": "negative", "Neutral": "neutral", "Positive": "positive"}
    pool = shared / "data" / "sst5" / "processed_sst5_500.tsv"
    splits = training_sentences(training("file", pool, labels=labels, **columns))
    assert list(splits) == ["train"]
    counts = splits["train"]["label"].value_counts().sort("label")["count"].to_list()
    assert counts == [222, 83, 195]
    assert splits["train"]["text"][0].startswith("rodriguez does a splendid job")
    again = tmp_path / "pool.parquet"
    pl.read_csv(pool, separator="\t").write_parquet(again)
    read = training_sentences(training("file", again, labels=labels, **columns))
    assert read["train"].equals(splits["train"])
    # `Text` is known as text whatever its capitals.
    with pytest.raises(DataError, match=r"no column 'label'; its columns are text, Valence"):
        training_sentences(training("file", pool))
    with pytest.raises(DataError, match=r"nowhere\.tsv: no such file"):
        training_sentences(training("file", tmp_path / "nowhere.tsv"))


def test_hub_reads_a_local_set_and_never_guesses_a_two_class_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    data = datasets.Dataset.from_dict({"text": ["bad", "good"], "label": [0, 1]}, features)
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "validation"):
        data.to_parquet(folder / f"{split}.parquet")
    # 1 is positive here; read as the papers' numbers it would be neutral.
    with pytest.raises(DataError, match="label 'neg' is none of negative"):
        training_sentences(training("hub", folder))
    for labels in ({"neg": "negative", "pos": "positive"}, {"0": "negative", "1": "positive"}):
        splits = training_sentences(training("hub", folder, labels=labels))
        assert {split: frame.rows() for split, frame in splits.items()} == {
            split: [("bad", 0), ("good", 2)] for split in ("train", "validation")
        }
    with pytest.raises(DataError, match="cannot load"):
        training_sentences(training("hub", tmp_path / "absent"))
