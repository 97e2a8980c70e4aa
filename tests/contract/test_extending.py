"""A method of another package is found by its entry point and needs no other room to know it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "extending.md"

#: What a driver, a planner and a replica do with a method, without Ray.
SCRIPT = """
import sys
import polars as pl
from raybias import stats
from raybias.config import parse_study
from raybias.engine.context import ModelContext
from raybias.methods.prediction import Shard
from raybias.planning.preflight import check_inputs
from raybias.planning.costs import Machine, costs_of
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.schema import ITEMS
from raybias.storage import Store

content = {
    "name": "counted",
    "backbones": [{"id": "planted", "dtype": "float32"}],
    "methods": [{"kind": "lexicon", "bad": ["awful"], "good": ["brilliant"]}],
    "probes": [{"source": "planted"}],
}
study = parse_study(content)
assert parse_study(study.model_dump(mode="json")) == study
prepared = PreparedStudy.of(study)
check_inputs(prepared)
made = plan(prepared, assumed("cpus=4,memory=8GiB"))
assert costs_of(prepared, made, Machine(1.0)).hours == 0
items = prepared.data.items
(method,) = study.methods
(run,) = method.untrained_runs(study.backbones[0], None, ())
predictor = method.predictor(ModelContext(study.backbones[0], ()), Store(sys.argv[1]))
table = items["planted"].select(ITEMS.names).to_arrow().cast(ITEMS)
shard = Shard("planted", run.run_id, "planted", "lexicon", "none", 0, len(table), "predictions")
rows = pl.DataFrame(predictor.table(predictor.load(run.run_id), shard, table).table)
assert rows["pred"].n_unique() > 1
print(stats.gaps(stats.cells(rows))["gap"].is_not_null().any())
"""


def test_a_package_adds_a_method_in_one_file(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), flags=re.S)
    (tmp_path / "counting.py").write_text(code)
    facts = tmp_path / "counting-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[raybias]\nlexicon = counting\n")
    paths = ":".join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": paths, "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


def test_no_room_asks_which_kind_of_method_it_holds() -> None:
    names = (
        "Tuned|Prompted|SoftPrompt|Finetuned|Lora|Full|ZeroShot|FewShot|ChainOfThought|PairScore"
        "|Coreference"
    )
    package = Path(__file__).parents[2] / "raybias"
    asking = [
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if re.search(rf"isinstance\([^)]*\b({names})\b", file.read_text("utf-8"))
    ]
    assert [file for file in asking if not file.startswith("methods/")] == []
