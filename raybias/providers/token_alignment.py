"""Find the place of each token that a server returns in the text that the tokens spell.

A server's own offsets are never used: in some they are -1 throughout, count bytes, run away, or
count a begin token. The tokens themselves, joined, must be the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raybias.table_rules import is_log_probability

#: What a server writes for bytes that are no whole character.
_UNDECODED: Final = re.compile(rb"(?:\xef\xbf\xbd)+")
#: Bytes of one replacement character, and the most bytes that one stands for.
_REPLACEMENT_BYTES: Final = 3
#: A token that is named by its number (vLLM's --return-tokens-as-token-ids).
_NUMBERED: Final = re.compile(r"token_id:\d+")
#: Bytes that the OpenAI API's completions write as `bytes:\xe2\x80`, and SentencePiece as `<0xE2>`.
_ESCAPED: Final = re.compile(r"\\x([0-9a-fA-F]{2})|([\s\S])")
_SENTENCE_PIECE_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCE_PIECE_BLANK: Final = "\u2581"
#: Characters of a text that a message shows.
_SHOWN: Final = 24


#: From tokens to the bytes of each.
Spelling = Callable[[Sequence[str]], list[bytes]]


class ServerFault(ValueError):
    """A reply is not what was asked for; the message follows "the endpoint"."""


@dataclass(frozen=True)
class Placement:
    """The place of tokens in a text.

    first: index of the text's first token; 1 behind a begin token.
    starts: by token, the byte of the text where it starts; the least and the greatest possible one,
    which differ only among tokens that a server could not decode.
    size: bytes of the text.
    """

    first: int
    starts: tuple[tuple[int, int], ...]
    size: int

    def indices_from(self, byte: int) -> range:
        """Return the indices of the tokens that start at or behind a byte; ServerFault: unknown."""
        if any(least < byte <= greatest for least, greatest in self.starts):
            raise ServerFault("does not decode the tokens where the continuation begins")
        count = sum(least >= byte for least, _ in self.starts)
        end = self.first + len(self.starts)
        return range(end - count, end)

    def spans_from(self, byte: int) -> list[tuple[int, int]]:
        """Return start and end, from a byte on, of each token that starts at or behind it."""
        ends = [*(least for least, _ in self.starts[1:]), self.size]
        pairs = zip(self.starts, ends, strict=True)
        return [(least - byte, end - byte) for (least, _), end in pairs if least >= byte]


def place_tokens(tokens: Sequence[str], text: str) -> Placement:
    """Place tokens in the text that they spell.

    tokens: of the text; a begin token may precede them, and one generated token follow.
    Byte-level and SentencePiece marks (`Ġthe`, `▁the`, `<0xE2>`) are read as such only if the
    tokens then spell the text exactly. Raises ServerFault: they do not spell it.
    """
    target = _to_bytes(text)
    for spell in _SPELLINGS:
        pieces = spell(tokens)
        for first, generated in ((0, 1), (0, 0), (1, 1), (1, 0)):
            starts = _find_starts(pieces[first : len(pieces) - generated], target)
            if starts is not None:
                return Placement(first, starts, len(target))
    raise ServerFault(_describe_difference(tokens, text))


def find_spelling(tokens: Sequence[str], answer: str) -> Spelling:
    """Return the spelling in which tokens begin an answer; ServerFault: they do not.

    Blanks around the answer, and a token behind it that ends it, do not count.
    """
    target = _to_bytes(answer.strip())
    for spell in _SPELLINGS:
        if _begin_text(spell(tokens), target):
            return spell
    raise ServerFault(_describe_difference(tokens, answer, name="answer"))


def _begin_text(pieces: Sequence[bytes], text: bytes) -> bool:
    """Return whether pieces, without the blanks before them, spell the text or its beginning."""
    ends, started = {0}, False
    for piece in pieces:
        shown = piece if started else piece.lstrip()
        started = started or bool(shown)
        # The text has ended, or ends within this piece, which has a blank or a mark of its own.
        if started and any(shown.startswith(text[end:]) for end in ends):
            return True
        ends = {end for start in ends for end in _find_ends(shown, text, start)}
        if not ends:
            return False
    return started


def read_log_probabilities(
    tokens: Sequence[str], values: Sequence[Any], chosen: range
) -> list[float]:
    """Return the log-probabilities of the chosen tokens; ServerFault: missing, positive or all 0.

    The first token of all may have none, since nothing precedes it, and is then left out.
    """
    if len(values) != len(tokens):
        raise ServerFault(
            f"returned {len(values)} log-probabilities for {len(tokens)} tokens of a prompt"
        )
    numbers = [values[n] for n in chosen if n or values[n] is not None]
    if not numbers:
        raise ServerFault("returned no token that begins in the continuation of a prompt")
    for value in numbers:
        check_log_probability(value)
    present = [value for value in values if value is not None]
    if not any(numbers) and (len(numbers) > 1 or not any(present)):
        raise ServerFault("returned a log-probability of 0 for every token of a continuation")
    return [float(value) for value in numbers]


def check_log_probability(value: Any) -> None:
    """Refuse (ServerFault) what is no number, not finite, or above 0."""
    if not is_log_probability(value):
        raise ServerFault(f"gives a log-probability of {value}")


def _find_starts(pieces: Sequence[bytes], text: bytes) -> tuple[tuple[int, int], ...] | None:
    """Return where each piece can start in the text that they spell, or None if they do not."""
    reachable = [{0}]
    for piece in pieces:
        ends = {end for start in reachable[-1] for end in _find_ends(piece, text, start)}
        if not (piece and ends):
            return None
        reachable.append(ends)
    if len(text) not in reachable[-1]:
        return None

    following, starts = {len(text)}, []
    for piece, possible in zip(reversed(pieces), reversed(reachable[:-1]), strict=True):
        following = {start for start in possible if _find_ends(piece, text, start) & following}
        starts.append((min(following), max(following)))
    return tuple(reversed(starts))


def _find_ends(piece: bytes, text: bytes, start: int) -> set[int]:
    """Return the bytes of the text where a piece that starts at a byte can end."""
    ends, behind = {start}, 0
    for hole in _UNDECODED.finditer(piece):
        part = piece[behind : hole.start()]
        count = len(hole[0]) // _REPLACEMENT_BYTES
        begins = {end + len(part) for end in ends if text.startswith(part, end)}
        ends = {
            begin + size
            for begin in begins
            for size in range(count, count * _REPLACEMENT_BYTES + 1)
            if len(text) >= begin + size and min(text[begin : begin + size]) > 127
        }
        behind = hole.end()
    part = piece[behind:]
    return {end + len(part) for end in ends if text.startswith(part, end)}


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _spell_plain(tokens: Sequence[str]) -> list[bytes]:
    return [_to_bytes(token) for token in tokens]


def _spell_escaped(tokens: Sequence[str]) -> list[bytes]:
    """Spell tokens of which some are `bytes:` and escaped bytes."""
    return [
        b"".join(
            bytes.fromhex(match[1]) if match[1] else _to_bytes(match[2])
            for match in _ESCAPED.finditer(token.removeprefix("bytes:"))
        )
        if token.startswith("bytes:")
        else _to_bytes(token)
        for token in tokens
    ]


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte that each character of byte-level BPE stands for (Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + n): byte for n, byte in enumerate(others)}


_ALPHABET: Final = _byte_level_alphabet()


def _spell_byte_level(tokens: Sequence[str]) -> list[bytes]:
    return [
        bytes(_ALPHABET[character] for character in token)
        if all(character in _ALPHABET for character in token)
        else _to_bytes(token)
        for token in tokens
    ]


def _spell_sentence_piece(tokens: Sequence[str]) -> list[bytes]:
    pieces = []
    for token in tokens:
        byte = _SENTENCE_PIECE_BYTE.fullmatch(token)
        blanks = token.replace(_SENTENCE_PIECE_BLANK, " ")
        pieces.append(bytes.fromhex(byte[1]) if byte else _to_bytes(blanks))
    return pieces


def _spell_after_dummy_blank(tokens: Sequence[str]) -> list[bytes]:
    """Spell SentencePiece tokens without the blank that it puts before a text."""
    pieces = _spell_sentence_piece(tokens)
    for n, token in enumerate(tokens[:2]):
        if token.startswith(_SENTENCE_PIECE_BLANK):
            pieces[n] = pieces[n][1:]
            break
    return pieces


_SPELLINGS: Final[tuple[Spelling, ...]] = (
    _spell_plain,
    _spell_escaped,
    _spell_byte_level,
    _spell_sentence_piece,
    _spell_after_dummy_blank,
)


def _describe_difference(tokens: Sequence[str], text: str, name: str = "prompt") -> str:
    if numbered := next((token for token in tokens if _NUMBERED.fullmatch(token)), ""):
        return f"returned numbers ({numbered}) in place of the {name}'s tokens"
    joined = "".join(tokens)
    pairs = zip(joined, text, strict=False)
    shorter = min(len(joined), len(text))
    same = next((n for n, (one, other) in enumerate(pairs) if one != other), shorter)
    returned, sent = (each[same : same + _SHOWN] for each in (joined, text))
    return (
        f"returned log-probabilities of tokens that are not the {name}: {returned!r} where the"
        f" {name} has {sent!r}, at character {same + 1}"
    )
