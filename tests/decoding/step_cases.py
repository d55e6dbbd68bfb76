"""The fused operations of a decoder step on a CPU, by Triton's interpreter, against the torch operations. Run
by test_step_operations.py.
"""

import sys
from types import SimpleNamespace

import torch

from regard.decoding.beam import Beam
from regard.decoding.engine.cuda import engine
from regard.decoding.engine.cuda.step_operations import FusedOperations, TorchOperations
from regard.decoding.limits import Limits
from regard.pipelines.translate import translate_tokens
from tests.models.small import make

BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


def make_buffers(groups, width, capacity, source, position):
    """Buffers with random ancestors; the source mask hides a different number of tokens per sentence."""
    slots = torch.arange(width, dtype=torch.int16)
    mask = torch.zeros(groups, 1, 1, source)
    for i in range(groups):
        mask[i, ..., max(1, source - 3 * i) :] = -torch.inf
    buffers = SimpleNamespace(
        size=SimpleNamespace(width=width, source=source),
        past=torch.randint(0, width, (groups, width, capacity), dtype=torch.int16),
        position=torch.tensor([position]),
        steps=torch.arange(capacity),
        slots=slots,
        source_mask=mask,
    )
    buffers.note_writers = lambda: buffers.past.index_copy_(
        2, buffers.position, slots[:, None].expand(groups, -1, 1)
    )
    return buffers


def error(fused, plain):
    return float((fused.double() - plain.double()).norm() / plain.double().norm())


def check_attention(dtype, groups, heads, head_dim, width, capacity, position, source):
    buffers = make_buffers(groups, width, capacity, source, position)
    plain, fused = TorchOperations(torch.device("cpu"), torch.float32), FusedOperations()
    cache = torch.randn(2, groups, heads, capacity, width, head_dim).to(dtype)
    cache[:, :, :, position + 1 :] = 0  # the torch operations multiply masked values by 0
    qkv = torch.randn(groups * width, 3 * heads * head_dim).to(dtype)
    nan_cache = cache.clone()
    nan_cache[:, :, :, position + 1 :] = torch.nan  # the kernel reads nothing beyond the new token
    expected = plain.self_attention(qkv, cache, buffers, capacity, plain.start(buffers, capacity))
    fused.start(buffers, capacity)
    out = fused.self_attention(qkv, nan_cache, buffers, capacity, None)
    assert error(out, expected) < BOUNDS[dtype], (dtype, width, position, error(out, expected))
    assert torch.equal(nan_cache[:, :, :, : position + 1], cache[:, :, :, : position + 1])
    memory = torch.randn(2, groups, heads, source, head_dim).to(dtype)
    q = qkv[:, : heads * head_dim].contiguous()
    expected = plain.cross_attention(q, memory, buffers)
    out = fused.cross_attention(q, memory, buffers)
    assert error(out, expected) < BOUNDS[dtype], (dtype, width, source, error(out, expected))


def check_best(k):
    scores = torch.randn(5, 320)
    scores[:, :2] = -torch.inf
    scores[1, [7, 90]] = 9.0  # a tie: the first token wins
    expected = TorchOperations(torch.device("cpu"), torch.float32).best(scores, k)
    log_p, tokens = FusedOperations().best(scores, k)
    assert torch.equal(tokens, expected[1]) and torch.allclose(log_p, expected[0], atol=2e-6), k
    scores[2, 300] = torch.nan
    assert FusedOperations().best(scores, k)[0][2].isnan().any()


def check_search(norm, size):
    layers = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 32, "norm": norm}
    model = make(layers, layers, vocab=70, output_bias=True).eval().float()
    sentences = [[5, 6, 7], [9], [10, 11, 12, 13, 14]]
    results = [
        translate_tokens(
            engine(model, fused=fused), sentences, strategy=Beam(size), limits=Limits(max_length=3)
        )
        for fused in (False, True)
    ]
    for plain, fused in zip(*results, strict=True):
        assert [h.tokens for h in plain] == [h.tokens for h in fused], (norm, size)
        difference = max(abs(a.log_p - b.log_p) for a, b in zip(plain, fused, strict=True))
        assert difference < 1e-4, (norm, size, difference)


if __name__ == "__main__":
    torch.manual_seed(5)
    with torch.inference_mode():
        for dtype in BOUNDS:
            check_attention(dtype, 3, 2, 16, 1, 40, 37, 21)
            check_attention(dtype, 2, 3, 24, 3, 24, 18, 33)
        check_attention(torch.float32, 2, 1, 16, 2, 8, 0, 5)  # the first token
        for k in (1, 4):
            check_best(k)
    for norm, size in (("post", 1), ("pre", 2)):
        check_search(norm, size)
    sys.exit(0)
