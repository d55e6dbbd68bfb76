"""From the `model:` block of a recipe to the model.

Importing this module registers every encoder, decoder, pooling and model; see options.py for what each must
offer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import OptionError
from regard.models import autoregressive, classifier, decoder, embedder, encoder, frames, pooling, tagger
from regard.models.options import MODELS, ModelOptions

__all__ = ["MODELS", "REGISTERED", "ModelOptions", "build"]
REGISTERED = (encoder, decoder, pooling, frames, autoregressive, classifier, tagger, embedder)


def build(config: Mapping[str, Any] | ModelOptions, source_vocab: int | None, target_vocab: int) -> Any:
    """Return an untrained model; keys that are left out have their defaults.

    Without a `kind` it is a translator if it has an encoder, else a language model. Weights are drawn from
    torch's default generator.
    """
    options = config if isinstance(config, ModelOptions) else ModelOptions.model_validate(dict(config))
    try:
        return options.build(source_vocab, target_vocab)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise OptionError(
            "a model of these sizes does not fit into memory; lower model.dim, its layers or the vocabulary"
        ) from None
