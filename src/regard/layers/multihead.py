"""Multi-head attention: with full projections per head (Transformer), or on slices of the input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Unpack

import torch
from torch import Tensor, nn

from regard.arguments import flag, integer
from regard.attention import watching
from regard.attention.attend import attend
from regard.attention.call import (
    SCALED_DOT,
    SOFTMAX,
    MaskLike,
    Options,
    wrap_bias,
    wrap_energy,
    wrap_mask,
    wrap_normalizer,
)
from regard.attention.energy import ScaledDot
from regard.attention.mask import Mask
from regard.attention.normalize import Softmax
from regard.attention.position import Rotary
from regard.errors import OptionError
from regard.layers.kv_cache import Cache, StaticCache
from regard.layers.linear import Linear, affine, check_input, is_plain
from regard.layers.option_tensors import HasOptions

# Device types where training fuses the projections into one matmul (H200: 4 to 48 % less time; CPU: no gain).
FUSED_ON = ("cuda",)


class AttendOptions(Options, total=False):
    """Options that a layer passes to `attend` at each call, and rotary position embeddings."""

    rotary: Rotary | None


class _MultiHeadBase(HasOptions):
    """Base class of both layers: project, attend per head, concatenate the heads, project again.

    Modules, parameters and tensors in the options are registered (`HasOptions`). A module in the closure of a
    function is not: pass the module itself.
    """

    def __init__(self, dim: int, heads: int, options: AttendOptions) -> None:
        super().__init__()
        self.dim, self.heads = integer("dim", dim), integer("heads", heads)
        self.energy = wrap_energy(options.get("energy", SCALED_DOT))
        self.mask = wrap_mask(options.get("mask"))
        self.bias = wrap_bias(options.get("bias"))
        self.normalize = wrap_normalizer(options.get("normalize", SOFTMAX))
        self.gate, self.softcap = options.get("gate"), options.get("softcap")
        self.dropout, self.rotary = options.get("dropout", 0.0), options.get("rotary")

    def queries(self, x: Tensor) -> Tensor:
        """(..., T, dim) → (..., heads, T, head_dim)."""
        raise NotImplementedError

    def keys_values(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """(..., T, dim) and (..., T, dim) → keys and values, (..., heads, T, ·)."""
        raise NotImplementedError

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project three sequences to queries, keys and values per head."""
        return self.queries(query), *self.keys_values(key, value)

    def merge(self, out: Tensor) -> Tensor:
        """(..., heads, T, ·) → (..., T, out_dim)."""
        raise NotImplementedError

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: MaskLike | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Self-attention of `query`, or cross-attention to `key` (and `value`, if that differs).

        It is self-attention if `key` and `value` are left out or are the same tensor as the query:
        `layer(x)`, `layer(x, x)` and `layer(x, x, x)` are equal. A different tensor with equal numbers is
        cross-attention, which has no rotary embedding. `mask` is combined with the layer's own by &. With a
        cache, self-attention appends the new tokens and attends to all tokens; cross-attention projects `key`
        at the first call and reuses the result.
        """
        if key is query and (value is None or value is query):
            key = value = None
        is_cross, is_watched = key is not None, watching.is_watching()
        start = cache.next_position if is_watched and cache is not None else 0  # before the cache grows
        if key is not None:
            q, k, v = self._project_cross(query, key, value, cache)
        else:
            q, k, v = self._project_self(query, value, cache)
        mask, bias, gate = self._combined_mask(mask), self.bias, self.gate
        if cache is not None and not is_cross:
            mask, bias, gate = cache.mask(mask), cache.with_offset(bias), cache.with_offset(gate)
        label = ("cross", None) if is_cross else ("self", start)
        with watching.label_calls(*label) if is_watched else nullcontext():
            out = attend(
                q, k, v, energy=self.energy, mask=mask, bias=bias, normalize=self.normalize, gate=gate,
                softcap=self.softcap, dropout=self.dropout if self.training else 0.0,
            )  # fmt: skip
        return self.merge(out)

    def _project_self(self, x: Tensor, value: Tensor | None, cache: Cache | None) -> tuple[Tensor, ...]:
        """Project x, apply the rotary embedding, and append keys and values to the cache."""
        q, k, v = self.project(x, x, x if value is None else value)
        if self.rotary is not None:
            position = 0 if cache is None else cache.next_position
            q, k = self.rotary(q, position), self.rotary(k, position)
        return (q, k, v) if cache is None else (q, *cache.append(k, v))

    def _project_cross(
        self, query: Tensor, key: Tensor, value: Tensor | None, cache: Cache | None
    ) -> tuple[Tensor, ...]:
        """Project all three sequences; with a cache, keys and values are projected once."""
        if isinstance(cache, StaticCache):
            raise OptionError(
                "a StaticCache is for self-attention; give cross-attention a Cache(), "
                "which keeps the memory's keys"
            )
        if cache is not None and cache.key is not None and cache.value is not None:
            return self.queries(query), cache.key, cache.value
        q, k, v = self.project(query, key, key if value is None else value)
        return (q, k, v) if cache is None else (q, *cache.append(k, v))

    def _combined_mask(self, mask: MaskLike | None) -> Mask | None:
        """The layer's mask & the call's mask."""
        layer_mask, call_mask = wrap_mask(self.mask), wrap_mask(mask)
        if layer_mask is None or call_mask is None:
            return call_mask if layer_mask is None else layer_mask
        return layer_mask & call_mask


class MultiHead(_MultiHeadBase):
    """Multi-head attention, concat_h(attend(Q W^Qh, K W^Kh, V W^Vh)) W^O (Vaswani et al. 2017, 3.2.2).

    >>> layer = regard.MultiHead(64, heads=8, mask=regard.Causal())
    >>> layer(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])

    `key_heads` < `heads` is grouped-query attention: each key head serves a group of query heads.
    `memory_dim` is the width of `key` in cross-attention, `value_dim` that of `value` if it differs.
    `project=False` omits W^O. Attention options (energy, mask, bias, normalize, gate, softcap, dropout,
    rotary) are those of `attend`. Modules and parameters in them are trained and saved with the layer; other
    tensors move with it.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_heads: int | None = None,
        memory_dim: int | None = None,
        value_dim: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        out_dim: int | None = None,
        project: bool = True,
        linear_bias: bool = True,
        **options: Unpack[AttendOptions],
    ) -> None:
        super().__init__(dim, heads, options)
        _check_sizes(
            key_heads=key_heads, memory_dim=memory_dim, value_dim=value_dim, head_dim=head_dim,
            value_head_dim=value_head_dim, out_dim=out_dim,
        )  # fmt: skip
        project, linear_bias = flag("project", project), flag("linear_bias", linear_bias)
        if head_dim is None and dim % heads:
            raise OptionError(
                f"dim {dim} does not divide into {heads} heads; choose heads that divide it, or give head_dim"
            )
        self.key_heads = heads if key_heads is None else key_heads
        if self.key_heads < 1 or heads % self.key_heads:
            raise OptionError(f"key_heads must divide the {heads} heads, got {self.key_heads}")
        self.memory_dim = dim if memory_dim is None else memory_dim
        self.value_dim = self.memory_dim if value_dim is None else value_dim
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.value_head_dim = self.head_dim if value_head_dim is None else value_head_dim
        self.Wq = Linear(dim, heads * self.head_dim, bias=linear_bias)
        self.Wk = Linear(self.memory_dim, self.key_heads * self.head_dim, bias=linear_bias)
        self.Wv = Linear(self.value_dim, self.key_heads * self.value_head_dim, bias=linear_bias)
        concat_dim = heads * self.value_head_dim
        self.Wo = (
            Linear(concat_dim, dim if out_dim is None else out_dim, bias=linear_bias) if project else None
        )
        for linear in (self.Wq, self.Wk, self.Wv):
            nn.init.xavier_uniform_(linear.weight)

    def queries(self, x: Tensor) -> Tensor:
        check_input("query", x, self.dim)
        return _split_heads(self.Wq(x), self.heads)

    def keys_values(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        check_input("key", key, self.memory_dim)
        check_input("value", value, self.value_dim)
        k, v = _fused_linear(key, self.Wk, self.Wv) if key is value else (self.Wk(key), self.Wv(value))
        return _split_heads(k, self.key_heads), _split_heads(v, self.key_heads)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not (query is key is value and self.dim == self.memory_dim == self.value_dim):
            return super().project(query, key, value)
        check_input("query", query, self.dim)
        q, k, v = _fused_linear(query, self.Wq, self.Wk, self.Wv)
        return _split_heads(q, self.heads), _split_heads(k, self.key_heads), _split_heads(v, self.key_heads)

    def merge(self, out: Tensor) -> Tensor:
        flat = out.transpose(-2, -3).flatten(-2)  # (..., T, heads · value_head_dim)
        return flat if self.Wo is None else self.Wo(flat)

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention) -> MultiHead:
        """Convert a torch layer: equal outputs, copied weights.

            ours = MultiHead.from_torch(theirs)
            ours(x, memory, mask=~attn_mask)  # theirs(x, memory, memory, attn_mask=attn_mask)[0]

        Inputs are (batch, time, dim), also if the torch layer had batch_first=False. Our masks are True where
        attention is allowed, so boolean masks are inverted: `attn_mask` is `mask=~attn_mask`,
        `key_padding_mask` is `mask=~key_padding_mask[:, None, None, :]`. A layer with `add_bias_kv` or
        `add_zero_attn` is refused.
        """
        if not isinstance(layer, nn.MultiheadAttention):
            raise OptionError(f"from_torch takes an nn.MultiheadAttention, got {type(layer).__name__}")
        unsupported = {"add_bias_kv": layer.bias_k is not None, "add_zero_attn": layer.add_zero_attn}
        for name, is_set in unsupported.items():
            if is_set:
                raise OptionError(
                    f"a layer with {name}=True adds a key that belongs to no input, which MultiHead does not "
                    "support; train a layer without it"
                )
        dim, packed = layer.embed_dim, layer.in_proj_weight
        weights = (
            (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
            if packed is None
            else packed.split(dim)
        )
        biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.split(dim)
        ours = cls(
            dim, layer.num_heads, memory_dim=layer.kdim, value_dim=layer.vdim,
            linear_bias=biases[0] is not None, dropout=layer.dropout,
        )  # fmt: skip
        ours.to(device=weights[0].device, dtype=weights[0].dtype)
        assert ours.Wo is not None
        theirs = (*zip(weights, biases, strict=True), (layer.out_proj.weight, layer.out_proj.bias))
        _copy_weights((ours.Wq, ours.Wk, ours.Wv, ours.Wo), theirs)
        return ours.train(layer.training)

    def to_torch(self, *, batch_first: bool = True) -> nn.MultiheadAttention:
        """Convert to an `nn.MultiheadAttention`: equal outputs, copied weights.

        Raises OptionError for what that class does not support: grouped key heads, another energy or
        normaliser, a mask, bias, gate or soft cap of the layer (torch takes `attn_mask` at each call), rotary
        embeddings, another head width.
        """
        for feature, fix in self._not_in_torch():
            raise OptionError(f"nn.MultiheadAttention has no {feature}; {fix}")
        assert self.Wo is not None
        has_bias, like = self.Wq.bias is not None, self.Wq.weight
        theirs = nn.MultiheadAttention(
            self.dim, self.heads, dropout=self.dropout, bias=has_bias, kdim=self.memory_dim,
            vdim=self.value_dim, batch_first=batch_first, device=like.device, dtype=like.dtype,
        )  # fmt: skip
        linears = (self.Wq, self.Wk, self.Wv)
        weights = [linear.weight for linear in linears]
        if theirs.in_proj_weight is None:
            separate = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
            for target, weight in zip(separate, weights, strict=True):
                _copy_concat(target, [weight])
        else:
            _copy_concat(theirs.in_proj_weight, weights)
        if has_bias:
            _copy_concat(theirs.in_proj_bias, [linear.bias for linear in linears])
        _copy_weights((theirs.out_proj,), ((self.Wo.weight, self.Wo.bias),))
        return theirs.train(self.training)

    def _not_in_torch(self) -> Iterator[tuple[str, str]]:
        """Yield each feature of this layer that nn.MultiheadAttention lacks, and the fix."""
        if not all(is_plain(x) for x in (self.Wq, self.Wk, self.Wv, self.Wo) if x is not None):
            yield (
                "support for hooks, adapters or parametrisations of its projections",
                "merge or remove them first",
            )
        if self.key_heads != self.heads:
            yield (
                f"grouped key heads ({self.key_heads} for {self.heads} heads)",
                "make the layer without key_heads",
            )
        if not (self.heads * self.head_dim == self.heads * self.value_head_dim == self.dim):
            yield (
                f"heads of width {self.head_dim} and {self.value_head_dim} in {self.dim}",
                "leave head_dim and value_head_dim out",
            )
        if self.Wo is None or self.Wo.out_features != self.dim:
            yield "output width other than its input's", "leave project and out_dim out"
        softmax = self.normalize
        is_plain_softmax = type(softmax) is Softmax and softmax.temperature == 1.0 and softmax.sinks is None
        if type(self.energy) is not ScaledDot or not is_plain_softmax:
            yield f"energy {self.energy} with {self.normalize}", "it has only ScaledDot() with Softmax()"
        for name in ("mask", "bias"):
            if getattr(self, name) is not None:
                yield f"{name} of its own", "leave it out of the layer and give attn_mask at each call"
        for name in ("gate", "softcap", "rotary"):
            if getattr(self, name) is not None:
                yield name, "leave it out of the layer"

    def interaction(self) -> Tensor:
        """W^Qhᵀ W^Kh of each head, (heads, dim, memory_dim): the bilinear form behind its dot products."""
        q = _matrix(self.Wq, self.dim).unflatten(0, (self.heads, -1))
        k = _matrix(self.Wk, self.memory_dim).unflatten(0, (self.key_heads, -1))
        k = k.repeat_interleave(self.heads // self.key_heads, 0)
        return q.transpose(-1, -2) @ k

    def extra_repr(self) -> str:
        options = f"energy={self.energy}, mask={self.mask}, normalize={self.normalize}"
        return f"{self.dim}, heads={self.heads}, {options}"


def _copy_weights(linears: Sequence[nn.Linear], sources: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    for linear, (weight, bias) in zip(linears, sources, strict=True):
        _copy_concat(linear.weight, [weight])
        if bias is not None:
            _copy_concat(linear.bias, [bias])


@torch.no_grad()
def _copy_concat(target: Tensor, sources: Sequence[Tensor]) -> None:
    """Copy the concatenated sources; the target requires a gradient if any source does."""
    target.copy_(torch.cat([*sources])).requires_grad_(any(x.requires_grad for x in sources))


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(..., T, heads · dim) → (..., heads, T, dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def _fused_linear(x: Tensor, *layers: nn.Module) -> tuple[Tensor, ...]:
    """Apply several linear layers to x, with one matmul if possible; in training this reads x once."""
    if x.device.type not in FUSED_ON or not torch.is_grad_enabled() or not _can_fuse(layers):
        return tuple(layer(x) for layer in layers)
    weight = torch.cat([layer.weight for layer in layers])  # type: ignore[misc]
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])  # type: ignore[misc]
    return affine(x, weight, bias).split([layer.out_features for layer in layers], -1)  # type: ignore[misc]


def _can_fuse(layers: Sequence[nn.Module]) -> bool:
    if not all(is_plain(layer) for layer in layers):
        return False
    kinds = {
        (layer.bias is None, layer.weight.dtype, layer.weight.device, type(layer.weight)) for layer in layers
    }
    return len(kinds) == 1 and issubclass(kinds.pop()[-1], nn.Parameter)


def _matrix(layer: nn.Module, dim: int) -> Tensor:
    """The matrix of the linear map that a layer computes, also if the layer is wrapped or has hooks."""
    if is_plain(layer):
        return layer.weight  # type: ignore[return-value]
    like = next(layer.parameters())
    inputs = torch.cat([torch.zeros(1, dim, dtype=like.dtype, device=like.device), torch.eye(dim).to(like)])
    out = layer(inputs)
    return (out[1:] - out[:1]).T


def _check_sizes(**sizes: int | None) -> None:
    for name, value in sizes.items():
        if value is not None:
            integer(name, value)


class SlicedMultiHead(_MultiHeadBase):
    """Multi-head attention whose head h sees only slice h, M/H of the M features of the input.

    W^h, V^h ∈ R^(L×M/H), U^h ∈ R^(K×M/H), scale √L, output projection Q: Schmidt-Thieme's multi-head
    attention. The matrix of pairwise interactions is block-diagonal.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rank: int | None = None,
        value_head_dim: int | None = None,
        out_dim: int | None = None,
        **options: Unpack[AttendOptions],
    ) -> None:
        super().__init__(dim, heads, options)
        _check_sizes(rank=rank, value_head_dim=value_head_dim, out_dim=out_dim)
        if dim % heads:
            raise OptionError(
                f"dim {dim} does not divide into {heads} equal slices; choose heads that divide it"
            )
        slice_dim = dim // heads
        rank = slice_dim if rank is None else rank
        value_head_dim = slice_dim if value_head_dim is None else value_head_dim
        self.W = nn.Parameter(torch.empty(heads, rank, slice_dim))
        self.V = nn.Parameter(torch.empty(heads, rank, slice_dim))
        self.U = nn.Parameter(torch.empty(heads, value_head_dim, slice_dim))
        self.Q = nn.Parameter(torch.empty(dim if out_dim is None else out_dim, heads * value_head_dim))
        for weight in self.parameters(recurse=False):
            nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-1]))

    def _slices(self, x: Tensor) -> Tensor:
        check_input("input", x, self.dim)
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)  # (..., heads, T, M/H)

    def queries(self, x: Tensor) -> Tensor:
        return self._slices(x) @ self.W.transpose(-1, -2)

    def keys_values(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return self._slices(key) @ self.V.transpose(-1, -2), self._slices(value) @ self.U.transpose(-1, -2)

    def merge(self, out: Tensor) -> Tensor:
        return out.transpose(-2, -3).flatten(-2) @ self.Q.T

    def interaction(self) -> Tensor:
        """The block-diagonal M×M matrix with blocks (W^h)ᵀ V^h."""
        return torch.block_diag(*(self.W.transpose(-1, -2) @ self.V))

    def extra_repr(self) -> str:
        options = f"rank={self.W.shape[1]}, mask={self.mask}, normalize={self.normalize}"
        return f"{self.dim}, heads={self.heads}, {options}"
