"""The attention function that Transformers calls in every layer: its arguments, as one call of `attend`.

Whatever changes the numbers is honoured or refused by name; nothing is dropped silently. The meaning is that of the model's own
eager attention: scores · scaling (+ position bias), soft cap, mask, softmax (with sinks), dropout, × values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import output_capturing

from regard.attention.attend import attend, weights
from regard.attention.bias import Bias, DenseBias
from regard.attention.call import SCALED_DOT, SOFTMAX
from regard.attention.energy import Dot, Energy
from regard.attention.mask import And, Dense, Mask
from regard.attention.normalize import Normalizer, Softmax
from regard.attention.position_masks import Causal, Documents
from regard.attention.tracing import statically_true, tracer
from regard.errors import OptionError, RegardError
from regard.huggingface.changes import Change, Changes, Sum, counts_keys, reads_positions
from regard.huggingface.masks import ModelMask
from regard.huggingface.models import first_use, path_of

# Keywords that models hand to every attention function and that change no number: bookkeeping, hints to flash attention
# (deterministic, max_length_*), what the mask holds already (sliding_window), and what went into queries and keys (position_ids).
NO_EFFECT = {
    "cache_position", "deterministic", "max_length_k", "max_length_q", "num_items_in_batch", "output_hidden_states",
    "output_router_logits", "past_key_values", "position_ids", "return_dict", "seq_idx", "sliding_window", "use_cache",
}  # fmt: skip


def make_attention(name: str, changes: Changes) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function to register under `name`."""

    def regard_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        head_mask: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        indices: Tensor | None = None,
        cache: Any = None,
        output_attentions: bool = False,
        **rest: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """query (B, H, Tq, D), key and value (B, H or fewer, Tk, ·) → (B, Tq, H, Dv) and the weights if they were asked for."""
        if "_regard_path" not in module.__dict__ and not torch.compiler.is_compiling():
            first_use(module, changes)
        for keyword, given in rest.items():
            if keyword not in NO_EFFECT and given is not None and given is not False:
                raise OptionError(
                    f"{_called(module)} passes {keyword}= to its attention, and {name!r} does not know what it means; "
                    'use attn_implementation="eager" for this model'
                )
        if cache is not None:
            raise OptionError(
                f"{_called(module)} runs with a {type(cache).__name__} (continuous batching), which {name!r} cannot read; "
                "use generate with a dynamic or static cache"
            )
        change = changes.of(module, path_of(module)) if changes.layers else changes.common
        mask, bias, keys, aligned = _mask(module, query, key, attention_mask, is_causal, softcap)
        if indices is not None:
            chosen = _chosen(indices, key.shape[-2])
            mask = _both(mask, Dense(chosen if keys is None else chosen[..., :keys]))
        if keys is not None and not statically_true(key.shape[-2] == keys):
            key, value = key[..., :keys, :], value[..., :keys, :]
            position_bias = position_bias if position_bias is None else position_bias[..., :keys]
        if cu_seq_lens_q is not None:
            mask = _both(mask, _packed(query, key, cu_seq_lens_q, cu_seq_lens_k))
        if position_bias is not None:
            if softcap is not None:
                raise OptionError(
                    f"{_called(module)} has a position bias and a soft cap, and regard adds a bias before it caps"
                )
            bias = _sum(DenseBias(position_bias), bias)
        if change.mask is not None or change.bias is not None:
            mask, bias = _with_change(module, name, change, mask, bias, attention_mask, aligned)
        if isinstance(scaling, Tensor) and change.energy is None:
            query, scaling = query * scaling, 1.0
        options: dict[str, Any] = {
            "energy": _energy(scaling, query.shape[-1]) if change.energy is None else change.energy,
            "mask": mask,
            "bias": bias,
            "normalize": _normalizer(module, change.normalize, s_aux),
            "gate": head_mask if head_mask is None or head_mask.ndim > 1 else head_mask[:, None, None],
            "softcap": softcap,
        }
        rate = _dropout(module, dropout)
        if torch.compiler.is_compiling():
            out = attend(query, key, value, dropout=rate, **options)
        else:
            try:
                out = attend(query, key, value, dropout=rate, **options)
            except RegardError as error:
                raise type(error)(f"{_called(module)}: {error}") from error
        wanted = output_attentions or (not torch.compiler.is_compiling() and _collects_attentions())
        found = _weights(query, key, options, attention_mask) if wanted else None
        return out.transpose(1, 2).contiguous(), found

    return regard_attention


def _called(module: nn.Module) -> str:
    """How errors name a module: its path in the model where that is known."""
    layer = getattr(module, "layer_idx", None)
    where = path_of(module) or ("" if layer is None else f"layer {layer}")
    return f"{type(module).__name__} ({where})" if where else type(module).__name__


def _mask(
    module: nn.Module, query: Tensor, key: Tensor, given: Any, is_causal: bool | None, softcap: float | None
) -> tuple[Mask | None, Bias | None, int | None, bool]:
    """The mask, what a float mask adds, how many keys to keep (None: all), and whether positions of queries are known."""
    Tq, Tk = query.shape[-2], key.shape[-2]
    if given is None:
        is_causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        # As Transformers' SDPA: without a mask, a causal module lines up the first query with the first key.
        aligned = statically_true(Tq == Tk) and (bool(is_causal) or not _is_cross(module))
        return (Causal(offset=0) if is_causal and Tq > 1 else None), None, None, aligned
    if isinstance(given, ModelMask):
        if (
            not (statically_true(given.size[2] == Tq) and statically_true(given.size[3] == Tk))
            and not torch.compiler.is_compiling()
        ):
            raise OptionError(
                f"{_called(module)} got a mask for {given.size[2]} queries and {given.size[3]} keys, and has {Tq} and {Tk}; "
                "its cache does not report its length to the mask, so use another cache_implementation"
            )
        if given.made_on != query.device:
            given = given.to(query.device)
        return given.mask, None, given.keys, given.lines_up and not (given.both_ways and _is_cross(module))
    if not isinstance(given, Tensor):
        raise OptionError(
            f"{_called(module)} got a {type(given).__name__} as its mask; pass a 2-D or 4-D tensor as attention_mask"
        )
    if given.ndim != 4 or (given.dtype != torch.bool and not given.is_floating_point()):
        raise OptionError(
            f"{_called(module)} got a mask of shape {tuple(given.shape)} and {given.dtype}; attention_mask is (batch, Tk) of 0 and "
            "1, or (batch, 1 or heads, Tq, Tk), boolean with True for allowed or float to be added"
        )
    aligned = statically_true(Tq == Tk)
    if given.dtype == torch.bool:
        return Dense(given), None, None, aligned
    if softcap is None:
        return None, DenseBias(given), None, aligned
    # The model adds its mask after the soft cap, regard a bias before: only a mask that hides or does nothing is the same.
    hidden = given <= torch.finfo(given.dtype).min / 2
    if tracer(given) is not None or bool(((given != 0) & ~hidden).any()):
        raise OptionError(
            f"{_called(module)} has a soft cap and got a float mask that does more than hide; pass a boolean mask, True for allowed"
        )
    return Dense(~hidden), None, None, aligned


def _is_cross(module: nn.Module) -> bool:
    """Whether a module that attends both ways is cross-attention, as far as its flags and names tell: queries and keys may
    have one length by chance."""
    if getattr(module, "is_decoder", False) or getattr(module, "is_cross_attention", False):
        return True
    name = f"{type(module).__name__}.{path_of(module)}".lower()
    return any(part in name for part in ("cross", "encoder_attn", "encdec"))


def _chosen(indices: Tensor, Tk: int) -> Tensor:
    """The keys that an indexer chose for each query (DeepSeek-V3.2), (B, Tq, n) → (B, 1, Tq, Tk)."""
    allowed = torch.zeros(*indices.shape[:-1], Tk, dtype=torch.bool, device=indices.device)
    return allowed.scatter(-1, indices.long(), True)[:, None]


def _packed(query: Tensor, key: Tensor, cu_q: Tensor, cu_k: Tensor | None) -> Documents:
    """Packed sequences from flash attention's cu_seqlens: a token sees its own sequence."""
    ids = lambda cu, T: torch.searchsorted(cu.long(), torch.arange(T, device=cu.device), right=True)  # noqa: E731
    return Documents(ids(cu_q, query.shape[-2]), ids(cu_q if cu_k is None else cu_k, key.shape[-2]))


def _with_change(
    module: nn.Module,
    name: str,
    change: Change,
    mask: Mask | None,
    bias: Bias | None,
    given: Any,
    aligned: bool,
) -> tuple[Mask | None, Bias | None]:
    """The model's mask and bias with those of the variant, which count positions as the model does."""
    offset = given.offset if isinstance(given, ModelMask) else None
    first_key = given.first_key if isinstance(given, ModelMask) else 0
    placed: list[Any] = [None, None]
    for i, (kind, option) in enumerate((("mask", change.mask), ("bias", change.bias))):
        if option is None:
            continue
        if not aligned and reads_positions(option):
            raise OptionError(
                f"{_called(module)}: {kind}={option} of {name!r} needs to know where queries stand among the keys, and this is "
                "cross-attention or a 4-D mask with a cache; leave it out here with "
                f"layers={{'…': {{'{kind}': None}}}}, or pass a 2-D attention_mask"
            )
        if counts_keys(option) and not (isinstance(first_key, int) and first_key == 0):
            raise OptionError(
                f"{_called(module)}: {kind}={option} of {name!r} counts keys from the first, and a sliding cache has dropped some; "
                "generate with use_cache=False, or use a Window"
            )
        placed[i] = option if offset is None else option.at(offset)
    return _both(mask, placed[0]), _sum(bias, placed[1])


def _both(a: Mask | None, b: Mask | None) -> Mask | None:
    return b if a is None else a if b is None else And(a, b)


def _sum(a: Bias | None, b: Bias | None) -> Bias | None:
    return b if a is None else a if b is None else Sum(a, b)


def _energy(scaling: float | None, width: int) -> Energy:
    """head_dim ** -0.5 and 1 / sqrt(head_dim) differ in the last digit at times; ScaledDot has the quickest path."""
    return SCALED_DOT if scaling is None or abs(scaling * math.sqrt(width) - 1.0) < 1e-14 else Dot(scaling)


def _normalizer(module: nn.Module, chosen: Normalizer | None, sinks: Tensor | None) -> Normalizer:
    if sinks is None:
        return SOFTMAX if chosen is None else chosen
    if chosen is None or (type(chosen) is Softmax and chosen.sinks is None):
        return Softmax(1.0 if chosen is None else chosen.temperature, sinks=sinks)
    raise OptionError(
        f"{_called(module)} has sinks, which belong to a softmax, so normalize={chosen} cannot take its place; "
        "use Softmax(temperature=…) or leave normalize out for this layer"
    )


def _dropout(module: nn.Module, rate: Any) -> float:
    """Dropout is for training only, as in eager attention, which some models leave to the attention function."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise OptionError(
            f"{_called(module)} passes dropout={rate!r}; regard takes a number in [0, 1), so set it in the config"
        )
    return float(rate) if module.training else 0.0


def _collects_attentions() -> bool:
    """Whether the model was asked for output_attentions; some models do not hand the keyword down to their layers."""
    collector = getattr(output_capturing, "_active_collector", None)
    return collector is not None and any("attentions" in key for key in collector.get() or ())


def _weights(query: Tensor, key: Tensor, options: dict[str, Any], given: Any) -> Tensor:
    """(B, H, Tq, Tk) before dropout, for as many keys as the model has."""
    found = weights(query, key, **options)
    missing = given.size[3] - found.shape[-1] if isinstance(given, ModelMask) else 0
    return torch.nn.functional.pad(found, (0, missing)) if missing else found
