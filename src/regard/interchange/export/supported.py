"""Check a model's config against the options that a format supports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import OptionError
from regard.interchange.export.compare import Model

# Options that every format except ONNX requires of a Transformer.
COMMON: dict[str, tuple[Any, ...]] = {
    "kind": ("transformer",),
    "sliced": (False,),
    "energy": ("scaled-dot",),
    "normalize": ("softmax",),
    "mask": (None,),
}


def check_options(
    model: Model,
    title: str,
    *,
    encoder: Mapping[str, tuple[Any, ...]],
    decoder: Mapping[str, tuple[Any, ...]],
) -> None:
    """Raise OptionError for the first key of the config whose value is not among the supported ones."""
    config: dict[str, Any] = model.config  # type: ignore[assignment]
    for side, table in (("encoder", encoder), ("decoder", decoder)):
        spec = config[side]
        if spec is None:  # a language model has no encoder
            continue
        for key, supported in (COMMON | dict(table)).items():
            if spec.get(key) not in supported:
                raise OptionError(
                    f"{title} cannot express this model: its {side} has {key} {_yaml(spec.get(key))}, and "
                    f"{title} supports {' or '.join(map(_yaml, supported))}; export --to onnx, or train with "
                    f"model.{side}.{key}={_yaml(supported[0])}"
                )


def check_same(model: Model, title: str, *keys: str) -> None:
    """Raise OptionError if encoder and decoder differ in a key that the format has only once."""
    config: dict[str, Any] = model.config  # type: ignore[assignment]
    for key in keys:
        a, b = config["encoder"][key], config["decoder"][key]
        if a != b:
            raise OptionError(
                f"{title} cannot express this model: its encoder has {key} {a} and its decoder {b}, and "
                f"{title} has one {key} for both; train with the same value for both"
            )


def _yaml(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("kind", value))
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
