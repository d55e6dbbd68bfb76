"""The additive Triton kernel on a CPU, by Triton's interpreter, against the reference in float64.

Run by test_additive_gpu.py: with "quick" a few cases, without it all, with "conformance" the drawn suite.
"""

import copy
import math
import sys
from collections import Counter
from dataclasses import replace

import torch

from regard import Additive, Causal, Padding, Softmax, Window, attend
from regard.attention import Documents
from regard.attention.call import make_call
from regard.attention.energy import AdditiveForm
from regard.attention.kernels import additive_gpu
from regard.attention.kernels.additive_gpu import Passes, VisibleKeys
from regard.attention.kernels.kernel import plain_attention
from regard.conformance import CLASSES, case, check
from regard.conformance.backends import KERNEL_BACKENDS

# Larger blocks than on a GPU: the interpreter takes the same time for a block of any size.
additive_gpu.BLOCKS = additive_gpu.Blocks(
    energy=(64, 64, 4, 1, 72), combine=(64, 64, 64, 4, 1), features=(64, 64, 4, 1, 128)
)
TIGHT = 1e-5  # relative, as targeted for float32


def difference(result, truth):
    """The largest error relative to the largest element; infinity if anything is not finite."""
    errors = [
        ((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-30)).nan_to_num(math.inf)
        for a, b in zip(result, truth, strict=True)
    ]
    return max(x.item() for x in errors)


def run(leaves, energy, options, grad, kernel):
    out = attend(*leaves, energy=energy, kernel=kernel, **options)
    inputs = (*leaves, *energy.parameters())
    return (out, *torch.autograd.grad(out, inputs, grad.to(out.dtype)))


def error(sizes, options, scale=1.0, dtype=torch.float32):
    """The error in output and all gradients, with NaN in every key and query that takes no part."""
    B, H, Hk, Tq, Tk, D, Dv, hidden, v_heads = sizes
    q, k, v = (torch.randn(s) for s in ((B, H, Tq, D), (B, Hk, Tk, D), (B, Hk, Tk, Dv)))
    q, k, v = (scale * q).to(dtype), (scale * k).to(dtype), v.to(dtype)
    grad, energy = torch.randn(B, H, Tq, Dv).to(dtype), Additive(D, hidden=hidden, heads=v_heads).to(dtype)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    truth = run(exact, copy.deepcopy(energy).double(), options, grad, "reference")
    mask = options.get("mask")
    if mask is not None:
        allowed = make_call(q, k, v, mask=mask).mask.dense(Tq, Tk)
        allowed = allowed.expand(B, H, Tq, Tk)
        q = q.masked_fill(~allowed.any(-1)[..., None], math.nan)
        seen = allowed.any(-2).unflatten(1, (Hk, -1)).any(2)[..., None]  # (B, Hk, Tk, 1)
        k, v = k.masked_fill(~seen, math.nan), v.masked_fill(~seen, math.nan)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    return difference(run(leaves, energy, options, grad, "triton-additive"), truth)


# The largest |a| and |b| of a tile of each level; triton_additive.py says what the levels are.
LARGEST = (5.2, 10.4, 43.0, 200.0)


def level_error(query_levels, key_levels, mask=None):
    """The error in output and all gradients where the tiles of queries and keys have these levels.

    Blocks are smaller than tiles, and the last tiles are not full.
    """
    blocks = additive_gpu.BLOCKS
    additive_gpu.BLOCKS = replace(blocks, energy=(32, 64, 4, 2, 72), features=(32, 8, 4, 2, 128))
    a, b = (
        torch.cat([torch.randn(1, 2, 64, 9).clamp(-2.5, 2.5) / 2.5 * LARGEST[level] for level in levels], 2)
        for levels in (query_levels, key_levels)
    )
    for x, levels in ((a, query_levels), (b, key_levels)):  # all features of a position at the level's limit
        x[:, :, ::64] = torch.tensor([LARGEST[n] for n in levels])[:, None]
    a, b, v, w = a[:, :, :-9], b[:, :, :-5], torch.randn(1, 2, b.shape[2] - 5, 6), torch.randn(2, 9) / 3
    allowed = None if mask is None else mask.dense(a.shape[2], b.shape[2])
    exact = [x.double().requires_grad_() for x in (a, b, w, v)]
    true = plain_attention(AdditiveForm(*exact[:3]), exact[3], allowed)
    grad = torch.randn(true.shape)
    truth = (true, *torch.autograd.grad(true, exact, grad.double()))
    visible = VisibleKeys() if mask is None else VisibleKeys(allowed=allowed.to(torch.uint8)[None, None])
    passes = Passes(a, b, w, v, visible)
    for (_, found), levels in zip(passes._exponentials(), (query_levels, key_levels), strict=True):
        assert found.tolist() == [list(levels)] * 2, "a tile has another level"
    out, logs, saved = passes.forward(save=True)
    result = (out, *passes.backward(grad, out, logs, saved))
    additive_gpu.BLOCKS = blocks
    return difference(result, truth)


def dropout_errors(batch=1, Tq=70):
    """Dropout of weights (the values are unit vectors): zeros, scale, and gradients with the same zeros."""
    q, k = (torch.randn(batch, 2, T, 6, requires_grad=True) for T in (Tq, 80))
    v, energy = torch.eye(80).expand(batch, 2, 80, 80).clone().requires_grad_(), Additive(6, hidden=5)
    grad = torch.randn(batch, 2, Tq, 80)
    torch.manual_seed(3)
    inputs = (q, k, v, *energy.parameters())
    out = attend(q, k, v, energy=energy, dropout=0.3, kernel="triton-additive")
    result = (out, *torch.autograd.grad(out, inputs, grad))
    torch.manual_seed(3)
    again = attend(q, k, v, energy=energy, dropout=0.3, kernel="triton-additive")
    assert torch.equal(again, out), "the seed does not determine the dropout"
    kept = out.detach() != 0
    share, spread = kept.float().mean().item(), math.sqrt(0.21 / kept.numel())
    assert abs(share - 0.7) < 5 * spread, f"{share} of the weights were kept, not 0.7"
    assert not torch.equal(kept[:, 0], kept[:, 1]), "heads share their dropout"
    exact, copied = [x.detach().double().requires_grad_() for x in (q, k, v)], copy.deepcopy(energy).double()
    true = (torch.softmax(copied(*exact[:2]), -1) * kept / 0.7) @ exact[2]
    truth = (true, *torch.autograd.grad(true, (*exact, *copied.parameters()), grad.double()))
    return difference(result, truth)


def second_derivative_error():
    """A gradient penalty, through the plain formula, with NaN in keys that no query sees."""
    results = []
    q, k, v = (torch.randn(1, 1, 9, 4) for _ in range(3))
    energy, mask = Additive(4), Causal() & Padding(torch.tensor([6]))
    for dtype, kernel in ((torch.float32, "triton-additive"), (torch.float64, "reference")):
        if kernel == "triton-additive":
            dirty = q, *(torch.cat([x[:, :, :6], x[:, :, 6:] * math.nan], 2) for x in (k, v))
        else:
            dirty = q, k, v
        leaves = [x.to(dtype).requires_grad_() for x in dirty]
        copied = copy.deepcopy(energy).to(dtype)
        out = attend(*leaves, energy=copied, mask=mask, kernel=kernel)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))
    return difference(*results)


SMALL = (1, 2, 2, 70, 90, 6, 5, 7, 2)  # B, H, Hk, Tq, Tk, D, Dv, hidden, heads of v
GROUPED = (2, 4, 2, 5, 67, 4, 20, 8, None)
ONE_QUERY = (3, 4, 2, 1, 67, 6, 21, 7, None)


def quick_cases():
    yield "causal", TIGHT, lambda: error(SMALL, {"mask": Causal()})
    yield "padding and an empty row", TIGHT, lambda: error(GROUPED, {"mask": Padding(torch.tensor([40, 0]))})
    yield "one query", TIGHT, lambda: error(ONE_QUERY, {"mask": Padding(torch.tensor([67, 0, 9]))})
    # Where |a| and |b| are large, float32 itself loses digits of their sum.
    yield "tiles of all levels", 4 * TIGHT, lambda: level_error((0, 2), (0, 1, 3))


def all_cases():
    yield from quick_cases()
    torch.manual_seed(1)
    dense = torch.rand(2, 70, 90) < 0.3
    dense[:, 7] = False  # a row without keys
    dense[:, :, 80:] = False
    masks = {
        "no mask": None,
        "window": Window(20, 9),
        "a window with empty rows": Window(5, 5, offset=-30),
        "dense, per head": dense,
        "not causal": ~Causal(),
        "offsets": Causal(offset=torch.tensor([15])),
        "both": Causal() & Padding(torch.tensor([33])),
    }
    for name, mask in masks.items():
        yield name, TIGHT, lambda mask=mask: error(SMALL, {"mask": mask} if mask is not None else {})
    hidden = torch.rand(3, 4, 1, 67) < 0.3
    hidden[1, 2] = False
    one_query = {"no mask": {}, "dense": {"mask": hidden}, "window": {"mask": Window(5, 40, offset=7)}}
    for name, options in one_query.items():
        yield f"one query, {name}", TIGHT, lambda options=options: error(ONE_QUERY, options)
    yield "one query, very large", TIGHT, lambda: error(ONE_QUERY, {}, 150.0)
    yield "one query, bfloat16", 4e-2, lambda: error(ONE_QUERY, {}, dtype=torch.bfloat16)
    yield "one query, dropout", TIGHT, lambda: dropout_errors(batch=40, Tq=1)
    documents = Documents(torch.arange(90) // 30)
    square = (1, 2, 2, 90, 90, *SMALL[5:])
    yield "documents", TIGHT, lambda: error(square, {"mask": documents})
    for level, limit in enumerate((TIGHT, TIGHT, 4 * TIGHT, 16 * TIGHT)):
        yield f"level {level}", limit, lambda level=level: level_error((level,), (level, level))
    yield "levels and a mask", 16 * TIGHT, lambda: level_error((2, 0, 3), (0, 3, 1), Causal(offset=20))
    yield "temperature", TIGHT, lambda: error(SMALL, {"normalize": Softmax(0.5)})
    # |a| of about 30 (cut reciprocals) and 200 (exponentials per element), where float32 itself loses digits.
    yield "large", 4 * TIGHT, lambda: error(SMALL, {"mask": Causal()}, 20.0)
    yield "very large", 16 * TIGHT, lambda: error(SMALL, {"mask": Causal()}, 150.0)
    yield "float16", 5e-3, lambda: error(SMALL, {}, dtype=torch.float16)
    yield "bfloat16", 4e-2, lambda: error(SMALL, {}, dtype=torch.bfloat16)
    yield "dropout", TIGHT, dropout_errors
    yield "second derivatives", 1e-4, second_derivative_error

    def chunks():
        additive_gpu.CHUNK_BYTES = additive_gpu.MAX_SAVED_BYTES = 0
        return error((1, 1, 1, 150, 70, 4, 17, 5, None), {"mask": Window(40, 20)})

    yield "chunks, energies computed again", TIGHT, chunks
    yield "chunks of several levels", 4 * TIGHT, lambda: level_error((0, 2, 3), (1, 0))


def with_additive_energy(drawn):
    """A drawn case with an additive energy and without the options that the kernel refuses."""
    torch.manual_seed(drawn.seed)
    kept = {n: x for n, x in drawn.options.items() if n == "mask"}
    query, key = (drawn.leaves[n].shape[-1] for n in ("query", "key"))
    energy = Additive(query, key, 5).double()
    dtype = torch.float32 if drawn.dtype == torch.float64 else drawn.dtype
    return replace(drawn, dtype=dtype, options={**kept, "energy": energy})


def conformance():
    """Drawn cases of most classes, with additive energies."""
    verdicts = Counter()
    for name in CLASSES:
        if name in ("compile", "export", "threads", "long sequences"):
            continue
        for seed in (9, 11) if name == "masked NaN" else (0, 1):  # seeds 0 to 8 hide NaN by a bias
            drawn = with_additive_energy(case(name, seed))
            if math.prod(drawn.leaves["query"].shape[:-2]) > 8:  # slow in the interpreter
                continue
            result = check(drawn, KERNEL_BACKENDS["triton-additive"])
            verdicts[result.verdict] += 1
            print(result.verdict, name, seed, flush=True)
            if result.verdict == "wrong":
                print(f"{result.case}: {result.detail}", flush=True)
    print(dict(verdicts))
    return verdicts["wrong"] + (verdicts["pass"] < 10)


def main(what):
    if what == "conformance":
        return conformance()
    wrong = 0
    for name, limit, measure in quick_cases() if what == "quick" else all_cases():
        torch.manual_seed(0)
        result = measure()
        wrong += not result <= limit
        print(f"{result:.1e} of {limit:.0e} {name}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "all"))
