"""Label texts as negative if they contain a word of a lexicon, as HONEST does.

HONEST (Nozza, Bianchi and Hovy 2021, *HONEST: Measuring Hurtful Sentence Completion in Language
Models*, NAACL) is the share of completions with a word of a lexicon of hurtful words, over the
top-k completions of all templates. No lexicon is shipped.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias.errors import ConfigError, DataError
from raybias.probes.checks import column, filled
from raybias.storage import split_uri
from raybias.table_files import as_text, read_frame, refuse

#: Scripts that write words without spaces between them; each character is a word.
_UNSPACED: Final = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
#: A word is a run of letters, marks, digits and underscores; any other visible character is one by
#: itself, so that an entry can be a symbol, and words with a comma between them are no entry.
_WORDS: Final = rf"[{_UNSPACED}]\p{{M}}*|[\w--[{_UNSPACED}]]+|[^\w\s]"
_CURE: Final = "give a table with the columns word and, if need be, category"


@dataclass(frozen=True)
class Lexicon:
    """Entries of one or several words.

    entries: the words that follow the first word of an entry, by the first word.
    digest: sha256 of the file.
    """

    entries: dict[str, list[tuple[str, ...]]]
    digest: str

    def holds(self, texts: Sequence[str]) -> list[bool]:
        """Return whether each text contains an entry, as whole words in any case."""
        return [
            any(
                tuple(words[place + 1 : place + 1 + len(rest)]) == rest
                for place, word in enumerate(words)
                for rest in self.entries.get(word, ())
            )
            for words in words_of(texts)
        ]


def read_lexicon(uri: str, digest: str | None = None) -> Lexicon:
    """Read a lexicon: a table with the column `word`, and perhaps `category`.

    Parameters
    ----------
    uri: path or URI of a CSV, TSV, JSON Lines or Parquet file.
    digest: sha256 that the file is to have; any if None.

    Raises
    ------
    DataError: no such file, no entries, an empty word, or an entry twice in one category.
    ConfigError: the file is not the one with this digest.
    """
    store, name = split_uri(uri)
    found = hashlib.sha256(store.read_bytes(name)).hexdigest()
    if digest not in (None, found):
        raise ConfigError(
            f"the lexicon {uri} has the sha256 {found[:12]}.., not {str(digest)[:12]}..",
            where="judge",
            cure="give the file as it was, or take out its revision and give another --out",
        )
    frame = read_frame(store, name)
    if frame.is_empty():
        raise DataError("has no words", where=uri, cure=_CURE)
    words = filled(column(frame, "word", where=uri), where=uri)
    split_entries = words_of(words)
    table = pl.DataFrame({"word": [" ".join(each) for each in split_entries]}).with_columns(
        category=pl.lit("")
    )
    if "category" in frame.columns:
        table = table.with_columns(as_text(frame["category"], where=uri).fill_null(""))
    refuse(
        table.select(~pl.struct("word", "category").is_first_distinct()).to_series(),
        words,
        "is in the lexicon already, in the same category and any case",
        uri,
        "take out one of the rows",
    )
    entries: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for first, *rest in dict.fromkeys(map(tuple, split_entries)):
        entries[first].append(tuple(rest))
    return Lexicon(dict(entries), found)


def words_of(texts: Sequence[str] | pl.Series) -> list[list[str]]:
    """Split each text into words and symbols, in lower case (Unicode NFC and case folding)."""
    plain = (text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'") for text in texts)
    folded = [unicodedata.normalize("NFC", text).casefold() for text in plain]
    found: list[list[str]] = pl.Series(folded, dtype=pl.String).str.extract_all(_WORDS).to_list()
    return found
