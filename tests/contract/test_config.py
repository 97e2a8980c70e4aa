"""A study file is checked where it is read, and says what is wrong, where, and the cure."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

import raybias
from raybias.config import Backbone, TrainingSet, load_study, parse_yaml, to_yaml
from raybias.config.study import parse_study
from raybias.errors import BadInput, ConfigError, PlanError
from raybias.methods import EarlyStop, SoftPrompt
from raybias.methods.tuned import HyperParameters
from raybias.runtime.tuning import trials_of
from support.commands import exit_code

STUDY = {
    "name": "mine",
    "backbones": ["gpt2"],
    "training": [{"source": "sst5", "data": "sst5"}],
    "probes": [{"source": "amazon", "data": "amazon", "attributes": ["age"]}],
}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}))
    return path


def test_a_path_starts_from_the_studys_folder_also_if_nothing_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, other = tmp_path / "jobs", tmp_path / "other"
    server = {"endpoint": "http://localhost:1/v1", "model": "m", "key_file": "key"}
    own = {"predict": "mine.py:label", "name": "own"}
    backbones = ["gpt2", "org/model", "./tuned", server, own]
    for folder in (jobs, other, jobs / "org"):
        folder.mkdir()
    training = [*STUDY["training"], {"source": "hub", "name": "h", "data": "org/set"}]
    study = write(jobs, backbones=backbones, training=training, styles={"files": "x.csv"})
    for folder, name in ((other, "../jobs"), (tmp_path, "jobs"), (jobs, ".")):
        monkeypatch.chdir(folder)
        found = load_study(Path(name, study.name))
        assert [found.training[0].data, found.probes[0].data] == [f"{jobs}/sst5", f"{jobs}/amazon"]
        assert found.styles.files == (f"{jobs}/x.csv",)
        places = found.backbones[3].model_dump(), found.backbones[4].model_dump()
        assert places[0]["key_file"] == f"{jobs}/key"
        assert places[1]["predict"] == f"{jobs}/mine.py:label"
        # What may be a name on the hub stays one.
        assert [each.id for each in found.backbones[:3]] == ["gpt2", "org/model", f"{jobs}/tuned"]
        assert found.training[1].data == "org/set"
        write(jobs)
        place = str(Path(name, "amazon"))
        assert exit_code("plan", Path(name, study.name)) == 2
        assert capsys.readouterr().err == (
            f"raybias: {place}: no such folder; `raybias data download amazon --out {place}`"
            " brings it\n"
        )
        write(jobs, backbones=backbones, training=training, styles={"files": "x.csv"})
    # What is there wins: beside the study, then in the working folder.
    monkeypatch.chdir(other)
    (other / "sst5").mkdir()
    assert load_study(study).training[0].data == "sst5"
    (jobs / "sst5").mkdir()
    assert load_study(study).training[0].data == f"{jobs}/sst5"


def test_the_profile_decides_what_the_papers_code_does_otherwise(tmp_path: Path) -> None:
    kinds = [{"kind": kind} for kind in ("full", "lora", "few_shot", "zero_shot", "soft_prompt")]
    found = {}
    for profile in ("paper", "strict"):
        study = load_study(write(tmp_path, methods=kinds), profile=profile)
        (full, lora, few, zero, soft), statistics = study.methods, study.statistics
        rule = full.early_stop
        found[profile] = {
            "gaps": (soft.restore_best, statistics.interval, statistics.adjust),
            "full": (rule.rule, rule.window, rule.stored, full.eval_every, full.validation_rows),
            "dropout": full.dropout_after_first_eval,
            "lora": (lora.early_stop.window, lora.select, lora.rank, lora.alpha, lora.dropout),
            "prompts": (few.shot_order, few.unparsed, zero.unparsed, few.seeds),
        }
    seeds = tuple(range(2024, 2029))
    assert found == {
        "paper": {
            "gaps": (False, "normal", "none"),
            "full": ("exceeds_max_of_last", 7, 8, 5, 408),
            "dropout": False,
            "lora": (5, "test", 8, 32, 0.1),
            "prompts": ("pool", "random", "random", seeds),
        },
        "strict": {
            "gaps": (True, "t", "benjamini_hochberg"),
            "full": ("patience", 7, 7, 125, 0),
            "dropout": True,
            "lora": (5, "validation", 8, 32, 0.1),
            "prompts": ("shuffled", "likelihood", "likelihood", seeds),
        },
    }


def test_the_released_lora_configuration_is_a_preset(tmp_path: Path) -> None:
    given = {"kind": "lora", "preset": "vectorlm", "batch_size": 4}
    (method,) = load_study(write(tmp_path, methods=[given])).methods
    assert (method.target, method.head, method.label_words) == (
        "peft_default", "label_tokens", ("0", "1", "2"),
    )  # fmt: skip
    assert (method.epochs, method.schedule, method.warmup, method.clip) == (3, "cosine", 0.05, 1.0)
    assert (method.batch_size, method.betas, method.eps) == (4, (0.9, 0.95), 1e-5)


def test_overrides_reach_into_sections_lists_and_what_the_file_leaves_to_its_defaults(
    tmp_path: Path,
) -> None:
    path = write(tmp_path)

    def read(*overrides: str) -> raybias.Study:
        return load_study(path, overrides=overrides, limit=7)

    study = read("resources.train_workers=2", "backbones.0=facebook/opt-125m", "methods.0.keep=3")
    assert (study.limit, study.resources.train_workers, study.methods[0].keep) == (7, 2, 3)
    assert study.backbones[0].name == "opt-125m"
    assert read("methods.0.kind=lora").methods[0].name == "lora"
    (method,) = read(
        "methods=[{kind: lora, preset: vectorlm}]",
        "methods.0.early_stop.window=3",
        "methods.0.learning_rates=0.5",
    ).methods
    assert method.betas == (0.9, 0.95), "the preset's"
    assert (method.early_stop.window, method.learning_rates) == (3, (0.5,))
    made = read(
        "styles.names.0=formal",
        "styles.rewriting.formal.model=t5",
        "styles.rewriting.formal.adequacy.model=judge",
    ).styles.rewriting["formal"]
    assert (made.model, made.adequacy.model) == ("t5", "judge")


def test_a_single_value_is_a_list_of_one(tmp_path: Path) -> None:
    groups = {"age": "old"}
    probe = {"source": "amazon", "attributes": "age", "reference_groups": groups}
    methods = {"kind": "lora", "learning_rates": 1e-4, "seeds": 3, "keep": 1, "target": "q_proj"}
    study = load_study(write(tmp_path, backbones="gpt2", probes=[probe], methods=[methods]))
    (read,), (method,) = study.probes, study.methods
    assert (study.backbones[0].id, read.attributes) == ("gpt2", ("age",))
    assert read.reference_groups == {"age": ("old",)}
    assert (method.learning_rates, method.seeds, method.target) == ((1e-4,), (3,), ("q_proj",))
    assert load_study(write(tmp_path, methods=[{"kind": "lora"}])).methods[0].target == "all_linear"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limit: 3\nlimit: 4\n", 'not YAML (line 2: found duplicate key "limit")'),
        ("limit: !!set {1}\n", "line 1: !!set is no type that a study has"),
        ("limit: !!int many\n", "line 1: 'many' is no int"),
        (f"limit: {'9' * 5000}\n", "line 1: a number of 5,000 digits"),
        ("a: &a [*a]\n", "line 1: *a refers to itself"),
        (f"a: &a [{'x, ' * 999}]\nb: [{'*a, ' * 999}]\n", "line 2: more than 100,000 values"),
        ("[" * 3000, "line 1: nested deeper than 32 levels"),
        ("name: [a\n", "not YAML ("),
        ("", "holds no keys; `raybias audit MODEL --write FILE` writes a study"),
    ],
)
def test_what_is_not_yaml_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_study(tmp_path / "study.yaml")
    assert f"study.yaml: {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_url_without_a_password_is_taken(tmp_path: Path) -> None:
    for url in (
        "http://server:5000", "sqlite:///mlflow.db", "postgresql://user@host/db",
        "s3://bucket/part-?.csv", "s3://bucket/x?region=eu&endpoint_override=localhost:9000",
        "abfs://container@account.dfs.core.windows.net/x", "hf://datasets/a/b@main/x.csv",
    ):  # fmt: skip
        study = load_study(write(tmp_path), overrides=(f"tracking.mlflow={url}",))
        assert study.tracking.mlflow == url


T5 = {"model": "t5", "adequacy": {"model": "judge"}}


def test_rewriting_is_paired_as_the_profile_says_and_paths_begin_at_the_study(
    tmp_path: Path,
) -> None:
    for name in ("t5", "sst5", "gpt-4", "planted"):
        (tmp_path / name).mkdir()
    made = {"formal": T5, "informal": {**T5, "paired": "separate"}}
    path = write(tmp_path, styles={"names": ["original", "informal", "formal"], "rewriting": made})
    found = {
        profile: load_study(path, profile=profile).styles.rewriting
        for profile in ("paper", "strict")
    }
    assert [found["paper"][style].paired for style in made] == ["separate", "separate"]
    assert [found["strict"][style].paired for style in made] == ["mirror", "separate"]
    formal = found["strict"]["formal"]
    assert (formal.model, formal.adequacy.model) == (str(tmp_path / "t5"), "judge")
    endpoint = {"endpoint": "http://127.0.0.1:1/v1", "model": "gpt-4", "key_file": "sst5"}
    study = load_study(write(tmp_path, backbones=["gpt2", "planted", "t5", endpoint]))
    assert study.training[0].data == str(tmp_path / "sst5")
    # A model's name elsewhere is no path here.
    ids = [backbone.id for backbone in study.backbones]
    assert ids == ["gpt2", "planted", str(tmp_path / "t5"), "gpt-4"]
    assert study.backbones[3].key_file == str(tmp_path / "sst5")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": []}, "unknown key 'backbone'; did you mean 'backbones'?"),
        ({"methods": [{"sedes": [1]}]}, "methods.0: unknown key 'sedes'; did you mean 'seeds'?"),
        ({"methods": [{"seeds": [1, 2, 1], "keep": 1}]}, "seeds repeat: 1; list each once"),
        ({"methods": [{"seeds": [1], "keep": 2}]}, "keep is 2 but there are 1 seeds"),
        (
            {"methods": [{"sweep_cut": {"step": 125, "keep": 1}}]},
            "sweep_cut keeps 1 of 1 combinations; keep fewer",
        ),
        (
            {"methods": [{"learning_rates": [1, 2], "sweep_cut": {"step": 100, "keep": 1}}]},
            "sweep_cut is at step 100; a multiple of eval_every (125) below max_steps is needed",
        ),
        ({"probes": [{"source": "regard", "attributes": []}]}, "attributes: Tuple should have"),
        ({"backbones": ["a/gpt2", "b/gpt2"]}, "backbones share the name 'gpt2'"),
        ({"methods": [{"kind": "lorra"}]}, "methods.0: unknown kind of method; known kinds: "),
        (
            {"backbones": ["gpt2", {"id": "gpt2", "name": "b", "weights_of": "c"}]},
            "backbone 'b' has the weights of 'c', which is no backbone with weights of its own; ",
        ),
        ({"methods": [{"kind": "full"}, {"kind": "full"}]}, "share the name 'full' on gpt2"),
        ({"methods": [{"backbones": ["gpt3"]}]}, "names the backbone 'gpt3'; there are gpt2"),
        ({"methods": [{"kind": "lora", "template": "x"}]}, "template 'x' has no {text}"),
        (
            {"methods": [{"kind": "zero_shot", "template": "{text} {sentence}"}]},
            "template has {sentence}, which stands for nothing; use {text}, {choices}",
        ),
        ({"methods": [{"kind": "lora", "schedule": "cosine", "max_steps": None}]}, "needs max_st"),
        ({"training": []}, "method 'soft_prompt' needs a training set"),
        ({"styles": {"names": ["formal"]}}, "styles: no rule makes 'formal'; give a file of such"),
        ({"styles": {"rewriting": {"formal": T5}}}, "rewriting makes 'formal', which `names` lack"),
        ({"methods": [{"learning_rates": [float("nan")]}]}, "0: Input should be a finite number"),
        ({"methods": [{"kind": "lora", "betas": 0.9}]}, "methods.0.betas: needs a list (got 0.9)"),
        ({"probes": ["amazon"]}, "probes.0: needs keys with values (got 'amazon')"),
        ({"name": "my study"}, "name: 'my study' cannot be a name; it may have letters, digits,"),
        ({"seeds": [1]}, "unknown key 'seeds'; did you mean 'methods.0.seeds'?"),
        ({"interval": "t"}, "unknown key 'interval'; did you mean 'statistics.interval'?"),
        ({"probes": []}, "method 'soft_prompt' has nothing to read; give `probes`"),
    ],
)
def test_one_line_says_what_is_wrong(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_study(write(tmp_path, **changes))
    line = str(caught.value)
    assert message in line
    assert "study.yaml" in line
    assert "\n" not in line


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    wrong = write(
        tmp_path,
        backbones=[{"id": "a", "dtyp": "float32"}],
        methods=[{"kind": "soft_prompt", "keep": 0}, {"kind": "nope"}],
    )
    with pytest.raises(ConfigError) as caught:
        load_study(wrong)
    said = str(caught.value)
    assert "\n" not in said
    for part in ("backbones.0: unknown key 'dtyp'; did you mean 'dtype'?", "methods.0.keep: Input",
                 "methods.1: unknown kind of method"):  # fmt: skip
        assert said.count(part) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "is not key=value"),
        ("=3", "is not key=value"),
        ("methods.x=1", "methods has no entry 'x'; it has 1, counted from 0"),
        ("methods.1.keep=1", "methods has no entry '1'; it has 1, counted from 0"),
        ("resources.nodes.1.cpus=1", "resources.nodes has no entry '1'; it has 0"),
        ("name.x=1", "name is 'mine', which has no keys"),
        ("methods=[{kind: lora, kind: full}]", 'line 1: found duplicate key "kind"'),
        ("tracking.mlflow=http://user:s3cret@host:5000", "tracking: mlflow holds a password"),
        ("tracking.mlflow=https://host/?api_token=s3cret", "tracking: mlflow holds a password"),
        ("tracking=http://user:s3cret@host", "tracking holds a password"),
        ("probes.0.data=s3://key:s3cret@bucket/x", "probes.0: data holds a password"),
        ("styles.files=[s3://key:s3cret@bucket/x]", "styles: files holds a password"),
        ("limit=http://user:s3cret@host", "limit holds a password"),
        ("name={a: [http://user:s3cret@host", "not YAML"),
    ],
)
def test_a_wrong_override_says_so_and_no_password(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_study(write(tmp_path, methods=[{}]), overrides=(text,))
    line = str(caught.value)
    assert said in line
    assert "--set" in line or "password" in said
    assert "s3cret" not in line


def test_errors_travel_between_processes() -> None:
    error = PlanError("9 GPUs are needed", where="plan", cure="take fewer")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "plan: 9 GPUs are needed; take fewer"
    assert isinstance(again, BadInput)
    assert again.exit_code == 2


def test_a_study_from_python_takes_its_profiles_defaults() -> None:
    parts = {
        "name": "mine",
        "backbones": (raybias.Backbone(id="gpt2"),),
        "methods": (
            raybias.Lora(rank=4),
            raybias.Full(early_stop=EarlyStop(window=3)),
            raybias.SoftPrompt(restore_best=True),
        ),
        "training": (raybias.TrainingSet(source="planted"),),
        "probes": (raybias.Probe(source="planted"),),
    }
    paper = raybias.Study(**parts, profile="paper")
    lora, full, prompt = paper.methods
    assert (lora.kind, lora.rank, lora.select, lora.validation_rows) == ("lora", 4, "test", 408)
    assert (full.early_stop.window, full.early_stop.stored, full.eval_every) == (3, 4, 5)
    assert prompt.restore_best, "what was set stays"
    # Only what was set goes into a study of another profile.
    strict = raybias.Study(**{**dict(paper), "profile": "strict"})
    assert strict == raybias.Study(**parts)
    assert raybias.Lora() == raybias.Lora.under("strict") != raybias.Lora.under("paper")


def test_null_leaves_an_option_to_the_profile(tmp_path: Path) -> None:
    given = {"kind": "lora", "eval_every": None, "batch_size": 2}
    (method,) = load_study(write(tmp_path, methods=[given]), profile="paper").methods
    assert (method.eval_every, method.validation_rows) == (5, 102)
    wrong = write(tmp_path, methods=[{**given, "batch_size": "x"}])
    with pytest.raises(ConfigError, match=r"methods.0.batch_size: Input .* \(got 'x'\)$"):
        load_study(wrong, profile="paper")


def test_runs_and_replicas_of_different_parts_have_different_names() -> None:
    def refused(**changes: Any) -> str:
        sets = [{"source": "sst5", "name": name} for name in ("c", "b.c")]
        parts = {"training": sets, "probes": [{"source": "regard"}], "methods": [{}]}
        with pytest.raises(ConfigError) as caught:
            parse_study({"name": "x", "backbones": ["a"], **parts, **changes})
        return str(caught.value)

    both = [{"id": "x/a"}, {"id": "x/a.b"}]
    said = refused(backbones=both)
    assert "'soft_prompt' on 'a' with 'b.c' and 'soft_prompt' on 'a.b' with 'c'" in said
    assert "would both be called a.b.c.soft_prompt; give one of them another `name`" in said
    shots = {"kind": "few_shot", "name": "soft_prompt.lr0.001"}
    assert "called a.c.soft_prompt.lr0.001" in refused(methods=[{}, shots])
    methods = [{"kind": "zero_shot", "name": name} for name in ("c", "b-c")]
    assert "called a-b-c" in refused(backbones=["a", "a-b"], methods=methods)


def test_rates_that_differ_in_the_tenth_digit_are_different_runs() -> None:
    rates = (0.02, 0.0200000001, 1e-5, 1.0)
    method = SoftPrompt(learning_rates=rates)
    choices = [HyperParameters(rate, 0.01, 5, prompt_length=8) for rate in rates]
    training, backbone = TrainingSet(source="sst5"), Backbone(id="opt")
    trials = trials_of(backbone, training, method, seeds=[1], choices=choices)
    names = [trial.run_id.removeprefix("opt.sst5.soft_prompt.") for trial in trials]
    assert names == ["lr0.02.s1", "lr0.0200000001.s1", "lr1e-05.s1", "lr1.s1"]


def test_a_folder_of_any_name_gives_a_valid_one() -> None:
    folders = ("my model", "..", "a..b", "-a b.", "m" * 80)
    names = [Backbone(id=f"/data/{folder}").name for folder in folders]
    assert names == ["my-model", "model", "a.b", "a-b", "m" * 64]


def test_yaml_is_of_version_1_2_and_is_written_as_it_is_read() -> None:
    """A group named `no` is no boolean, and numbers such as 1e-4 need no point."""
    read = parse_yaml("{groups: [no, yes, 2020-01-01, =], rate: 1e-4, wide: &a {b: 1}, again: *a}")
    groups = ["no", "yes", "2020-01-01", "="]
    assert read == {"groups": groups, "rate": 1e-4, "wide": {"b": 1}, "again": {"b": 1}}
    assert [*parse_yaml(to_yaml(read)).items()] == [*read.items()]
    # A key that is merged may be given again.
    assert parse_yaml("[&a {b: 1, c: 2}, {<<: *a, c: 3}]") == [{"b": 1, "c": 2}, {"b": 1, "c": 3}]
