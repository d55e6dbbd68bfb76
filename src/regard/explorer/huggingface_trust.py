"""The explained output of a Hugging Face model: which tokens were read, which output attention explains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.errors import OptionError
from regard.evaluation.explanation.explained_models import ExplainedInput, ExplainedTransformers
from regard.evaluation.explanation.probe import Probe
from regard.explorer.run import Run

if TYPE_CHECKING:
    from regard.explorer.huggingface_model import HuggingFaceModel


class LabelledTransformers(ExplainedTransformers):
    """The model with token names as the page shows them."""

    def __init__(self, explored: HuggingFaceModel) -> None:
        super().__init__(explored.model, explored.tokenizer)
        self.names = explored.tokens

    def class_name(self, index: int) -> str:
        is_label = "Classification" in type(self.model).__name__
        return super().class_name(index) if is_label else self.names.label(index)


def make_probe(
    explored: HuggingFaceModel, run: Run, row: int | None, attention: str | None
) -> tuple[Probe, int]:
    """The probe of the explained output, and the index of that output; see `trust`."""
    given, chosen = _explained_input(explored, run, row)
    path = None if attention is None else explored.modules[attention]
    probe = Probe(LabelledTransformers(explored), run.text, attention=path, given=given)
    if "target" in run.private:
        # Beam search or a forced prefix may have chosen a token that is not the most likely one.
        probe.predicted = _generated(run)[chosen]
    return probe, chosen


def _generated(run: Run) -> list[int]:
    """The tokens of the side `target`: of a language model without the first, which nothing predicts."""
    return run.private["target"] if run.task == "translate" else run.private["target"][1:]


def _explained_input(explored: HuggingFaceModel, run: Run, row: int | None) -> tuple[ExplainedInput, int]:
    """The input of the step or word that is explained."""
    if run.task == "translate":
        chosen = _check(row, 0, len(_generated(run)))
        prefix = [explored.first, *_generated(run)[:chosen]]
        return _features(explored, run.private["source"], row=-1, prefix=prefix), chosen
    if run.task == "generate":
        chosen = _check(row, run.private["prompt"], len(_generated(run)))
        return _features(explored, run.private["target"][: chosen + 1], row=-1), chosen
    ids = run.private["ids"]
    if run.task == "tag":
        tags = run.output["tags"]
        first = next((i for i, tag in enumerate(tags) if tag != "O"), 0)
        chosen = _check(row, first, len(tags))
        words = [word for word in run.sides["source"].words if not word["special"]]
        return _features(explored, ids, row=words[chosen]["tokens"][0]), chosen
    masked = ids.index(explored.tokenizer.mask_token_id) if explored.task == "fill" else None
    return _features(explored, ids, row=masked), 0


def _check(row: int | None, default: int, count: int) -> int:
    chosen = default if row is None else row
    if not 0 <= chosen < count:
        raise OptionError(f"there is no output {chosen}; there are {count}, counted from 0")
    return chosen


def _features(explored: HuggingFaceModel, ids: list[int], **more: Any) -> ExplainedInput:
    """The input with the tokens of the text, without special ones, as features."""
    left_out = explored.tokens.special - {explored.tokenizer.unk_token_id}
    features = [at for at, token in enumerate(ids) if token not in left_out]
    if not features:
        raise OptionError("no token of the text comes before this one; choose a later one")
    tokens = [explored.tokens.label(ids[at]) for at in features]
    return ExplainedInput(ids, tokens, features, features, **more)
