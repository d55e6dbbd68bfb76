"""Bias probes: sentences that differ in one word, such as "the doctor … she" and "the doctor … he".

A sentence marks its nouns and alternatives: `The [doctor] called the [nurse] because {she|he} was late.` For
each alternative the model gives a log-probability, and attention from the pronoun to each noun in every layer
and head. Neither is proof: a probability also reflects how frequent a word is, and attention need
not explain the output (see `regard.evaluation.faithfulness`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.arguments import string_list
from regard.errors import DataError, OptionError
from regard.evaluation.probed_models import ProbedModel, Range, probed_model
from regard.files.progress import track
from regard.models.folder import load
from regard.pictures.matrix_picture import MatrixPicture

BUNDLED = Path(__file__).parent.parent / "data" / "samples" / "pronouns.txt"
_MARK = re.compile(r"\[([^\[\]{}|]+)\]|\{([^\[\]{}]+)\}")


@dataclass(frozen=True)
class ProbeSentence:
    """A sentence with marked nouns and alternatives."""

    template: str
    nouns: tuple[str, ...]
    alternatives: tuple[str, ...]

    @classmethod
    def parse(cls, template: str) -> ProbeSentence:
        """Read the marks of a sentence.

        >>> ProbeSentence.parse("The [doctor] said that {she|he} left.").alternatives
        ('she', 'he')
        """
        marks = list(_MARK.finditer(template))
        nouns = tuple(mark[1] for mark in marks if mark[1])
        groups = [tuple(mark[2].split("|")) for mark in marks if mark[2]]
        rest = _MARK.sub("", template)
        if any(bracket in rest for bracket in "[]{}"):
            raise DataError(f"{template!r} has a bracket without its partner; write [noun] and {{she|he}}")
        if len(groups) != 1 or len(groups[0]) < 2 or not all(word.strip() for word in groups[0]):
            raise DataError(
                f"{template!r} needs one group of alternatives, as {{she|he}}; it has "
                f"{len(groups) or 'none'}{' with an empty or single word' if len(groups) == 1 else ''}"
            )
        return cls(template, nouns, groups[0])

    def text(self, alternative: str) -> tuple[str, Range, list[Range]]:
        """The sentence with an alternative, and the characters of the alternative and of each noun."""
        text, done, nouns, word = "", 0, [], (0, 0)
        for mark in _MARK.finditer(self.template):
            text += self.template[done : mark.start()]
            inserted = mark[1] or alternative
            place = (len(text), len(text) + len(inserted))
            text, done = text + inserted, mark.end()
            if mark[1]:
                nouns.append(place)
            else:
                word = place
        return text + self.template[done:], word, nouns


@dataclass(frozen=True)
class Alternative:
    """What a model says about a sentence with one of its alternatives.

    Attributes:
        word: the alternative.
        log_prob: log p of the word, given what is before it; of a masked model, given the rest.
        continuation: log p of the word and everything after it; None for a masked model.
        attention: for every layer by name, the weights (heads, nouns) from the word to each noun.
    """

    word: str
    log_prob: float
    continuation: float | None
    attention: dict[str, Tensor] = field(repr=False)


@dataclass(frozen=True)
class ProbedSentence:
    """A sentence and its alternatives, in the order of the sentence."""

    sentence: ProbeSentence
    alternatives: tuple[Alternative, ...]

    @property
    def log_odds(self) -> float:
        """log p of the first alternative minus that of the second."""
        return self.alternatives[0].log_prob - self.alternatives[1].log_prob

    def shares(self, alternative: int) -> Tensor | None:
        """The share of each noun in the attention to all nouns, (layers, heads, nouns).

        None without attention. Layers with another number of heads than the first are left out.
        """
        weights = list(self.alternatives[alternative].attention.values())
        weights = [w for w in weights if w.shape == weights[0].shape]
        if not weights or not self.sentence.nouns:
            return None
        stacked = torch.stack(weights)  # (layers, heads, nouns)
        return stacked / stacked.sum(-1, keepdim=True).clamp(min=1e-12)

    def picture(self) -> MatrixPicture:
        """The attention from each alternative to each noun: a row per layer and head."""
        rows: list[str] = []
        columns = [f"{a.word} → {noun}" for a in self.alternatives for noun in self.sentence.nouns]
        weights: list[Tensor] = []
        for layer, name in enumerate(self.alternatives[0].attention):
            heads = torch.cat([a.attention[name] for a in self.alternatives], -1)  # (heads, columns)
            rows += [f"layer {layer}, head {head}" for head in range(len(heads))]
            weights.append(heads)
        if not weights or not columns:
            raise OptionError("there is no attention to draw; use a model with attention, and mark [nouns]")
        title = self.sentence.template
        return MatrixPicture(torch.cat(weights), rows, columns, title=title, row_title="", column_title="")


@dataclass(frozen=True)
class BiasProbe:
    """The result of `bias_probe`, printable."""

    sentences: tuple[ProbedSentence, ...]

    @property
    def log_odds(self) -> float:
        """The mean of log p(first alternative) − log p(second) over the sentences."""
        return sum(probed.log_odds for probed in self.sentences) / len(self.sentences)

    @property
    def attention_shift(self) -> Tensor | None:
        """How much more of the attention goes to the first noun with the second alternative than with the
        first, the mean over sentences with two nouns or more: (layers, heads). None without attention.
        """
        shifts = []
        for probed in self.sentences:
            first, second = probed.shares(0), probed.shares(1)
            if first is not None and second is not None and len(probed.sentence.nouns) > 1:
                shifts.append((second - first)[..., 0])
        return torch.stack(shifts).mean(0) if shifts else None

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        shift = self.attention_shift
        return {
            "log_odds": self.log_odds,
            "attention_shift": None if shift is None else shift.tolist(),
            "sentences": [
                {
                    "sentence": probed.sentence.template,
                    "nouns": list(probed.sentence.nouns),
                    "alternatives": [
                        {
                            "word": a.word,
                            "log_prob": a.log_prob,
                            "continuation": a.continuation,
                            "attention": {name: w.tolist() for name, w in a.attention.items()},
                        }
                        for a in probed.alternatives
                    ],
                }
                for probed in self.sentences
            ],
        }

    def __str__(self) -> str:
        return "\n".join([*map(_line, self.sentences), "", *self._summary()])

    def _summary(self) -> list[str]:
        first, second = self.sentences[0].sentence.alternatives[:2]
        same = all(p.sentence.alternatives[:2] == (first, second) for p in self.sentences)
        names = f"{first!r} over {second!r}" if same else "the first alternative over the second"
        above = sum(probed.log_odds > 0 for probed in self.sentences)
        lines = [
            f"mean log-odds of {names}: {self.log_odds:+.2f}, above 0 in {above} of {len(self.sentences)} "
            "sentences"
        ]
        shift = self.attention_shift
        if shift is not None:
            layer, head = divmod(int(shift.abs().argmax()), shift.shape[1])
            change = f"{first!r} to {second!r}" if same else "the first alternative to the second"
            lines.append(
                f"from {change}, the first noun's share of the attention to all nouns changes by "
                f"{float(shift.mean()):+.3f} (mean over layers and heads), most in layer {layer}, "
                f"head {head}: {float(shift[layer, head]):+.3f}"
            )
        return lines


def _line(probed: ProbedSentence) -> str:
    values = ", ".join(f"{a.word} {a.log_prob:.2f}" for a in probed.alternatives)
    shares = []
    for i, a in enumerate(probed.alternatives):
        share = probed.shares(i)
        if share is not None and len(probed.sentence.nouns) > 1:
            to = ", ".join(
                f"{noun} {float(x):.2f}"
                for noun, x in zip(probed.sentence.nouns, share.mean((0, 1)), strict=True)
            )
            shares.append(f"{a.word} → {to}")
    return f"{probed.sentence.template}\n  log p: {values}" + "".join(f"\n  {line}" for line in shares)


def bias_probe(
    model: Any, sentences: Sequence[str] | None = None, *, tokenizer: Any = None, progress: bool = False
) -> BiasProbe:
    """Compare alternatives of sentences under a language model: probabilities, and attention to the nouns.

    >>> sentences = ["The [doctor] called the [nurse] because {she|he} was late."]
    >>> probe = regard.evaluation.bias_probe("shakespeare-small", sentences)
    >>> round(probe.sentences[0].log_odds, 2)
    -2.98

    Args:
        model: a language model of regard, a folder of one, or a causal or masked model of Hugging Face.
        sentences: sentences with [nouns] and one group {she|he}; by default 24 bundled ones.
        tokenizer: the tokenizer of a Hugging Face model, a fast one.
        progress: show a progress bar.
    """
    given = read_sentences(BUNDLED) if sentences is None else string_list("sentences", sentences, "sentences")
    parsed = [ProbeSentence.parse(sentence) for sentence in given]
    if not parsed:
        raise OptionError("sentences is empty; give at least one")
    probed = probed_model(load(model) if isinstance(model, str | Path) else model, tokenizer)
    results = []
    with track(len(parsed) if progress else 0, "probing", "sentences") as bar:
        for sentence in parsed:
            results.append(_probe(probed, sentence))
            bar.advance(1)
    return BiasProbe(tuple(results))


def _probe(model: ProbedModel, sentence: ProbeSentence) -> ProbedSentence:
    alternatives = []
    for alternative in sentence.alternatives:
        text, word, nouns = sentence.text(alternative)
        read = model.read(text)
        attention = model.attention(read, word, nouns) if nouns else {}
        log_prob, continuation = model.log_prob(read, word), model.continuation(read, word)
        alternatives.append(Alternative(alternative, log_prob, continuation, attention))
    return ProbedSentence(sentence, tuple(alternatives))


def read_sentences(path: Path) -> list[str]:
    """The sentences of a file, one per line; empty lines and those that begin with # are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from None
    sentences = [line for line in lines if line.strip() and not line.startswith("#")]
    if not sentences:
        raise DataError(
            f"{path} has no sentences; give one per line, as The [doctor] said that {{she|he}} left."
        )
    return sentences
