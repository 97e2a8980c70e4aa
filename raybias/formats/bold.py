"""Parse BOLD's prompts (Dhamala et al. 2021): JSON by category and by name of an article."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from pydantic import Field, TypeAdapter

from raybias.formats.json_files import parsed

_CURE: Final = "give a *_prompt.json as BOLD's authors published it"
_Text = Annotated[str, Field(pattern=r"\S")]
_FILE: Final = TypeAdapter(dict[_Text, dict[_Text, list[_Text]]])


class BoldPrompt(NamedTuple):
    """A prompt: the opening of a sentence of an article, `name`, about a category of people."""

    category: str
    name: str
    prompt: str


def parse_bold(data: bytes, where: str) -> list[BoldPrompt]:
    """Parse one file of prompts, in its order.

    Raises
    ------
    DataError: not such a file.
    """
    return [
        BoldPrompt(category, name, prompt)
        for category, articles in parsed(_FILE, data, where, _CURE).items()
        for name, prompts in articles.items()
        for prompt in prompts
    ]
