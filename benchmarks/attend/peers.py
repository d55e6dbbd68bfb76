"""The peers. Each function takes a Problem and returns a System, or None if the peer cannot run it.

Each peer gets its fastest form: dense masks, fixed biases and Flex's block masks are made before the clock
starts, energies are written as dot products where possible, and narrow vectors are padded where that lets a
fused kernel run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize, pad, scaled_dot_product_attention

import regard
from benchmarks.attend.cases import Case
from benchmarks.attend.problem import Problem


@dataclass
class System:
    """A peer's computation of a Problem. `forward` returns (B, H, T, D).

    A peer may order its heads differently: `finish` restores our order, and `grad` is the output gradient in
    the peer's order.
    """

    forward: Callable[[], Tensor]
    leaves: dict[str, Tensor]  # tensors whose gradients a training step computes
    grad: Tensor | None = None  # None: the problem's
    finish: Callable[[Tensor], Tensor] = field(default=lambda x: x)


def regard_attend(p: Problem) -> System:
    """regard.attend; it chooses the kernel itself, except in rows that name one."""
    options = p.options()
    return System(lambda: regard.attend(p.q, p.k, p.v, kernel=p.case.kernel, **options), p.leaves)


# ------------------------------------------------------------------------------------------------ plain torch
def scores(p: Problem) -> Tensor:
    """The energies by the plain formula, (B, H, T, T)."""
    case, q, k = p.case, p.q, p.k
    if case.Hk is not None:
        k = k.repeat_interleave(case.H // case.Hk, 1)
    if case.energy == "additive":
        a, b = linear(q, p.energy.Wq.weight), linear(k, p.energy.Wk.weight)
        return (torch.tanh(a[..., :, None, :] + b[..., None, :, :]) * p.energy.v).sum(-1)
    if case.energy == "cosine":
        return (normalize(q, dim=-1) * p.energy.scale) @ normalize(k, dim=-1).mT
    if case.energy == "bilinear":
        return (linear(q, p.energy.W) * p.energy.scale) @ linear(k, p.energy.V).mT
    if case.energy == "distance":
        return 2 * q @ k.mT - q.square().sum(-1)[..., None] - k.square().sum(-1)[..., None, :]
    return (q / math.sqrt(case.D)) @ k.mT


def sparsemax(s: Tensor) -> Tensor:
    """Martins & Astudillo 2016, algorithm 1; no gradient goes through the sort."""
    with torch.no_grad():
        ordered = s.sort(-1, descending=True).values
        rank = torch.arange(1, s.shape[-1] + 1, device=s.device, dtype=s.dtype)
        size = (1 + rank * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
        inside = s >= ordered.gather(-1, size - 1)
    tau = (torch.where(inside, s, 0.0).sum(-1, keepdim=True) - 1) / inside.sum(-1, keepdim=True)
    return (s - tau).clamp(min=0)


def entmax15(s: Tensor) -> Tensor:
    """Peters, Niculae & Martins 2019, algorithm 2; no gradient goes through the sort."""
    s = (s - s.detach().amax(-1, keepdim=True)) / 2
    with torch.no_grad():
        ordered = s.sort(-1, descending=True).values
        rank = torch.arange(1, s.shape[-1] + 1, device=s.device, dtype=s.dtype)
        mean = ordered.cumsum(-1) / rank
        variance = ordered.square().cumsum(-1) / rank - mean.square()
        size = (mean - (1 / rank - variance).clamp(min=0).sqrt() <= ordered).sum(-1, keepdim=True)
        inside = s >= ordered.gather(-1, size - 1)
    count = inside.sum(-1, keepdim=True)
    mean = torch.where(inside, s, 0.0).sum(-1, keepdim=True) / count
    squares = torch.where(inside, (s - mean).square(), 0.0).sum(-1, keepdim=True)
    return (s - mean + ((1 - squares) / count).clamp(min=1e-12).sqrt()).clamp(min=0).square()


def plain(p: Problem) -> Tensor:
    """The definition of attention, one line per stage.

    In the form that compiles fastest: a mask from positions, T5's bias from its table, ALiBi and its mask as
    one tensor.
    """
    case, v = p.case, p.v
    s = scores(p)
    if case.bias != "none":
        bias = p.fixed if case.bias == "ALiBi" else p.bias_values()
        assert bias is not None
        s = s + bias
    if case.softcap is not None:
        s = case.softcap * torch.tanh(s / case.softcap)
    if case.mask != "none" and case.bias != "ALiBi":
        s = s.masked_fill(~p.allowed(*p.axes), -math.inf)
    normalizer = {
        "softmax": lambda x: torch.softmax(x, -1),
        "sigmoid": torch.sigmoid,
        "sparsemax": sparsemax,
        "entmax 1.5": entmax15,
    }[case.normalize]
    if case.Hk is not None:
        v = v.repeat_interleave(case.H // case.Hk, 1)
    return normalizer(s) @ v


def _prepare(p: Problem) -> None:
    """Compute the inputs of a formula before compiling and timing."""
    p.axes, p.fixed  # noqa: B018
    if p.case.bias == "T5":
        p.bucket_of_pair  # noqa: B018


def compiled(p: Problem) -> System:
    """torch.compile of the plain formula, both passes."""
    _prepare(p)
    return System(torch.compile(lambda: plain(p), dynamic=False), p.leaves)


def eager(p: Problem) -> System:
    """The plain formula in eager mode."""
    _prepare(p)
    return System(lambda: plain(p), p.leaves)


# -------------------------------------------------------------------------------------- torch's own attention
def as_dot(p: Problem) -> tuple[Tensor, Tensor, Tensor, float]:
    """(q, k, v, scale) with energies scale · q·k and one width for all three, as fused kernels require."""
    case, q, k, v = p.case, p.q, p.k, p.v
    if case.energy == "cosine":
        return normalize(q, dim=-1), normalize(k, dim=-1), v, p.energy.scale
    if case.energy == "bilinear":
        padding = (0, case.D - p.energy.rank)
        return pad(linear(q, p.energy.W), padding), pad(linear(k, p.energy.V), padding), v, p.energy.scale
    if case.energy == "distance" and not case.train:
        return q, k, v, 2.0  # and key_bias
    if case.energy == "distance":
        # A bias with a gradient would not be fused: add a component for it, and 7 more for alignment.
        k = pad(torch.cat([k, -k.square().sum(-1, keepdim=True)], -1), (0, 7))
        return pad(pad(2 * q, (0, 1), value=1.0), (0, 7)), k, pad(v, (0, 8)), 1.0
    return q, k, v, 1 / math.sqrt(case.D)


def key_bias(p: Problem) -> Tensor:
    """−‖k‖², to be added to 2 q·k: −‖q − k‖² without −‖q‖², which is constant in each softmax."""
    return -p.k.square().sum(-1)


def is_softmax_of_dot(case: Case) -> bool:
    """True if the case can be written as softmax over dot products, as fused kernels need."""
    return case.energy != "additive" and case.normalize == "softmax"


def sdpa(p: Problem) -> System | None:
    """torch.nn.functional.scaled_dot_product_attention. A learned bias goes through its attn_mask."""
    case = p.case
    if not is_softmax_of_dot(case) or case.softcap is not None:
        return None
    causal = case.mask == "causal" and case.bias == "none"
    _prepare(p)
    mask = None if causal else p.fixed

    def forward() -> Tensor:
        q, k, v, scale = as_dot(p)
        learned = p.bias_values() if p.learns_bias else None
        added = mask if learned is None else learned.expand(case.B, -1, -1, -1)
        if case.energy == "distance" and not case.train:
            added = key_bias(p)[..., None, :].expand(-1, -1, case.T, -1)
        out = scaled_dot_product_attention(
            q, k, v, added, is_causal=causal, scale=scale, enable_gqa=case.Hk is not None
        )
        return out[..., : case.D]

    return System(forward, p.leaves)


def _sdpa_backend(name: str, masks: bool) -> Callable[[Problem], System | None]:
    def build(p: Problem) -> System | None:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        system = sdpa(p) if masks or (p.case.mask in ("none", "causal") and p.case.bias == "none") else None
        if system is None:
            return None
        inner, backend = system.forward, getattr(SDPBackend, name)

        def forward() -> Tensor:
            with sdpa_kernel(backend):
                return inner()

        return System(forward, system.leaves)

    return build


def flex(p: Problem) -> System | None:
    """torch.compile(flex_attention), its block mask made before. On a CPU it has no backward pass."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    case = p.case
    if not is_softmax_of_dot(case) or (case.device == "cpu" and case.train):
        return None
    _prepare(p)
    block = None
    if case.mask != "none":
        per_sequence = case.B if case.mask in ("padding", "documents") else None
        block = create_block_mask(
            lambda b, h, i, j: p.allowed(b, h, i, j), per_sequence, None, case.T, case.T, device=case.device
        )

    adds_key_bias = case.energy == "distance" and not case.train
    run = torch.compile(flex_attention, dynamic=False)

    def forward() -> Tensor:
        q, k, v, scale = as_dot(p)
        of_key = key_bias(p) if adds_key_bias else None

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if case.bias != "none":
                s = s + p.added(h, i, j)
            if of_key is not None:
                s = s + of_key[b, h, j]
            return s if case.softcap is None else case.softcap * torch.tanh(s / case.softcap)

        unchanged = case.bias == "none" and case.softcap is None and not adds_key_bias
        score_mod = None if unchanged else score
        out = run(q, k, v, score_mod=score_mod, block_mask=block, scale=scale, enable_gqa=case.Hk is not None)
        return out[..., : case.D]

    return System(forward, p.leaves)


# --------------------------------------------------------------------------------------------- other packages
def x_transformers(p: Problem) -> System | None:
    """x-transformers' Attend with its own features: causal, soft clamp, l2 distance, sigmoid, ALiBi and T5.

    Its fused path (flash=True) has no soft clamp and no sigmoid, so those run unfused, as the package does.
    """
    from x_transformers.attend import Attend
    from x_transformers.x_transformers import l2norm

    case = p.case
    if case.energy in ("additive", "bilinear") or case.normalize in ("sparsemax", "entmax 1.5"):
        return None
    flash = case.softcap is None and case.normalize == "softmax"
    clamp = (
        {"softclamp_logits": True, "logit_softclamp_value": case.softcap} if case.softcap is not None else {}
    )
    scale = {"cosine": 10.0, "distance": 1.0}.get(case.energy, 1 / math.sqrt(case.D))
    attend = Attend(
        flash=flash, causal=case.mask == "causal", scale=scale, heads=case.H, qk_norm=case.energy == "cosine",
        l2_distance=case.energy == "distance", sigmoid=case.normalize == "sigmoid", **clamp,
    )  # fmt: skip
    mask = None if case.mask in ("none", "causal") else p.dense_mask
    bias, leaves = _x_bias(p)
    grad, finish = p.grad, lambda x: x
    if case.Hk is not None:  # its groups of heads interleave: query head h reads key head h mod Hk
        leaves["q"], grad = (_regroup(x, case.Hk).detach() for x in (p.q, p.grad))
        leaves["q"].requires_grad_(case.train)
        group_size = case.H // case.Hk
        finish = lambda x: _regroup(x, group_size)  # noqa: E731

    def forward() -> Tensor:
        q, k = leaves["q"], p.k
        if case.energy == "cosine":
            q, k = l2norm(q), l2norm(k)
        return attend(q, k, p.v, mask=mask, attn_bias=bias())[0]

    return System(forward, leaves, grad, finish)


def _regroup(x: Tensor, groups: int) -> Tensor:
    """Interleave the groups of heads: (groups, size) becomes (size, groups) on axis 1."""
    return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def _x_bias(p: Problem) -> tuple[Callable[[], Tensor | None], dict[str, Tensor]]:
    """x-transformers' own bias modules, and the leaves of a call that uses them."""
    from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias

    case, leaves = p.case, dict(p.leaves)
    if case.bias == "none":
        return lambda: None, leaves
    if case.bias == "dense":
        return lambda: p.dense_bias[None], leaves
    if case.bias == "ALiBi":
        module = AlibiPositionalBias(case.H).to(case.device)
        return lambda: module(case.T, case.T)[None], leaves
    module = RelativePositionBias(1.0, heads=case.H).to(case.device)
    module.relative_attention_bias.weight = p.table.weight
    return lambda: module(case.T, case.T)[None], leaves


def keras(p: Problem) -> System | None:
    """Keras 3 on torch: ops.dot_product_attention, and the layers Attention (one head) and AdditiveAttention.

    Under torch the function ignores attn_logits_soft_cap, so there is no soft cap here.
    """
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    case = p.case
    if keras.backend.backend() != "torch":
        raise ModuleNotFoundError(f"keras runs on {keras.backend.backend()}; set KERAS_BACKEND=torch")
    if case.energy in ("additive", "dot, one head"):
        return _keras_layer(p, keras)
    if not is_softmax_of_dot(case) or case.softcap is not None or case.energy == "distance":
        return None
    causal = case.mask == "causal" and case.bias == "none"
    _prepare(p)
    mask = None if causal or case.bias != "none" else p.fixed

    def forward() -> Tensor:
        q, k, v, scale = as_dot(p)
        bias = None if case.bias == "none" else p.bias_values() if p.learns_bias else p.fixed
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return keras.ops.dot_product_attention(
            q, k, v, bias=bias, mask=mask, scale=scale, is_causal=causal
        ).transpose(1, 2)  # type: ignore[union-attr]

    return System(forward, p.leaves)


def _keras_layer(p: Problem, keras) -> System:
    """The layers take (batch, T, D) and projected inputs; their scale is v, or 1/√D."""
    case, leaves = p.case, dict(p.leaves)
    additive = case.energy == "additive"
    layer = keras.layers.AdditiveAttention() if additive else keras.layers.Attention(use_scale=True)
    layer.build([(case.B, case.T, case.D)] * 3)
    layer.scale.assign(p.energy.v if additive else 1 / math.sqrt(case.D))
    if additive:
        leaves["energy.v"] = layer.scale.value

    def forward() -> Tensor:
        q, k = p.q[:, 0], p.k[:, 0]
        if additive:
            q, k = linear(q, p.energy.Wq.weight), linear(k, p.energy.Wk.weight)
        return layer([q, p.v[:, 0], k], training=case.train)[:, None]

    return System(forward, leaves)


CreateSystem = Callable[[Problem], System | None]
CPU: dict[str, CreateSystem] = {
    "SDPA": sdpa,
    "Flex": flex,
    "compiled": compiled,
    "x-transformers": x_transformers,
    "Keras": keras,
}
FLASH, CUDNN = _sdpa_backend("FLASH_ATTENTION", masks=False), _sdpa_backend("CUDNN_ATTENTION", masks=True)
CUDA: dict[str, CreateSystem] = {"SDPA flash": FLASH, "SDPA cuDNN": CUDNN, "Flex": flex}
CUDA_PLAIN: dict[str, CreateSystem] = {"eager": eager, "compiled": compiled}


def peers_of(case: Case) -> dict[str, CreateSystem]:
    """The peers of a case's device, energy and normaliser, by name."""
    if case.device == "cpu":
        return CPU
    return CUDA if is_softmax_of_dot(case) else CUDA_PLAIN
