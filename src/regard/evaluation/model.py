"""How good a trained model is on a text: translate it and score it, or measure how well it is foreseen.

The text is a part of the corpus the model was trained on, of another known corpus, or files; the model's card knows the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.data import corpora
from regard.data.batches import Batch, Batches, Windows
from regard.data.load import Split, load_split
from regard.data.progress import track
from regard.decoding.engine import fast
from regard.decoding.score import negative_log_likelihood
from regard.decoding.translate import translate
from regard.errors import DataError, OptionError
from regard.evaluation.language import LanguageScores, measure
from regard.evaluation.lengths import ByLength, by_length
from regard.evaluation.suspicion import tokenised
from regard.evaluation.text import Scores, scores
from regard.evaluation.training_cost import TrainingCost
from regard.models.translator import Translator


@dataclass
class Evaluation:
    """What was found on one text: for a translator scores by tokenisation and translations, for a language model its rates."""

    data: str
    split: str
    lines: int
    seconds: float
    text: dict[str, Scores] = field(default_factory=dict)  # by tokenisation, 13a first
    language: LanguageScores | None = None
    lengths: ByLength | None = None
    translations: Sequence[str] = field(default_factory=list)
    beam: int | None = None

    @property
    def bleu(self) -> float | None:
        """The figure to quote: of tokenised text without tokenising it again, else 13a's."""
        found = list(self.text.values())
        return found[-1].bleu if found else None

    def as_dict(self) -> dict[str, Any]:
        """Everything but the translations, for JSON."""
        found: dict[str, Any] = {"data": self.data, "split": self.split, "lines": self.lines, "seconds": round(self.seconds, 3)}
        if self.text:
            found |= {"beam": self.beam, "scores": {name: each.as_dict() for name, each in self.text.items()}}
        if self.language is not None:
            found |= {"scores": self.language.as_dict()}
        return found | ({"by_length": self.lengths.as_dict()} if self.lengths else {})


def section(card: dict[str, Any], data: Sequence[str] = ()) -> dict[str, Any]:
    """The `data` section of a recipe for what a user names: nothing (the model's own corpus), a known name, or files."""
    own = dict((card.get("recipe") or {}).get("data") or {})
    if not data:
        if not own:
            raise DataError("this model's card does not say what it was trained on; name a text with --data")
        return own
    kept = {key: own[key] for key in ("source", "target") if own.get(key) is not None}
    if len(data) == 1 and data[0] in corpora.names():
        return {**kept, "corpus": data[0], **({"version": own["version"]} if own.get("corpus") == data[0] else {})}
    return {**kept, "test": list(data)}


def default_split(data: dict[str, Any]) -> str:
    """The customary test set, else the validation set."""
    if data.get("test") or not data.get("corpus") or "test" in corpora.find(data["corpus"]).roles:
        return "test"
    return "validation"


def evaluate(
    model: Any,
    data: dict[str, Any],
    split: str | None = None,
    *,
    beam: int | None = None,
    lengths: bool = False,
    progress: bool = False,
) -> Evaluation:
    """Score a model (as `regard.models.folder.load` gives it) on a part of a `data` section."""
    split = split or default_split(data)
    source, target = getattr(model, "source_tokenizer", None), model.target_tokenizer
    paired = isinstance(model, Translator)
    found = load_split(
        {**data, "max_length": None}, split, source if paired else None, target, "translate" if paired else "language"
    )
    name = data.get("corpus") or ", ".join(map(str, _flat(data.get(split) or data.get("test") or [])))
    start = time.perf_counter()
    result = Evaluation(name, split, len(found.targets), 0.0)
    if paired:
        _translated(result, model, found, beam, progress)
        if lengths:
            tokenize = list(result.text)[-1]
            result.lengths = by_length(result.translations, found.targets, found.sources, tokenize=tokenize)
    elif lengths or beam:
        raise OptionError("BLEU by length and a beam belong to translators, and this model is a language model; leave them out")
    else:
        with track(None, f"reading {split}", "tokens") as bar:
            nll, tokens = negative_log_likelihood(model, _told(windows(model, found), bar))
        # Line by line an empty line is nothing to foresee; in a text read as a whole its end is.
        read = [line for line in found.targets if line.strip()] if _mode(model) == "lines" else found.targets
        result.language = LanguageScores(nll, tokens, measure(read))
    result.seconds = time.perf_counter() - start
    return result


def _translated(result: Evaluation, model: Any, split: Split, beam: int | None, progress: bool) -> None:
    settings = (model.card.get("recipe") or {}).get("decoding") or {}
    result.beam = beam or settings.get("beam", 5)
    penalty, longest = settings.get("length_penalty", 1.0), settings.get("max_length")
    result.translations = translate(
        fast(model), split.sources, beam=result.beam or 1, length_penalty=penalty, max_length=longest, progress=progress
    )
    # Text whose full stops stand apart is scored as published figures on it are: token by token, as it is.
    kinds = ("13a", "none") if tokenised(split.targets) else ("13a",)
    for tokenize in kinds:
        with track(len(split.targets), f"scoring ({tokenize})", "lines") as bar:
            result.text[tokenize] = scores(result.translations, split.targets, tokenize=tokenize, advance=bar.advance)


def windows(model: Any, split: Split) -> Iterator[Batch]:
    """The text as the model was trained to read it: lines, or windows in order; a recurrent state is carried all the way."""
    batch, prepared = (model.card.get("recipe") or {}).get("batch") or {}, split.prepared
    if _mode(model) == "lines":
        widest = max(4096, int(prepared.target_lengths.max()) + 1)
        return Batches(prepared, tokens=widest, seed=0, shuffle=False).once()
    length = int(batch.get("length") or 256)
    total = int(prepared.target_lengths.sum())
    rows = 1 if batch["mode"] == "stream" else max(1, min(16384 // length, total // length))
    return Windows(prepared, length=min(length, total), sentences=rows, seed=0, mode="stream").once()


def _mode(model: Any) -> str:
    return ((model.card.get("recipe") or {}).get("batch") or {}).get("mode") or "lines"


def cost(card: dict[str, Any], result: Evaluation) -> TrainingCost | None:
    """What training the model took, for the row beside the lecture's table; None when the card does not say."""
    if not card.get("flops") or not card.get("seconds"):
        return None
    task = f"{result.data} {result.split}"
    return TrainingCost(
        card.get("name", "this model"), task, card["flops"], card["seconds"] / 3600, card.get("processes", 1), bleu=result.bleu
    )


def _told(batches: Iterator[Batch], bar: Any) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        bar.advance(batch.tokens)


def _flat(entries: Any) -> list[Any]:
    return [name for entry in entries for name in (entry if isinstance(entry, list) else [entry])]
