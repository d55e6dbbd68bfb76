"""What a format can express, as a table, and the sentence for a model that has something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import OptionError
from regard.interchange.export.check import Model

# What every format outside regard takes for granted about a Transformer.
COMMON: dict[str, tuple[Any, ...]] = {
    "kind": ("transformer",),
    "sliced": (False,),
    "energy": ("scaled-dot",),
    "normalize": ("softmax",),
    "mask": (None,),
}


def refuse(
    model: Model, name: str, *, encoder: Mapping[str, tuple[Any, ...]], decoder: Mapping[str, tuple[Any, ...]]
) -> None:
    """An error that names the first thing the format does not know. The tables say which values of a key it knows."""
    config: dict[str, Any] = model.config  # type: ignore[assignment]
    for side, table in (("encoder", encoder), ("decoder", decoder)):
        spec = config[side]
        if spec is None:  # a language model has no encoder
            continue
        for key, known in (COMMON | dict(table)).items():
            if spec.get(key) not in known:
                raise OptionError(
                    f"{name} cannot express this model: its {side} has {key} {_say(spec.get(key))} and {name} knows "
                    f"{' or '.join(map(_say, known))} there; export --to onnx, or train with model.{side}.{key}={_say(known[0])}"
                )


def same(model: Model, name: str, *keys: str) -> None:
    """An error when encoder and decoder differ in what the format has one setting for."""
    config: dict[str, Any] = model.config  # type: ignore[assignment]
    for key in keys:
        a, b = config["encoder"][key], config["decoder"][key]
        if a != b:
            raise OptionError(
                f"{name} cannot express this model: its encoder has {key} {a} and its decoder {b}, and {name} has one {key} for "
                f"both; train with equal ones"
            )


def _say(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("kind", value))
    return (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or isinstance(value, bool)
        else str(value)
    )
