"""`watch` on regard's own layers: names, weights after a fused kernel, selected rows, snapshots.

Covers watching.py and snapshot.py; modules of torch and other libraries are in test_torch_calls.py.
"""

import math
import threading

import pytest
import torch
from torch import nn

import regard
from regard import (
    Additive,
    ALiBi,
    Bilinear,
    Cache,
    Causal,
    MultiHead,
    Padding,
    Window,
    attend,
    watch,
    weights,
)
from regard.attention import Documents, RelativeVectors
from regard.conformance import case
from regard.errors import KernelError, OptionError
from tests.attention.every_kernel import close, inputs


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention = MultiHead(dim, 2, mask=Causal())
        self.cross = MultiHead(dim, 4)

    def forward(self, x, memory):
        x = x + self.attention(x)
        return x + self.cross(x, memory)


class Model(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.encoder = MultiHead(dim, 2, bias=ALiBi(2))
        self.decoder = nn.ModuleList(Block(dim) for _ in range(2))

    def forward(self, x, source):
        memory = self.encoder(source)
        for block in self.decoder:
            x = block(x, memory)
        return x


def test_calls_are_named_by_module_path_and_kind():
    with watch(model := Model()) as seen:
        model(torch.randn(3, 7, 16), torch.randn(3, 9, 16))
    assert list(seen) == [
        "encoder.self",
        "decoder.0.attention.self", "decoder.0.cross",
        "decoder.1.attention.self", "decoder.1.cross",
    ]  # fmt: skip
    assert seen["decoder.1.cross"].shape == (3, 4, 7, 9)
    assert len(seen) == 5
    assert "decoder.0.cross" in seen
    assert "(3, 4, 7, 9)" in repr(seen)


def test_a_call_outside_of_modules_is_named_by_order():
    q = torch.randn(1, 1, 4, 3)
    with watch() as seen:
        attend(q, q, q)
        attend(q, q, q, mask=Causal())
    assert list(seen) == ["attend.0", "attend.1"]
    assert torch.allclose(seen["attend.1"].weights(), weights(q, q, mask=Causal()))


def test_nothing_is_recorded_outside_and_hooks_are_removed():
    model = Model()
    with watch(model) as seen:
        pass
    model(torch.randn(1, 3, 16), torch.randn(1, 3, 16))
    assert len(seen) == 0
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(RuntimeError, match="stop"), watch(model) as seen:
        raise RuntimeError("stop")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(OptionError, match="nothing called 'x' was seen"):
        seen["x"]


def test_names_are_correct_after_a_module_failed():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("broken")

    model = nn.ModuleDict({"bad": Fails(), "good": MultiHead(4, 1)})
    with watch(model) as seen:
        with pytest.raises(ValueError, match="broken"):
            model["bad"](torch.randn(1, 2, 4))
        model["good"](torch.randn(1, 2, 4))
    assert list(seen) == ["good.self"]


@pytest.mark.parametrize("seed", range(40))
def test_rows_computed_on_demand_equal_the_rows_of_the_matrix(seed):
    _, tensors, options = case("all options", seed).make(torch.float64)
    q, k, v = tensors.values()
    with watch() as seen:
        attend(q, k, v, **options)
    call, full = seen["attend.0"], weights(q, k, **options).detach()
    assert call.shape == tuple(full.shape)
    assert torch.allclose(call.weights(), full)
    b, h, i = q.shape[0] - 1, q.shape[1] - 1, q.shape[2] // 2
    assert torch.allclose(call.weights(batch=b, head=h, query=i), full[b, h, i])
    assert torch.allclose(call.weights(head=[0, h], query=slice(i, None)), full[:, [0, h], i:])
    assert torch.allclose(call.weights(batch=[b], query=[0, -1]), full[[b]][:, :, [0, -1]])
    assert torch.allclose(call.column_sums(head=h), full[:, h].sum(-2))
    top, indices = call.top(min(3, k.shape[-2]), batch=b)
    assert torch.allclose(top, full[b].topk(min(3, k.shape[-2]), -1).values)
    assert torch.allclose(full[b].gather(-1, indices), top)


@pytest.mark.parametrize("stage", ["energy", "biased", "masked", "normalised", "gated"])
def test_weights_can_be_computed_at_every_stage(stage):
    q, k = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 6, 4)
    options = dict(bias=ALiBi(2), mask=Causal(), gate=Window(2), softcap=2.0)
    with watch() as seen:
        attend(q, k, k, **options)
    e = q @ k.transpose(-1, -2) / 2
    biased = 2 * torch.tanh((e + weights(torch.zeros_like(q), k, bias=ALiBi(2), stage="biased")) / 2)
    masked = biased.masked_fill(~Causal().dense(5, 6), -math.inf)
    normal = torch.softmax(masked, -1)
    expected = {
        "energy": e,
        "biased": biased,
        "masked": masked,
        "normalised": normal,
        "gated": normal * Window(2).dense(5, 6),
    }
    assert torch.allclose(seen["attend.0"].weights(stage=stage), expected[stage], atol=1e-6)
    assert torch.allclose(
        seen["attend.0"].weights(stage=stage, head=1, query=2), expected[stage][:, 1, 2], atol=1e-6
    )


@pytest.mark.parametrize("kernel", ["cpp", "sdpa", "tiled", "additive"])
def test_weights_are_available_after_a_fused_kernel(kernel):
    q, k, v = (torch.randn(2, 2, 130, 8) for _ in range(3))
    energy = Additive(8) if kernel == "additive" else regard.ScaledDot()
    with watch() as seen:
        try:
            out = attend(q, k, v, energy=energy, mask=Causal() & Padding([100, 130]), kernel=kernel)
        except KernelError as error:
            pytest.skip(str(error))
    assert torch.allclose(seen["attend.0"].weights() @ v, out, atol=1e-5)


def test_one_row_of_a_long_call_does_not_build_the_matrix(monkeypatch):
    T = 20_000
    q, k = torch.randn(1, 1, T, 8), torch.randn(1, 1, T, 8)
    with watch() as seen:
        attend(q, k, k, mask=Causal() & Window(50))
    largest = 0
    from regard.attention.kernels import reference

    weigh = reference.weigh

    def record_size(call, rows, stage):
        nonlocal largest
        result = weigh(call, rows, stage)
        largest = max(largest, result[0].numel())
        return result

    monkeypatch.setattr(reference, "weigh", record_size)
    row = seen["attend.0"].weights(query=T // 2)
    assert row.shape == (1, 1, T)
    assert int((row > 0).sum()) == 51
    assert seen["attend.0"].entropy().shape == (1, 1, T)
    assert seen["attend.0"].column_sums().sum().item() == pytest.approx(T, rel=1e-3)
    assert largest <= 1 << 23  # the full matrix has 400 million elements


def test_entropy_is_0_for_one_key_and_log_n_for_uniform_weights():
    q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 8, 4)
    with watch() as seen:
        attend(q, k, k)
        attend(q, k, k, mask=Window(0))
    assert torch.allclose(seen["attend.0"].entropy(), torch.full((1, 1, 2), math.log(8)))
    assert torch.allclose(seen["attend.1"].entropy(query=0), torch.zeros(1, 1))


def test_recorded_calls_do_not_change_when_caches_masks_and_parameters_do():
    layer, cache = MultiHead(8, 2, mask=Causal(), bias=RelativeVectors(4), energy=Additive(4)), Cache()
    lengths, dense = torch.tensor([3]), torch.randn(1, 1, 3, 3)
    x = torch.randn(1, 3, 8)
    with torch.no_grad(), watch(layer) as seen:
        layer(x, cache=cache, mask=Padding(lengths))
        before = seen["self"].weights()
        cache._key.zero_()
        lengths.zero_()
        for p in layer.parameters():
            p.zero_()
        q = torch.randn(1, 1, 3, 4)
        attend(q, q, q, bias=dense)
        biased = seen["attend.0"].weights()
        dense.zero_()
    assert torch.equal(seen["self"].weights(), before)
    assert torch.equal(seen["attend.0"].weights(), biased)


def test_every_decoding_step_is_recorded_in_order():
    layer, cache, x = MultiHead(8, 2, mask=Causal()), Cache(), torch.randn(2, 5, 8)
    with torch.no_grad(), watch(layer) as seen:
        for t in range(5):
            layer(x[:, t : t + 1], cache=cache)
        layer(x)
    steps = seen.calls("self")
    assert [s.shape for s in steps[:5]] == [(2, 2, 1, t + 1) for t in range(5)]
    full = steps[5].weights()
    for t in range(5):
        assert torch.allclose(steps[t].weights(query=0), full[:, :, t, : t + 1], atol=1e-6)


def test_watched_weights_are_those_before_dropout():
    q, k = torch.randn(1, 1, 4, 3), torch.randn(1, 1, 5, 3)
    with watch() as seen:
        attend(q, k, k, dropout=0.9)
    assert torch.allclose(seen["attend.0"].weights().sum(-1), torch.ones(1, 1, 4))


def test_watch_contexts_can_be_nested():
    q = torch.randn(1, 1, 4, 3)
    with watch() as outer:
        attend(q, q, q)
        with watch() as inner:
            attend(q, q, q, mask=Documents.of_lengths([2, 2]))
    assert len(outer) == 2
    assert len(inner) == 1
    assert (inner["attend.0"].weights()[0, 0, 0] > 0).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (lambda r: r.weights(head=2), "head=.*out of range; there are 2"),
        (lambda r: r.weights(query=[0, 9]), "out of range; there are 4"),
        (lambda r: r.weights(batch=-3), "out of range; there are 1"),
        (lambda r: r.weights(stage="soft"), "stage must be one of"),
        (lambda r: r.top(9), "k must be between 1 and the 4 keys"),
    ],
)
def test_invalid_selections_are_refused(select, message):
    q = torch.randn(1, 2, 4, 3)
    with watch() as seen:
        attend(q, q, q)
    with pytest.raises(OptionError, match=message):
        select(seen["attend.0"])


def test_only_models_can_be_watched():
    with pytest.raises(OptionError, match="takes a torch module"), watch("model"):
        pass


def test_another_thread_may_run_the_watched_model():
    layer = regard.MultiHead(8, 2)
    x, stop, errors = torch.randn(1, 3, 8), threading.Event(), []

    def other():
        while not stop.is_set():
            try:
                layer(x)
            except Exception as error:  # raised by a hook of the other thread's watch
                errors.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(50):
        with regard.watch(torch.nn.Sequential(layer)) as seen:
            layer(x)
        assert list(seen) == ["0.self"] and len(seen.calls("0.self")) == 1
    stop.set()
    thread.join()
    assert not errors


@pytest.mark.parametrize("energy", [Bilinear(8, rank=4), Additive(8), Bilinear(8)])
def test_weights_of_a_call_under_autocast_can_be_computed_outside_it(energy):
    q, k, v = inputs(1, 2, 6, 8)
    with watch() as seen, torch.autocast("cpu", torch.bfloat16):
        out = attend(q, k, v, energy=energy)
        inside = seen["attend.0"].weights()
    outside = seen["attend.0"].weights()
    assert out.dtype == torch.bfloat16
    assert torch.equal(inside, outside)
    assert close(outside.double() @ v.double(), out, 0.05)


def test_a_module_used_as_energy_is_copied_when_watched():
    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, q, k):
            return self.scale * (q @ k.mT)

    module = Learned()
    q, k, v = inputs(1, 1, 4, 8)
    with watch() as seen:
        attend(q, k, v, energy=module)
    before = seen["attend.0"].weights()
    with torch.no_grad():
        module.scale.mul_(5)
    assert torch.equal(seen["attend.0"].weights(), before)
