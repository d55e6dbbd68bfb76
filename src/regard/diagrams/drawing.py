"""`draw`: the computation graph of any model, model folder or recipe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from regard.arguments import integer, quoted, string_list
from regard.diagrams import model_drawings
from regard.diagrams.computation_graph import Graph
from regard.errors import OptionError
from regard.models.classifier import Classifier
from regard.models.embedder import Embedder
from regard.models.folder import load
from regard.models.language_model import LanguageModel
from regard.models.tagger import Tagger
from regard.models.translator import Translator
from regard.recipe.loading import Recipe, load_recipe

STEPS = 4  # time steps that are drawn
MAX_STEPS = 12
VOCABULARY = 2000  # size of the vocabularies of a model that is built from a recipe; not drawn

DRAWINGS: dict[type, Callable[[Any, int], Graph]] = {
    Translator: model_drawings.translator,
    LanguageModel: model_drawings.language_model,
    Classifier: model_drawings.classifier,
    Tagger: model_drawings.tagger,
    Embedder: model_drawings.embedder,
}


def draw(model: Any, steps: int = STEPS, overrides: Iterable[str] = ()) -> Graph:
    """Draw the computation graph of a model, unrolled over some time steps.

    >>> decoder = {"kind": "bahdanau"}
    >>> model = regard.build({"dim": 8, "encoder": {"kind": "recurrent"}, "decoder": decoder}, 10, 10)
    >>> regard.draw(model, steps=3).save("bahdanau.svg").name
    'bahdanau.svg'

    A notebook shows the result; `save` writes .svg, .html, .png or .pdf. Time runs to the right, data flows
    upwards. Attention is orange: an edge for each position that a query may attend to.

    Args:
        model: a model, a model folder, the name or file of a recipe, or an estimator of
            `regard.interactions`. A recipe is drawn without training or data.
        steps: time steps, from 2 to 12; for estimators the number of predictors.
        overrides: `key=value` strings for a recipe, such as "model.decoder.kind=bahdanau".
    """
    steps = integer("steps", steps, 2, MAX_STEPS)
    overrides = string_list("overrides", overrides)
    if isinstance(model, str | os.PathLike | Mapping | Recipe):
        model = _load(model, overrides)
    elif overrides:
        raise OptionError("overrides change a recipe, and this is a model; leave them out, or give a recipe")
    for kind, function in DRAWINGS.items():
        if isinstance(model, kind):
            return function(model, steps)
    if type(model).__module__.startswith("regard.interactions."):
        from regard.diagrams.interaction_models import interaction_model

        return interaction_model(model, steps)
    raise OptionError(
        "draw takes a model of regard, a model folder, a recipe or an estimator of regard.interactions, "
        f"got {quoted(model)}"
    )


def _load(model: Any, overrides: list[str]) -> Any:
    """Load a model folder, or build the model of a recipe without memory for its weights."""
    if isinstance(model, str | os.PathLike) and Path(model).is_dir():
        if overrides:
            raise OptionError(f"{model} is a model folder, which {overrides[0]} cannot change; leave it out")
        return load(Path(model))
    block: Any = load_recipe(model, overrides).model
    source = None if getattr(block, "encoder", None) is None else VOCABULARY
    with torch.device("meta"):
        return block.build(source, VOCABULARY)
