"""Say what the labels of files of predictions stand for, together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raybias.errors import DataError
from raybias.stats.classes import Classes, Positive, common_classes, own_classes
from raybias.stats.predictions import Source
from raybias.stats.rated_class import RatedClass, favourable_label


def classes_of(files: Sequence[Source], positive: Positive) -> Classes:
    """Say what the labels of files stand for, and which class is meant.

    Raises DataError: as `Source.read_foreign`, or files whose labels differ.
    """
    by_file = {file.uri: file.read_classes() for file in files if file.is_foreign}
    others = [file for file in files if not file.is_foreign]
    if by_file and others and positive.is_named:
        raise DataError(
            "is no table of others, and its class is named otherwise",
            where=others[0].uri,
            cure="measure the files one by one",
        )
    own = {file.uri: own_classes(positive, file.labels) for file in others}
    # Beside tables, files of our own without names of classes can be of those of the tables.
    named = {uri: classes for uri, classes in own.items() if classes.sentence}
    common = common_classes({**by_file, **named} if by_file else own)
    if not common.names:
        return common
    favourable = favourable_label(positive.favourable, common.names)
    return replace(common, rated=RatedClass(favourable=favourable))


def with_classes(files: Sequence[Source], names: Sequence[str]) -> list[Source]:
    """Let tables that are measured by class together number their classes alike."""
    return [
        replace(file, columns=replace(file.columns, classes=tuple(names)))
        if names and file.is_foreign
        else file
        for file in files
    ]
