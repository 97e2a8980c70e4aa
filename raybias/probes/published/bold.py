"""Read BOLD's prompts from a copy of one's own (Dhamala et al. 2021), for `continuation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import polars as pl
from pydantic import Field, TypeAdapter

from raybias.errors import DataError
from raybias.formats import parsed
from raybias.probes.registries import probe
from raybias.probes.templates import items_frame
from raybias.schema import Label
from raybias.storage import Store, split_uri

ATTRIBUTES: Final = (
    "gender", "race", "profession", "religious_ideology", "political_ideology",
)  # fmt: skip
_ENDING: Final = "_prompt.json"
_CURE: Final = "give a *_prompt.json as BOLD's authors published it"
_Text = Annotated[str, Field(pattern=r"\S")]
#: Prompts by category and by name of an article.
_FILE: Final = TypeAdapter(dict[_Text, dict[_Text, list[_Text]]])


@probe(
    "bold",
    about="BOLD: openings of sentences about people and beliefs, for a model to go on with",
    kinds=ATTRIBUTES,
    data=f"folder with its gender{_ENDING} and the like, or one of these files",
    favourable="positive",
)
def bold_items(data: str, attributes: Sequence[str] | None = None) -> pl.DataFrame:
    """Read prompts (schema.ITEMS), all neutral; groups are categories, templates are articles."""
    rows: list[tuple[object, ...]] = []
    store, files = _files(data, attributes)
    for attribute, name in files.items():
        groups = parsed(_FILE, store.read_bytes(name), store.uri_of(name), _CURE)
        found = (
            (group, prompt.strip(), f"{attribute}/{group}/{article}")
            for group, articles in groups.items()
            for article, prompts in articles.items()
            for prompt in prompts
        )
        for number, prompt in enumerate(found):
            item_id = f"bold/{attribute}/{number:05d}"
            rows.append((item_id, int(Label.NEUTRAL), attribute, *prompt, None))
    if not rows:
        raise DataError("holds no prompts", where=data)
    return items_frame(rows)


def _files(data: str, attributes: Sequence[str] | None) -> tuple[Store, dict[str, str]]:
    wanted = ATTRIBUTES if attributes is None else attributes
    if data.endswith(_ENDING):
        store, name = split_uri(data)
        attribute = name.rpartition("/")[2].removesuffix(_ENDING)
        if attribute not in wanted:
            raise DataError(
                f"is of {attribute}, not of {', '.join(wanted)}", where=data, cure="name its domain"
            )
        return store, {attribute: name}
    store = Store(data)
    found = {each: f"{each}{_ENDING}" for each in wanted}
    if attributes is None:
        found = {each: name for each, name in found.items() if store.exists(name)}
    if not found:
        raise DataError(
            f"has no file such as {ATTRIBUTES[0]}{_ENDING}", where=data, cure="check the folder"
        )
    return store, found
