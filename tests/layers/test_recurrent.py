"""Recurrent layers: torch's own numbers, states in the open, padding unseen."""

import pytest
import torch
from torch import nn

from regard.errors import OptionError
from regard.layers.dropout import Dropout, Locked, drop_words
from regard.layers.recurrent import RecurrentStack, reorder


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
    stack, x = RecurrentStack(6, 8, cell=cell, layers=2, last_width=5).double(), torch.randn(3, 7, 6, dtype=torch.float64)
    whole, last = stack(x)
    a, state = stack(x[:, :3])
    b, state = stack(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([a, b], 1), whole)
    for got, want in zip(state, last, strict=True):
        torch.testing.assert_close(got, want)
    assert [h.shape for layer in state for h in layer] == [h.shape for layer in stack.zeros(x) for h in layer]


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


def test_a_new_lstm_remembers_and_lets_signals_through():
    layer = RecurrentStack(6, 8, cell="lstm").layers[0]
    assert layer.bias_ih_l0.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
    for gate in layer.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8))


def test_reordering_takes_rows():
    state = [(torch.arange(3.0)[:, None], torch.arange(3.0)[:, None] + 10)]
    assert reorder(state, torch.tensor([2, 2, 0]))[0][1].flatten().tolist() == [12, 12, 10]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_keeps_the_mean_and_drops_its_share(p, dtype):
    x = torch.ones(101, 997, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # what was dropped learns nothing
    assert float((y == 0).double().mean()) == pytest.approx(p, abs=0.01)
    assert set(y.detach().unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - round(p * 65536) / 65536), dtype=dtype))}
    together = float(((y[:, 1:] == 0) & (y[:, :-1] == 0)).double().mean())
    assert together == pytest.approx(p * p, abs=0.01)  # neighbours share bits of one number and are independent all the same


def test_dropout_repeats_with_torchs_generator_and_rests_in_evaluation():
    x, state = torch.randn(5, 7), torch.random.get_rng_state()
    a = Dropout(0.5)(x)
    torch.random.set_rng_state(state)
    assert torch.equal(Dropout(0.5)(x), a)
    assert torch.equal(Dropout(0.5).eval()(x), x) and torch.equal(Dropout(0.0)(x), x)


def test_one_mask_holds_for_all_steps():
    dropped = Locked(0.5)(torch.ones(4, 9, 32))
    assert bool((dropped == dropped[:, :1]).all()) and set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(Locked(0.5).eval()(torch.ones(2, 3, 4)), torch.ones(2, 3, 4))


def test_a_dropped_word_is_missing_everywhere():
    table = drop_words(torch.ones(1000, 3), 0.25)
    assert bool((table == table[:, :1]).all()) and table.mean() == pytest.approx(1, abs=0.1)


def test_an_odd_width_cannot_be_halved():
    with pytest.raises(OptionError, match="even"):
        RecurrentStack(6, 7, bidirectional=True)
    with pytest.raises(OptionError, match="cell"):
        RecurrentStack(6, 8, cell="gnu")
