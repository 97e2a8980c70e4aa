"""What a package that adds a method tests it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from raybias.config import Backbone
from raybias.engine.backbone import ModelContext
from raybias.engine.encoder import load_tokenizer
from raybias.methods.base import Inputs, Method, Shard, shard_of
from raybias.methods.work import TokenCounts
from raybias.schema import LABELS
from raybias.storage import Store


def inputs(
    backbone: Backbone,
    items: pl.DataFrame | None = None,
    sentences: Mapping[str, Mapping[str, pl.DataFrame]] | None = None,
    labels: Sequence[str] = LABELS,
) -> Inputs:
    """Make what a study hands to `check`, `runs` and `work`, with one probe called `probe`.

    labels: of the study, in order; they are their own label words.
    """
    return Inputs(
        backbone=backbone,
        tokens=TokenCounts(load_tokenizer(backbone)),
        labels=tuple(labels),
        words=tuple(labels),
        items={} if items is None else {"probe": items},
        sentences=sentences or {},
    )


def one_shard(
    method: Method,
    backbone: Backbone,
    items: pl.DataFrame,
    out: str,
    run: Any = None,
    *,
    labels: Sequence[str] = LABELS,
) -> pl.DataFrame:
    """Check a method as a study does, and have it read one probe's items; return the file's rows.

    Parameters
    ----------
    out: of a study, which holds what its runs need.
    run: what `Reader.load` gives; loaded by the first run that the method lists, by default.
    labels: of the study, in order; they are their own label words.
    """
    given, store = inputs(backbone, items, labels=labels), Store(out)
    method.check(given)
    listed = method.runs(given)
    run_id = listed[0].run_id if listed else f"{backbone.name}.none.{method.name}"
    context = ModelContext(backbone, given.words, labels=given.labels)
    reader, output = method.reader(context, store), method.output()
    shard = Shard(
        "probe", run_id, backbone.name, method.name, "none", 0, items.height, output.folder
    )
    loaded = reader.load(run_id) if run is None else run
    table, _ = shard_of(reader, loaded, shard, items.to_arrow(), output.schema)()
    return pl.DataFrame(table)
