"""Refuse before any work: models, label words, targets and lengths that cannot do.

Tokenizers and configurations are read, no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from raybias.config import Method, Study, StudyText
from raybias.planning.plan import read_by
from raybias.stats import check_metrics, check_reference_groups

if TYPE_CHECKING:
    from raybias.engine.backbone import TextEncoder

Items = Mapping[str, pl.DataFrame]
Sentences = Mapping[str, Mapping[str, pl.DataFrame]]


def check_inputs(study: Study, items: Items, sentences: Sentences) -> None:
    """Refuse what no run of the study could work with.

    Parameters
    ----------
    items: per probe; sentences: per training set, its splits.

    Raises
    ------
    ModelError: a model or tokenizer that a method cannot use, label words that share a token,
        LoRA targets that match nothing, or texts longer than the context.
    DataError: a training set without the splits that a method needs, or too few shots.
    ConfigError: label words that an answer cannot be read by, a metric that is not registered,
        or reference groups that a probe does not have.
    """
    from raybias.engine.backbone import load_tokenizer

    check_metrics(study.statistics.metrics)
    check_references(study, items)
    for method in study.methods:
        method.check_label_words(study.verbalizer.words())
        for training in study.training:
            method.check_training(training.name, sentences[training.name])
    for backbone in study.backbones:
        encoder = load_tokenizer(backbone)
        for method in study.methods_of(backbone):
            method.check(backbone, study_text(study, method, encoder, items, sentences))


def check_references(study: Study, items: Items) -> None:
    """Refuse reference groups that a probe's items do not have.

    Parameters
    ----------
    items: per probe, with the study's limit applied.

    Raises
    ------
    ConfigError: names the probe and what is wrong.
    """
    for probe in study.probes:
        check_reference_groups(
            items[probe.name],
            probe.reference_groups,
            where=f"probe {probe.name}, reference_groups",
        )


def check_rewritten(study: Study, items: Items) -> None:
    """Refuse rewritten pairs that are too long for a backbone that scores them.

    Raises
    ------
    ModelError: counts them and names the longest.
    """
    from raybias.engine.backbone import load_tokenizer

    for backbone in study.backbones:
        for method in study.methods_of(backbone):
            if method.reads_pairs:
                encoder = load_tokenizer(backbone)
                method.check(backbone, study_text(study, method, encoder, items, {}))


def study_text(
    study: Study, method: Method, encoder: TextEncoder, items: Items, sentences: Sentences
) -> StudyText:
    """Gather what a method reads on a backbone."""
    return StudyText(
        encoder=encoder,
        words=study.verbalizer.words(),
        items={name: items[name] for name in read_by(study, method)},
        sentences=sentences,
        rows_per_shard=study.resources.rows_per_shard,
    )
