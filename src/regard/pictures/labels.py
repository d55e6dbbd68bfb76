"""Token labels: readable, of bounded width, thinned where they would overlap."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

MAX_EMS = 9.0  # width of a label in ems; longer ones are cut
_NARROW, _WIDE = frozenset("iljtfrI.,;:'|!()[]/ "), frozenset("mwMW@%—…")


def clean(token: str) -> str:
    """A token as a label: without markers of spaces, control characters visible, never empty."""
    if token in ("▁", "Ġ", " "):
        return "␣"
    text = token[1:] if len(token) > 1 and token[0] in "▁Ġ" else token
    text = text.replace("▁", " ").replace("\n", "⏎").replace("Ċ", "⏎").replace("\t", "⇥")
    return printable(text).strip() or "␣"


def printable(text: str) -> str:
    """Text without what XML forbids: control characters and lone surrogates become �."""
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs", "Cn") else c for c in text)


def ems(text: str) -> float:
    """Approximate width in ems of a sans-serif font."""
    width = 0.0
    for c in text:
        if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Me", "Cf"):
            continue
        if unicodedata.east_asian_width(c) in ("W", "F"):
            width += 1.05
        else:
            width += 0.36 if c in _NARROW else 0.95 if c in _WIDE else 0.7 if c.isupper() else 0.6
    return width


def shorten(text: str, most: float = MAX_EMS) -> str:
    """Text of at most `most` ems; what is cut off becomes …"""
    if ems(text) <= most:
        return text
    kept = ""
    for c in text:
        if ems(kept + c) > most - 0.9:
            break
        kept += c
    return f"{kept.rstrip()}…"


def label_step(pitch: float, size: float) -> int:
    """Draw every n-th label: the smallest n such that labels at this pitch and font size do not overlap."""
    return max(1, math.ceil(size * 1.02 / pitch))


def merge_labels(labels: Sequence[str], groups: Sequence[tuple[int, int]]) -> list[str]:
    """One label for each group of neighbours: its first and last token."""
    merged = []
    for start, stop in groups:
        first, last = clean(labels[start]), clean(labels[stop - 1])
        merged.append(first if stop - start == 1 else f"{shorten(first, 4)}…{shorten(last, 4)}")
    return merged
