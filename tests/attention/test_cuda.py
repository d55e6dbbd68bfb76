"""Every kernel on an NVIDIA GPU against the reference in float64 on the CPU."""

import copy
import math

import pytest
import torch

import regard
from regard import (
    Additive,
    ALiBi,
    Causal,
    MultiHead,
    Padding,
    ScaledDot,
    Softmax,
    Window,
    attend,
    explain,
    watch,
)
from regard.attention import Documents, Dot, Entmax, Mask, Sigmoid, entmax_gpu
from regard.attention.call import LONG
from regard.attention.kernels import backend_times, flex
from regard.conformance import CLASSES, backends, case, check
from regard.conformance.draw_options import copy_option
from regard.errors import DeviceError, KernelError
from tests.attention import triton_entmax_cases

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and torch with CUDA"),
]


@pytest.mark.parametrize("name", [n for n in CLASSES if n not in ("compile", "export")])
@pytest.mark.parametrize(
    "kernel",
    ["regard", "reference", "sdpa", "tiled", "triton", "triton-additive", "triton-short", "triton-cache"],
)
def test_a_kernel_on_the_gpu_is_right_or_refuses(kernel, name):
    backend = backends.regard if kernel == "regard" else backends.KERNEL_BACKENDS[kernel]
    for seed in range(15):
        result = check(case(name, seed), backend, "cuda")
        assert result.verdict != "wrong", f"{result.case}: {result.detail}"
        if kernel == "regard" and name != "in-place change":
            assert result.verdict == "pass", f"{result.case}: {result.detail}"


CASES = {
    "plain": {},
    "causal": {"mask": Causal()},
    "ALiBi causal": {"mask": Causal(), "bias": ALiBi(4)},
    "window": {"mask": Window(20, 9)},
    "padding": {"mask": Padding(torch.tensor([100, 256]))},
    "documents": {"mask": Documents(torch.arange(256) // 60) & Causal()},
    "soft cap": {"softcap": 5.0, "mask": Causal()},
    "cold": {"normalize": Softmax(0.5)},
    "sigmoid": {"normalize": Sigmoid()},
    "sigmoid causal": {"normalize": Sigmoid(), "mask": Causal()},
    "sigmoid ALiBi causal": {"normalize": Sigmoid(), "mask": Causal(), "bias": ALiBi(4)},
    "sigmoid padding": {"normalize": Sigmoid(), "mask": Padding(torch.tensor([100, 256]))},
}


def inputs(dtype, T=256, D=64, grad=True):
    return [torch.randn(2, 4, T, D).to("cuda", dtype).requires_grad_(grad) for _ in range(3)]


def on_gpu(options):
    return {
        n: copy_option(x, torch.float32, "cuda") if isinstance(x, Mask) else x for n, x in options.items()
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kernel", ["sdpa", "flex", "triton", None])
@pytest.mark.parametrize("name", CASES)
def test_fused_kernels_and_their_gradients(name, kernel, dtype):
    q, k, v = inputs(dtype)
    options = on_gpu(CASES[name])
    try:
        out = attend(q, k, v, kernel=kernel, **options)
    except KernelError as error:
        pytest.skip(str(error))
    grad = torch.randn_like(out)
    gradients = (out, *torch.autograd.grad(out, (q, k, v), grad))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    true = attend(*exact, kernel="reference", **options)
    truth = (true, *torch.autograd.grad(true, exact, grad.double()))
    plain = [x.detach().requires_grad_() for x in (q, k, v)]
    baseline = attend(*plain, kernel="reference", **options)
    bases = (baseline, *torch.autograd.grad(baseline, plain, grad))
    for a, b, c in zip(gradients, truth, bases, strict=True):
        error, base = (a.double() - b).abs().max().item(), (c.double() - b).abs().max().item()
        assert error <= 2 * (base + 16 * torch.finfo(dtype).eps * b.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("T", [(5, 5), (16, 9), (1, 30), (33, 40), (64, 64)])
@pytest.mark.parametrize("name", ["plain", "causal", "window", "padding"])
def test_many_short_sequences_and_their_gradients(name, T, dtype):
    """Slices of one projection, as a layer passes them; the kernel that attend chooses by itself."""
    torch.manual_seed(0)
    B, H, Tk = 300, 4, T[1]
    packed = [torch.randn(B, t, 3, H, 48, device="cuda").to(dtype) for t in T]
    leaves = [x.transpose(1, 2).requires_grad_() for x in (packed[0][:, :, 0], *packed[1].unbind(2)[1:])]
    lengths = torch.arange(B, device="cuda") % (Tk + 1)  # also 0
    mask = {
        "plain": None,
        "causal": Causal(),
        "window": Window(3, 2),
        "padding": Padding(lengths, finite=True),
    }[name]
    assert explain(*leaves, mask=mask).kernel == "triton-short"
    results = []
    for x, kernel in (
        (leaves, None),
        ([x.detach().requires_grad_() for x in leaves], "reference"),
        ([x.detach().double().requires_grad_() for x in leaves], "reference"),
    ):
        out = attend(*x, mask=mask, kernel=kernel)
        grad = torch.linspace(-1, 1, out.numel(), device="cuda").to(dtype).to(out.dtype).view(out.shape)
        results.append((out, *torch.autograd.grad(out, x, grad)))
    for ours, plain, true in zip(*results, strict=True):
        error, base = ((x.double() - true).abs().max().item() for x in (ours, plain))
        assert error <= 2 * (base + 16 * torch.finfo(dtype).eps * true.abs().max().item())


# batch, heads, key heads, Tq, Tk, D, Dv
CACHES = [
    (64, 32, 8, 1, 2048, 128, 128),
    (3, 8, 2, 1, 5000, 64, 64),
    (1, 4, 1, 1, 40000, 128, 128),
    (3, 6, 2, 1, 530, 80, 48),
    (2, 3, 3, 1, 77, 16, 16),
    (2, 4, 1, 3, 700, 64, 128),
    (2, 40, 1, 1, 300, 128, 128),
    (2, 16, 1, 4, 300, 256, 256),
]
CACHE_MASKS = {
    "all": lambda B, Tk: None,
    "causal": lambda B, Tk: Causal(),
    "window": lambda B, Tk: Window(300),
    "nothing": lambda B, Tk: Window(3, 3, offset=Tk + 9),
    "lengths": lambda B, Tk: Padding(torch.arange(B, device="cuda") * Tk // max(B - 1, 1)),  # also 0
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", CACHES, ids=str)
@pytest.mark.parametrize("name", CACHE_MASKS)
@torch.no_grad()
def test_few_queries_against_a_cache_with_nan_in_unseen_positions(name, sizes, dtype):
    """Keys and values are the first part of a larger cache; the second call takes the shortcut."""
    torch.manual_seed(0)
    B, H, Hk, Tq, Tk, D, Dv = sizes
    mask = CACHE_MASKS[name](B, Tk)
    q = torch.randn(B, H, Tq, D, device="cuda").to(dtype)
    k, v = (torch.randn(B, Hk, Tk + 16, d, device="cuda").to(dtype)[:, :, :Tk] for d in (D, Dv))
    true = attend(q.double(), k.double(), v.double(), mask=mask, kernel="reference")
    plain = attend(q, k, v, mask=mask, kernel="reference")
    if mask is not None:
        unseen = ~mask.dense(Tq, Tk, "cuda").any(-2).reshape(-1, 1, Tk, 1)
        for x in (k, v):
            x.masked_fill_(unseen, math.nan)
    base = (plain.double() - true).abs().max().item()
    outputs = [attend(q, k, v, mask=mask, kernel="triton-cache") for _ in range(3)]
    assert (outputs[0].double() - true).abs().max() <= 2 * (base + 4 * torch.finfo(dtype).eps)
    assert all(torch.equal(outputs[0], out) for out in outputs[1:])


@torch.no_grad()
def test_a_cache_in_a_cuda_graph_uses_the_current_lengths_and_is_the_choice_for_decoding():
    torch.manual_seed(0)
    shapes = ((8, 32, 1, 128), (8, 8, 1024, 128), (8, 8, 1024, 128))
    q, k, v = (torch.randn(s, device="cuda").to(torch.bfloat16) for s in shapes)
    lengths = torch.full((8,), 1024, device="cuda")
    mask = Padding(lengths, finite=True)
    for option in (None, mask):
        assert explain(q, k, v, mask=option).kernel == "triton-cache"
    for _ in range(3):
        attend(q, k, v, mask=mask)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(q, k, v, mask=mask)
    for n in (1, 700, 0):
        lengths[1:5] = n
        graph.replay()
        true = attend(q.double(), k.double(), v.double(), mask=Padding(lengths), kernel="reference")
        assert (out.double() - true).abs().max() < 0.02


@torch.no_grad()
def test_a_growing_cache_compiles_one_kernel():
    from regard.attention.kernels import triton_decode

    q, cache = (torch.randn(s, device="cuda").to(torch.float16) for s in ((2, 8, 1, 96), (2, 2, 400, 96)))
    compiled = []
    for n in (256, 257, 301, 303):
        k = cache[:, :, :n].contiguous()
        out = attend(q, k, k, kernel="triton-cache")
        true = attend(q.double(), k.double(), k.double(), kernel="reference")
        assert (out.double() - true).abs().max() < 0.005
        compiled.append(sum(len(x[0]) for x in triton_decode.cache_forward.device_caches.values()))
    assert len(set(compiled)) == 1


def test_the_plan_on_this_gpu():
    q, k, v = inputs(torch.bfloat16, T=2048, D=128)
    if torch.cuda.get_device_capability() >= (9, 0):
        assert "CUDNN_ATTENTION" in explain(q, k, v, mask=Causal()).why
    assert explain(q, k, v, mask=Window(64, 64)).kernel == "triton"
    assert explain(q.float(), k.float(), v.float(), mask=Window(64, 64)).kernel == "flex"


def test_the_backend_is_measured_once_whatever_surrounds_the_call(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setattr(backend_times, "_in_memory", {})
    q, k, v = inputs(torch.bfloat16, T=1024, D=64)
    with torch.inference_mode(), torch.autocast("cuda", torch.float16):
        assert "measured once on this GPU" in explain(q, k, v).why
    assert "with backward" in explain(q, k, v).why
    stored = (tmp_path / "backends.json").read_text(encoding="utf-8")
    monkeypatch.setattr(backend_times, "_in_memory", {})
    monkeypatch.setattr(backend_times, "_measure", lambda kind, device: pytest.fail("measured again"))
    explain(q, k, v)
    assert (tmp_path / "backends.json").read_text(encoding="utf-8") == stored


@pytest.mark.parametrize("kernel", ["sdpa", "flex", "tiled", "reference"])
def test_nothing_leaks_and_empty_rows_are_zero_on_the_gpu(kernel):
    clean = inputs(torch.float32)
    dirty = [x.detach().clone() for x in clean]
    for x in dirty[1:]:
        x[0, :, 100:] = math.nan
        x[1] = math.inf
    mask = Padding(torch.tensor([100, 0], device="cuda"))
    results = []
    for tensors in (clean, dirty):
        leaves = [x.detach().clone().requires_grad_() for x in tensors]
        out = attend(*leaves, mask=mask, kernel=kernel)
        results.append((out, *torch.autograd.grad(out.sum(), leaves)))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert (results[1][0][1] == 0).all()


def test_layers_and_watch_work_on_the_gpu():
    layer = MultiHead(64, 4, mask=Causal(), energy=ScaledDot()).cuda()
    x = torch.randn(2, 33, 64, device="cuda")
    with watch(layer) as seen, torch.autocast("cuda", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    assert seen["self"].weights(head=1, query=5).shape == (2, 33)
    assert torch.allclose(seen["self"].entropy()[..., 0].float(), torch.zeros(2, 4, device="cuda"), atol=1e-3)
    with pytest.raises(DeviceError, match="Padding's counts is on cpu and the query on cuda"):
        layer(x, mask=Padding([1, 2]))
    with pytest.raises(DeviceError, match="is on cpu and the query on cuda"):
        attend(*inputs(torch.float32), energy=Additive(64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options", [{}, {"mask": Causal()}, {"mask": Window(30, 9)}, {"softcap": 4.0, "bias": ALiBi(8)}], ids=str
)
@torch.no_grad()
def test_answers_about_a_watched_call_equal_a_float64_recomputation(options, dtype, monkeypatch):
    monkeypatch.setattr("regard.attention.score_tiles.GPU_TILE", 1 << 16)
    torch.manual_seed(2)
    q, k = (
        torch.randn(2, 8, 300, 64, device="cuda").to(dtype),
        torch.randn(2, 2, 300, 64, device="cuda").to(dtype),
    )
    with watch() as seen:
        attend(q, k, k, **options)
    call, full = seen["attend.0"], regard.weights(q.double(), k.double(), **options)
    eps = torch.finfo(dtype).eps
    assert torch.allclose(call.weights().double(), full, rtol=64 * eps, atol=64 * eps)
    assert torch.allclose(call.top(5)[0].double(), full.topk(5, -1).values, rtol=64 * eps, atol=64 * eps)
    assert torch.allclose(call.column_sums().double(), full.sum(-2), rtol=1e-4, atol=1e-4)
    assert torch.allclose(call.entropy().double(), torch.special.entr(full).sum(-1), rtol=1e-4, atol=1e-4)


def test_flex_stays_compiled_inside_watch():
    """Uncompiled it would build the T × T matrix; also when it is compiled for the first time there."""
    q = torch.randn(1, 2, 1024, 64, device="cuda", dtype=torch.bfloat16)
    mask = Documents(torch.arange(1024, device="cuda") // 300) & Causal()
    truth = attend(q, q, q, mask=mask, kernel="flex")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad(), watch() as seen:
        out = attend(q, q, q, mask=mask, kernel="flex")
    assert torch.allclose(out, truth, atol=1e-2)
    assert list(seen) == ["attend.0"]
    assert (
        torch.cuda.max_memory_allocated() - before < 2 * 1024 * 1024 * 4
    )  # less than one float32 matrix of both heads


ADDITIVE_MASKS = {
    "all": lambda: None,
    "causal": Causal,
    "window": lambda: Window(30, 9),
    "empty rows": lambda: Window(5, 5, offset=-200),
    "padding": lambda: Padding(torch.tensor([100, 0], device="cuda")),
    "dense": lambda: torch.rand(2, 1, 300, 257, device="cuda") < 0.4,
}


@pytest.mark.parametrize("scale", [1.0, 20.0, 200.0])
@pytest.mark.parametrize("width", [16, 100, 256])
@pytest.mark.parametrize("name", ADDITIVE_MASKS)
def test_additive_by_triton_and_all_its_gradients(name, width, scale):
    """|a| of all three levels; sizes that are no multiples of blocks; grouped key heads."""
    torch.manual_seed(0)
    mask, energy = ADDITIVE_MASKS[name](), Additive(width, heads=2).cuda()
    results = []
    shapes = ((2, 2, 300, width), (2, 1, 257, width), (2, 1, 257, width))
    inputs = [(scale if n < 2 else 1) * torch.randn(s, device="cuda") for n, s in enumerate(shapes)]
    grad = torch.randn(2, 2, 300, width, device="cuda")
    for dtype, kernel in (
        (torch.float32, "triton-additive"),
        (torch.float32, "reference"),
        (torch.float64, "reference"),
    ):
        leaves, copied = [x.to(dtype).requires_grad_() for x in inputs], copy.deepcopy(energy).to(dtype)
        out = attend(*leaves, energy=copied, mask=mask, kernel=kernel)
        results.append((out, *torch.autograd.grad(out, (*leaves, *copied.parameters()), grad.to(dtype))))
    for ours, plain, true in zip(*results, strict=True):
        error, base = ((x.double() - true).abs().max().item() for x in (ours, plain))
        assert error <= 2 * (base + 1e-5 * true.abs().max().item())


def test_additive_by_triton_keeps_the_same_weights_in_both_passes_of_dropout():
    q, k = (torch.randn(2, 2, 90, 32, device="cuda") for _ in range(2))
    v = torch.eye(90, device="cuda").expand(2, 2, 90, 90).clone().requires_grad_()
    out = attend(q, k, v, energy=Additive(32).cuda(), dropout=0.3, kernel="triton-additive")
    assert abs((out != 0).float().mean().item() - 0.7) < 0.02
    grad = torch.randn_like(out)
    assert torch.allclose(torch.autograd.grad(out, v, grad)[0], out.mT @ grad, atol=1e-4)


def test_additive_on_the_gpu_in_tiles():
    q, k, v = (torch.randn(2, 1, 300, 32, device="cuda", requires_grad=True) for _ in range(3))
    energy = Additive(32).cuda()
    a, b = (attend(q, k, v, energy=energy, mask=Causal(), kernel=kernel) for kernel in ("tiled", "reference"))
    assert torch.allclose(a, b, atol=1e-5)
    for x, y in zip(
        torch.autograd.grad(a.sum(), (q, k, v)), torch.autograd.grad(b.sum(), (q, k, v)), strict=True
    ):
        assert torch.allclose(x, y, atol=1e-4)


def test_a_bias_of_positions_with_padding_is_not_rounded_to_half_precision():
    q, k, v = inputs(torch.bfloat16, T=512)
    mask = Padding(torch.tensor([512, 300], device="cuda"))
    for options in ({"bias": ALiBi(4)}, {"bias": lambda t, s: -0.37 * (t - s).abs()}):
        true = attend(*(x.detach().double() for x in (q, k, v)), mask=mask, kernel="reference", **options)
        for kernel in (None, "sdpa", "flex", "triton", "reference"):
            try:
                out = attend(*(x.detach() for x in (q, k, v)), mask=mask, kernel=kernel, **options)
            except KernelError:
                continue
            assert (out.double() - true).abs().max() < 0.03, kernel


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("T", [64, 600])
@pytest.mark.parametrize(
    "name", ["plain", "causal", "window", "ALiBi causal", "padding", "sigmoid causal", "sigmoid ALiBi causal"]
)
def test_a_gradient_penalty_on_the_gpu_equals_the_reference(name, T, dtype):
    options = (
        {"mask": Padding(torch.tensor([T, T // 3], device="cuda"))}
        if name == "padding"
        else on_gpu(CASES[name])
    )

    def penalty(kernel, dtype):
        torch.manual_seed(1)
        q, k, v = (
            x.detach().to(dtype).requires_grad_()
            for x in inputs(dtype if dtype != torch.float64 else torch.float32, T=T)
        )
        out = attend(q, k, v, kernel=kernel, **options)
        (g,) = torch.autograd.grad(out.sum(), q, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (q, k, v))

    true = penalty("reference", torch.float64)
    kernels = [None, "sdpa", "flex", "triton"]
    if name in ("plain", "causal") and T >= LONG and dtype == torch.bfloat16:  # docs/conventions.md
        for kernel in (None, "sdpa"):
            with pytest.raises(RuntimeError, match="not implemented"):
                penalty(kernel, dtype)
        kernels = ["reference", "flex", "triton"]
    for kernel in kernels:
        try:
            result = penalty(kernel, dtype)
        except KernelError:
            continue
        for a, b in zip(result, true, strict=True):
            assert (a.double() - b).abs().max() <= (
                0.1 if dtype == torch.bfloat16 else 1e-3
            ) * b.abs().max(), kernel


def test_second_derivatives_of_long_calls_in_half_precision_are_refused_and_those_of_the_reference_are_not():
    q, k, v = inputs(torch.bfloat16, T=600)
    for _ in range(2):  # the second call takes the shortcut
        (g,) = torch.autograd.grad(attend(q, k, v).sum(), q, create_graph=True)
        with pytest.raises(RuntimeError, match="not implemented"):
            torch.autograd.grad(g.sum(), (q, k, v))
    (g,) = torch.autograd.grad(attend(q, k, v, kernel="reference").sum(), q, create_graph=True)
    torch.autograd.grad(g.sum(), (q, k, v))


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    "make",
    [
        lambda T: {"mask": Window(T // 8, 5)},
        lambda T: {"mask": Causal() & Window(T // 9), "bias": ALiBi(4)},
        lambda T: {"mask": Documents(torch.arange(T) // 60) & Causal()},
    ],
    ids=["window", "window and ALiBi", "documents"],
)
def test_flex_compiles_once_for_three_lengths_and_says_so_once(make, grad, monkeypatch, capsys):
    """Or, for ALiBi, once for each length, and says so: torch 2.11 fails with symbolic sizes (NOTES.md)."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    for name, empty in (("_inputs", {}), ("_ready", {}), ("_announced", set()), ("_static_kinds", set())):
        monkeypatch.setattr(flex, name, empty)
    for lengths in ((512, 768, 1024), (500, 700, 900)):  # lengths divisible by 128 have their own code
        before = counters["stats"]["unique_graphs"]
        for T in lengths:
            q, k, v = inputs(torch.float32, T=T, grad=grad)
            options = make(T)
            leaves = [x.detach().cpu().double().requires_grad_(grad) for x in (q, k, v)]
            true = attend(*leaves, kernel="reference", **options)
            out = attend(q, k, v, kernel="flex", **on_gpu(options))
            assert torch.allclose(out.cpu().double(), true, atol=2e-2)
            if grad:
                got = torch.autograd.grad(out.square().sum(), (q, k, v))
                for a, b in zip(got, torch.autograd.grad(true.square().sum(), leaves), strict=True):
                    assert torch.allclose(a.cpu().double(), b, atol=5e-2)
        graphs = counters["stats"]["unique_graphs"] - before
        if flex._static_kinds:
            assert "bias" in options, "torch could not compile it with symbolic sizes"
            assert graphs <= len(lengths) + 1  # the attempt with symbols is one too
        else:
            assert graphs == 1
    said = capsys.readouterr().err
    assert said.count("regard: compiling Flex for ") == 1
    assert said.count("each new length is compiled") == len(flex._static_kinds)


def test_flex_evaluates_functions_and_unknown_classes_on_full_matrices():
    q, k, v = inputs(torch.float32, T=600, grad=False)

    class Mine(Mask):
        def allowed(self, grid):
            return torch.cat([grid.k.expand(len(grid.q), -1) <= grid.position()])

    for options in (
        {"bias": lambda t, s: -0.01 * (t - s).abs().expand(t.shape[0], s.shape[1])},
        {"mask": Mine()},
    ):
        true = attend(q.double(), k.double(), v.double(), kernel="reference", **options)
        with torch.no_grad():  # a closure might contain parameters
            assert (attend(q, k, v, kernel="flex", **options) - true).abs().max() < 1e-4


def test_a_mask_that_changes_before_the_backward_pass_of_flex_is_noticed():
    q, k, v = inputs(torch.bfloat16, T=600)
    ids = torch.arange(600, device="cuda") // 100
    out = attend(q, k, v, mask=Documents(ids), kernel="flex")
    ids.fill_(0)
    with pytest.raises((KernelError, RuntimeError), match=r"changed in place|modified by an inplace"):
        out.sum().backward()


@pytest.mark.parametrize("mask", [None, Causal(), Window(30, 30)])
def test_a_repeated_call_gives_the_same_result(mask):
    for T, dtype in ((64, torch.bfloat16), (600, torch.bfloat16), (600, torch.float32)):
        q, k, v = inputs(dtype, T=T, grad=False)
        first = attend(q, k, v, mask=mask)
        assert torch.equal(first, attend(q, k, v, mask=mask))
        strided = [x.mT.contiguous().mT for x in (q, k, v)]
        assert (attend(*strided, mask=mask).double() - first.double()).abs().max() < 0.03


SIZES = [(150, 150, 64, 64), (70, 200, 24, 40), (200, 33, 16, 16), (300, 300, 128, 128), (130, 260, 256, 256)]
BANDS = {
    "none": {},
    "causal": {"mask": Causal()},
    "causal, first with first": {"mask": Causal(offset=0)},
    "window": {"mask": Window(20, 9)},
    "window and causal": {"mask": Window(100, 50) & Causal()},
    "nothing for some": {"mask": Window(5, 5, offset=-30)},
    "padding": {"mask": Padding([150, 0, 33])},
    "causal and padding": {"mask": Causal() & Padding([150, 0, 33])},
}


ODD_CALLS = [
    *((sizes, alibi, Softmax()) for sizes in SIZES for alibi in (False, True)),
    (SIZES[1], True, Sigmoid()),
    (SIZES[3], False, Sigmoid()),
    (SIZES[4], False, Sigmoid()),
]


@pytest.mark.parametrize(("sizes", "alibi", "normalize"), ODD_CALLS, ids=str)
@pytest.mark.parametrize("name", BANDS)
def test_the_triton_kernel_on_odd_shapes_with_nan_in_unseen_positions(name, sizes, alibi, normalize):
    torch.manual_seed(0)
    Tq, Tk, D, Dv = sizes
    options = on_gpu(BANDS[name]) | {"normalize": normalize} | ({"bias": ALiBi(4)} if alibi else {})
    shapes = ((3, 4, Tq, D), (3, 2, Tk, D), (3, 2, Tk, Dv))
    q, k, v = (torch.randn(s, device="cuda").to(torch.bfloat16).requires_grad_() for s in shapes)
    grad = torch.randn(3, 4, Tq, Dv, device="cuda", dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    true = attend(*exact, kernel="reference", **options)
    truth = (true, *torch.autograd.grad(true, exact, grad.double()))
    allowed = (
        options["mask"].dense(Tq, Tk, "cuda")
        if "mask" in options
        else torch.ones(1, Tq, Tk, dtype=torch.bool, device="cuda")
    )
    unseen = ~allowed.any(-2).reshape(-1, 1, Tk, 1).expand(3, 2, Tk, 1)
    alone = ~allowed.any(-1).reshape(-1, 1, Tq, 1).expand(3, 4, Tq, 1)
    dirty = [
        x.detach().masked_fill(y, math.nan).requires_grad_()
        for x, y in ((q, alone), (k, unseen), (v, unseen))
    ]
    for tensors in ((q, k, v), dirty):
        out = attend(*tensors, kernel="triton", **options)
        for a, b in zip((out, *torch.autograd.grad(out, tensors, grad)), truth, strict=True):
            assert (a.double() - b).abs().max() <= 0.03 * (1 + b.abs().max()), name
    with torch.no_grad():
        assert torch.equal(
            attend(q, k, v, kernel="triton", **options), attend(q, k, v, kernel="triton", **options)
        )


def test_the_triton_kernel_accepts_any_strides_and_scales():
    q, k, v = inputs(torch.float16, T=200)
    strided = [x.detach().mT.contiguous().mT.requires_grad_() for x in (q, k, v)]
    for scale in (0.3, -0.3, 0.0):
        options = {"energy": Dot(scale), "mask": Window(9, 9)}
        a, b = (attend(*x, kernel="triton", **options) for x in ((q, k, v), strided))
        exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
        true = attend(*exact, kernel="reference", **options)
        assert (a.double() - true).abs().max() < 0.01
        assert torch.equal(a, b)
        for x, y in zip(
            torch.autograd.grad(a.sum(), (q, k, v)), torch.autograd.grad(true.sum(), exact), strict=True
        ):
            assert (x.double() - y).abs().max() < 0.02


@pytest.mark.parametrize(
    "options", [{"normalize": Sigmoid()}, {"energy": Dot(-0.3)}, {"energy": Dot(0.0)}], ids=str
)
def test_a_repeated_call_has_the_normaliser_and_scale_of_the_first(options):
    """Repeated calls take shortcuts, with and without gradients."""
    mask = Window(9, 9)
    for grad in (False, True):
        q, k, v = inputs(torch.bfloat16, T=200, grad=grad)
        exact = [x.detach().double().requires_grad_(grad) for x in (q, k, v)]
        true = attend(*exact, mask=mask, kernel="reference", **options)
        for _ in range(3):
            out = attend(q, k, v, mask=mask, kernel="triton", **options)
            assert (out.double() - true).abs().max() <= 0.02 * (1 + true.abs().max())
        if grad:
            pairs = zip(
                torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(true.sum(), exact), strict=True
            )
            for a, b in pairs:
                assert (a.double() - b).abs().max() <= 0.03 * (1 + b.abs().max())


@torch.no_grad()
def test_column_sums_of_sigmoid_attention_are_not_those_of_a_softmax():
    q, k, v = inputs(torch.bfloat16, T=300, grad=False)
    with watch() as seen:
        attend(q, k, v, mask=Causal(), normalize=Sigmoid())
    full = regard.weights(q.double(), k.double(), mask=Causal(), normalize=Sigmoid())
    for _ in range(2):
        sums = seen["attend.0"].column_sums().double()
        assert torch.allclose(sums, full.sum(-2), rtol=0.02, atol=0.02)


def test_a_padded_batch_without_gradients_uses_the_current_lengths():
    q, k, v = inputs(torch.bfloat16, T=64, grad=False)
    lengths = torch.tensor([64, 20], device="cuda")
    mask = Padding(lengths, finite=True)
    for n in (20, 33):
        lengths[1] = n
        for _ in range(2):
            true = attend(q.double(), k.double(), v.double(), mask=mask, kernel="reference")
            assert (attend(q, k, v, mask=mask).double() - true).abs().max() < 0.02


@pytest.mark.parametrize("alpha", [2.0, 1.5])
@pytest.mark.parametrize("kind", triton_entmax_cases.KINDS)
@pytest.mark.parametrize("shape", [*triton_entmax_cases.SHAPES, (2, 8192)], ids=str)
def test_kernels_of_entmax_equal_plain_torch(shape, kind, alpha):
    assert triton_entmax_cases.error(shape, kind, alpha, "cuda") < 2e-6


@pytest.mark.parametrize("alpha", [2.0, 1.5])
def test_entmax_of_attend_and_its_derivatives_use_the_kernels_if_they_are_chosen(alpha, monkeypatch):
    launched = []
    launch = entmax_gpu._launch
    monkeypatch.setattr(
        entmax_gpu, "_launch", lambda kernel, *more: (launched.append(1), launch(kernel, *more))
    )
    inputs = [torch.randn(2, 3, 70, 16, device="cuda") for _ in range(3)]
    results = []
    for chosen in (False, True):
        monkeypatch.setattr(entmax_gpu, "CHOSEN", chosen)
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = attend(*leaves, mask=Causal(), normalize=Entmax(alpha))
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        results.append((out, *first, *second))
        assert bool(launched) == chosen
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-3 * b.abs().max().item())
    assert triton_entmax_cases.autograd_error(alpha, "cuda") < 2e-5
