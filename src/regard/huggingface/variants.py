"""`register`: add names for `attn_implementation=`, each with changes to the attention."""

from __future__ import annotations

import importlib.util
import inspect
import re
from importlib.metadata import version

from regard.attention.call import BiasLike, EnergyLike, MaskLike, NormalizerLike
from regard.errors import OptionError
from regard.huggingface.changes import Changes, Layers

NAME = "regard"


def register(
    name: str = NAME,
    *,
    energy: EnergyLike | None = None,
    mask: MaskLike | None = None,
    bias: BiasLike | None = None,
    normalize: NormalizerLike | None = None,
    layers: Layers | None = None,
) -> str:
    """Register `regard.attend`, with these changes, as an `attn_implementation` of Transformers.

        register()                                     # attn_implementation="regard": the model unchanged
        register("regard-window", mask=Window(64))     # a window of 64 keys in addition to the model's mask
        register("regard-sparse", normalize=Sparsemax(), layers={0: {"normalize": None}})   # not in layer 0

    `energy` and `normalize` replace the model's scaled dot product and softmax; `mask` is combined with the
    model's by AND; `bias` is added to the scores. `layers` maps a layer index, or a module name as in
    `model.named_modules()` with * as a wildcard, to options for these layers; None keeps the model's own.
    Registering a name again replaces it, also for models that already use it. Returns the name.
    """
    if not isinstance(name, str) or not re.fullmatch(rf"{NAME}(-[A-Za-z0-9_.-]+)?", name):
        raise OptionError(
            f"the name must be {NAME!r} or begin with '{NAME}-', then letters, digits, '-', '_' and '.', "
            f"so that it cannot clash with a name of Transformers, got {name!r}"
        )
    _check_transformers()
    changes = Changes({"energy": energy, "mask": mask, "bias": bias, "normalize": normalize}, layers)

    from transformers import AttentionInterface, AttentionMaskInterface

    from regard.huggingface import model_checks
    from regard.huggingface.interface import make_attention
    from regard.huggingface.masks import make_mask

    for model in model_checks.models_using(name):
        try:
            changes.check(model)
        except OptionError as error:
            raise OptionError(
                f"{error}; this model is in memory and uses {name!r}: choose another name, or switch it first"
            ) from None
    model_checks.REGISTERED[name] = changes
    model_checks.patch_transformers()
    AttentionInterface.register(name, make_attention(name, changes))
    AttentionMaskInterface.register(name, make_mask)
    return name


def _check_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise OptionError(
            'regard.huggingface needs transformers 5 or later; pip install "regard[transformers]"'
        )
    installed = version("transformers")
    if int(installed.split(".")[0]) >= 5:
        from transformers.masking_utils import sdpa_mask

        if "q_offset" in inspect.signature(sdpa_mask).parameters:
            return
    raise OptionError(
        f"regard.huggingface needs a newer transformers (tested with 5.22), and {installed} is installed; "
        "pip install -U transformers"
    )
