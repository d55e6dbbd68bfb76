"""What a translation takes from its text as it is: capitals, addresses, and symbols that the vocabulary
lacks, such as emoji.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.tokenizer import split_language
from regard.decoding.constraints import NO_CONSTRAINTS, Constraints
from regard.models.target_language import target_languages
from regard.pipelines.addresses import addresses, copy_addresses
from regard.pipelines.capitals import in_capitals, lowers_capitals

# Parts of emoji that are no symbols themselves: joiner, variation selectors, keycap, letters of flags.
PARTS_OF_EMOJI = {0x200D, 0xFE0E, 0xFE0F, 0x20E3, *range(0xE0020, 0xE0080)}


@dataclass(frozen=True)
class Form:
    """How the translation of a text is written.

    Attributes:
        capitals: whether in capitals; the model reads the text in lower case.
        before, after: symbols at the beginning and the end, with the spaces beside them.
        left_out: symbols inside the text; nothing says where they belong in the translation.
        addresses: e-mail and web addresses, as the model reads them.
    """

    capitals: bool = False
    before: str = ""
    after: str = ""
    left_out: str = ""
    addresses: tuple[str, ...] = ()

    def write(self, translation: str) -> str:
        """Write what a model has generated in this form."""
        return "".join(self.write_pieces([translation]))

    def write_pieces(self, pieces: Iterable[str]) -> Iterator[str]:
        """Write a translation that comes in pieces, none of them empty."""
        if self.addresses:
            pieces = copy_addresses(pieces, self.addresses)
        if self.before:
            yield self.before
        yield from (piece.upper() if self.capitals else piece for piece in pieces if piece)
        if self.after:
            yield self.after


PLAIN = Form()


def as_read(
    texts: Sequence[str], model: Any, constraints: Constraints = NO_CONSTRAINTS
) -> tuple[list[str], list[Form]]:
    """The texts as the model reads them, and the forms of their translations. Language tokens stay.

    Texts with a prefix or required words are read as they are: these have a form of their own. So are
    sequences of numbers.
    """
    if model.source_tokenizer.kind == "frames":
        return list(texts), [PLAIN] * len(texts)
    lowers, symbols = lowers_capitals(model), unknown_symbols(texts, model.source_tokenizer)
    read, forms = list(texts), [PLAIN] * len(texts)
    codes = target_languages(model)
    for i, (prefix, phrases) in enumerate(constraints.of_texts(len(texts))):
        if prefix or any(phrases):
            continue
        code, text = split_language(texts[i], codes)
        core, forms[i] = split_form(text, symbols, lowers)
        if forms[i] != PLAIN:
            read[i] = f">>{code}<< {core}" if code is not None and core else core
    return read, forms


def split_form(text: str, symbols: Collection[str], lowers: bool) -> tuple[str, Form]:
    """What a model reads of a text that has no language token, and the form of the translation."""
    before, core, after = _split_edges(text, symbols)
    inside = {c for c in core if c in symbols and unicodedata.category(c) != "Sm"}  # 6 ÷ 2 is no sum of 6 2
    core = _without(core, inside)
    capitals = lowers and in_capitals(core)
    core = core.lower() if capitals else core
    return core, Form(capitals, before, after, "".join(sorted(inside)), addresses(core))


def _split_edges(text: str, symbols: Collection[str]) -> tuple[str, str, str]:
    """The symbols at the beginning, the text between, the symbols at the end."""
    if not any(c in symbols for c in text):
        return "", text, ""
    text, start = text.strip(), 0
    end = len(text)
    while start < end and (text[start] in symbols or text[start].isspace()):
        start += 1
    while end > start and (text[end - 1] in symbols or text[end - 1].isspace()):
        end -= 1
    return text[:start], text[start:end], text[end:]


def _without(text: str, symbols: Collection[str]) -> str:
    """The text without some symbols; the words beside them stay apart."""
    if not symbols:
        return text
    some = f"[{re.escape(''.join(symbols))}]"
    runs = re.compile(rf"\s*{some}(?:{some}|\s)*")

    def space(match: re.Match[str]) -> str:
        following = text[match.end() : match.end() + 1]
        return " " if following.isalnum() or match[0][-1].isspace() else ""

    return runs.sub(space, text)


def unknown_symbols(texts: Sequence[str], tokenizer: Any) -> set[str]:
    """The symbols in texts that the vocabulary lacks; none for a tokenizer that reads bytes."""
    return {c for c in tokenizer.unknown_characters(texts) if is_symbol(c)}


def is_symbol(c: str) -> bool:
    """True for emoji and their parts, arrows, marks; False for ASCII, letters, digits and punctuation.

    False for U+FFFD, too, which stands for bytes that are not UTF-8.
    """
    symbols = ("So", "Sk", "Sm", "Cn")  # Cn: emoji that are newer than this Python
    return not c.isascii() and (
        (unicodedata.category(c) in symbols and c != "\ufffd") or ord(c) in PARTS_OF_EMOJI
    )
