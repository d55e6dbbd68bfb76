"""How a trained model of each kind is scored on a text; `regard evaluate` asks the one that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from regard.data.batches import Batch, Batches, Windows
from regard.data.datasets import Split
from regard.decoding.engine import fast
from regard.decoding.scoring import negative_log_likelihood
from regard.errors import OptionError
from regard.evaluation.bleu_by_length import BleuByLength, bleu_by_length
from regard.evaluation.input_checks import looks_tokenised
from regard.evaluation.perplexity import LanguageScores, count_text
from regard.evaluation.translation import Scores, scores
from regard.files.progress import track
from regard.pipelines.translate import translate


class Metrics(Protocol):
    """What a classifier's, tagger's or embedder's scores can do: be printed, be JSON, and perhaps be drawn (`draw(path)`)."""

    def as_dict(self) -> dict[str, Any]: ...


@dataclass
class Evaluation:
    """What was found on one text: for a translator scores by tokenisation and translations, for a language model its rates, for
    every other model the figures of its task.
    """

    data: str
    split: str
    lines: int
    seconds: float
    text: dict[str, Scores] = field(default_factory=dict)  # by tokenisation, 13a first
    language: LanguageScores | None = None
    figures: Metrics | None = None
    lengths: BleuByLength | None = None
    translations: Sequence[str] = field(default_factory=list)  # or labels, or tags: an answer to each line
    beam: int | None = None

    @property
    def bleu(self) -> float | None:
        """The figure to quote: of tokenised text without tokenising it again, else 13a's."""
        found = list(self.text.values())
        return found[-1].bleu if found else None

    def as_dict(self) -> dict[str, Any]:
        """Everything but the translations, for JSON."""
        found: dict[str, Any] = {
            "data": self.data,
            "split": self.split,
            "lines": self.lines,
            "seconds": round(self.seconds, 3),
        }
        if self.text:
            found |= {"beam": self.beam, "scores": {name: each.as_dict() for name, each in self.text.items()}}
        for each in (self.language, self.figures):
            if each is not None:
                found |= {"scores": each.as_dict()}
        return found | ({"by_length": self.lengths.as_dict()} if self.lengths else {})


@dataclass(frozen=True)
class EvaluationOptions:
    """What a user may ask of an evaluation."""

    beam: int | None = None
    lengths: bool = False  # BLEU by length
    picture: Path | None = None
    output: bool = False  # the answers are wanted
    progress: bool = False


class Evaluator:
    """Scores models of one kind. `refuse` names wishes that make no sense for it before anything is computed."""

    kind: ClassVar[str]  # of the model
    task: ClassVar[str]  # whose data it is scored on
    draws: ClassVar[bool] = True  # whether `--plot` has something to draw
    answers: ClassVar[bool] = True  # whether `--output` has something to write

    def refuse(self, model: Any, wishes: EvaluationOptions) -> None:
        if wishes.lengths or wishes.beam:
            raise OptionError(
                f"BLEU by length and a beam belong to translators, and this model is {model.what}; leave them out"
            )
        if wishes.picture is not None and not self.draws:
            raise OptionError(f"--plot has nothing to draw, for this model is {model.what}; leave it out")
        if wishes.output and not self.answers:
            raise OptionError(
                f"--output writes translations, labels or tags, and {model.what} makes none; leave it out"
            )

    def run(self, result: Evaluation, model: Any, split: Split, wishes: EvaluationOptions) -> None:
        """Fill in the result; with a picture wished for, draw it."""
        raise NotImplementedError


class TranslatorEvaluator(Evaluator):
    """BLEU, chrF and TER of real translations."""

    kind, task = "translator", "translate"

    def refuse(self, model: Any, wishes: EvaluationOptions) -> None:
        """A translator can do all of it."""

    def run(self, result: Evaluation, model: Any, split: Split, wishes: EvaluationOptions) -> None:
        settings = (model.card.get("recipe") or {}).get("decoding") or {}
        result.beam = wishes.beam or settings.get("beam", 5)
        penalty, longest = settings.get("length_penalty", 1.0), settings.get("max_length")
        result.translations = translate(
            fast(model),
            split.sources,
            beam=result.beam or 1,
            length_penalty=penalty,
            max_length=longest,
            progress=wishes.progress,
        )
        # Text whose full stops stand apart is scored as published figures on it are: token by token, as it is.
        kinds = ("13a", "none") if looks_tokenised(split.targets) else ("13a",)
        for tokenize in kinds:
            with track(len(split.targets), f"scoring ({tokenize})", "lines") as bar:
                result.text[tokenize] = scores(
                    result.translations, split.targets, tokenize=tokenize, advance=bar.advance
                )
        if wishes.lengths or wishes.picture is not None:
            tokenize = list(result.text)[-1]
            result.lengths = bleu_by_length(result.translations, split.targets, split.sources, tokenize=tokenize)


class LanguageModelEvaluator(Evaluator):
    """Perplexity and bits per character."""

    kind, task, draws, answers = "language-model", "language", False, False

    def run(self, result: Evaluation, model: Any, split: Split, wishes: EvaluationOptions) -> None:
        with track(None, f"reading {result.split}", "tokens") as bar:
            nll, tokens = negative_log_likelihood(model, _told(evaluation_batches(model, split), bar))
        # Line by line an empty line is nothing to foresee; in a text read as a whole its end is.
        read = [line for line in split.targets if line.strip()] if _mode(model) == "lines" else split.targets
        result.language = LanguageScores(nll, tokens, count_text(read))


class ClassifierEvaluator(Evaluator):
    """Accuracy, F1 of each class, the confusion matrix, calibration."""

    kind, task = "classifier", "classify"

    def run(self, result: Evaluation, model: Any, split: Split, wishes: EvaluationOptions) -> None:
        from regard.evaluation.classification import scores as label_scores
        from regard.models.classifier import predict

        found, probabilities = predict(model, split.sources, progress=wishes.progress)
        figures = label_scores(split.targets, found, probabilities, model.labels)
        result.figures, result.translations = figures, found
        if wishes.picture is not None:
            figures.draw(wishes.picture)


class TaggerEvaluator(Evaluator):
    """Precision, recall and F1 of whole entities."""

    kind, task, draws = "tagger", "tag", False

    def run(self, result: Evaluation, model: Any, split: Split, wishes: EvaluationOptions) -> None:
        from regard.evaluation.tagging import tagging_scores

        words = [text.split(" ") for text in split.sources]
        found = model.tag(words, progress=wishes.progress)
        result.figures = tagging_scores([tags.split(" ") for tags in split.targets], found, words)
        result.translations = [" ".join(tags) for tags in found]


class EmbedderEvaluator(Evaluator):
    """How alike vectors are beside how alike people find the texts; or how well texts find their partners."""

    kind, task, draws, answers = "embedder", "embed", False, False

    def run(self, result: Evaluation, model: Any, split: Split, wishes: EvaluationOptions) -> None:
        from regard.evaluation.similarity import similarity_scores

        result.figures = similarity_scores(model, split, wishes.progress)


EVALUATORS: dict[str, Evaluator] = {
    judge.kind: judge
    for judge in (
        TranslatorEvaluator(),
        LanguageModelEvaluator(),
        ClassifierEvaluator(),
        TaggerEvaluator(),
        EmbedderEvaluator(),
    )
}


def evaluation_batches(model: Any, split: Split) -> Iterator[Batch]:
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


def _told(batches: Iterator[Batch], bar: Any) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        bar.advance(batch.tokens)
