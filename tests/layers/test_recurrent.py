"""Recurrent layers against torch's: equal outputs, states passed in and out, padding never read."""

import pytest
import torch
from torch import nn

from regard.errors import OptionError
from regard.layers.recurrent import RecurrentStack, reorder_state, without_packing


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_stack_equals_torchs_multi_layer_recurrence(cell, bidirectional):
    stack = RecurrentStack(6, 8, cell=cell, layers=2, bidirectional=bidirectional).double()
    theirs = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[cell](
        6, 8 // (1 + bidirectional), 2, batch_first=True, bidirectional=bidirectional
    ).double()
    for i, layer in enumerate(stack.layers):
        for name, p in layer.named_parameters():
            theirs.get_parameter(name.replace("_l0", f"_l{i}")).data.copy_(p)
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(stack(x)[0], theirs(x)[0])


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_split_sequence_continues_from_its_state(cell):
    stack = RecurrentStack(6, 8, cell=cell, layers=2, last_width=5).double()
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    full, last = stack(x)
    a, state = stack(x[:, :3])
    b, state = stack(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([a, b], 1), full)
    for split_state, full_state in zip(state, last, strict=True):
        torch.testing.assert_close(split_state, full_state)
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
def test_a_sequence_without_tokens_keeps_its_state(cell, bidirectional):
    stack = RecurrentStack(6, 8, cell=cell, layers=2, bidirectional=bidirectional).double()
    x, lengths = torch.randn(4, 5, 6, dtype=torch.float64), torch.tensor([0, 5, 0, 3])
    x[0], x[2], x[3, 3:] = torch.nan, torch.nan, torch.nan
    x.requires_grad_()
    initial = [tuple(torch.randn(4, 8, dtype=torch.float64) for _ in h) for h in stack.zero_state(x)]
    for state in (None, initial):
        out, last = stack(x, state, lengths)
        assert bool((out[[0, 2]] == 0).all())
        rows = [1, 3]
        expected, after = stack(
            x[rows], None if state is None else reorder_state(state, torch.tensor(rows)), lengths[rows]
        )
        torch.testing.assert_close(out[rows], expected)
        before = stack.zero_state(x) if state is None else state
        for result, expected_state, initial_state in zip(last, after, before, strict=True):
            for h, a, b in zip(result, expected_state, initial_state, strict=True):
                torch.testing.assert_close(h[rows], a)
                torch.testing.assert_close(h[[0, 2]], b[[0, 2]])
        (gradient,) = torch.autograd.grad(out.sum() + last[0][0].sum(), x)
        assert bool(gradient.isfinite().all()) and bool((gradient[[0, 2]] == 0).all())


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


def test_a_new_lstm_has_forget_bias_one_and_orthogonal_recurrent_weights():
    layer = RecurrentStack(6, 8, cell="lstm").layers[0]
    assert layer.bias_ih_l0.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
    for gate in layer.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8))


def test_reordering_selects_rows():
    state = [(torch.arange(3.0)[:, None], torch.arange(3.0)[:, None] + 10)]
    assert reorder_state(state, torch.tensor([2, 2, 0]))[0][1].flatten().tolist() == [12, 12, 10]


def test_an_odd_bidirectional_width_and_an_unknown_cell_are_refused():
    with pytest.raises(OptionError, match="even"):
        RecurrentStack(6, 7, bidirectional=True)
    with pytest.raises(OptionError, match="cell"):
        RecurrentStack(6, 8, cell="gnu")


@pytest.mark.parametrize("cell", ["rnn", "gru"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_without_packing_outputs_states_and_gradients_are_the_same(cell, bidirectional):
    torch.manual_seed(0)
    stack = RecurrentStack(6, 8, cell=cell, layers=2, bidirectional=bidirectional).double()
    x = torch.randn(4, 7, 6, dtype=torch.float64, requires_grad=True)
    state = [(torch.randn(4, 8, dtype=torch.float64),) for _ in range(2)]
    lengths = torch.tensor([3, 7, 1, 5])

    def run():
        out, last = stack(x, state, lengths)
        loss = out.sin().sum() + sum(h.cos().sum() for (h,) in last)
        return out, *(h for (h,) in last), *torch.autograd.grad(loss, [x, *stack.parameters()])

    packed = run()
    with without_packing():
        padded = run()
    for a, b in zip(packed, padded, strict=True):
        torch.testing.assert_close(a, b)


def test_without_packing_an_lstm_packs_and_weights_are_dropped():
    torch.manual_seed(0)
    lstm = RecurrentStack(6, 8, cell="lstm")
    x, lengths = torch.randn(3, 5, 6), torch.tensor([5, 2, 3])
    packed = lstm(x, None, lengths)
    with without_packing():
        torch.testing.assert_close(lstm(x, None, lengths), packed)
        gru = RecurrentStack(6, 8, dropout_weight=0.5)
        assert not torch.equal(gru(x, None, lengths)[0], gru(x, None, lengths)[0])
        gru.eval()
        assert torch.equal(gru(x, None, lengths)[0], gru(x, None, lengths)[0])
