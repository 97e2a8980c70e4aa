"""OUT/runs.parquet, which grows as the runs of a study are tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Final

import pyarrow as pa

from raybias.config import Study
from raybias.methods import tuned_methods
from raybias.runtime.progress import Reporter
from raybias.runtime.tracking import track_runs
from raybias.schema import RUNS
from raybias.storage import Store
from raybias.study_record import read_runs

_NAME: Final = "runs.parquet"
#: Backbone, training set and method of tuned runs; a backbone's other runs stand together.
_Part = tuple[str, str, str]


class RunsTable:
    """The runs that are known, in the study's order whatever ended first.

    Parameters
    ----------
    mark: the study's fingerprint, for trackers.
    """

    def __init__(self, study: Study, store: Store, *, mark: str, reporter: Reporter) -> None:
        self.study, self.store, self.mark, self.reporter = study, store, mark, reporter
        self._order = [part for backbone in study.backbones for part in _parts(study, backbone)]
        self._rows: dict[_Part, list[Mapping[str, Any]]] = {}
        self._lock = Lock()
        for row in read_runs(store).iter_rows(named=True):
            part = (row["model"], row["dataset"], row["method"])
            at = part if part in self._order else (row["model"], "", "")
            self._rows.setdefault(at, []).append(row)

    def put(
        self, rows: Sequence[Mapping[str, Any]], model: str, dataset: str = "", method: str = ""
    ) -> None:
        """Put the rows of one tuning, or those of a backbone that are not tuned, into the table."""
        with self._lock:
            self._rows[model, dataset, method] = list(rows)
            known = [row for part in self._order for row in self._rows.get(part, ())]
            self.store.write_table(_NAME, pa.Table.from_pylist(known, schema=RUNS))
            track_runs(self.study, rows, mark=self.mark, reporter=self.reporter)

    def kept(self, model: str, method: str, dataset: str = "") -> list[Mapping[str, Any]]:
        """Return the runs that read the probes; of all training sets by default."""
        with self._lock:
            return [
                row
                for part in self._order
                for row in self._rows.get(part, ())
                if row["selected"]
                and (row["model"], row["method"]) == (model, method)
                and dataset in ("", row["dataset"])
            ]


def _parts(study: Study, backbone: Any) -> list[_Part]:
    tuned = tuned_methods(study.methods_of(backbone))
    return [
        (backbone.name, "", ""),
        *((backbone.name, each.name, method.name) for each in study.training for method in tuned),
    ]
