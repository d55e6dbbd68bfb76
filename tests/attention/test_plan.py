"""Which kernel is chosen and why; plans for a GPU are tested without one. Covers plan.py and machine.py."""

from dataclasses import replace

import pytest
import torch

from regard import Additive, ALiBi, Causal, Padding, Softmax, Sparsemax, Window, attend, explain
from regard.attention import (  # fmt: skip
    Cosine,
    Dense,
    Dilated,
    Documents,
    Hard,
    Mask,
    Match,
    RelativeBuckets,
    plan,
)
from regard.attention.call import make_call
from regard.attention.kernels import sdpa, tiled, triton
from regard.attention.kernels.kernel import Kernel
from regard.attention.machine import Machine
from regard.attention.plan import add_kernel, remove_kernel
from regard.errors import KernelError, OptionError
from tests.attention import every_kernel

H200, A100, V100 = (Machine("cuda", c) for c in ((9, 0), (8, 0), (7, 0)))


def call(T=2048, D=128, dtype=torch.bfloat16, B=4, H=16, **options):
    q, k, v = (torch.empty(B, H, T, D, dtype=dtype, device="meta") for _ in range(3))
    return make_call(q, k, v, **options)


def chosen(machine, **options):
    return plan.make_plan(call(**options), machine=machine)


def test_plain_and_causal_go_to_cudnn_on_hopper():
    for options in ({}, {"mask": Causal()}, {"mask": Causal(offset=0)}):
        choice = chosen(H200, **options)
        assert choice.kernel == "sdpa"
        assert "CUDNN_ATTENTION" in choice.why
        assert "faster" in choice.not_used["flex"]
    assert "FLASH_ATTENTION" in chosen(A100).why
    assert "EFFICIENT_ATTENTION" in chosen(V100).why
    assert "EFFICIENT_ATTENTION" in chosen(H200, dtype=torch.float32).why


def test_bands_go_to_triton_on_a_gpu_and_to_flex_without_it(monkeypatch):
    for installed, kernel in ((True, "triton"), (False, "flex")):
        monkeypatch.setattr(triton, "is_installed", lambda installed=installed: installed)
        for options in (
            {"mask": Causal(), "bias": ALiBi(16)},
            {"mask": Window(128, 128)},
            {"energy": Cosine(), "mask": Window(64)},
        ):
            assert chosen(H200, **options).kernel == kernel, options


def test_other_masks_and_biases_of_positions_go_to_flex_on_a_gpu():
    for options in (
        {"mask": Documents(torch.zeros(2048, dtype=torch.long, device="meta"))},
        {"mask": Dilated(4)},
        {"softcap": 20.0},
    ):
        assert chosen(H200, **options).kernel == "flex", options


def test_flex_is_not_compiled_for_small_calls_on_a_gpu():
    choice = chosen(H200, T=512, B=1, H=2, mask=Dilated(4))
    assert choice.kernel == "sdpa"
    assert "too few" in choice.not_used["flex"]


def test_flex_is_not_compiled_for_short_sequences():
    choice = chosen(H200, T=128, B=512, H=8, mask=Dilated(4))
    assert choice.kernel == "sdpa"
    assert "few blocks to skip" in choice.not_used["flex"]


def test_flex_is_not_chosen_while_a_cuda_graph_is_captured():
    choice = chosen(replace(H200, capturing=True), mask=Dilated(4))
    assert choice.kernel == "sdpa"
    assert "captured" in choice.not_used["flex"]


@pytest.mark.parametrize(("T", "cudnn_first"), [(40, False), (2048, True)])
def test_sdpa_on_hopper_tries_cudnn_first_for_long_sequences_only(T, cudnn_first, monkeypatch):
    """By itself torch tries cuDNN first there, which makes a plan for every new shape."""
    before, orders = torch._C._get_sdp_priority_order(), []

    def record(q, *_, **__):
        orders.append(torch._C._get_sdp_priority_order())
        return q

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", record)
    sdpa.Sdpa().run(call(T), H200)
    cudnn, math = (int(torch._C._SDPBackend.__members__[name]) for name in ("CUDNN_ATTENTION", "MATH"))
    assert (orders[0].index(cudnn) < orders[0].index(math)) == cudnn_first
    assert torch._C._get_sdp_priority_order() == before
    sdpa.Sdpa().run(call(T), Machine("cpu"))
    assert orders[1] == before


def test_sdpa_backends_are_listed_in_order_of_preference():
    def names(machine, **options):
        return sdpa.backends(call(**options), machine)

    assert names(H200) == ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]
    assert names(H200, bias=torch.empty(2048, 2048, dtype=torch.bfloat16, device="meta")) == [
        "CUDNN_ATTENTION",
        "EFFICIENT_ATTENTION",
        "MATH",
    ]
    assert names(H200, T=128) == [
        "FLASH_ATTENTION",
        "EFFICIENT_ATTENTION",
        "MATH",
    ]  # cuDNN would plan for each shape
    assert names(H200, T=128, mask=Window(4)) == ["EFFICIENT_ATTENTION", "MATH"]
    assert names(A100) == ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]
    assert names(A100, D=200) == ["EFFICIENT_ATTENTION", "MATH"]
    assert names(Machine("cpu")) == []


def test_calls_without_a_fused_kernel_use_tiles_or_the_reference_on_a_gpu():
    assert chosen(H200, normalize=Sparsemax()).kernel == "tiled"
    assert chosen(H200, T=128, B=1, normalize=Sparsemax()).kernel == "reference"
    additive = Additive(128).to("meta", torch.bfloat16)
    assert chosen(H200, energy=additive, softcap=5.0).kernel == "tiled"


def inputs(T=512, D=64, B=2, H=4, dtype=torch.float32, grad=False):
    return tuple(torch.randn(B, H, T, D, dtype=dtype, requires_grad=grad) for _ in range(3))


def test_large_softmax_calls_use_the_cpp_kernel_on_a_cpu_or_say_why_not():
    explanation = explain(*inputs(), mask=Causal())
    assert explanation.kernel == "cpp" or (explanation.kernel == "tiled" and explanation.not_used["cpp"])
    for options in (
        {"mask": Causal()},
        {"bias": ALiBi(4)},
        {"energy": Additive(64)},
        {"softcap": 5.0},
        {"mask": Window.centered(32)},
    ):
        assert explain(*inputs(), **options).kernel in ("cpp", "tiled", "additive", "sdpa")


def test_tiles_and_sdpa_are_used_without_a_cpp_compiler(monkeypatch):
    from regard.attention.kernels import native

    monkeypatch.setattr(native, "unavailable", lambda: "no C++ compiler was found")
    assert explain(*inputs()).kernel == "sdpa"
    assert explain(*inputs(), mask=Causal()).kernel == "tiled"
    assert (
        explain(*inputs(T=2048), mask=Causal()).kernel == "sdpa"
    )  # SDPA skips the empty half itself when it is long
    assert explain(*inputs(), mask=Window.centered(32)).kernel == "tiled"
    assert explain(*inputs(), energy=Additive(64)).kernel == "additive"
    assert explain(*inputs(), normalize=Sparsemax()).kernel == "tiled"
    assert explain(*inputs(T=4, B=1, H=1), energy=Match(), normalize=Hard()).kernel == "reference"
    assert explain(*inputs(), mask=Causal()).not_used["cpp"] == "no C++ compiler was found"
    with pytest.raises(KernelError, match="no C\\+\\+ compiler was found"):
        attend(*inputs(), kernel="cpp")


def test_explain_gives_a_reason_against_every_faster_kernel():
    explanation = explain(*inputs(), normalize=Sparsemax())
    assert list(explanation.not_used) == [
        "cpp",
        "triton-short",
        "triton-cache",
        "triton",
        "triton-additive",
        "flex",
        "sdpa",
        "additive",
    ]
    text = str(explanation)
    assert text.startswith("tiled: ")
    assert "not sdpa: SDPA normalises by softmax only, not by Sparsemax" in text
    assert "memory beside inputs and output: about" in text


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        ("sdpa", {"normalize": Sparsemax()}, "SDPA normalises by softmax only"),
        ("sdpa", {"softcap": 3.0}, "SDPA has no soft cap"),
        ("sdpa", {"gate": Window(3)}, "SDPA has no gate"),
        ("sdpa", {"bias": RelativeBuckets(4)}, "the bias may require a gradient"),
        ("sdpa", {"energy": Additive(64)}, "Additive is not a dot product"),
        ("sdpa", {"dropout": 0.1}, "dropout"),
        ("additive", {}, "computes Additive energies, not ScaledDot"),
        ("flex", {"normalize": Hard()}, "Flex normalises by softmax only"),
        ("flex", {"dropout": 0.5}, "neither gate nor dropout"),
        ("cpp", {"dropout": 0.5}, "neither gate nor dropout"),
        ("nativ", {}, "no kernel is called 'nativ'"),
        ("tilde", {}, "did you mean 'tiled'"),
    ],
)
def test_a_requested_kernel_that_cannot_run_is_an_error_with_the_reason(kernel, options, message):
    with pytest.raises(KernelError, match=message):
        attend(*inputs(T=70), kernel=kernel, **options)
    with pytest.raises(KernelError, match=message):
        explain(*inputs(T=70), kernel=kernel, **options)


def test_tiles_cover_all_allowed_pairs_once_and_few_others():
    for mask in (
        None,
        Causal(),
        Window.centered(16),
        Padding([30, 200]),
        Documents.of_lengths([100, 60, 40]),
        Dense(torch.rand(200, 200) < 0.5),
    ):
        made = make_call(*inputs(T=200), mask=mask)
        seen = torch.zeros(2, 200, 200, dtype=torch.bool)
        for t in tiled.cover(made, 64, per_sequence=True):
            assert not seen[t.batch, t.queries, t.keys].any()  # no pair twice
            seen[t.batch, t.queries, t.keys] = True
        allowed = (
            torch.ones(2, 200, 200, dtype=torch.bool)
            if mask is None
            else mask.dense(200, 200).reshape(-1, 200, 200).expand(2, 200, 200)
        )
        assert (seen | ~allowed).all()
        if isinstance(mask, Window | Padding):
            assert seen.float().mean() < 0.6


def test_the_work_of_a_window_grows_linearly():
    def work(T):
        made = call(T=T, dtype=torch.float32, mask=Window.centered(256))
        tiles = tiled.cover(
            make_call(*(torch.empty(1, 1, T, 4) for _ in range(3)), mask=made.mask), 64, per_sequence=True
        )
        return sum((t.queries.stop - t.queries.start) * (t.keys.stop - t.keys.start) for t in tiles)

    assert work(8192) < 2.2 * work(4096)


def test_memory_of_the_reference_grows_with_pairs_and_of_the_tiles_with_length():
    small, large = (explain(*inputs(T=T, B=1, H=1), kernel="reference").memory for T in (256, 1024))
    assert large == 16 * small
    small, large = (explain(*inputs(T=T, B=1, H=1), kernel="tiled").memory for T in (4096, 8192))
    assert large < 1.1 * small
    assert (
        explain(*inputs(T=128, B=8, H=1, D=128), energy=Additive(128), kernel="reference").memory
        > 8 * 128**3 * 4
    )


def test_fused_kernels_support_a_temperature():
    assert explain(*inputs(), normalize=Softmax(0.5)).kernel in ("cpp", "sdpa")


class _OneKey(Kernel):
    name = "one-key"

    def refuses(self, call, machine):
        return None if call.Tk == 1 and call.mask is None else "it is for one key"

    def describe(self, call, machine):
        return "one key has weight 1"

    def memory(self, call, machine):
        return 0

    def run(self, call, machine):
        return (
            call.value.expand(*call.leading, call.heads, call.Tq, call.Dv) + 0.5
        )  # deliberately wrong, so that its use is visible


def test_an_added_kernel_runs_first_and_is_forgotten_when_removed():
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 1, 8), torch.randn(2, 3, 1, 8)
    before = attend(q, k, v)
    add_kernel(_OneKey())
    try:
        assert explain(q, k, v).kernel == "one-key"
        torch.testing.assert_close(attend(q, k, v), before + 0.5)
        with pytest.raises(OptionError, match="there is a kernel 'one-key' already"):
            add_kernel(_OneKey())
    finally:
        remove_kernel("one-key")
    torch.testing.assert_close(attend(q, k, v), before)


@pytest.mark.parametrize("name", ["one-key", "reference", None])
def test_only_added_kernels_are_removed_and_only_kernels_added(name):
    with pytest.raises(OptionError):
        remove_kernel(name)
    with pytest.raises(OptionError, match="subclass of Kernel"):
        add_kernel(name)


def test_two_classes_with_one_name_do_not_share_a_plan():
    def make_mask(width):
        class Mine(Mask):
            def allowed(self, grid):
                return (grid.k - grid.position()).abs() <= width

            def __repr__(self):
                return "Mine()"

        return Mine()

    q, k, v = every_kernel.inputs(1, 2, 140, 8)
    for width in (3, 50):
        for name, out in every_kernel.runs(q, k, v, mask=make_mask(width)):
            assert every_kernel.close(out, attend(q, k, v, mask=Window(width, width), kernel="reference")), (
                name,
                width,
            )


def test_cached_plans_do_not_mix_signatures():
    q, k, v = every_kernel.inputs(2, 2, 40, 8)
    for options in (
        {},
        {"mask": Causal()},
        {"mask": Causal(offset=3)},
        {"mask": Padding([3, 40])},
        {"mask": Padding([40, 40])},
    ):
        for _ in range(2):
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                tensors = [x.to(dtype) for x in (q, k, v)]
                true = attend(*(x.double() for x in tensors), kernel="reference", **options)
                assert every_kernel.close(
                    attend(*tensors, **options), true, 0.05 if dtype == torch.bfloat16 else 1e-5
                )
    assert explain(q, k, v).kernel == "sdpa"
    with torch.no_grad():
        attend(q, k, v)
    out = attend(q.requires_grad_(), k, v)
    assert out.requires_grad
