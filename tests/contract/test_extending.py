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

#: What a driver, a planner and a replica do with them, without Ray.
SCRIPT = """
import sys
import polars as pl
import raybias
from raybias import Study, stats
from raybias.config import load_study, parse_study
from raybias.engine.backbone import ModelContext
from raybias.methods.base import text_items
from raybias.methods.prompted_reader import PromptedRun
from raybias.measures import kinds
from raybias.planning.costs import costs_of
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.preflight import check_inputs
from raybias.planning.prepared import PreparedStudy
from raybias.schema import ITEMS
from raybias.measures.pair_means import style_order
from raybias.storage import Store
from raybias.testing import one_shard

study = load_study(sys.argv[1])
assert parse_study(study.model_dump(mode="json")) == study
prepared = PreparedStudy.of(study)
check_inputs(prepared)
made = plan(prepared, assumed("cpus=4,memory=8GiB"))
items = prepared.data.items
lexicon = study.methods[0]
assert costs_of(prepared, made).hours < 1
table = pl.DataFrame(items["clerks"].select(ITEMS.names).to_arrow().cast(ITEMS))
rows = one_shard(lexicon, study.backbones[0], table, sys.argv[2])
assert rows["pred"].n_unique() > 1
gaps = raybias.measure(rows).filter(statistic="gap")
assert gaps["value"].is_not_null().any()
rows.write_parquet(sys.argv[2] + ".parquet")
own = raybias.measure(sys.argv[2] + ".parquet", metric=["unneutral_range"])
own = own.filter(score="unneutral_range")
assert own["value"].null_count() == 0 and own.height == 1
pairs = items["clerk_pairs"].filter(style="shouted")
assert pairs["sent_more"][0] == "THE OLD CLERK WAS AWFUL AT WORK TODAY."
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
assert parse_study(polly.model_dump(mode="json")) == polly
prepared = PreparedStudy.of(polly)
check_inputs(prepared)
made = plan(prepared, assumed("cpus=4,memory=8GiB"))
assert costs_of(prepared, made).hours == 0 and made.scoring[0].calls == 12 * 1.02
(asked,) = polly.methods
said = asked.reader(ModelContext(polly.backbones[0], ("bad", "so", "positive")), Store("."))
answered = said.prepare(PromptedRun("run", 1), text_items(["a"], ["text"]))()
assert answered.table["pred"].to_pylist() == [2]
rescaled = parse_study({
    "name": "rescaled", "backbones": ["planted"], "training": [{"source": "planted"}],
    "probes": [{"source": "planted"}], "methods": [{"kind": "ia3", "target": ["k_proj"]}],
})
prepared = PreparedStudy.of(rescaled)
check_inputs(prepared)
made = plan(prepared, assumed("cpus=4,memory=8GiB"))
assert costs_of(prepared, made).hours > 0
assert "vectors, gradients, AdamW, best" in [each.what for each in made.tuning[0].memory]
print("done")
"""


def in_package(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join([str(folder), *filter(None, sys.path)]), "HOME": str(folder)},
    )


@pytest.mark.long
def test_packages_add_one_of_each_kind(tmp_path: Path) -> None:
    example = ROOT / "docs" / "examples" / "raybias_ia3"
    facts = tomllib.loads((example / "pyproject.toml").read_text())
    extension.install(tmp_path / "installed", **facts["project"]["entry-points"]["raybias"])
    (tmp_path / "installed" / "raybias_ia3").symlink_to(example / "raybias_ia3")
    (tmp_path / "clerks.yaml").write_text(extension.study())
    done = in_package(
        tmp_path / "installed", SCRIPT, str(tmp_path / "clerks.yaml"), str(tmp_path / "out")
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
    with pytest.raises(ConfigError, match=r"unknown kind of method.*entry points of the group"):
        parse_study({"name": "s", "backbones": ["planted"], "methods": [{"kind": "ia4"}]})


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import absent",
            "raybias: my_package: its entry point broken = broken cannot be imported",
        ),
        (
            "from raybias.probes.registries import probe\n@probe('regard', about='')\n"
            "def mine(a, b): ...",
            "two probes have the name 'regard': ",
        ),
    ],
)
def test_a_package_that_cannot_be_used_is_one_line(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "broken.py").write_text(code)
    extension.list_entry_points(tmp_path, {"broken": "broken"})
    call = "import sys; from raybias.cli import main; sys.argv = ['raybias', 'probes', 'list']"
    done = in_package(tmp_path, f"{call}; sys.exit(main())")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
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


@pytest.mark.long
def test_the_diffs_each_add_one_file_that_works(tmp_path: Path) -> None:
    added = {}
    for block in re.findall(r"```diff\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.S):
        (path,) = re.findall(r"^\+\+\+ b/(.*)$", block, re.M)
        lines = re.findall(r"^\+(?!\+\+)(.*)$", block, re.M)
        assert f"+1,{len(lines)} @@" in block
        added[path] = "\n".join(lines)
    (tmp_path / "winoqueer.yaml").write_text(added.pop("winoqueer.yaml"))
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
    code = "\n".join(added.values()) + (
        "\nfrom raybias.probes.registries import styles"
        "\nfrom raybias.stats.metric import metrics"
        "\nassert styles['ellipsis'].rule(['A dog.'], None) == ['A dog ...']"
        "\nassert metrics['false_neutral'].title == 'called neutral'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
