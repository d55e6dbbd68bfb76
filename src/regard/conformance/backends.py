"""regard's kernels, and torch's attention, as backends of the conformance suite."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.attend import attend
from regard.attention.plan import KERNELS
from regard.conformance.actions import OPTIONS, Backend

# `objects`: masks and biases are passed as regard's objects, not as tensors.
regard = Backend(attend, OPTIONS, objects=True)
KERNEL_BACKENDS = {name: Backend(partial(attend, kernel=name), OPTIONS, objects=True) for name in KERNELS}
reference, cpp, sdpa, additive, tiled, flex = (
    KERNEL_BACKENDS[n] for n in ("reference", "cpp", "sdpa", "additive", "tiled", "flex")
)


def torch_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, called as its documentation says."""
    grouped = query.ndim > 2 and query.shape[-3] > key.shape[-3] > 1
    if bias is not None and causal:  # is_causal cannot be combined with a mask
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        causal = False
    if bias is not None and mask is not None:
        bias = bias.masked_fill(~mask, -torch.inf)
    attn_mask = mask if bias is None else bias.to(query.dtype)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, is_causal=causal, enable_gqa=grouped
    )
