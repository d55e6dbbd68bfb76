"""Translating: BLEU of real translations decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from regard.decoding.beam import Beam
from regard.decoding.limits import Limits
from regard.evaluation.input_checks import looks_tokenised
from regard.evaluation.perplexity import perplexity
from regard.evaluation.translation import corpus_bleu
from regard.pipelines.translate import translate
from regard.tasks.task import Task

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe
    from regard.training.datasets import Datasets


class Translate(Task):
    """A text in another language."""

    name, figure, title = "translate", "bleu", "BLEU"

    def settle(self, raw: dict[str, Any]) -> dict[str, Any]:
        raw = super().settle(raw)
        if isinstance(raw["model"], dict) and raw["model"].get("encoder") is None:
            raw["model"] = {**raw["model"], "encoder": {}}
        return raw

    def fits(self, recipe: Recipe) -> Iterator[str]:
        if recipe.batch.mode != "lines":
            yield f"batch.mode is {recipe.batch.mode}, and a translator learns from lines; leave it out, or set task: language"

    def how(self, recipe: Recipe) -> str:
        return f" with a beam of {recipe.decoding.beam}"

    def answers(self, model: Any, sources: list[str], recipe: Recipe, beam: int, progress: bool) -> list[Any]:
        options = recipe.decoding
        return translate(
            sources,
            model,
            strategy=Beam(beam, options.length_penalty),
            limits=Limits(max_length=options.max_length),
            progress=progress,
        )

    def scores(
        self, parts: list[dict[str, Any]], model: Any, material: Datasets, split: str
    ) -> dict[str, Any]:
        found = super().scores(parts, model, material, split)
        rate = perplexity(sum(p["nll"] for p in parts), sum(p["tokens"] for p in parts))
        return {"loss": found.pop("loss"), "perplexity": rate, **found}

    def judge(self, answers: list[Any], model: Any, material: Datasets, split: str) -> dict[str, Any]:
        _, references = material.texts(split)
        found: dict[str, Any] = {"bleu": corpus_bleu(answers, references)}
        if looks_tokenised(references):  # published scores of such text are on its own tokens
            found["tokenised_bleu"] = corpus_bleu(answers, references, tokenize="none")
        return {**found, "sample": answers[0] if answers else ""}
