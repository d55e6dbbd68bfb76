"""Text embedding, scored by retrieval (mean reciprocal rank) of texts with the same meaning."""

from __future__ import annotations

from typing import Any

from regard.data.batch import Batch
from regard.data.row_formats import ROW_FORMATS
from regard.evaluation.similarity import similarity_scores
from regard.tasks.task import TASKS, Evaluation, Predictions
from regard.tasks.text_task import TextTask


@TASKS.add("embed")
class Embed(TextTask):
    """A vector for a text."""

    model_kind, model_block, row_format = "embedder", "embedder", ROW_FORMATS["embed"]
    metric, metric_name = "mrr", "MRR"
    loss_unit = "pairs"

    def pretrained_tokenizers(self, tokenizer: Any) -> tuple[Any, Any]:
        return tokenizer, tokenizer

    def count_targets(self, batch: Batch) -> int:
        return len(batch)

    def metrics(self, predictions: Predictions, evaluation: Evaluation) -> dict[str, Any]:
        # All embeddings of the split are compared with each other, so process 0 computes them.
        scores = similarity_scores(evaluation.model, evaluation.data.split(evaluation.split)).as_dict()
        return {name: scores[name] for name in ("accuracy", "mrr", "spearman") if name in scores}
