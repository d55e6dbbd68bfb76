"""torch's samples for scaled_dot_product_attention, held to twice torch's error. Run by test_opinfo.py.

It is a separate process because importing torch's test module disables setting global flags.
"""

import torch
from torch.testing._internal.common_methods_invocations import op_db

import regard
from regard import Causal, attend
from regard.attention import Dot
from regard.attention.plan import KERNELS
from regard.errors import KernelError

SDPA = [op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def samples(dtype):
    torch.manual_seed(0)
    return [s for op in SDPA for s in op.sample_inputs("cpu", dtype, requires_grad=True)]


def ours(q, k, v, kernel, options):
    """Run attend with torch's arguments: a float mask is a bias, is_causal aligns the first positions."""
    mask = options.get("attn_mask")
    arguments = {} if mask is None else {"mask": mask} if mask.dtype == torch.bool else {"bias": mask}
    if options.get("is_causal"):
        arguments["mask"] = Causal(offset=0)
    scale = options.get("scale")
    energy = regard.ScaledDot() if scale is None else Dot(scale)
    return attend(q, k, v, energy=energy, kernel=kernel, **arguments)


def results(run, tensors):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = run(*leaves)
    return out, *torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)


def check(kernel, dtype):
    """The number of samples that the kernel accepts; raises at the first wrong result."""
    taken = 0
    for sample in samples(dtype):
        options = dict(sample.kwargs)
        if options.pop("dropout_p", 0.0):
            continue  # random in both
        tensors = (sample.input, *sample.args)
        exact = {
            n: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for n, x in options.items()
        }
        try:
            result = results(lambda *x: ours(*x, kernel, options), tensors)
        except KernelError:
            assert kernel is not None
            continue
        torchs = torch.nn.functional.scaled_dot_product_attention
        truth = results(lambda *x: torchs(*x, **exact), [x.double() for x in tensors])
        theirs = results(lambda *x: torchs(*x, **options), tensors)
        # With four axes torch uses another kernel.
        fused = results(lambda *x: torchs(*(y[None] for y in x), **options)[0], tensors)
        taken += 1
        largest = max(1.0, *(t.abs().max().item() for t in truth if t is not None and t.numel()))
        # Rounding an energy of 80 by eps changes its weight by 80 eps, in some kernels more than in others.
        energy = (tensors[0].double() @ tensors[1].double().mT).abs().max().item() if largest > 1 else 0.0
        rounding = torch.finfo(dtype).eps * largest * (100 if dtype == torch.float64 else 2 + energy / 8)
        for a, b, c, t in zip(result, theirs, fused, truth, strict=True):
            if t is not None and t.numel():
                error, *base = ((x.double() - t).abs().max().item() for x in (a, b, c))
                assert error <= 2 * (max(base) + rounding), (kernel, sample)
    return taken


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kernel in (None, *(name for name in KERNELS if name != "flex")):
        for dtype in DTYPES:
            print(kernel, str(dtype).removeprefix("torch."), check(kernel, dtype), len(samples(dtype)))
