"""`tag`: texts in, labelled spans out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, cast, overload

from torch.nn import Module

from regard.arguments import encodable, flag, integer, quoted
from regard.data.conll_reader import one_word
from regard.data.sequence_files import is_sequence
from regard.data.tag_schemes import spans
from regard.data.word_character_tokenizer import WordCharacterTokenizer
from regard.data.word_splitter import Word, WordSplitter
from regard.decoding.attention_weights import AttentionMaps
from regard.errors import OptionError
from regard.models.default import as_model
from regard.models.encoder import max_positions
from regard.models.tagger import BATCH_TOKENS, Tagger
from regard.pipelines.encoder_attention import encoder_attention

MAX_WORDS = 1000  # words tagged at once; a longer text is tagged in parts


@dataclass(frozen=True)
class Entity:
    """A labelled span: text[start:end] of a text, or words start … end − 1 of a list of words."""

    text: str
    label: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.text} ({self.label})"


class Tagged(list[Entity]):
    """The labelled spans of one text, in order.

    Attributes:
        words: the words of the text.
        tags: the tag of each word.
        text: the text with its spans marked: [PER Ada] met [PER Bob]; `str` returns it.
        attention: the attention maps, with `tag(…, attention=True)`; None for a text without words.
    """

    attention: AttentionMaps | None = None

    def __init__(
        self, entities: Iterable[Entity], words: Sequence[str], tags: Sequence[str], text: str
    ) -> None:
        super().__init__(entities)
        self.words, self.tags, self.text = list(words), list(tags), text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return list.__repr__(self)


@overload
def tag(texts: str, model: Any = None, **options: Any) -> Tagged: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def tag(texts: Sequence[str | Sequence[str]], model: Any = None, **options: Any) -> list[Tagged]: ...


def tag(  # pyright: ignore[reportInconsistentOverload]
    texts: str | Sequence[str | Sequence[str]],
    model: Any = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
    attention: bool = False,
) -> Tagged | list[Tagged]:
    """Find the labelled spans of a text, or of each text of a list.

    >>> regard.tag("Ada Lovelace lived in London.", "tweet-names")
    [Entity(text='London', label='LOC', start=22, end=28)]
    >>> regard.tag([["Ada", "lived", "in", "London"]], "tweet-names")[0].tags
    ['O', 'O', 'O', 'B-LOC']

    Args:
        texts: a text, or a list of texts and lists of words. A text is split into words as in training; the
            spans of a list of words count words instead of characters. A model of sequences of numbers takes
            files (.npy, .csv) or arrays (frames, channels), and its spans count frames.
        model: a model folder, a name of `regard models` or a loaded tagger. By default the folder in
            REGARD_MODEL, else a bundled model.
        batch_tokens: maximum size of a batch.
        attention: store the attention maps of all layers and heads in `Tagged.attention`, which `plot` draws;
            of a text that is tagged in parts, those of the first part.
    """
    attention = flag("attention", attention)
    sequences = is_sequence(texts)
    given, single = ([texts], True) if isinstance(texts, str) or sequences else (_as_list(texts), False)
    rows = [] if sequences else [_check_text(text) for text in given]
    encodable("texts", [row if isinstance(row, str) else " ".join(row) for row in rows])
    model = as_model(model, "tag")
    if not isinstance(model, Tagger):
        what = getattr(model, "what", None)
        raise OptionError(
            f"tag takes a tagger, as regard.load returns it, got {what or type(model).__name__}; "
            "train one with task: tag"
        )
    if not hasattr(model, "source_tokenizer"):
        raise OptionError("tag takes a tagger with its tokenizers, as regard.load returns it")
    integer("batch_tokens", batch_tokens)
    if model.source_tokenizer.kind == "frames":
        return _tag_sequences(texts, model, batch_tokens, attention)
    if sequences:
        raise OptionError("this tagger reads text, got an array or a path; give texts or lists of words")
    split = word_splitter(model)
    words = [
        split(row) if isinstance(row, str) else [Word(word, i, i + 1) for i, word in enumerate(row)]
        for row in rows
    ]
    tags = tag_words(model, [[word.text for word in of_text] for of_text in words], batch_tokens)
    results = [_tagged(*row) for row in zip(rows, words, tags, strict=True)]
    if attention:
        _add_attention(model, results)
    return results[0] if single else results


def _tag_sequences(
    sequences: Any, model: Tagger, batch_tokens: int, attention: bool
) -> Tagged | list[Tagged]:
    """Tag sequences of numbers; their words are the frame indices."""
    inputs, single = model.source_tokenizer.inputs(sequences)
    tags = model.tag(inputs, batch_tokens)
    results = [_tagged(frame_numbers(frame_tags), frame_words(frame_tags), frame_tags) for frame_tags in tags]
    if attention:
        for tagged, maps in zip(results, encoder_attention(inputs, model), strict=True):
            tagged.attention = maps
    return results[0] if single else results


def frame_numbers(tags: Sequence[str]) -> list[str]:
    """The numbers of the frames of a tagged sequence, from 0."""
    return [str(i) for i in range(len(tags))]


def frame_words(tags: Sequence[str]) -> list[Word]:
    """The frames of a tagged sequence in the role of words."""
    return [Word(number, i, i + 1) for i, number in enumerate(frame_numbers(tags))]


def word_splitter(model: Tagger) -> Callable[[str], list[Word]]:
    """Return a function that splits texts into words as in the training of a model."""
    source = model.source_tokenizer
    return WordSplitter.like(
        source.words.vocabulary if isinstance(source, WordCharacterTokenizer) else source.vocabulary
    )


def tag_words(model: Tagger, sentences: list[list[str]], batch_tokens: int) -> list[list[str]]:
    """Return the tags of each sentence; one that is longer than the model's positions is tagged in parts."""
    limit = min(MAX_WORDS, max_positions(model.encoder) or MAX_WORDS)
    parts = [[words[i : i + limit] for i in range(0, len(words), limit)] for words in sentences]
    tags = iter(model.tag([part for sentence in parts for part in sentence], batch_tokens))
    return [list(chain.from_iterable(next(tags) for _ in sentence)) for sentence in parts]


def _add_attention(model: Tagger, results: list[Tagged]) -> None:
    """Store the attention maps of each text that has words."""
    limit = min(MAX_WORDS, max_positions(model.encoder) or MAX_WORDS)
    with_words = [tagged for tagged in results if tagged.words]
    parts = [
        next(model.split_words([one_word(word) for word in tagged.words[:limit]])) for tagged in with_words
    ]
    for tagged, maps in zip(with_words, encoder_attention(parts, model), strict=True):
        tagged.attention = maps


def mark_spans(
    text: str, words: Sequence[Word], tags: Sequence[str], mark: Callable[[str, str], str] | None = None
) -> str:
    """Return the text with its spans marked: [PER Ada] met [PER Bob]."""
    mark = mark or (lambda span, label: f"[{label} {span}]")
    marked, done = "", 0
    for span in spans(tags):
        start, stop = words[span.start].start, words[span.stop - 1].stop
        marked += text[done:start] + mark(text[start:stop], span.type)
        done = stop
    return marked + text[done:]


def _tagged(row: str | list[str], words: list[Word], tags: list[str]) -> Tagged:
    texts = [word.text for word in words]
    line = row if isinstance(row, str) else " ".join(row)
    entities: list[Entity] = []
    for span in spans(tags):
        start, end = words[span.start].start, words[span.stop - 1].stop
        text = line[start:end] if isinstance(row, str) else " ".join(texts[start:end])
        entities.append(Entity(text, span.type, start, end))
    if not isinstance(row, str):  # positions of the words in the joined line
        starts = accumulate((len(word) + 1 for word in texts), initial=0)
        words = [Word(word, i, i + len(word)) for word, i in zip(texts, starts, strict=False)]
    return Tagged(entities, texts, tags, mark_spans(line, words, tags))


def _as_list(texts: object) -> list[object]:
    if isinstance(texts, Module) or not isinstance(texts, Iterable):
        raise OptionError(
            f"texts is a text, or a list of texts or of lists of words, got {quoted(texts)}; "
            "the model comes second"
        )
    return list(texts)


def _check_text(sentence: object) -> str | list[str]:
    """Check for a text or a list of words."""
    if isinstance(sentence, str):
        return sentence
    words = list(sentence) if isinstance(sentence, Sequence) else [None]
    if not all(isinstance(word, str) for word in words):
        raise OptionError(f"a sentence is a text or a list of words, got {quoted(sentence)}")
    return cast("list[str]", words)
