"""Language modeling, scored by perplexity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

from regard.data.batch import Batch
from regard.data.batch_iterator import BatchStream
from regard.data.prepare import Prepared
from regard.data.row_formats import ROW_FORMATS
from regard.data.windows import Windows
from regard.evaluation.perplexity import LanguageScores, count_text, perplexity
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.transformer import TransformerOptions
from regard.tasks.task import TASKS, Evaluation, Predictions, Task

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe
    from regard.training.distributed import World

ONE_TEXT = "but a language model reads one text; leave it out, or set task: translate"


@TASKS.add("language")
class LanguageModeling(Task):
    """Predict the next token."""

    model_kind, row_format = "language-model", ROW_FORMATS["language"]
    metric, metric_name, higher_is_better = "perplexity", "perplexity", False
    loss_unit = "tokens"

    def apply_defaults(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Set a missing batch.mode: stream for a recurrent decoder, whose state continues, else crops."""
        model, batch = raw.get("model", {}), raw.get("batch", {})
        decoder = model.get("decoder") if isinstance(model, dict) else None
        recurrent = isinstance(decoder, dict) and decoder.get("kind") == "recurrent"
        if isinstance(batch, dict) and batch.get("mode") is None:
            raw = {**raw, "batch": {**batch, "mode": "stream" if recurrent else "crops"}}
        return super().apply_defaults(raw)

    def validate(self, recipe: Recipe) -> Iterator[str]:
        assert isinstance(recipe.model, AutoregressiveOptions)
        decoder = recipe.model.decoder
        if recipe.model.encoder is not None:
            yield (
                "model.encoder is given, but a language model is a decoder alone; "
                "leave it out, or set task: translate"
            )
        if recipe.data.target is not None:
            yield f"data.target is given, {ONE_TEXT}"
        if recipe.data.source is not None and not _has_fields(recipe):
            yield f"data.source is given, {ONE_TEXT}"
        if recipe.batch.mode == "stream" and isinstance(decoder, TransformerOptions):
            yield (
                "batch.mode is stream, which continues a recurrent state, but a Transformer has none; "
                "choose crops or lines"
            )

    def training_batches(self, prepared: Prepared, recipe: Recipe, world: World) -> BatchStream:
        if recipe.batch.mode == "lines":
            return super().training_batches(prepared, recipe, world)
        mode = cast(Literal["stream", "crops"], recipe.batch.mode)
        return Windows(
            prepared, length=recipe.batch.length, sentences=windows_per_batch(recipe), seed=recipe.seed,
            mode=mode, rank=world.rank, world=world.size,
        )  # fmt: skip

    def evaluation_batches(self, prepared: Prepared, recipe: Recipe, world: World) -> Iterator[Batch]:
        """Read windows in order; with batch.mode stream rank 0 reads all of them, as the state continues."""
        batch = recipe.batch
        if batch.mode == "lines":
            return super().evaluation_batches(prepared, recipe, world)
        rows = min(windows_per_batch(recipe), max(1, int(prepared.target_lengths.sum()) // batch.length))
        windows = Windows(prepared, length=batch.length, sentences=rows, seed=0, mode="stream").once()
        if batch.mode == "stream":
            return windows if world.is_main else iter(())
        return (window for i, window in enumerate(windows) if i % world.size == world.rank)

    def metrics(self, predictions: Predictions, evaluation: Evaluation) -> dict[str, Any]:
        _, texts = evaluation.data.texts(evaluation.split)
        scores = LanguageScores(predictions.nll, predictions.count, count_text(texts))
        return {
            "perplexity": perplexity(predictions.nll, predictions.count),
            "word_perplexity": scores.word_perplexity,
            "bits_per_character": scores.bits_per_character,
        }


def windows_per_batch(recipe: Recipe) -> int:
    """Return `batch.sentences`, or as many windows as fit into `batch.tokens`."""
    return recipe.batch.sentences or max(1, recipe.batch.tokens // recipe.batch.length)


def _has_fields(recipe: Recipe) -> bool:
    """True if a file has named fields; a language model reads the one named data.source."""
    files = [*recipe.data.train, *recipe.data.validation, *recipe.data.test]
    return any(isinstance(file, str) and (".jsonl" in file or ".ndjson" in file) for file in files)
