"""`raybias samples`: a study's answers as lm-evaluation-harness logs them."""

from __future__ import annotations

from typing import Annotated

import typer


def samples(
    folder: Annotated[str, typer.Argument(metavar="OUT", help="What `raybias run` wrote.")],
    *,
    out: Annotated[str, typer.Option(help="Folder or URI for MODEL/samples_TASK.jsonl.")],
) -> None:
    """Write answers to questions with options, and scores of pairs, as lm-eval's samples.

    A file holds a task of a model, a JSON object a line, with schema_version; `raybias measure`
    reads them again, as it reads lm-eval's own.
    """
    from raybias.api import answers

    for file in answers.samples(folder, out):
        print(file)
