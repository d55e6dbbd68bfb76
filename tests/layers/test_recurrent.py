"""Recurrent layers: torch's own numbers, states in the open, padding unseen."""

import pytest
import torch
from torch import nn

from regard.errors import OptionError
from regard.layers.dropout import Dropout, LockedDropout, embedding_dropout
from regard.layers.recurrent import RecurrentStack, reorder_state


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_stack_is_torchs_recurrence_of_several_layers(cell, bidirectional):
    stack = RecurrentStack(6, 8, cell=cell, layers=2, bidirectional=bidirectional).double()
    whole = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[cell](
        6, 8 // (1 + bidirectional), 2, batch_first=True, bidirectional=bidirectional
    ).double()
    for i, layer in enumerate(stack.layers):
        for name, p in layer.named_parameters():
            whole.get_parameter(name.replace("_l0", f"_l{i}")).data.copy_(p)
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(stack(x)[0], whole(x)[0])


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_cut_sequence_goes_on_from_its_state(cell):
    stack, x = (
        RecurrentStack(6, 8, cell=cell, layers=2, last_width=5).double(),
        torch.randn(3, 7, 6, dtype=torch.float64),
    )
    whole, last = stack(x)
    a, state = stack(x[:, :3])
    b, state = stack(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([a, b], 1), whole)
    for got, want in zip(state, last, strict=True):
        torch.testing.assert_close(got, want)
    assert [h.shape for layer in state for h in layer] == [
        h.shape for layer in stack.zero_state(x) for h in layer
    ]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_is_never_read(bidirectional):
    stack = RecurrentStack(6, 8, cell="lstm", layers=2, bidirectional=bidirectional).double()
    x, lengths = torch.randn(3, 7, 6, dtype=torch.float64), torch.tensor([4, 7, 1])
    for i, n in enumerate(lengths):
        x[i, n:] = torch.nan
    out, last = stack(x, lengths=lengths)
    for i, n in enumerate(lengths):
        alone, state = stack(x[i : i + 1, :n])
        torch.testing.assert_close(out[i : i + 1, :n], alone)
        for a, b in zip(last, state, strict=True):
            torch.testing.assert_close(tuple(h[i : i + 1] for h in a), b)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_sequence_without_tokens_leaves_the_state_as_it_was(cell, bidirectional):
    stack = RecurrentStack(6, 8, cell=cell, layers=2, bidirectional=bidirectional).double()
    x, lengths = torch.randn(4, 5, 6, dtype=torch.float64), torch.tensor([0, 5, 0, 3])
    x[0], x[2], x[3, 3:] = torch.nan, torch.nan, torch.nan
    x.requires_grad_()
    given = [tuple(torch.randn(4, 8, dtype=torch.float64) for _ in h) for h in stack.zero_state(x)]
    for state in (None, given):
        out, last = stack(x, state, lengths)
        assert bool((out[[0, 2]] == 0).all())
        rows = [1, 3]
        want, after = stack(
            x[rows], None if state is None else reorder_state(state, torch.tensor(rows)), lengths[rows]
        )
        torch.testing.assert_close(out[rows], want)
        for found, alone, before in zip(
            last, after, stack.zero_state(x) if state is None else state, strict=True
        ):
            for h, a, b in zip(found, alone, before, strict=True):
                torch.testing.assert_close(h[rows], a)
                torch.testing.assert_close(h[[0, 2]], b[[0, 2]])
        (slope,) = torch.autograd.grad(out.sum() + last[0][0].sum(), x)
        assert bool(slope.isfinite().all()) and bool((slope[[0, 2]] == 0).all())


@pytest.mark.parametrize("shape", [(3, 0, 6), (0, 4, 6), (0, 0, 6)])
@pytest.mark.parametrize("with_lengths", [False, True])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_batch_without_tokens_or_without_rows_gives_its_shapes(cell, shape, with_lengths):
    stack, x = RecurrentStack(6, 8, cell=cell, layers=2), torch.randn(shape)
    out, last = stack(x, lengths=torch.zeros(shape[0], dtype=torch.long) if with_lengths else None)
    assert out.shape == (*shape[:2], 8)
    assert [h.shape for layer in last for h in layer] == [
        h.shape for layer in stack.zero_state(x) for h in layer
    ]
    assert all(bool((h == 0).all()) for layer in last for h in layer)


def test_a_new_lstm_remembers_and_lets_signals_through():
    layer = RecurrentStack(6, 8, cell="lstm").layers[0]
    assert layer.bias_ih_l0.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
    for gate in layer.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8))


def test_reordering_takes_rows():
    state = [(torch.arange(3.0)[:, None], torch.arange(3.0)[:, None] + 10)]
    assert reorder_state(state, torch.tensor([2, 2, 0]))[0][1].flatten().tolist() == [12, 12, 10]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_keeps_the_mean_and_drops_its_share(p, dtype):
    x = torch.ones(101, 997, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # what was dropped learns nothing
    assert float((y == 0).double().mean()) == pytest.approx(p, abs=0.01)
    assert set(y.detach().unique().tolist()) == {
        0.0,
        float(torch.tensor(1 / (1 - round(p * 65536) / 65536), dtype=dtype)),
    }
    together = float(((y[:, 1:] == 0) & (y[:, :-1] == 0)).double().mean())
    assert together == pytest.approx(
        p * p, abs=0.01
    )  # neighbours share bits of one number and are independent all the same


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_dropout_of_one_drops_everything(dtype):
    x = torch.randn(3, 5, 7, dtype=dtype, requires_grad=True)
    for y in (Dropout(1.0)(x), LockedDropout(1.0)(x), embedding_dropout(x[0], 1.0)):
        assert bool((y == 0).all()) and y.dtype == dtype
        (slope,) = torch.autograd.grad(y.sum(), x)
        assert bool((slope == 0).all())


@pytest.mark.parametrize("p", [1e-12, 1e-6, 7e-6, 1 - 1e-6, 1 - 7e-6, 1 - 1e-12])
def test_a_rate_near_nothing_or_all_is_not_rounded_to_it(p, monkeypatch):
    """Of 65536 steps, p would be step 0 or 65536; torch's own dropout draws finer."""
    asked = []
    monkeypatch.setattr(nn.functional, "dropout", lambda x, p, *_: asked.append(p) or x)
    Dropout(p)(torch.ones(8))
    assert asked == [p]


@pytest.mark.parametrize("p", [1e-12, 1e-6, 2e-5, 1 - 2e-5, 1 - 1e-6, 1 - 1e-12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_dropout_keeps_is_finite_and_keeps_the_mean(p, dtype):
    x = torch.ones(400, 500, dtype=dtype)
    table = torch.ones(200_000, 1, dtype=dtype)
    for y in (Dropout(p)(x), LockedDropout(p)(table.reshape(-1, 1, 1)), embedding_dropout(table, p)):
        kept = y[y != 0].double()
        assert (
            bool(y.isfinite().all())
            and abs(len(kept) - (1 - p) * y.numel()) <= 6 * (p * (1 - p) * y.numel()) ** 0.5 + 1
        )
        torch.testing.assert_close(
            kept, torch.full_like(kept, 1 / (1 - p)), rtol=0.5 if p > 0.9 else 1e-4, atol=0
        )


def test_nothing_in_is_nothing_out():
    for shape in ((0,), (0, 3), (2, 0, 3), (2, 3, 0)):
        for layer in (Dropout(0.5), Dropout(1.0)):
            assert layer(torch.ones(shape)).shape == shape
        if len(shape) > 1:
            assert (
                LockedDropout(0.5)(torch.ones(shape)).shape
                == LockedDropout(1.0)(torch.ones(shape)).shape
                == shape
            )
    assert embedding_dropout(torch.ones(0, 3), 0.5).shape == (0, 3)
    assert Dropout(0.5)(torch.ones(())).shape == ()


def test_dropout_in_place_and_under_torch_func_is_torchs():
    x = torch.ones(1000)
    Dropout(0.5, inplace=True)(x)
    assert {*x.tolist()} == {0.0, 2.0}
    rows = torch.func.vmap(Dropout(0.5), randomness="different")(torch.ones(4, 1000))
    assert {*rows.flatten().tolist()} == {0.0, 2.0} and not torch.equal(rows[0], rows[1])


def test_dropout_repeats_with_torchs_generator_and_rests_in_evaluation():
    x, state = torch.randn(5, 7), torch.random.get_rng_state()
    a = Dropout(0.5)(x)
    torch.random.set_rng_state(state)
    assert torch.equal(Dropout(0.5)(x), a)
    assert torch.equal(Dropout(0.5).eval()(x), x) and torch.equal(Dropout(0.0)(x), x)


def test_one_mask_holds_for_all_steps():
    dropped = LockedDropout(0.5)(torch.ones(4, 9, 32))
    assert bool((dropped == dropped[:, :1]).all()) and set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(LockedDropout(0.5).eval()(torch.ones(2, 3, 4)), torch.ones(2, 3, 4))


def test_a_dropped_word_is_missing_everywhere():
    table = embedding_dropout(torch.ones(1000, 3), 0.25)
    assert bool((table == table[:, :1]).all()) and table.mean() == pytest.approx(1, abs=0.1)


def test_an_odd_width_cannot_be_halved():
    with pytest.raises(OptionError, match="even"):
        RecurrentStack(6, 7, bidirectional=True)
    with pytest.raises(OptionError, match="cell"):
        RecurrentStack(6, 8, cell="gnu")
