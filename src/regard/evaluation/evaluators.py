"""Evaluators: how each kind of model is evaluated on a split (`regard evaluate`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from regard.data.batch import Batch
from regard.data.batch_iterator import Batches
from regard.data.datasets import Split
from regard.data.windows import Windows
from regard.decoding.beam import Beam
from regard.decoding.engine import fast
from regard.decoding.limits import Limits
from regard.decoding.scoring import negative_log_likelihood
from regard.errors import DataError, OptionError
from regard.evaluation.by_length import BleuByLength, bleu_by_length
from regard.evaluation.input_checks import looks_tokenised
from regard.evaluation.perplexity import LanguageScores, count_text
from regard.evaluation.significance import Comparison, compare_labels, compare_tags, compare_translations
from regard.evaluation.translation import Scores, translation_scores
from regard.files.progress import track
from regard.models.frames import require_text
from regard.models.target_language import target_of
from regard.pipelines.translate import translate


class Metrics(Protocol):
    """Metrics of a classifier, tagger or embedder: printable, and JSON by `as_dict`."""

    def as_dict(self) -> dict[str, Any]: ...


@dataclass
class EvaluationResult:
    """Result of an evaluation: `text` for a translator, `language` for a language model, else `metrics`."""

    data: str
    split: str
    lines: int
    seconds: float
    text: dict[str, Scores] = field(default_factory=dict)  # translation scores by tokenisation, 13a first
    language: LanguageScores | None = None
    metrics: Metrics | None = None
    lengths: BleuByLength | None = None
    predictions: Sequence[str] = field(default_factory=list)  # translations, labels or tags, one per line
    beam: int | None = None
    length_penalty: float | None = None
    comparison: Comparison | None = None  # with another system on the same split

    @property
    def bleu(self) -> float | None:
        """The BLEU to report: without further tokenisation for tokenised text, else 13a."""
        scores = list(self.text.values())
        return scores[-1].bleu if scores else None

    def as_dict(self) -> dict[str, Any]:
        """Everything but the predictions, for JSON."""
        result: dict[str, Any] = {
            "data": self.data,
            "split": self.split,
            "lines": self.lines,
            "seconds": round(self.seconds, 3),
        }
        if self.text:
            scores = {name: score.as_dict() for name, score in self.text.items()}
            result |= {"beam": self.beam, "length_penalty": self.length_penalty, "scores": scores}
        for metrics in (self.language, self.metrics):
            if metrics is not None:
                result |= {"scores": metrics.as_dict()}
        for name, part in (("by_length", self.lengths), ("comparison", self.comparison)):
            result |= {name: part.as_dict()} if part else {}
        return result


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation."""

    beam: int | None = None
    length_penalty: float | None = None
    lengths: bool = False  # compute BLEU by length
    plot: Path | None = None
    output: bool = False  # predictions will be written
    progress: bool = False
    to: str | None = None  # target language of the data
    against: bool = False  # another system will be compared


class Evaluator:
    """Evaluates models of one kind. `check_options` rejects options that do not apply before any work."""

    kind: ClassVar[str]  # kind of the model
    task: ClassVar[str]  # task whose data format it reads
    can_plot: ClassVar[bool] = True  # whether `--plot` is supported
    has_predictions: ClassVar[bool] = True  # whether `--output` is supported

    def check_options(self, model: Any, options: EvaluationOptions) -> None:
        if options.lengths or options.beam or options.length_penalty is not None:
            raise OptionError(
                "BLEU by length, a beam and a length penalty apply to translators, and this model is "
                f"{model.what}; omit them"
            )
        if options.plot is not None and not self.can_plot:
            raise OptionError(f"--plot is not supported for {model.what}; omit it")
        if options.output and not self.has_predictions:
            raise OptionError(
                f"--output writes translations, labels or tags, and {model.what} has none; omit it"
            )
        if options.against and not self.has_predictions:
            raise OptionError(
                f"--against compares translations, labels or tags, and {model.what} has none; omit it"
            )

    def run(self, result: EvaluationResult, model: Any, split: Split, options: EvaluationOptions) -> None:
        """Fill in the result, and write the plot if requested."""
        raise NotImplementedError

    def compare(
        self, result: EvaluationResult, model: Any, split: Split, other: Sequence[str], name: str
    ) -> Comparison:
        """Compare the predictions of the result with those of another system, one per line."""
        raise NotImplementedError


class TranslatorEvaluator(Evaluator):
    """BLEU, chrF and TER of decoded translations."""

    kind, task = "translator", "translate"

    def check_options(self, model: Any, options: EvaluationOptions) -> None:
        """A translator supports all options; lengths are those of source texts."""
        if options.lengths or options.plot is not None:
            require_text(model, "BLEU by length")

    def run(self, result: EvaluationResult, model: Any, split: Split, options: EvaluationOptions) -> None:
        settings = (model.card.get("recipe") or {}).get("decoding") or {}
        result.beam = options.beam or settings.get("beam", 5)
        penalty, longest = options.length_penalty, settings.get("max_length")
        result.length_penalty = penalty = settings.get("length_penalty", 1.0) if penalty is None else penalty
        result.predictions = translate(
            split.sources,
            fast(model),
            target_of(split.targets, model, options.to),
            strategy=Beam(result.beam or 1, penalty),
            limits=Limits(max_length=longest),
            progress=options.progress,
        )
        # Tokenised text is also scored without further tokenisation, as published results on it are.
        tokenisations = ("13a", "none") if looks_tokenised(split.targets) else ("13a",)
        for tokenize in tokenisations:
            with track(len(split.targets), f"scoring ({tokenize})", "lines") as bar:
                result.text[tokenize] = translation_scores(
                    result.predictions, split.targets, tokenize=tokenize, advance=bar.advance
                )
        if options.lengths or options.plot is not None:
            tokenize = list(result.text)[-1]
            result.lengths = bleu_by_length(
                result.predictions, split.targets, split.sources, tokenize=tokenize
            )

    def compare(
        self, result: EvaluationResult, model: Any, split: Split, other: Sequence[str], name: str
    ) -> Comparison:
        tokenize = list(result.text)[-1]
        return compare_translations(result.predictions, other, split.targets, tokenize=tokenize, name=name)


class LanguageModelEvaluator(Evaluator):
    """Perplexity and bits per character."""

    kind, task, can_plot, has_predictions = "language-model", "language", False, False

    def run(self, result: EvaluationResult, model: Any, split: Split, options: EvaluationOptions) -> None:
        with track(None, f"reading {result.split}", "tokens") as bar:
            nll, tokens = negative_log_likelihood(
                model, _with_progress(evaluation_batches(model, split), bar)
            )
        # Line by line, empty lines have nothing to predict; in running text their line end is predicted.
        lines = [line for line in split.targets if line.strip()] if _mode(model) == "lines" else split.targets
        result.language = LanguageScores(nll, tokens, count_text(lines))


class ClassifierEvaluator(Evaluator):
    """Accuracy, F1 of each class, the confusion matrix, calibration."""

    kind, task = "classifier", "classify"

    def run(self, result: EvaluationResult, model: Any, split: Split, options: EvaluationOptions) -> None:
        from regard.evaluation.classification import scores as label_scores
        from regard.models.classifier import predict

        labels, probabilities = predict(model, split.sources, progress=options.progress)
        metrics = label_scores(split.targets, labels, probabilities, model.labels)
        result.metrics, result.predictions = metrics, labels
        if options.plot is not None:
            metrics.draw(options.plot)

    def compare(
        self, result: EvaluationResult, model: Any, split: Split, other: Sequence[str], name: str
    ) -> Comparison:
        for number, label in enumerate(other, 1):
            if label not in model.labels:
                raise DataError(
                    f"line {number} of {name}: {label!r} is not a label of this model; its labels are "
                    f"{', '.join(sorted(model.labels)[:12])}"
                )
        return compare_labels(split.targets, result.predictions, other, name=name)


class TaggerEvaluator(Evaluator):
    """Precision, recall and F1 of entities."""

    kind, task, can_plot = "tagger", "tag", False

    def run(self, result: EvaluationResult, model: Any, split: Split, options: EvaluationOptions) -> None:
        from regard.evaluation.tagging import tagging_scores
        from regard.models.tagger import tag_texts

        words = [model.source_tokenizer.split_words(text) for text in split.sources]
        tags = tag_texts(model, split.sources, progress=options.progress)
        result.metrics = tagging_scores([line.split(" ") for line in split.targets], tags, words)
        result.predictions = [" ".join(sentence) for sentence in tags]

    def compare(
        self, result: EvaluationResult, model: Any, split: Split, other: Sequence[str], name: str
    ) -> Comparison:
        gold, first, second = (
            [line.split(" ") for line in lines] for lines in (split.targets, result.predictions, other)
        )
        return compare_tags(gold, first, second, name=name)


class EmbedderEvaluator(Evaluator):
    """Correlation of cosines with human similarity scores, and retrieval of paired texts."""

    kind, task, can_plot, has_predictions = "embedder", "embed", False, False

    def run(self, result: EvaluationResult, model: Any, split: Split, options: EvaluationOptions) -> None:
        from regard.evaluation.similarity import similarity_scores

        result.metrics = similarity_scores(model, split, options.progress)


EVALUATORS: dict[str, Evaluator] = {
    evaluator.kind: evaluator
    for evaluator in (
        TranslatorEvaluator(),
        LanguageModelEvaluator(),
        ClassifierEvaluator(),
        TaggerEvaluator(),
        EmbedderEvaluator(),
    )
}


def evaluation_batches(model: Any, split: Split) -> Iterator[Batch]:
    """Batches as in training: lines, or consecutive windows with the recurrent state kept between them."""
    batch, prepared = (model.card.get("recipe") or {}).get("batch") or {}, split.prepared
    if _mode(model) == "lines":
        tokens = max(4096, int(prepared.target_lengths.max()) + 1)
        return Batches(prepared, tokens=tokens, seed=0, shuffle=False).once()
    length = int(batch.get("length") or 256)
    total = int(prepared.target_lengths.sum())
    rows = 1 if batch["mode"] == "stream" else max(1, min(16384 // length, total // length))
    return Windows(prepared, length=min(length, total), sentences=rows, seed=0, mode="stream").once()


def _mode(model: Any) -> str:
    return ((model.card.get("recipe") or {}).get("batch") or {}).get("mode") or "lines"


def _with_progress(batches: Iterator[Batch], bar: Any) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        bar.advance(batch.tokens)
