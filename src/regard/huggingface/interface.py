"""The attention function that Transformers calls in every layer, translated to one call of `attend`.

Every argument that affects the result is used or refused by name; none is ignored silently. The result is
that of the model's eager attention: scores · scaling (+ position bias), soft cap, mask, softmax (with sinks),
dropout, × values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils import output_capturing

from regard.attention import watching
from regard.attention.attend import attend, weights
from regard.attention.bias import Bias, DenseBias
from regard.attention.call import SCALED_DOT, SOFTMAX
from regard.attention.energy import Dot, Energy
from regard.attention.intervening import active_interventions
from regard.attention.mask import And, Dense, Mask
from regard.attention.normalize import Normalizer, Softmax
from regard.attention.position_masks import Causal, Documents
from regard.attention.tracing import statically_true, tracer
from regard.attention.watching import Recorded, watch
from regard.errors import OptionError, RegardError
from regard.huggingface.changes import Change, Changes, Sum, uses_distances, uses_key_indices
from regard.huggingface.masks import ModelMask
from regard.huggingface.model_checks import on_first_use, path_of

# Keywords that models pass to every attention function and that do not affect the result: bookkeeping, hints
# to flash attention (deterministic, max_length_*), what the mask contains already (sliding_window), and what
# queries and keys contain already (position_ids).
NO_EFFECT = {
    "cache_position", "deterministic", "max_length_k", "max_length_q", "num_items_in_batch",
    "output_hidden_states", "output_router_logits", "past_key_values", "position_ids", "return_dict",
    "seq_idx", "sliding_window", "use_cache",
}  # fmt: skip

NO_CONTEXT = nullcontext()
CROSS_NAMES = ("cross", "encoder_attn", "encdec")  # in the names of cross-attention modules


class ModelKeywords(NamedTuple):
    """Keywords that only some models pass to their attention function, and that affect the result."""

    is_causal: bool | None = None
    softcap: float | None = None
    s_aux: Tensor | None = None  # attention sinks
    position_bias: Tensor | None = None
    head_mask: Tensor | None = None
    cu_seq_lens_q: Tensor | None = None  # packed sequences, as in flash attention
    cu_seq_lens_k: Tensor | None = None
    indices: Tensor | None = None  # keys that an indexer selected (DeepSeek-V3.2)
    output_attentions: bool = False


NO_KEYWORDS = ModelKeywords()


def make_attention(name: str, changes: Changes) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function to register under `name`."""

    def regard_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        scaling: float | None = None,
        dropout: float = 0.0,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """query (B, H, Tq, D), key and value (B, H or fewer, Tk, ·) → (B, Tq, H, Dv), and weights or None."""
        if "_regard_path" not in module.__dict__ and not torch.compiler.is_compiling():
            on_first_use(module, changes)
        keywords = _read_keywords(module, name, others)
        change = changes.of(module, path_of(module)) if changes.layers else changes.common
        translated = _read_mask(module, query, key, attention_mask, keywords)
        mask, bias = _with_keywords(module, query, key, translated, keywords)
        if change.mask is not None or change.bias is not None:
            mask, bias = _with_change(module, name, change, mask, bias, attention_mask, translated.aligned)
        if translated.keys is not None:
            key, value = key[..., : translated.keys, :], value[..., : translated.keys, :]
        if isinstance(scaling, Tensor) and change.energy is None:
            query, scaling = query * scaling, 1.0
        gate = keywords.head_mask
        options: dict[str, Any] = {
            "energy": _energy(scaling, query.shape[-1]) if change.energy is None else change.energy,
            "mask": mask,
            "bias": bias,
            "normalize": _normalizer(module, change.normalize, keywords.s_aux),
            "gate": gate if gate is None or gate.ndim > 1 else gate[:, None, None],
            "softcap": keywords.softcap,
        }
        needs_weights = keywords.output_attentions or (
            not torch.compiler.is_compiling() and _collects_attentions()
        )
        edited: list[Tensor] = []  # the weights that an intervention set, if attentions are requested
        context = NO_CONTEXT
        if watching.is_watching() and active_interventions():
            start = _start(module, query, key, attention_mask)
            context = _intervened(start, edited if needs_weights else None)
        with context:
            out = _attend(module, query, key, value, dropout=_dropout(module, dropout), **options)
        attentions = None
        if needs_weights:
            attentions = _padded(edited[0] if edited else weights(query, key, **options), attention_mask)
        return out.transpose(1, 2).contiguous(), attentions  # (B, H, Tq, Dv) → (B, Tq, H, Dv)

    return regard_attention


def _read_keywords(module: nn.Module, name: str, others: dict[str, Any]) -> ModelKeywords:
    """Return the keywords that we support; refuse others that may affect the result."""
    supported = {}
    for keyword, value in others.items():
        if keyword in ModelKeywords._fields:
            supported[keyword] = value
        elif keyword not in NO_EFFECT and value is not None and value is not False:
            if keyword == "cache":
                raise OptionError(
                    f"{_describe(module)} runs with a {type(value).__name__} (continuous batching), which "
                    f"{name!r} does not support; use generate with a dynamic or static cache"
                )
            raise OptionError(
                f"{_describe(module)} passes {keyword}= to its attention, which {name!r} does not support; "
                'use attn_implementation="eager" for this model'
            )
    return ModelKeywords(**supported) if supported else NO_KEYWORDS


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """`attend`, with the module named in its errors and for `watch`."""
    if torch.compiler.is_compiling():
        return attend(query, key, value, **options)
    token = watching.calling_module.set(module) if watching.is_watching() else None
    try:
        return attend(query, key, value, **options)
    except RegardError as error:
        raise type(error)(f"{_describe(module)}: {error}") from error
    finally:
        if token is not None:
            watching.calling_module.reset(token)


def _describe(module: nn.Module) -> str:
    """The class of a module and its path in the model, if known, for error messages."""
    layer = getattr(module, "layer_idx", None)
    where = path_of(module) or ("" if layer is None else f"layer {layer}")
    return f"{type(module).__name__} ({where})" if where else type(module).__name__


class _MaskAndBias(NamedTuple):
    """A model's attention_mask in our terms."""

    mask: Mask | None = None
    bias: Bias | None = None  # of a float mask
    keys: int | None = None  # the number of keys to use, if it is not all
    aligned: bool = False  # whether the positions of the queries among the keys are known


def _read_mask(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: Any, keywords: ModelKeywords
) -> _MaskAndBias:
    """Translate the attention_mask that a module passes."""
    Tq, Tk = query.shape[-2], key.shape[-2]
    if attention_mask is None:
        is_causal = keywords.is_causal
        if is_causal is None:
            is_causal = getattr(module, "is_causal", False)
        # As in Transformers' SDPA: without a mask, a causal module aligns the first query with the first key.
        aligned = statically_true(Tq == Tk) and (bool(is_causal) or not _is_cross(module))
        return _MaskAndBias(Causal(offset=0) if is_causal and Tq > 1 else None, aligned=aligned)
    if isinstance(attention_mask, ModelMask):
        return _read_model_mask(module, query, key, attention_mask)
    return _read_tensor_mask(module, attention_mask, keywords.softcap, aligned=statically_true(Tq == Tk))


def _read_model_mask(module: nn.Module, query: Tensor, key: Tensor, mask: ModelMask) -> _MaskAndBias:
    """The mask that `make_mask` built for this forward pass."""
    Tq, Tk = query.shape[-2], key.shape[-2]
    same_size = statically_true(mask.size[2] == Tq) and statically_true(mask.size[3] == Tk)
    if not same_size and not torch.compiler.is_compiling():
        raise OptionError(
            f"{_describe(module)} got a mask for {mask.size[2]} queries and {mask.size[3]} keys, "
            f"and has {Tq} and {Tk}; its cache does not report its length to the mask, "
            "so use another cache_implementation"
        )
    if mask.made_on != query.device:
        mask = mask.to(query.device)
    aligned = mask.aligned and not (mask.bidirectional and _is_cross(module))
    keys = None if statically_true(mask.keys == Tk) else mask.keys
    return _MaskAndBias(mask.mask, keys=keys, aligned=aligned)


def _read_tensor_mask(module: nn.Module, mask: Any, softcap: float | None, *, aligned: bool) -> _MaskAndBias:
    """The 4-D mask of a caller: boolean, True where attention is allowed, or float, added to the scores."""
    if not isinstance(mask, Tensor):
        raise OptionError(
            f"{_describe(module)} got a {type(mask).__name__} as its mask; "
            "pass a 2-D or 4-D tensor as attention_mask"
        )
    if mask.ndim != 4 or (mask.dtype != torch.bool and not mask.is_floating_point()):
        raise OptionError(
            f"{_describe(module)} got a mask of shape {tuple(mask.shape)} and {mask.dtype}; "
            "attention_mask is (batch, Tk) of 0 and 1, or (batch, 1 or heads, Tq, Tk), boolean with True "
            "for allowed or float to be added"
        )
    if mask.dtype == torch.bool:
        return _MaskAndBias(Dense(mask), aligned=aligned)
    if softcap is None:
        return _MaskAndBias(bias=DenseBias(mask), aligned=aligned)
    # The model adds its mask after the soft cap, regard adds a bias before it: only 0 and −∞ have the same
    # effect in both places.
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    if tracer(mask) is not None or bool(((mask != 0) & ~hidden).any()):
        raise OptionError(
            f"{_describe(module)} has a soft cap and got a float mask with values other than 0 and −∞; "
            "pass a boolean mask, True for allowed"
        )
    return _MaskAndBias(Dense(~hidden), aligned=aligned)


def _is_cross(module: nn.Module) -> bool:
    """Whether the flags or names of a bidirectional module say that it is cross-attention.

    The lengths cannot say it: source and target may be equally long.
    """
    return getattr(module, "is_decoder", False) or _is_named_cross(module)


def _is_named_cross(module: nn.Module) -> bool:
    """Whether the flag, class or path of a module says that it is cross-attention."""
    name = f"{type(module).__name__}.{path_of(module)}".lower()
    return getattr(module, "is_cross_attention", False) or any(fragment in name for fragment in CROSS_NAMES)


def _with_keywords(
    module: nn.Module, query: Tensor, key: Tensor, translated: _MaskAndBias, keywords: ModelKeywords
) -> tuple[Mask | None, Bias | None]:
    """The model's mask and bias combined with those of its keywords."""
    mask, bias, Tk = translated.mask, translated.bias, key.shape[-2]
    if keywords.indices is not None:
        mask = _and(mask, Dense(_selected_keys(keywords.indices, Tk)[..., : translated.keys]))
    if keywords.cu_seq_lens_q is not None:
        keys = Tk if translated.keys is None else translated.keys
        mask = _and(mask, _packed(query.shape[-2], keys, keywords.cu_seq_lens_q, keywords.cu_seq_lens_k))
    if keywords.position_bias is not None:
        bias = _sum(
            _position_bias(module, keywords.position_bias[..., : translated.keys], keywords.softcap), bias
        )
    return mask, bias


def _position_bias(module: nn.Module, position_bias: Tensor, softcap: float | None) -> DenseBias:
    if softcap is not None:
        raise OptionError(
            f"{_describe(module)} has a position bias and a soft cap, and regard adds a bias before the soft "
            "cap"
        )
    return DenseBias(position_bias)


def _selected_keys(indices: Tensor, Tk: int) -> Tensor:
    """True for keys that an indexer selected for a query (DeepSeek-V3.2), (B, Tq, n) → (B, 1, Tq, Tk)."""
    allowed = torch.zeros(*indices.shape[:-1], Tk, dtype=torch.bool, device=indices.device)
    return allowed.scatter(-1, indices.long(), True)[:, None]


def _packed(Tq: int, Tk: int, cu_q: Tensor, cu_k: Tensor | None) -> Documents:
    """Packed sequences from flash attention's cu_seqlens: a token sees only its own sequence."""

    def document_ids(cu: Tensor, length: int) -> Tensor:
        return torch.searchsorted(cu.long(), torch.arange(length, device=cu.device), right=True)

    return Documents(document_ids(cu_q, Tq), document_ids(cu_q if cu_k is None else cu_k, Tk))


def _with_change(
    module: nn.Module,
    name: str,
    change: Change,
    mask: Mask | None,
    bias: Bias | None,
    attention_mask: Any,
    aligned: bool,
) -> tuple[Mask | None, Bias | None]:
    """The model's mask and bias combined with those of the variant, shifted to the model's positions."""
    offset = attention_mask.offset if isinstance(attention_mask, ModelMask) else None
    first_key = attention_mask.first_key if isinstance(attention_mask, ModelMask) else 0
    shifted: dict[str, Any] = {"mask": None, "bias": None}
    for kind, option in (("mask", change.mask), ("bias", change.bias)):
        if option is None:
            continue
        if not aligned and uses_distances(option):
            raise OptionError(
                f"{_describe(module)}: {kind}={option} of {name!r} needs the positions of queries among the "
                "keys, and this is cross-attention or a 4-D mask with a cache; leave it out here with "
                f"layers={{'…': {{'{kind}': None}}}}, or pass a 2-D attention_mask"
            )
        if uses_key_indices(option) and not (isinstance(first_key, int) and first_key == 0):
            raise OptionError(
                f"{_describe(module)}: {kind}={option} of {name!r} counts keys from the first, "
                "and a sliding cache has dropped some; generate with use_cache=False, or use a Window"
            )
        shifted[kind] = option if offset is None else option.with_offset(offset)
    return _and(mask, shifted["mask"]), _sum(bias, shifted["bias"])


def _and(a: Mask | None, b: Mask | None) -> Mask | None:
    return b if a is None else a if b is None else And(a, b)


def _sum(a: Bias | None, b: Bias | None) -> Bias | None:
    return b if a is None else a if b is None else Sum(a, b)


def _energy(scaling: float | None, width: int) -> Energy:
    """ScaledDot, the fastest, also if head_dim ** -0.5 differs from 1 / sqrt(head_dim) in the last digit."""
    return SCALED_DOT if scaling is None or abs(scaling * math.sqrt(width) - 1.0) < 1e-14 else Dot(scaling)


def _normalizer(module: nn.Module, normalize: Normalizer | None, sinks: Tensor | None) -> Normalizer:
    if sinks is None:
        return SOFTMAX if normalize is None else normalize
    if normalize is None or (type(normalize) is Softmax and normalize.sinks is None):
        return Softmax(1.0 if normalize is None else normalize.temperature, sinks=sinks)
    raise OptionError(
        f"{_describe(module)} has attention sinks, which need a softmax, "
        f"so normalize={normalize} cannot replace it; "
        "use Softmax(temperature=…) or leave normalize out for this layer"
    )


def _dropout(module: nn.Module, rate: Any) -> float:
    """The dropout rate, 0 outside training: some models leave this to the attention function."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise OptionError(
            f"{_describe(module)} passes dropout={rate!r}; regard takes a number in [0, 1), "
            "so set it in the config"
        )
    return float(rate) if module.training else 0.0


def _collects_attentions() -> bool:
    """Whether the caller requested attentions; some models do not pass the keyword to their layers."""
    collector = getattr(output_capturing, "_active_collector", None)
    return collector is not None and any("attentions" in key for key in collector.get() or ())


def _start(module: nn.Module, query: Tensor, key: Tensor, attention_mask: Any) -> int | Tensor | None:
    """The position of the first query; None in cross-attention: that of the self-attention before."""
    if _is_named_cross(module):
        return None
    if not isinstance(attention_mask, ModelMask):
        return max(0, key.shape[-2] - query.shape[-2])
    first = attention_mask.keys - query.shape[-2] if attention_mask.offset is None else attention_mask.offset
    return attention_mask.first_key + first


@contextmanager
def _intervened(start: int | Tensor | None, edited: list[Tensor] | None) -> Iterator[None]:
    """Tell `intervene` where the queries are; collect the weights that it sets, if they are requested."""

    def collect(name: str, recorded: Recorded) -> None:
        if recorded.edited and edited is not None:
            edited.append(recorded.weights())

    with watching.label_calls(None, start), nullcontext() if edited is None else watch(on_call=collect):
        yield


def _padded(attentions: Tensor, attention_mask: Any) -> Tensor:
    """Weights before dropout, (B, H, Tq, Tk), padded with zeros to all keys of the model."""
    missing = attention_mask.size[3] - attentions.shape[-1] if isinstance(attention_mask, ModelMask) else 0
    return torch.nn.functional.pad(attentions, (0, missing)) if missing else attentions
