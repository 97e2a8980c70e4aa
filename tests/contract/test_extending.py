"""A package adds a probe, a pair probe, a style and a method; no other room has to know them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from raybias import pair_items
from raybias.config import PairProbe, parse_study
from raybias.errors import ConfigError
from raybias.probes.published.crows_pairs import PairWarning
from raybias.probes.registries import probes
from raybias.registry import Registry
from support import extension
from support.documents import ROOT
from support.stats_data import predictions

#: What they are to a planner and a reader; tests/cluster/test_examples.py runs a study.
SCRIPT = """
import sys
from pathlib import Path
import polars as pl
import raybias
from raybias import Study
from raybias.config import load_study, parse_study
from raybias.engine.backbone import ModelContext
from raybias.methods.base import Run, text_items
from raybias.measures.kind import kinds
from raybias.planning.costs import costs_of
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.measures.pair_means import style_order
from raybias.storage import Store

def planned(study):
    assert parse_study(study.model_dump(mode="json")) == study
    prepared = PreparedStudy.of(study)
    made = plan(prepared, assumed("cpus=4,memory=8GiB"))
    return made, sum(cost.hours for cost in costs_of(made).values())

assert planned(load_study(sys.argv[1]))[1] < 1
own = raybias.measure(sys.argv[2], metric=["unneutral_range"]).filter(score="unneutral_range")
assert own["value"].null_count() == 0 and own.height == 1
order = style_order(pl.Series(["shouted", "by hand", "question_answer", "original"]))
assert order == ["original", "question_answer", "shouted", "by hand"]
assert kinds["options"].scores["abstained"].bounds == (0, 1)
listed = Study.model_json_schema()["$defs"]
assert "clerks" in listed["Probe"]["properties"]["source"]["enum"]
assert "shouted" in listed["Styles"]["properties"]["names"]["items"]["enum"]
polly = parse_study({
    "name": "polly", "probes": [{"source": "clerks"}],
    "backbones": [{"api": "parrot", "name": "polly", "word": "positive"}],
    "methods": [{"kind": "zero_shot", "seeds": 1, "unparsed": "invalid"}],
})
made, hours = planned(polly)
assert hours == 0 and made.scoring[0].asks.requests == 12 * 1.02
(asked,) = polly.methods
said = asked.reader(ModelContext(polly.backbones[0], ("bad", "so", "positive")), Store("."))
answered = said.prepare(Run("run", seed=1), text_items(["a"], ["text"]))()
assert answered.table["pred"].to_pylist() == [2]
made, hours = planned(parse_study({
    "name": "rescaled", "backbones": ["planted"], "training": [{"source": "planted"}],
    "probes": [{"source": "planted"}], "methods": [{"kind": "ia3", "target": ["k_proj"]}],
}))
assert hours > 0
assert "vectors, gradients, AdamW, best" in [each.what for each in made.tuning[0].memory]
# The diffs.
exec(Path(sys.argv[3]).read_text())
from raybias.probes.registries import styles
from raybias.stats.metric import metrics
assert styles["ellipsis"].rule(["A dog."], None) == ["A dog ..."]
assert metrics["false_neutral"].title == "called neutral"
print("done")
"""


def in_package(folder: Path, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join([str(folder), *filter(None, sys.path)]), "HOME": str(folder)},
    )


def diffs() -> dict[str, str]:
    """The files that the page's diffs add."""
    added = {}
    for block in re.findall(r"```diff\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.S):
        (path,) = re.findall(r"^\+\+\+ b/(.*)$", block, re.M)
        lines = re.findall(r"^\+(?!\+\+)(.*)$", block, re.M)
        assert f"+1,{len(lines)} @@" in block
        added[path] = "\n".join(lines)
    return added


@pytest.mark.long
def test_packages_and_diffs_add_one_of_each_kind(tmp_path: Path) -> None:
    example = ROOT / "docs" / "examples" / "raybias_ia3"
    facts = tomllib.loads((example / "pyproject.toml").read_text())
    extension.install(tmp_path / "installed", **facts["project"]["entry-points"]["raybias"])
    (tmp_path / "installed" / "raybias_ia3").symlink_to(example / "raybias_ia3")
    study, table, code = (tmp_path / name for name in ("clerks.yaml", "p.parquet", "code.py"))
    study.write_text(extension.study())
    predictions(models=1).write_parquet(table)
    code.write_text("\n".join(text for name, text in diffs().items() if name != "winoqueer.yaml"))
    done = in_package(tmp_path / "installed", SCRIPT, study, table, code)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
    with pytest.raises(ConfigError, match=r"unknown kind of method.*entry points of the group"):
        parse_study({"name": "s", "backbones": ["planted"], "methods": [{"kind": "ia4"}]})


@pytest.mark.long
def test_a_package_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import absent")
    extension.list_entry_points(tmp_path, {"broken": "broken"})
    call = "import sys; from raybias.cli import main; sys.argv = ['raybias', 'probes', 'list']"
    done = in_package(tmp_path, f"{call}; sys.exit(main())")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    message = "raybias: my_package: its entry point broken = broken cannot be imported"
    assert message in done.stderr


def test_a_name_is_taken_once_and_what_is_defined_again_replaces_itself() -> None:
    registry: Registry[int] = Registry("number", "raybias.methods")
    registry.add("one", 1, origin=("notebook", "one"))
    registry.add("one", 2, origin=("notebook", "one"))
    assert registry["one"] == 2
    with pytest.raises(ConfigError, match=r"two numbers have the name 'one': notebook.one and x.y"):
        registry.add("one", 3, origin=("x", "y"))
    with pytest.raises(
        ConfigError, match=r"no probe 'amazn'; choose from amazon, ns_prompts, regard, bold"
    ):
        probes.check("amazn")


def test_the_card_that_a_diff_adds_is_read(tmp_path: Path) -> None:
    (tmp_path / "winoqueer.yaml").write_text(diffs()["winoqueer.yaml"])
    # The columns that its authors' own script reads.
    (tmp_path / "winoqueer_final.csv").write_text(
        "Gender_ID_x,sent_x,Gender_ID_y,sent_y\n"
        "Gay,Gay people sing.,Straight,Straight people sing.\n"
        "Lesbian,Lesbian people sing.,Straight,Straight people sing.\n"
    )
    with pytest.warns(PairWarning, match="2 pairs are of types that CrowS-Pairs has not"):
        pairs = pair_items(PairProbe(source="pairs", data=str(tmp_path / "winoqueer.yaml")))
    assert pairs["sent_more"].to_list() == ["Gay people sing.", "Lesbian people sing."]
    assert pairs["cluster"].n_unique() == 1


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
