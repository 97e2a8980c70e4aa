"""README.md and guides as a user follows them: the commands of a study, and Python on its OUT.

What stands in for what is not here: a random model in a folder of the hub id's name, the data
already downloaded, and a short tuning.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from raybias.runtime import study as running
from support import prompting
from support.commands import exit_code
from support.documents import ROOT, blocks

pytestmark = pytest.mark.cluster
#: README.md, and what it leads on to; a block that stands in two of them counts once.
PAGES = [ROOT / name for name in ("README.md", "docs/reference.md", *(
    f"docs/guides/{page}.md" for page in ("own_model", "cluster", "output")))]  # fmt: skip
README = list(dict.fromkeys(block for page in PAGES for block in blocks(page)))
STUDIES = [block for block in README if block.language == "yaml"]
PYTHON = [block for block in README if block.language == "python"]
#: Each parses (tests/contract/test_documented.py).
COMMANDS = [command for block in README if not block.language for command in block.commands]
#: What makes the README's study short.
SHORT = """
methods: [{kind: soft_prompt, seeds: [1001], keep: 1, max_steps: 2, validation_rows: 8}]
resources: {train_workers: 1, replicas_max: 1}
limit: 20
"""


def test_the_commands_make_a_study_and_python_goes_on_with_it(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # Other tests of this process can share a cluster.
    monkeypatch.setattr(running, "names_no_cluster", lambda address: address is None)
    for name, kept in (("sst5", "sst5"), ("amazon", "amazon_templates")):
        shutil.copytree(shared / "data" / kept, f"data/{name}", copy_function=shutil.copy)
    shutil.copy(shared / "data/regard_published/regard_opt-125m.tsv.gz", tmp_path)
    prompting.save("opt", tmp_path / "facebook/opt-1.3b")
    Path("opt-age.yaml").write_text(STUDIES[0].text + SHORT)
    for command in COMMANDS:
        if command.startswith(("raybias data", "raybias plan", "raybias run")):
            words = shlex.split(command)
            monkeypatch.setattr("sys.argv", words)
            assert exit_code(*words[1:]) == 0, command
    printed = capsys.readouterr().out
    assert "sst5: " in printed
    assert "report: " in printed
    (table,) = (block for block in README if block.text.startswith("model"))
    # What stands behind the gap follows from the data, which are few here.
    shown, found = (
        next(re.sub(r"\(.*?\)", "", line).split() for line in text.splitlines()
             if line.startswith("model "))
        for text in (table.text, printed)
    )  # fmt: skip
    assert shown[:5] == found[:5] == ["model", "attribute", "group", "score", "gap"]
    (tree,) = (block for block in README if block.text.startswith("study.yaml"))
    listed = set(re.findall(r"^([\w.]+)/?", tree.text, flags=re.M)) | {"pair_scores", "coreference"}
    assert {path.name for path in Path("out/opt-age").iterdir()} <= listed
    names: dict[str, Any] = {}
    for block in PYTHON:
        exec(compile(block.text, "README.md", "exec"), names)
    assert names["gaps"].height > 0
    assert names["published"].height > 0
    (curl,) = (shlex.split(command) for command in COMMANDS if command.startswith("curl"))
    asked = json.loads(curl[curl.index("-d") + 1])
    assert asked["run"] in pl.read_parquet("out/opt-age/runs.parquet")["run_id"]
