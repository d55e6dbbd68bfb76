"""Translation, scored by BLEU of translated text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from regard.data.row_formats import ROW_FORMATS
from regard.decoding.beam import Beam
from regard.decoding.limits import Limits
from regard.evaluation.input_checks import looks_tokenised
from regard.evaluation.perplexity import perplexity
from regard.evaluation.translation import corpus_bleu
from regard.models.options import reads_numbers
from regard.pipelines.translate import translate
from regard.tasks.task import TASKS, Evaluation, Predictions, Task

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe


@TASKS.add("translate")
class Translate(Task):
    """Translate a text."""

    model_kind, row_format = "translator", ROW_FORMATS["translate"]
    metric, metric_name = "bleu", "BLEU"
    uses_search = True

    def apply_defaults(self, raw: dict[str, Any]) -> dict[str, Any]:
        raw = super().apply_defaults(raw)
        if isinstance(raw["model"], dict) and raw["model"].get("encoder") is None:
            raw["model"] = {**raw["model"], "encoder": {}}
        if reads_numbers(raw.get("model")):  # sequences of numbers have no embedding table to share
            raw["model"] = {"tie": "target", **raw["model"]}
        return raw

    def validate(self, recipe: Recipe) -> Iterator[str]:
        if recipe.batch.mode != "lines":
            yield (
                f"batch.mode is {recipe.batch.mode}, and a translator learns from lines; "
                "leave it out, or set task: language"
            )

    def search_description(self, recipe: Recipe) -> str:
        return f" with beam size {recipe.decoding.beam}"

    def predict(self, model: Any, texts: list[str], evaluation: Evaluation) -> list[Any]:
        options = evaluation.recipe.decoding
        return translate(
            texts,
            model,
            strategy=Beam(evaluation.beam, options.length_penalty),
            limits=Limits(max_length=options.max_length),
            progress=evaluation.progress and evaluation.world.is_main,
        )

    def metrics(self, predictions: Predictions, evaluation: Evaluation) -> dict[str, Any]:
        _, references = evaluation.data.texts(evaluation.split)
        translations = predictions.outputs
        scores: dict[str, Any] = {
            "perplexity": perplexity(predictions.nll, predictions.count),
            "bleu": corpus_bleu(translations, references),
        }
        if looks_tokenised(references):  # published scores of tokenised text are computed on its tokens
            scores["tokenised_bleu"] = corpus_bleu(translations, references, tokenize="none")
        return {**scores, "sample": translations[0] if translations else ""}
