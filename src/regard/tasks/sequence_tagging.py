"""Sequence tagging, scored by F1 of entities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from regard.data.batch import Batch
from regard.data.row_formats import ROW_FORMATS
from regard.data.subword_tokenizer import SubwordTokenizer
from regard.evaluation.tagging import tagging_scores
from regard.models.options import reads_numbers
from regard.models.tagger import TaggerOptions, tag_texts
from regard.tasks.task import TASKS, Evaluation, Predictions
from regard.tasks.text_task import TextTask

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe


@TASKS.add("tag")
class Tag(TextTask):
    """A tag for each word."""

    model_kind, model_block, row_format = "tagger", "tagger", ROW_FORMATS["tag"]
    metric, metric_name = "f1", "F1"
    loss_unit, target_entries = "tags", "tags"
    label_parameters = ("output.", "crf.")

    def apply_defaults(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Use words with character features, and no label smoothing, which a CRF does not support."""
        raw = super().apply_defaults(raw)
        words = {"kind": "word" if reads_numbers(raw.get("model")) else "word-characters"}
        for key, default in (("tokenizer", words), ("training", {"smoothing": 0.0})):
            block = raw.get(key, {})
            if isinstance(block, dict):
                raw[key] = {**default, **block}
        model, tokenizer = raw.get("model"), raw["tokenizer"]
        has_characters = isinstance(tokenizer, dict) and tokenizer.get("kind") == "word-characters"
        if isinstance(model, dict) and has_characters:
            raw["model"] = {"characters": {}, **model}
        return raw

    def validate(self, recipe: Recipe) -> Iterator[str]:
        yield from super().validate(recipe)
        model, training = recipe.model, recipe.training
        assert isinstance(model, TaggerOptions)
        if model.input.reads_text:
            yield from _validate_tokenizer(model, recipe.tokenizer.kind)
        if model.characters is not None and model.characters.width >= model.dim:
            yield (
                f"model.characters.width {model.characters.width} leaves nothing of dim {model.dim} for the "
                "word embedding; make dim larger"
            )
        if model.crf and (training.smoothing or training.agreement):
            yield (
                "training.smoothing and training.agreement are for taggers without a CRF; "
                "set them to 0, or model.crf: false"
            )
        if model.constrain and not model.crf:
            yield (
                "model.constrain needs a CRF; set model.crf: true, or leave model.constrain out "
                "(predicted tags are well formed anyway)"
            )
        if training.graph:
            yield (
                "training.graph needs batches of a few fixed shapes, and those of a tagger vary; "
                "set training.graph: false"
            )

    def pretrained_keys(self, tokenizer: str) -> dict[str, Any]:
        return {"characters": None, "subwords": tokenizer != "word"}

    def pretrained_tokenizers(self, tokenizer: Any) -> tuple[Any, Any]:
        return tokenizer if tokenizer.kind == "word" else SubwordTokenizer.from_tokenizer(tokenizer), None

    def count_targets(self, batch: Batch) -> int:
        return int(batch.target_lengths.sum()) - len(batch)  # without EOS

    def predict(self, model: Any, texts: list[str], evaluation: Evaluation) -> list[Any]:
        return tag_texts(model, texts)

    def metrics(self, predictions: Predictions, evaluation: Evaluation) -> dict[str, Any]:
        _, references = evaluation.data.texts(evaluation.split)
        scores = tagging_scores([tags.split(" ") for tags in references], predictions.outputs)
        return {"f1": scores.f1, "precision": scores.precision, "recall": scores.recall}


def _validate_tokenizer(model: TaggerOptions, kind: str) -> Iterator[str]:
    """Yield an error message if tokenizer.kind does not fit a tagger or model.characters."""
    if kind == "pretrained":  # the tokenizer and the model block come from one folder
        return
    if kind not in ("word", "word-characters"):
        yield (
            f"tokenizer.kind is {kind}, and each word has one tag; "
            "choose word-characters (words with character features) or word"
        )
    elif kind == "word-characters" and model.characters is None:
        yield (
            "tokenizer.kind is word-characters and model.characters is null; "
            "set model.characters, or tokenizer.kind: word"
        )
    elif kind == "word" and model.characters is not None:
        yield (
            "tokenizer.kind is word and model.characters needs the characters of words; "
            "set tokenizer.kind: word-characters"
        )
