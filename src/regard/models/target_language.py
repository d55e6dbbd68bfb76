"""The target language of a translation.

A model of one direction has the language of its recipe. A multilingual model has a token for each target
language at the start of the source (Johnson et al. 2017); `add_target` puts it there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from regard.arguments import quoted
from regard.data.language_guess import guess_language, guess_language_of, guessed_languages
from regard.data.tokenizer import split_language
from regard.errors import OptionError

PIVOT = "en"  # the default target of a text in another language
_CODE = re.compile(r"[a-z]{2,3}([-_][a-z]{2,4})?", re.IGNORECASE)
_CODE_AND_TEXT = re.compile(r">>([^<>\s]+)<<(\S.*)", re.DOTALL)
_warned: set[tuple[str, str | None]] = set()  # languages and targets of texts that a warning was printed for


def target_languages(model: Any) -> tuple[str, ...]:
    """The codes of the target languages of a multilingual translator; none for other models."""
    if not hasattr(model, "encode"):  # only translators have a source
        return ()
    return tuple(getattr(getattr(model, "source_tokenizer", None), "languages", ()))


def target_language(model: Any) -> str | None:
    """The target language of a model of one direction, as in its recipe; None if unknown."""
    return language_of(getattr(model, "card", None) or {}, "target")


def language_of(card: dict[str, Any], side: str) -> str | None:
    """The language of the source or target side, from the recipe in a model's card; None if unknown.

    A card can also have it under `languages`: that of an imported model, or if the recipe names columns.
    """
    for block in ((card.get("recipe") or {}).get("data"), card.get("languages")):
        named = (block or {}).get(side)
        if isinstance(named, str) and _CODE.fullmatch(named):
            return named
    return None


def directions(model: Any) -> tuple[str, ...]:
    """The directions, such as "en-de", that a multilingual translator was trained for; none if unknown.

    A target token alone does not say so: a model of English with German and of English with French has tokens
    for German and French, and has seen no pair of both.
    """
    named = (getattr(model, "card", None) or {}).get("directions")
    return tuple(map(str, named)) if isinstance(named, list) else ()


def check_target(model: Any, to: str) -> None:
    """Raise an OptionError unless the model translates into `to`."""
    if not isinstance(to, str) or not to:
        raise OptionError(f"to is the name of a language, such as 'de', got {quoted(to)}")
    codes = target_languages(model)
    if codes:
        if to not in codes:
            raise OptionError(
                f"this model translates into {', '.join(codes)}, got to={to!r}; give one of these"
            )
        return
    language = target_language(model)
    if language is None:
        raise OptionError(
            f"this model does not say which language it translates into, so to={to!r} cannot be checked; "
            "leave it out"
        )
    if language.lower() != to.lower():
        raise OptionError(
            f"this model translates into {language!r} only, got to={to!r}; "
            "leave it out, or name another model"
        )


def add_target(
    texts: Sequence[str], model: Any, to: str | None = None, *, one_language: bool = False
) -> list[str]:
    """Return the texts as the model reads them: for a multilingual model with `>>to<<` in front.

    A text that begins with such a code keeps it. Without `to`, a text in another language than English is
    translated into English, and English into the only other language if there is one; else an OptionError
    lists the languages. If the language of a text cannot be guessed, that of all texts together is used; with
    `one_language`, as for the lines of a file, it is used for every text.
    """
    codes = target_languages(model)
    if not codes:
        return list(texts)
    common = guess_language_of(texts) if to is None else None

    def tagged(text: str) -> str:
        joined = _CODE_AND_TEXT.match(text)  # MarianTokenizer needs no space after the code
        if joined and joined[1] in codes:
            text = f">>{joined[1]}<< {joined[2]}"
        code, _ = split_language(text, codes)
        if code is not None and to not in (None, code):
            raise OptionError(f"a text begins with >>{code}<<, and to is {to!r}; leave out one of them")
        if code is not None or not text.strip():
            return text
        if to is not None:
            return ">>" + to + "<< " + text  # not formatted: `to` may be a member of an enum
        language = common if one_language else guess_language(text) or common
        return f">>{_default_target(text, language, codes)}<< {text}"

    return [tagged(text) for text in texts]


def _default_target(text: str, language: str | None, codes: tuple[str, ...]) -> str:
    if language not in (None, PIVOT) and PIVOT in codes:
        return PIVOT
    others = [code for code in codes if code != language]
    if len(others) == 1:
        return others[0]
    raise OptionError(
        f"the target language of {quoted(text)} is missing: this model translates into {', '.join(codes)}; "
        f"name one with --to (in Python and JSON `to`), or write >>{(others or codes)[0]}<< before the text"
    )


def target_of(references: Sequence[str], model: Any, named: str | None = None) -> str | None:
    """The target language of given translations: `named` if the model has it, else guessed from them.

    None for a model of one direction, or if it cannot be guessed.
    """
    codes = target_languages(model)
    if not codes or named in codes:
        return named if codes else None
    language = guess_language_of(references)
    return language if language in codes else None


def source_of(texts: Sequence[str], model: Any, to: str | None) -> str | None:
    """The language of given sources of the target language `to`, if the model translates back into it.

    None for a model of one direction, or one that was not trained to translate both ways. If the language
    cannot be guessed and several are possible, a line is printed to standard error.
    """
    codes, known = target_languages(model), directions(model)
    if known:
        codes = tuple(code for code in codes if {f"{code}-{to}", f"{to}-{code}"} <= {*known})
    codes = tuple(code for code in codes if code != to)
    language = guess_language_of(split_language(text, target_languages(model))[1] for text in texts)
    if language in codes:
        return language
    if language is None and len(codes) > 1 and ("", to) not in _warned:
        _warned.add(("", to))
        print(
            f"regard: the source may be in {' or '.join(codes)}; only one direction is used", file=sys.stderr
        )
    return codes[0] if language is None and len(codes) == 1 else None


def warn_of_wrong_language(texts: Sequence[str], model: Any, to: str | None) -> None:
    """Print a line to standard error, once per direction, if the texts seem not to be in the source language.

    They may be in the target language already, in another language than the only one the model reads, or in
    one that the model was not trained to translate into `to`.
    """
    source = None if target_languages(model) else language_of(getattr(model, "card", None) or {}, "source")
    if to is None and source not in guessed_languages():
        return
    language = guess_language_of(split_language(text, (to,) if to else ())[1] for text in texts)
    if language is None or (language, to) in _warned:
        return
    known = directions(model)
    if language == to:
        problem = " already, the target language"
    elif to is not None and known and language + "-" + to not in known:
        first = f"; translate it into {PIVOT!r} first" if f"{language}-{PIVOT}" in known else ""
        problem = f", and this model translates {', '.join(known)}, not {language}-{to}{first}"
    elif source in guessed_languages() and source != language:
        problem = f", and this model translates from {source!r}; name another model"
    else:
        return
    _warned.add((language, to))
    print(f"regard: the text seems to be in {language!r}{problem}", file=sys.stderr)
