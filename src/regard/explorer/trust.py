"""The faithfulness measures for one output of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenizer import BOS
from regard.errors import OptionError
from regard.evaluation.explanation.explained_models import (
    ExplainedInput,
    ExplainedModel,
    ExplainedTagger,
    explained_model,
)
from regard.evaluation.explanation.measures import MEASURES, MeasureOptions
from regard.evaluation.explanation.probe import Probe
from regard.explorer.run import Run
from regard.explorer.trust_readings import Chance, readings, verdict
from regard.models.tagger import Tagger
from regard.pictures.labels import clean
from regard.serving.http_errors import client_left

MAX_TOKENS = 128  # of a text; leave-one-out runs the model once per token
SHOWN_MEASURES = ("correlation", "uniform", "permuted", "erasure")
OPTIONS = MeasureOptions(permutations=50)
NO_DISTRIBUTION = (
    "An embedder returns a vector and chooses nothing, so there is no decision that attention could explain: "
    "these figures compare probabilities of a decision."
)
Cancelled = Callable[[], bool]


class OneWordTagger(ExplainedTagger):
    """A tagger that explains the tag of a given word."""

    word = 0

    def _draw_word(self, ids: Tensor, lengths: Tensor, words: int, draw: torch.Generator) -> int:
        if not 0 <= self.word < words:
            raise OptionError(f"there is no word {self.word}; the text has {words}, counted from 0")
        return self.word


def trust(
    run: Run, make_probe: Callable[[], tuple[Probe, int]], attention: str | None, cancelled: Cancelled
) -> dict[str, Any]:
    """Return the faithfulness measures of one output of a run as JSON, or the reason why there are none.

    Args:
        make_probe: returns the probe of the explained output, and the index of that output.
        attention: name of the attention map to test as an explanation; None: the default of `faithfulness`.
    """
    if run.task == "embed":
        return {"reason": NO_DISTRIBUTION}
    if run.maps is None:
        return {"reason": "This model has no attention that could explain its output."}
    if len(run.maps.source or run.maps.inputs) > MAX_TOKENS:
        return {"reason": f"Measuring runs the model once per token; use at most {MAX_TOKENS} tokens."}
    if attention is not None and attention not in run.maps:
        raise OptionError(f"there is no attention {attention!r} in this run")
    try:
        probe, chosen = make_probe()
    except OptionError as error:
        return {"reason": f"There are no figures: {error}."}
    figures: dict[str, float] = {}
    scores: dict[str, list[float]] = {"attention": probe.attention.tolist()}
    for name in SHOWN_MEASURES:
        if cancelled():
            raise client_left()
        measured = MEASURES[name](probe, OPTIONS)
        figures |= measured.metrics
        scores |= measured.scores
    if cancelled():
        raise client_left()
    prediction = clean(probe.explained.class_name(probe.predicted))
    shown = readings(figures, Chance.of(probe, OPTIONS.shares), prediction)
    return {
        "row": chosen,
        "attention": list(probe.weights),
        "prediction": prediction,
        "probability": float(probe.distribution[probe.predicted]),
        "tokens": probe.tokens,
        "keys": list(probe.given.keys),  # the columns of these tokens in the attention map
        "scores": {name: scores[name] for name in ("attention", "gradient", "leave_one_out")},
        "verdict": verdict(shown, prediction),
        "figures": shown,
    }


def probe_of(model: Any, run: Run, row: int | None, attention: str | None) -> tuple[Probe, int]:
    """The probe of an output, and the index of that output.

    Args:
        row: index of the output token (translation, continuation) or of the tagged word; None: the first.
    """
    if isinstance(model, Tagger):
        tagger = OneWordTagger(model)
        tags = run.output["tags"]
        tagger.word = next((i for i, tag in enumerate(tags) if tag != "O"), 0) if row is None else row
        return Probe(tagger, " ".join(run.output["words"]), attention=attention), tagger.word
    explained = explained_model(model)
    if "target" not in run.private:
        return Probe(explained, run.text, attention=attention), 0
    chosen = run.private.get("prompt", 0) if row is None else row
    target = run.private["target"]
    if not 0 <= chosen < len(target):
        raise OptionError(f"there is no token {chosen}; the output has {len(target)}, counted from 0")
    given = _step_input(run, explained, chosen)
    probe = Probe(explained, run.text, attention=attention, given=given)
    # Beam search or a forced prefix may have chosen a token that is not the most likely one.
    probe.predicted = target[chosen]
    return probe, chosen


def _step_input(run: Run, explained: ExplainedModel, row: int) -> ExplainedInput:
    """The input of the step that generates token `row`."""
    target, source = run.private["target"], run.private["source"]
    tokenizer: Any = explained.model.target_tokenizer if source is None else explained.model.source_tokenizer
    if source is not None:
        features = list(range(len(source) - 1))  # without the end-of-sentence token
        tokens = tokenizer.tokens(source[:-1])
        return ExplainedInput(source, tokens, features, features, row=-1, prefix=[BOS, *target[:row]])
    if row == 0:
        raise OptionError("the first token has no tokens before it; choose a later one")
    features = [at + 1 for at in range(row)]
    ids = [run.private["first"], *target[:row]]
    return ExplainedInput(ids, tokenizer.tokens(target[:row]), features, features, row=-1)
