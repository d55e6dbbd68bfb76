"""Encoder-decoder models against a few lines of plain arithmetic on their weights.

Rows 27 to 30 and 44 of docs/lectures.md. Covers cross_attention.py and decoder.py.
"""

from types import SimpleNamespace

import pytest
import torch

from regard.errors import RecipeError
from regard.models.attention_options import NORMALIZERS
from regard.models.cross_attention import CROSS_ATTENTIONS, CrossAttentionOptions
from regard.models.memory import Memory
from regard.recipe.loading import load_recipe
from tests.models.small import make, make_batch

SOFTMAX = torch.nn.functional.softmax


def cell_of(kind, w, h, x):
    """One step of a recurrent cell by its published equations; h is (h,) or (h, c)."""
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


def vector(embedding, token):
    """The scaled embedding of a token: its row times √dim."""
    return embedding.table.weight[token].detach() * 32**0.5


def weights_of(layer):
    return {name: p.detach() for name, p in layer.named_parameters()}


def zeros(kind, n):
    return tuple(torch.zeros(n, dtype=torch.float64) for _ in range(2 if kind == "lstm" else 1))


def encode_by_hand(kind, model, tokens):
    """y^e(1) … y^e(T^e) and the last state, by the definition."""
    w, state, result = weights_of(model.encoder.stack.layers[0]), zeros(kind, model.encoder.width), []
    for token in tokens:
        state = cell_of(kind, w, state, vector(model.source, token))
        result.append(state[0])
    return torch.stack(result), state


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("shared", [False, True])
def test_without_attention_the_decoder_starts_from_the_last_encoder_state(kind, shared):
    model = make(
        {"kind": "recurrent", "cell": kind, "bidirectional": False},
        {"kind": "recurrent", "cell": kind, "initial_state": "copy", "shared_recurrence": shared},
        tie="none",
    )
    batch = make_batch()
    scores = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    if shared:
        assert model.decoder.stack is model.encoder.stack
    for b in range(3):
        _, state = encode_by_hand(kind, model, batch.source[b, : batch.source_lengths[b]])
        w = weights_of(model.decoder.stack.layers[0])
        for t in range(batch.target.shape[1] - 1):
            state = cell_of(kind, w, state, vector(model.target, batch.target[b, t]))
            torch.testing.assert_close(scores[b, t], model.output.projection.weight @ state[0])


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("attention", ["dot", "projected", "bilinear"])
def test_attention_beside_the_recurrence_follows_the_equations(kind, attention):
    model = make(
        {"kind": "recurrent", "cell": kind, "bidirectional": False},
        {"kind": "recurrent", "cell": kind, "initial_state": "copy", "attention": attention},
        tie="none",
    )
    batch = make_batch()
    scores = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    cross_attention, Wo = model.decoder.attention, model.output.projection.weight
    for b in range(3):
        ye, state = encode_by_hand(kind, model, batch.source[b, : batch.source_lengths[b]])
        w = weights_of(model.decoder.stack.layers[0])
        for t in range(batch.target.shape[1] - 1):
            state = cell_of(kind, w, state, vector(model.target, batch.target[b, t]))
            yd = state[0]
            if attention == "dot":
                ya = ye.T @ SOFTMAX(ye @ yd, 0)
            elif attention == "projected":
                ya = (cross_attention.Wv.weight @ ye.T) @ SOFTMAX(
                    (cross_attention.Wk.weight @ ye.T).T @ (cross_attention.Wq.weight @ yd), 0
                )
            else:
                ya = ye.T @ SOFTMAX(ye @ (cross_attention.energy.W.T @ yd), 0)
            torch.testing.assert_close(scores[b, t], Wo @ torch.cat([yd, ya]))


NORMALIZE = {
    "none": lambda a: a,  # the first form of the lecture: raw scores as weights
    "softmax": lambda a: SOFTMAX(a, 0),
    "sigmoid": lambda a: 1 / (1 + torch.exp(-a)),
    "sparsemax": lambda a: torch.clamp(a - sparsemax_threshold(a), min=0),
}


def sparsemax_threshold(a):
    """τ with Σ max(a − τ, 0) = 1, by bisection."""
    low, high = a.min() - 1, a.max()
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if (a - middle).clamp(min=0).sum() > 1 else (low, middle)
    return (low + high) / 2


def energy_by_hand(name, energy, keys, query):
    """Energies of the keys (T, ·) for one query, from their formulas."""
    if name == "additive":
        return torch.tanh(energy.Wq.weight @ query + keys @ energy.Wk.weight.T) @ energy.v
    if name == "bilinear":
        return keys @ (energy.W.T @ query)
    if name == "cosine":
        return len(query) ** 0.5 * (keys @ query) / (keys.norm(dim=1) * query.norm())
    return keys @ query / (len(query) ** 0.5 if name == "scaled-dot" else 1)


def outputs_beside_the_recurrence(decoder, context_by_hand):
    """The model's outputs, and W^o [y^d(t); y^a(t)] with y^a(t) = context_by_hand(…, [y^e], y^d(t))."""
    model = make(
        {"kind": "recurrent", "bidirectional": False},
        {"kind": "recurrent", "initial_state": "copy", **decoder},
        tie="none",
    )
    batch = make_batch()
    scores = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    expected = torch.zeros_like(scores)  # (sentences, time, vocabulary)
    for b in range(3):  # of different lengths: padding has no weight
        ye, state = encode_by_hand("gru", model, batch.source[b, : batch.source_lengths[b]])
        w = weights_of(model.decoder.stack.layers[0])
        for t in range(batch.target.shape[1] - 1):
            state = cell_of("gru", w, state, vector(model.target, batch.target[b, t]))
            context = context_by_hand(model.decoder.attention, ye, state[0])
            expected[b, t] = model.output.projection.weight @ torch.cat([state[0], context])
    return scores, expected


@pytest.mark.parametrize("normalize", list(NORMALIZE))
@pytest.mark.parametrize("attention", ["dot", "scaled-dot", "cosine", "bilinear", "additive"])
def test_every_energy_and_normalizer_follow_their_formulas(attention, normalize):
    def context(cross_attention, ye, yd):
        return ye.T @ NORMALIZE[normalize](energy_by_hand(attention, cross_attention.energy, ye, yd))

    options = {"attention": attention, "normalize": normalize}
    torch.testing.assert_close(*outputs_beside_the_recurrence(options, context))


@pytest.mark.parametrize("normalize", ["none", "softmax"])
@pytest.mark.parametrize("energy", ["dot", "scaled-dot", "cosine", "bilinear", "additive"])
def test_every_energy_of_projected_states_follows_its_formula(energy, normalize):
    def context(cross_attention, ye, yd):
        keys, values, query = (
            ye @ cross_attention.Wk.weight.T,
            ye @ cross_attention.Wv.weight.T,
            cross_attention.Wq.weight @ yd,
        )
        head = cross_attention.energy  # parameters have an axis for their one head
        if energy in ("additive", "bilinear"):
            head = SimpleNamespace(**{name: one_head(p) for name, p in head.named_parameters()})
            head.Wq, head.Wk = (SimpleNamespace(weight=getattr(head, f"W{x}.weight", None)) for x in "qk")
        return values.T @ NORMALIZE[normalize](energy_by_hand(energy, head, keys, query))

    options = {"attention": "projected", "attention_width": 24, "energy": energy, "normalize": normalize}
    torch.testing.assert_close(*outputs_beside_the_recurrence(options, context))


def one_head(parameter):
    return parameter.detach()[0] if parameter.shape[0] == 1 else parameter.detach()


@pytest.mark.parametrize("normalize", ["none", "softmax", "sparsemax"])
def test_a_query_equal_to_an_encoder_state_retrieves_this_state(normalize):
    """*Deep Learning IX*: if y^d(t) equals y^e(i), the attention returns y^e(i).

    With raw scores that holds for orthonormal states, with softmax in the limit of long ones.
    """
    states = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).double())[0]
    length = 1.0 if normalize == "none" else 8.0
    states = length * states[:5]
    attention = CROSS_ATTENTIONS["dot"](8, 8, CrossAttentionOptions(normalize=NORMALIZERS[normalize]()))
    contexts = attention(states[None], Memory(states[None], None))[0]
    torch.testing.assert_close(contexts, states, atol=1e-9, rtol=0)


@pytest.mark.parametrize("normalize", ["none", "sparsemax"])
def test_bahdanau_with_another_normalizer_follows_the_equations(normalize):
    model = make({"kind": "recurrent"}, {"kind": "bahdanau", "normalize": normalize}, tie="none")
    batch = make_batch()
    scores = model(batch.source[:1], batch.target[:1, :-1], batch.source_lengths[:1])
    energy, first = model.decoder.attention.energy, model.decoder.initial_state.map
    h = both_directions("gru", model, batch.source[0, : batch.source_lengths[0]])
    state = (torch.tanh(first.weight @ torch.cat([h[-1, :16], h[0, 16:]]) + first.bias),)
    for t in range(batch.target.shape[1] - 1):
        context = NORMALIZE[normalize](energy_by_hand("additive", energy, h, state[0])) @ h
        y = vector(model.target, batch.target[0, t])
        state = cell_of("gru", weights_of(model.decoder.stack.layers[0]), state, torch.cat([y, context]))
        expected = model.output.projection.weight @ torch.cat([state[0], context, y])
        torch.testing.assert_close(scores[0, t], expected)


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_bahdanau_follows_the_equations(kind):
    model = make({"kind": "recurrent", "cell": kind}, {"kind": "bahdanau", "cell": kind}, tie="none")
    batch = make_batch()
    scores = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    energy, first = model.decoder.attention.energy, model.decoder.initial_state.map
    w = weights_of(model.decoder.stack.layers[0])
    for b in range(3):
        tokens = batch.source[b, : batch.source_lengths[b]]
        h = both_directions(kind, model, tokens)
        last = torch.cat([h[-1, :16], h[0, 16:]])  # where each direction ended
        state = tuple(torch.tanh(first.weight @ last + first.bias).chunk(2 if kind == "lstm" else 1))
        for t in range(batch.target.shape[1] - 1):
            a = SOFTMAX(torch.tanh(energy.Wq.weight @ state[0] + h @ energy.Wk.weight.T) @ energy.v, 0)
            context, y = a @ h, vector(model.target, batch.target[b, t])
            state = cell_of(kind, w, state, torch.cat([y, context]))
            torch.testing.assert_close(
                scores[b, t], model.output.projection.weight @ torch.cat([state[0], context, y])
            )


def both_directions(kind, model, tokens):
    """h_j = [forward; backward] of a bidirectional encoder, each direction from its own end."""
    all_weights = weights_of(model.encoder.stack.layers[0])
    forward = {n: w for n, w in all_weights.items() if not n.endswith("_reverse")}
    backward = {n.removesuffix("_reverse"): w for n, w in all_weights.items() if n.endswith("_reverse")}
    sides = []
    for w, order in ((forward, tokens), (backward, tokens.flip(0))):
        state, result = zeros(kind, 16), []
        for token in order:
            state = cell_of(kind, w, state, vector(model.source, token))
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
    scores = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    w, first = weights_of(model.decoder.stack.layers[0]), model.decoder.initial_state.map
    ye, last = encode_by_hand("gru", model, batch.source[0])
    state, ya = (torch.tanh(first.weight @ last[0] + first.bias),), torch.zeros(32, dtype=torch.float64)
    for t in range(batch.target.shape[1] - 1):
        state = cell_of("gru", w, state, torch.cat([vector(model.target, batch.target[0, t]), ya]))
        ya = ye.T @ SOFTMAX(ye @ state[0], 0)
        torch.testing.assert_close(scores[0, t], model.output.projection.weight @ torch.cat([state[0], ya]))


def test_a_transformer_layer_is_attention_and_feed_forward_with_norms_after():
    """Vaswani et al. 2017, by hand: one encoder and one decoder layer with one head."""
    layer = {"kind": "transformer", "layers": 1, "heads": 1, "inner": 16}
    model = make(layer, layer, dim=8)
    batch = make_batch()
    scores = model(batch.source[:1], batch.target[:1, :-1])
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
    torch.testing.assert_close(scores[0], y @ E.T)


@pytest.mark.parametrize(
    "decoder", [{"attention": "dot"}, {"attention": "additive"}, {"attention": "projected"}]
)
@pytest.mark.parametrize("normalize", ["none", "entmax"])
def test_decoding_steps_equal_teacher_forcing(decoder, normalize):
    model = make(
        {"kind": "recurrent", "bidirectional": False},
        {"kind": "recurrent", "normalize": normalize, **decoder},
    )
    batch = make_batch()
    memory = model.encode(batch.source, batch.source_lengths)
    x = model.target(batch.target[:, :-1])
    full, _ = model.decoder(x, memory)
    state = model.decoder.start(memory, x)
    for t in range(x.shape[1]):
        features, state = model.decoder.step(x[:, t], state)
        torch.testing.assert_close(features, full[:, t])


def test_options_that_do_not_apply_are_errors():
    encoder = {"kind": "recurrent", "bidirectional": False}
    for decoder, message in (
        (
            {"attention": "dot", "energy": "cosine"},
            "energy is for attention: projected, and attention is dot",
        ),
        ({"attention": "none", "normalize": "none"}, "normalize is none, and attention is none"),
        ({"attention": "cosine", "width": 8}, "attention is cosine, and the encoder's states are 32 wide"),
    ):
        model = {"dim": 32, "encoder": encoder, "decoder": {"kind": "recurrent", **decoder}}
        with pytest.raises(RecipeError, match=message):
            load_recipe({"data": {"corpus": "multi30k", "source": "de", "target": "en"}, "model": model})
