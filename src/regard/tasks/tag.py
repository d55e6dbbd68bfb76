"""Tagging: F1 of whole entities decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from regard.data.batches import Batch
from regard.models.tagger import TaggerOptions
from regard.tasks.text_task import TextTask

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe
    from regard.training.datasets import Datasets


class Tag(TextTask):
    """A tag for each word."""

    name, model, figure, title = "tag", "tagger", "f1", "F1"
    predicts = "tags"

    def settle(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Words with their letters, and no label smoothing, which a CRF does not know."""
        raw = super().settle(raw)
        for key, default in (("tokenizer", {"kind": "spelled"}), ("training", {"smoothing": 0.0})):
            block = raw.get(key, {})
            if isinstance(block, dict):
                raw[key] = {**default, **block}
        model, tokenizer = raw.get("model"), raw["tokenizer"]
        if isinstance(model, dict) and isinstance(tokenizer, dict) and tokenizer.get("kind") == "spelled":
            raw["model"] = {"characters": {}, **model}
        return raw

    def fits(self, recipe: Recipe) -> Iterator[str]:
        yield from super().fits(recipe)
        model, kind, training = recipe.model, recipe.tokenizer.kind, recipe.training
        assert isinstance(model, TaggerOptions)
        if kind == "pretrained":  # its tokenizer and the model section come from one folder
            pass
        elif kind not in ("word", "spelled"):
            yield f"tokenizer.kind is {kind}, and each word has one tag; take spelled (words and their letters) or word"
        elif (kind == "spelled") != (model.characters is not None):
            fix = (
                "set tokenizer.kind: spelled"
                if model.characters is not None
                else "set model.characters, or tokenizer.kind: word"
            )
            yield f"tokenizer.kind is {kind} and model.characters {'reads' if model.characters else 'does not read'} letters; {fix}"
        if model.characters is not None and model.characters.width >= model.dim:
            yield f"model.characters.width {model.characters.width} leaves nothing of dim {model.dim} for the word; make dim larger"
        if model.crf and (training.smoothing or training.agreement):
            yield "training.smoothing and training.agreement are for taggers without a CRF; set them to 0, or model.crf: false"
        if model.constrain and not model.crf:
            yield "model.constrain is about training a CRF; set model.crf: true, or leave it out (answers are well formed anyway)"
        if training.graph:
            yield "training.graph replays steps of one shape, and a tagger's steps depend on its words; set it to false"

    def count(self, batch: Batch) -> int:
        return int(batch.target_lengths.sum()) - len(batch)  # the ends are no tags

    def answers(self, model: Any, sources: list[str], recipe: Recipe, beam: int, progress: bool) -> list[Any]:
        return model.tag([text.split(" ") for text in sources])

    def judge(self, answers: list[Any], model: Any, material: Datasets, split: str) -> dict[str, Any]:
        from regard.evaluation.tagging import tagging_scores

        found = tagging_scores([tags.split(" ") for tags in material.texts(split)[1]], answers)
        return {"f1": found.f1, "precision": found.precision, "recall": found.recall}
