"""Rows 27 to 30, each against a few lines of plain arithmetic on the model's own numbers."""

import pytest
import torch

from tests.models.small import make, make_batch

SOFTMAX = torch.nn.functional.softmax


def cell_of(kind, w, h, x):
    """One step of a cell from its matrices, as its paper has it; h is (h,) or (h, c)."""
    gates_x, gates_h = w["weight_ih_l0"] @ x + w["bias_ih_l0"], w["weight_hh_l0"] @ h[0] + w["bias_hh_l0"]
    if kind == "rnn":
        return (torch.tanh(gates_x + gates_h),)
    if kind == "gru":
        (r, z, n), (rh, zh, nh) = gates_x.chunk(3), gates_h.chunk(3)
        r, z = torch.sigmoid(r + rh), torch.sigmoid(z + zh)
        return ((1 - z) * torch.tanh(n + r * nh) + z * h[0],)
    i, f, g, o = (gates_x + gates_h).chunk(4)
    c = torch.sigmoid(f) * h[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def vector(words, word):
    """The vector a word is read as: its row times √dim."""
    return words.table.weight[word].detach() * 32**0.5


def weights_of(layer):
    return {name: p.detach() for name, p in layer.named_parameters()}


def zeros(kind, n):
    return tuple(torch.zeros(n, dtype=torch.float64) for _ in range(2 if kind == "lstm" else 1))


def read(kind, model, words):
    """y^e(1) … y^e(T^e) and the last state, by the definition."""
    w, state, result = weights_of(model.encoder.stack.layers[0]), zeros(kind, model.encoder.width), []
    for word in words:
        state = cell_of(kind, w, state, vector(model.source, word))
        result.append(state[0])
    return torch.stack(result), state


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("shared", [False, True])
def test_without_attention_everything_passes_through_one_vector(kind, shared):
    model = make(
        {"kind": "recurrent", "cell": kind, "bidirectional": False},
        {"kind": "recurrent", "cell": kind, "initial_state": "copy", "shared_recurrence": shared},
        tie="none",
    )
    batch = make_batch()
    got = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    if shared:
        assert model.decoder.stack is model.encoder.stack
    for b in range(3):
        _, state = read(kind, model, batch.source[b, : batch.source_lengths[b]])
        w = weights_of(model.decoder.stack.layers[0])
        for t in range(batch.target.shape[1] - 1):
            state = cell_of(kind, w, state, vector(model.target, batch.target[b, t]))
            torch.testing.assert_close(got[b, t], model.output.projection.weight @ state[0])


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("attention", ["dot", "projected", "bilinear"])
def test_attention_beside_the_recurrence_follows_the_equations(kind, attention):
    model = make(
        {"kind": "recurrent", "cell": kind, "bidirectional": False},
        {"kind": "recurrent", "cell": kind, "initial_state": "copy", "attention": attention},
        tie="none",
    )
    batch = make_batch()
    got = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    look, Wo = model.decoder.attention, model.output.projection.weight
    for b in range(3):
        ye, state = read(kind, model, batch.source[b, : batch.source_lengths[b]])
        w = weights_of(model.decoder.stack.layers[0])
        for t in range(batch.target.shape[1] - 1):
            state = cell_of(kind, w, state, vector(model.target, batch.target[b, t]))
            yd = state[0]
            if attention == "dot":
                ya = ye.T @ SOFTMAX(ye @ yd, 0)
            elif attention == "projected":
                ya = (look.Wv.weight @ ye.T) @ SOFTMAX((look.Wk.weight @ ye.T).T @ (look.Wq.weight @ yd), 0)
            else:
                ya = ye.T @ SOFTMAX(ye @ (look.energy.W.T @ yd), 0)
            torch.testing.assert_close(got[b, t], Wo @ torch.cat([yd, ya]))


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_bahdanau_puts_the_context_of_the_last_state_into_the_recurrence(kind):
    model = make({"kind": "recurrent", "cell": kind}, {"kind": "bahdanau", "cell": kind}, tie="none")
    batch = make_batch()
    got = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    energy, first = model.decoder.attention.energy, model.decoder.initial_state.map
    w = weights_of(model.decoder.stack.layers[0])
    for b in range(3):
        words = batch.source[b, : batch.source_lengths[b]]
        h = both_directions(kind, model, words)
        last = torch.cat([h[-1, :16], h[0, 16:]])  # where each direction ended
        state = tuple(torch.tanh(first.weight @ last + first.bias).chunk(2 if kind == "lstm" else 1))
        for t in range(batch.target.shape[1] - 1):
            a = SOFTMAX(torch.tanh(energy.Wq.weight @ state[0] + h @ energy.Wk.weight.T) @ energy.v, 0)
            context, y = a @ h, vector(model.target, batch.target[b, t])
            state = cell_of(kind, w, state, torch.cat([y, context]))
            torch.testing.assert_close(
                got[b, t], model.output.projection.weight @ torch.cat([state[0], context, y])
            )


def both_directions(kind, model, words):
    """h_j = [forward; backward] of a bidirectional encoder, each direction from its own end."""
    all_weights = weights_of(model.encoder.stack.layers[0])
    forward = {n: w for n, w in all_weights.items() if not n.endswith("_reverse")}
    backward = {n.removesuffix("_reverse"): w for n, w in all_weights.items() if n.endswith("_reverse")}
    sides = []
    for w, order in ((forward, words), (backward, words.flip(0))):
        state, result = zeros(kind, 16), []
        for word in order:
            state = cell_of(kind, w, state, vector(model.source, word))
            result.append(state[0])
        sides.append(torch.stack(result))
    return torch.cat([sides[0], sides[1].flip(0)], -1)


def test_input_feeding_gives_the_last_context_to_the_next_step():
    model = make(
        {"kind": "recurrent", "bidirectional": False},
        {"kind": "recurrent", "attention": "dot", "input_feeding": True},
        tie="none",
    )
    batch = make_batch()
    got = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    w, first = weights_of(model.decoder.stack.layers[0]), model.decoder.initial_state.map
    ye, last = read("gru", model, batch.source[0])
    state, ya = (torch.tanh(first.weight @ last[0] + first.bias),), torch.zeros(32, dtype=torch.float64)
    for t in range(batch.target.shape[1] - 1):
        state = cell_of("gru", w, state, torch.cat([vector(model.target, batch.target[0, t]), ya]))
        ya = ye.T @ SOFTMAX(ye @ state[0], 0)
        torch.testing.assert_close(got[0, t], model.output.projection.weight @ torch.cat([state[0], ya]))


def test_a_transformer_layer_is_attention_and_feed_forward_with_norms_after():
    """Vaswani et al. 2017, by hand: one encoder and one decoder layer with one head."""
    layer = {"kind": "transformer", "layers": 1, "heads": 1, "inner": 16}
    model = make(layer, layer, dim=8)
    batch = make_batch()
    got = model(batch.source[:1], batch.target[:1, :-1])
    E = model.target.table.weight
    pe = lambda T: model.encoder.position.table(T, dtype=torch.float64)  # noqa: E731
    norm = lambda x, n: torch.nn.functional.layer_norm(x, (8,), n.norm.weight, n.norm.bias)  # noqa: E731

    def attention(a, q, m, causal=False):
        e = a.Wq(q) @ a.Wk(m).T / 8**0.5
        if causal:
            e = e.masked_fill(torch.ones_like(e).triu(1).bool(), -torch.inf)
        return a.Wo(SOFTMAX(e, -1) @ a.Wv(m))

    feed = lambda f, x: f.W2(torch.relu(f.W1(x)))  # noqa: E731
    x, e = E[batch.source[0]] * 8**0.5 + pe(7), model.encoder.layers[0]
    x = norm(x + attention(e.attention, x, x), e.around_attention)
    memory = norm(x + feed(e.feed, x), e.around_feed)
    y, d = E[batch.target[0, :-1]] * 8**0.5 + pe(6), model.decoder.layers[0]
    y = norm(y + attention(d.attention, y, y, causal=True), d.around_attention)
    y = norm(y + attention(d.cross, y, memory), d.around_cross)
    y = norm(y + feed(d.feed, y), d.around_feed)
    torch.testing.assert_close(got[0], y @ E.T)
