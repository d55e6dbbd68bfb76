"""Dropout: rates, scaling, gradients and torch's generator; locked dropout and embedding dropout."""

import pytest
import torch
from torch import nn

from regard.layers.dropout import Dropout, LockedDropout, embedding_dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_drops_a_fraction_p_and_keeps_the_mean(p, dtype):
    x = torch.ones(101, 997, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # dropped elements get no gradient
    assert float((y == 0).double().mean()) == pytest.approx(p, abs=0.01)
    scale = float(torch.tensor(1 / (1 - round(p * 65536) / 65536), dtype=dtype))
    assert set(y.detach().unique().tolist()) == {0.0, scale}
    # Neighbours use bits of the same random integer, but are independent.
    both_dropped = float(((y[:, 1:] == 0) & (y[:, :-1] == 0)).double().mean())
    assert both_dropped == pytest.approx(p * p, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_p_one_drops_everything(dtype):
    x = torch.randn(3, 5, 7, dtype=dtype, requires_grad=True)
    for y in (Dropout(1.0)(x), LockedDropout(1.0)(x), embedding_dropout(x[0], 1.0)):
        assert bool((y == 0).all()) and y.dtype == dtype
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert bool((gradient == 0).all())


@pytest.mark.parametrize("p", [1e-12, 1e-6, 7e-6, 1 - 1e-6, 1 - 7e-6, 1 - 1e-12])
def test_a_rate_near_zero_or_one_is_not_rounded_to_it(p, monkeypatch):
    """At a resolution of 1/65536, p would be 0 or 1; torch's own dropout is used instead."""
    rates = []
    monkeypatch.setattr(nn.functional, "dropout", lambda x, p, *_: rates.append(p) or x)
    Dropout(p)(torch.ones(8))
    assert rates == [p]


@pytest.mark.parametrize("p", [1e-12, 1e-6, 2e-5, 1 - 2e-5, 1 - 1e-6, 1 - 1e-12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kept_elements_are_finite_and_scaled_by_one_over_one_minus_p(p, dtype):
    x = torch.ones(400, 500, dtype=dtype)
    table = torch.ones(200_000, 1, dtype=dtype)
    for y in (Dropout(p)(x), LockedDropout(p)(table.reshape(-1, 1, 1)), embedding_dropout(table, p)):
        kept = y[y != 0].double()
        deviation = (p * (1 - p) * y.numel()) ** 0.5  # standard deviation of the number of kept elements
        assert bool(y.isfinite().all())
        assert abs(len(kept) - (1 - p) * y.numel()) <= 6 * deviation + 1
        torch.testing.assert_close(
            kept, torch.full_like(kept, 1 / (1 - p)), rtol=0.5 if p > 0.9 else 1e-4, atol=0
        )


def test_empty_inputs_give_empty_outputs():
    for shape in ((0,), (0, 3), (2, 0, 3), (2, 3, 0)):
        for layer in (Dropout(0.5), Dropout(1.0)):
            assert layer(torch.ones(shape)).shape == shape
        if len(shape) > 1:
            for layer in (LockedDropout(0.5), LockedDropout(1.0)):
                assert layer(torch.ones(shape)).shape == shape
    assert embedding_dropout(torch.ones(0, 3), 0.5).shape == (0, 3)
    assert Dropout(0.5)(torch.ones(())).shape == ()


def test_in_place_dropout_and_dropout_under_torch_func_use_torch():
    x = torch.ones(1000)
    Dropout(0.5, inplace=True)(x)
    assert {*x.tolist()} == {0.0, 2.0}
    rows = torch.func.vmap(Dropout(0.5), randomness="different")(torch.ones(4, 1000))
    assert {*rows.flatten().tolist()} == {0.0, 2.0} and not torch.equal(rows[0], rows[1])


def test_dropout_repeats_with_torchs_generator_and_is_off_in_evaluation():
    x, state = torch.randn(5, 7), torch.random.get_rng_state()
    a = Dropout(0.5)(x)
    torch.random.set_rng_state(state)
    assert torch.equal(Dropout(0.5)(x), a)
    assert torch.equal(Dropout(0.5).eval()(x), x) and torch.equal(Dropout(0.0)(x), x)


def test_locked_dropout_uses_one_mask_for_all_time_steps():
    dropped = LockedDropout(0.5)(torch.ones(4, 9, 32))
    assert bool((dropped == dropped[:, :1]).all()) and set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(LockedDropout(0.5).eval()(torch.ones(2, 3, 4)), torch.ones(2, 3, 4))


def test_embedding_dropout_drops_rows():
    table = embedding_dropout(torch.ones(1000, 3), 0.25)
    assert bool((table == table[:, :1]).all()) and table.mean() == pytest.approx(1, abs=0.1)
