"""Text classification, scored by accuracy."""

from __future__ import annotations

from typing import Any

from regard.data.batch import Batch
from regard.data.row_formats import ROW_FORMATS
from regard.evaluation.classification import accuracy, macro_f1
from regard.models.classifier import predict
from regard.tasks.task import TASKS, Evaluation, Predictions
from regard.tasks.text_task import TextTask


@TASKS.add("classify")
class Classify(TextTask):
    """One label for a text."""

    model_kind, model_block, row_format = "classifier", "classifier", ROW_FORMATS["classify"]
    metric, metric_name = "accuracy", "accuracy"
    loss_unit, target_entries = "rows", "labels"
    label_parameters = ("head.",)

    def pretrained_defaults(self) -> dict[str, Any]:
        return {"pooling": "mean"}

    def count_targets(self, batch: Batch) -> int:
        return len(batch)

    def predict(self, model: Any, texts: list[str], evaluation: Evaluation) -> list[Any]:
        return predict(model, texts, progress=evaluation.progress and evaluation.world.is_main)[0]

    def metrics(self, predictions: Predictions, evaluation: Evaluation) -> dict[str, Any]:
        _, labels = evaluation.data.texts(evaluation.split)
        outputs = predictions.outputs
        return {"accuracy": accuracy(labels, outputs), "macro_f1": macro_f1(labels, outputs)}
