"""SentencePiece's encoding (Kudo & Richardson 2018): normalize a text, then split it into pieces.

The results equal those of the library `sentencepiece` for unigram and BPE models (C++ sources of version
0.2: normalizer.cc, unigram_model.cc, bpe_model.cc). Words are split once and then taken from a cache: in most
models no piece spans two words.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

SPACE = "▁"
UNKNOWN_PENALTY = 10.0  # below the lowest score of a piece
MAX_WORDS = 200_000  # in the cache; a full cache is emptied
# SentencePiece sums scores in float32. Rounding depends on the text before a word, and decides only between
# splits of the word that are closer than NEAR, if the text has at most MAX_TEXT characters and the word at
# most MAX_WORD. Longer texts are split as a whole.
NEAR, MAX_TEXT, MAX_WORD = 0.05, 400, 60

Scores = Mapping[str, float]


class CharacterMap:
    """Replacements of character sequences, such as "ﬁ" by "fi", in SentencePiece's precompiled form.

    The bytes are the size of a trie in 4 bytes, the trie (a double array of Darts-clone), and the
    replacements, each ended by a zero byte. The value of a sequence in the trie is the position of its
    replacement. The rules nmt_nfkc have 225 000 sequences, so they are looked up and never listed.
    """

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        self._units: list[int] = np.frombuffer(data[4 : 4 + size - size % 4], "<u4").tolist()
        self._replacements = data[4 + size :]
        self._root = _offset(self._units[0]) if self._units else None
        self._steps: dict[tuple[int, str], tuple[int | None, str | None]] = {}  # a cache
        characters = [chr(i) for i in range(128)]
        starts = {c: self._step(self._root, c) for c in characters} if self._root is not None else {}
        changed = {c for c, (node, replacement) in starts.items() if replacement is not None}
        changed |= {
            c
            for c, (node, _) in starts.items()
            if node is not None and any(self._step(node, after) != (None, None) for after in characters)
        }
        # A run of ASCII characters without replacement. A character after it may change the last one.
        kept = "".join(re.escape(c) for c in characters if c not in changed and c != " ")
        self.unchanged = re.compile(rf"[{kept}]+(?=[\x00-\x7f]|\Z)" if kept else r"(?!)")

    def longest(self, text: str, start: int) -> tuple[str, int] | None:
        """Return the replacement of the longest sequence at `start` and its end; None if there is none."""
        node, longest = self._root, None
        for i in range(start, len(text)):
            if node is None:
                break
            node, replacement = self._step(node, text[i])
            if replacement is not None:
                longest = replacement, i + 1
        return longest

    def _step(self, node: int, character: str) -> tuple[int | None, str | None]:
        """Follow a character in the trie: the next node, and the replacement if a sequence ends there."""
        step = self._steps.get((node, character))
        if step is None:
            if len(self._steps) >= MAX_WORDS:
                self._steps.clear()
            step = self._steps[node, character] = self._follow(node, character)
        return step

    def _follow(self, node: int, character: str) -> tuple[int | None, str | None]:
        unit = 0
        for byte in character.encode("utf-8", "replace"):
            node ^= byte
            unit = self._units[node] if node < len(self._units) else 0
            if not byte or unit & (1 << 31 | 0xFF) != byte:
                return None, None
            node ^= _offset(unit)
        if not unit >> 8 & 1:
            return node, None
        start = self._units[node] & ((1 << 31) - 1)
        return node, self._replacements[start : self._replacements.index(0, start)].decode()


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 1 << 9) >> 6)


@dataclass(frozen=True)
class TextNormalizer:
    """The normalization of a SentencePiece model. Spaces become ▁.

    Args:
        rules: replacements of characters.
        user_defined: symbols that are never changed.
        dummy_prefix: add a space to the text.
        remove_extra_whitespaces: remove spaces at the start, at the end and after other spaces.
        whitespace_as_suffix: a space belongs to the word before it, so the added space is at the end.
    """

    rules: CharacterMap
    user_defined: Iterable[str] = ()
    dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    whitespace_as_suffix: bool = False

    def __call__(self, text: str) -> str:
        return "".join(chunk for chunk, _, _ in self._normalized(text))

    def with_spans(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the normalized text and, for each of its characters, the start and end in `text`."""
        chunks = self._normalized(text)
        spans = []
        for chunk, start, end in chunks:
            same = len(chunk) == end - start
            spans += [(start + i, start + i + 1) if same else (start, end) for i in range(len(chunk))]
        return "".join(chunk for chunk, _, _ in chunks), spans

    def _normalized(self, text: str) -> list[tuple[str, int, int]]:
        """Return the chunks of the normalized text with their start and end in `text`."""
        after_space, chunks, blank = self.remove_extra_whitespaces, [], True
        for chunk, start, end in self._replaced(text):
            blank = blank and after_space and chunk == " "
            kept = chunk.lstrip(" ") if after_space else chunk
            if kept:
                chunks.append((kept.replace(" ", SPACE), start, end))
                after_space = self.remove_extra_whitespaces and kept[-1] == " "
        if self.remove_extra_whitespaces:
            while chunks and chunks[-1][0][-1] == SPACE:
                chunk, start, end = chunks.pop()
                kept = chunk.rstrip(SPACE)
                chunks += [(kept, start, end)] if kept else []
        if not self.dummy_prefix or blank:
            return chunks
        if self.whitespace_as_suffix:
            return [*chunks, (SPACE, len(text), len(text))]
        return [(SPACE, 0, 0), *chunks] if chunks or not self.remove_extra_whitespaces else []

    def _replaced(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Apply the rules; yield chunks with their start and end in `text`."""
        i = 0
        while i < len(text):
            symbol = self._symbols.search(text, i) if self._symbols else None
            run = self.rules.unchanged.match(text, i)
            if symbol and symbol.start() == i:
                end = symbol.end()
                yield symbol.group(), i, end
            elif run:
                end = min(run.end(), symbol.start()) if symbol else run.end()
                yield text[i:end], i, end
            elif replaced := self.rules.longest(text, i):
                replacement, end = replaced
                yield replacement, i, end
            else:
                end = i + 1
                yield "\ufffd" if "\ud800" <= text[i] <= "\udfff" else text[i], i, end
            i = end

    @cached_property
    def _symbols(self) -> re.Pattern[str] | None:
        longest_first = sorted(self.user_defined, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


class Segmenter:
    """Splits normalized text into pieces and unknown characters; subclasses split a word."""

    def __init__(self, scores: Scores, user_defined: Scores, unused: Scores) -> None:
        self.scores, self.user_defined, self.unused = scores, user_defined, unused
        self.known = frozenset((*scores, *user_defined))
        spanning = any(SPACE in piece[1:] for piece in (*self.known, *unused))
        self._words = re.compile("(?s).+" if spanning else f"{SPACE}[^{SPACE}]*|[^{SPACE}]+")
        self._cache: dict[str, tuple[str, ...]] = {}

    def split(self, text: str) -> list[str]:
        """Return the pieces of a normalized text; consecutive unknown characters are one."""
        pieces: list[str] = []
        for word in self._split_words(text):
            pieces += self._cache.get(word) or self._split_and_cache(word, pieces)
        known = self.known
        return pieces if all(piece in known for piece in pieces) else self._joined(pieces)

    def _split_words(self, text: str) -> list[str]:
        return self._words.findall(text)

    def _split_and_cache(self, word: str, before: list[str]) -> tuple[str, ...]:
        pieces, cacheable = self._split_word(word, before)
        if cacheable and len(word) <= MAX_WORD:
            if len(self._cache) >= MAX_WORDS:
                self._cache.clear()
            self._cache[word] = pieces
        return pieces

    def _split_word(self, word: str, before: list[str]) -> tuple[tuple[str, ...], bool]:
        """Return the pieces of a word and whether they are the same after any other pieces `before`."""
        raise NotImplementedError

    def _joined(self, pieces: Iterable[str]) -> list[str]:
        joined: list[str] = []
        after_unknown = False
        for piece in pieces:
            unknown = piece not in self.known
            if unknown and after_unknown:
                joined[-1] += piece
            else:
                joined.append(piece)
            after_unknown = unknown
        return joined


class Unigram(Segmenter):
    """The split with the highest sum of scores, by dynamic programming."""

    def __init__(self, scores: Scores, user_defined: Scores, unused: Scores) -> None:
        super().__init__(scores, user_defined, unused)
        self._unknown = _float32(min(scores.values(), default=0.0) - UNKNOWN_PENALTY)
        highest = max(scores.values(), default=0.0)
        # A user-defined symbol is always preferred.
        bonus = {piece: len(piece.encode()) * highest - 0.1 for piece in user_defined}
        self._scores: dict[str, float] = {**scores, **bonus}
        # Every start of a piece is a key; the value is None if it is not a piece itself.
        self._prefixes: dict[str, float | None] = {
            piece[:n]: None for piece in self._scores for n in range(1, len(piece))
        }
        self._prefixes.update(self._scores)

    def _split_words(self, text: str) -> list[str]:
        return super()._split_words(text) if len(text) <= MAX_TEXT else [text]

    def _split_word(self, word: str, before: list[str]) -> tuple[tuple[str, ...], bool]:
        pieces, margin = self._best(word, 0.0)
        if margin > NEAR and len(word) <= MAX_WORD:
            return pieces, True
        if not before:
            return pieces, False
        total = 0.0
        for piece in before:
            total = _float32(total + self._scores.get(piece, self._unknown))
        return self._best(word, total)[0], False

    def _best(self, word: str, before: float) -> tuple[tuple[str, ...], float]:
        """Return the best split after pieces with this sum, and how much better it is than any other."""
        size, prefixes = len(word), self._prefixes
        best, origin, margin = [before] + [0.0] * size, [-1] * (size + 1), [math.inf] * (size + 1)
        for i in range(size):
            single = False
            candidates = []
            for j in range(i + 1, size + 1):
                score = prefixes.get(word[i:j], False)
                if score is False:
                    break
                if score is not None:
                    candidates.append((j, score))
                    single = single or j == i + 1
            if not single:
                candidates.append((i + 1, self._unknown))
            for j, score in candidates:
                total = _float32(best[i] + score)
                difference = total - best[j]
                if origin[j] < 0 or difference > 0:
                    margin[j] = math.inf if origin[j] < 0 else difference
                    best[j], origin[j] = total, i
                else:
                    margin[j] = min(margin[j], -difference)
        pieces, smallest, j = [], math.inf, size
        while j > 0:
            pieces.append(word[origin[j] : j])
            smallest, j = min(smallest, margin[j]), origin[j]
        return tuple(reversed(pieces)), smallest


class Bpe(Segmenter):
    """Byte-pair encoding: repeatedly merge the pair of symbols whose piece has the highest score."""

    def __init__(self, scores: Scores, user_defined: Scores, unused: Scores) -> None:
        super().__init__(scores, user_defined, unused)
        self._merged: dict[str, float] = {**scores, **user_defined, **unused}
        longest_first = sorted(user_defined, key=len, reverse=True)
        self._symbols = re.compile("|".join([*map(re.escape, longest_first), "(?s:.)"]))

    def _split_word(self, word: str, before: list[str]) -> tuple[tuple[str, ...], bool]:
        symbols: list[str] = self._symbols.findall(word)
        frozen = [symbol in self.user_defined for symbol in symbols]
        after = list(range(1, len(symbols) + 1))
        previous = list(range(-1, len(symbols) - 1))
        parts: dict[str, tuple[str, str]] = {}  # of merged pieces that are unused
        queue: list[tuple[float, int, int, str]] = []

        def add(left: int, right: int) -> None:
            if left < 0 or right >= len(symbols) or frozen[left] or frozen[right]:
                return
            piece = symbols[left] + symbols[right]
            if piece in self._merged:
                heapq.heappush(queue, (-self._merged[piece], left, right, piece))
                if piece in self.unused:
                    parts[piece] = symbols[left], symbols[right]

        for i in range(1, len(symbols)):
            add(i - 1, i)
        while queue:
            _, left, right, piece = heapq.heappop(queue)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != piece:
                continue  # one of the two was merged meanwhile
            symbols[left], symbols[right] = piece, ""
            after[left] = after[right]
            if after[right] < len(symbols):
                previous[after[right]] = left
            add(previous[left], left)
            add(left, after[left])
        return tuple(part for symbol in symbols if symbol for part in _used(symbol, parts)), True


def _used(piece: str, parts: Mapping[str, tuple[str, str]]) -> list[str]:
    """Undo the merges of unused pieces."""
    if piece not in parts:
        return [piece]
    left, right = parts[piece]
    return [*_used(left, parts), *_used(right, parts)]


def _float32(x: float) -> float:
    return float(np.float32(x))
