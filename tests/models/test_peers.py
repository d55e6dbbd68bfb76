"""Encoders, poolings and classifiers against torch's own layers with the same weights.

Rows 23, 24 and 31 of docs/lectures.md. Covers encoder.py, pooling.py and classifier.py. torch computes every
text of a batch by itself, so that an influence of padding would be detected.
"""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from regard.models.build import build

VOCAB, DIM, LABELS = 30, 16, 3
LENGTHS = torch.tensor([9, 5, 1])
LAYER = {"kind": "transformer", "layers": 2, "heads": 4, "inner": 24, "activation": "relu"}


def make(encoder, pooling, **more):
    """A classifier in float64 with unscaled embeddings."""
    section = {"kind": "classifier", "dim": DIM, "dropout": 0.0, "encoder": encoder, "pooling": pooling}
    more = {"scale_embeddings": False, **more}
    model = build({**section, **more}, VOCAB, LABELS + 4).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)  # also biases and norms, which start at 0 and 1
    return model


def texts():
    """Token ids (3, 9); padding is random, so that an influence would be detected."""
    return torch.randint(4, VOCAB, (3, 9))


def words_of(model, tokens, row):
    return model.source.table.weight[tokens[row, : LENGTHS[row]]]  # (T, DIM)


def largest_difference(model, vector_by_torch, head=None):
    """Largest difference of scores: the model on a padded batch, and torch on one text at a time."""
    tokens = texts()
    head = head or model.head.labels
    rows = [head(vector_by_torch(words_of(model, tokens, row))) for row in range(3)]
    expected = torch.stack(rows).detach()
    scores = model(tokens, LENGTHS).detach()  # (texts, labels)
    assert scores.shape == expected.shape
    return (scores - expected).abs().max().item()


# Row 23: word vectors to a document vector.


def torch_attention(pooling):
    """nn.MultiheadAttention with the weights of an attention pooling and an identity output projection."""
    ours = pooling.attention
    theirs = nn.MultiheadAttention(DIM, ours.heads, batch_first=True).double()
    with torch.no_grad():
        for part, linear in zip(theirs.in_proj_weight.chunk(3), (ours.Wq, ours.Wk, ours.Wv), strict=True):
            part.copy_(linear.weight)
        biases = [torch.zeros(DIM) if x.bias is None else x.bias for x in (ours.Wq, ours.Wk, ours.Wv)]
        theirs.in_proj_bias.copy_(torch.cat(biases))
        theirs.out_proj.weight.copy_(torch.eye(DIM))
        theirs.out_proj.bias.zero_()
    return lambda words: theirs(pooling.query[None], words[None], words[None])[0].flatten()


@pytest.mark.parametrize("kind", ["mean", "sum", "max"])
def test_bag_of_words_poolings_equal_torchs_embedding_bag(kind):
    model = make({"kind": "embedding"}, kind)
    bag = nn.EmbeddingBag.from_pretrained(model.source.table.weight.detach(), mode=kind)
    tokens = texts()
    flat = torch.cat([tokens[row, :length] for row, length in enumerate(LENGTHS)])
    starts = torch.tensor([0, 9, 14])
    torch.testing.assert_close(model(tokens, LENGTHS), model.head.labels(bag(flat, starts)))


@pytest.mark.parametrize(("cell", "torch_class"), [("rnn", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_recurrent_pooling_is_the_last_state_of_torchs_recurrence(cell, torch_class):
    model = make({"kind": "embedding"}, {"kind": "recurrent", "cell": cell, "width": 10})
    theirs = torch_class(DIM, 10, batch_first=True).double()
    theirs.load_state_dict(model.pooling.stack.layers[0].state_dict())
    assert largest_difference(model, lambda words: theirs(words[None])[0][0, -1]) < 1e-10


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("queries", [1, 2])
def test_attention_pooling_is_torchs_multihead_attention_of_learned_queries(heads, queries):
    model = make({"kind": "embedding"}, {"kind": "attention", "heads": heads, "queries": queries})
    assert largest_difference(model, torch_attention(model.pooling)) < 1e-10


def test_attention_pooling_with_an_additive_energy_equals_yang_et_al():
    model = make({"kind": "embedding"}, {"kind": "attention", "energy": "additive"})
    heads = model.pooling.attention
    named = {name: p.squeeze(0) for name, p in heads.energy.named_parameters()}
    Wq, Wk, v = named["Wq.weight"], named["Wk.weight"], named["v"]

    def vector(words):
        query, keys = heads.Wq(model.pooling.query[0]), heads.Wk(words)
        weights = torch.softmax(torch.tanh(keys @ Wk.T + Wq @ query) @ v, 0)
        return weights @ heads.Wv(words)

    assert largest_difference(model, vector) < 1e-10


# Row 24: classifiers.


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_feed_forward_classifier_is_torchs_linear_layers_on_averaged_vectors(activation):
    model = make({"kind": "embedding"}, "mean", head={"layers": 2, "width": 7, "activation": activation})
    shape = [(DIM, 7), (7, 7), (7, LABELS)]
    linears = [nn.Linear(a, b).double() for a, b in shape]
    for linear, ours in zip(linears, [*model.head.hidden, model.head.labels], strict=True):
        linear.load_state_dict(ours.state_dict())
    act = {"relu": nn.ReLU, "tanh": nn.Tanh}[activation]
    head = nn.Sequential(linears[0], act(), linears[1], act(), linears[2])
    assert largest_difference(model, lambda words: words.mean(0), head) < 1e-10


def test_the_convolutional_classifier_is_kims_by_hand():
    """c_i = relu(w · x_(i:i+h−1) + b) for every window, max over time, all kernel widths concatenated."""
    kernels = [2, 3, 5]
    model = make({"kind": "text-cnn", "kernels": kernels, "width": 6}, "max")

    def vector(words):
        features = []
        for layer, kernel in zip(model.encoder.layers, kernels, strict=True):
            weight, bias = layer.weight.weight, layer.weight.bias  # (6, DIM, kernel)
            left = kernel // 2
            zeros = lambda n: torch.zeros(n, DIM, dtype=torch.float64)  # noqa: E731
            padded = torch.cat([zeros(left), words, zeros(kernel - 1 - left)])
            windows = [padded[i : i + kernel] for i in range(len(words))]
            rows = [torch.relu(torch.einsum("okh,hk->o", weight, window) + bias) for window in windows]
            features.append(torch.stack(rows).amax(0))
        return torch.cat(features)

    assert largest_difference(model, vector) < 1e-10


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_the_recurrent_classifier_is_torchs_bidirectional_recurrence(cell):
    """Two layers, the last state of both directions, on a packed batch."""
    model = make({"kind": "recurrent", "cell": cell, "layers": 2, "width": 12}, "last")
    peer = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[cell]
    theirs = peer(DIM, 6, 2, batch_first=True, bidirectional=True).double()
    weights = {}
    for number, layer in enumerate(model.encoder.stack.layers):
        weights |= {name.replace("_l0", f"_l{number}"): w for name, w in layer.state_dict().items()}
    theirs.load_state_dict(weights)
    tokens = texts()
    packed = pack_padded_sequence(model.source.table.weight[tokens], LENGTHS, batch_first=True)
    last = theirs(packed)[1]
    last = last[0] if cell == "lstm" else last  # (layers · directions, batch, 6)
    vectors = torch.cat([last[-2], last[-1]], -1)
    torch.testing.assert_close(model(tokens, LENGTHS), model.head.labels(vectors))


def torch_transformer(encoder, norm="post"):
    """nn.TransformerEncoder with the weights of ours, (T, dim) → (T, dim)."""
    layer = nn.TransformerEncoderLayer(DIM, 4, 24, 0.0, batch_first=True, norm_first=norm == "pre")
    final = nn.LayerNorm(DIM) if norm == "pre" else None
    theirs = nn.TransformerEncoder(layer, len(encoder.layers), norm=final, enable_nested_tensor=False)
    theirs = theirs.double().eval()
    with torch.no_grad():
        for ours, peer in zip(encoder.layers, theirs.layers, strict=True):
            heads = ours.attention
            for name in ("weight", "bias"):
                parts = [getattr(x, name) for x in (heads.Wq, heads.Wk, heads.Wv)]
                parts = [torch.zeros(DIM) if part is None else part for part in parts]
                getattr(peer.self_attn, f"in_proj_{name}").copy_(torch.cat(parts))
            pairs = [
                (peer.self_attn.out_proj, heads.Wo),
                (peer.linear1, ours.feed.W1),
                (peer.linear2, ours.feed.W2),
                (peer.norm1, ours.around_attention.norm),
                (peer.norm2, ours.around_feed.norm),
            ]
            for their_part, our_part in pairs:
                copy_weights(their_part, our_part)
        if final is not None:
            copy_weights(theirs.norm, encoder.norm)
    return lambda x: theirs(x[None])[0]


def copy_weights(theirs, ours):
    theirs.weight.copy_(ours.weight)
    theirs.bias.zero_() if ours.bias is None else theirs.bias.copy_(ours.bias)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_transformer_classifier_is_torchs_encoder(norm):
    model = make({**LAYER, "norm": norm, "position": "sinusoidal"}, "mean")
    peer = torch_transformer(model.encoder, norm)
    t, k = torch.arange(9.0).double()[:, None], torch.arange(DIM // 2).double()
    angles = t / 10000 ** (2 * k / DIM)
    table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)  # sin and cos alternate
    assert largest_difference(model, lambda words: peer(words + table[: len(words)]).mean(0)) < 1e-10


# Row 31: self-attention on top of a recurrence or of convolutions.


def test_self_attention_on_top_of_an_lstm_is_torchs_lstm_and_encoder():
    below = {"kind": "recurrent", "cell": "lstm", "width": 12}
    model = make({"kind": "stacked", "below": below, "above": {**LAYER, "position": "none"}}, "mean")
    lstm = nn.LSTM(DIM, 6, batch_first=True, bidirectional=True).double()
    lstm.load_state_dict(model.encoder.below.stack.layers[0].state_dict())
    attention = torch_transformer(model.encoder.above)

    def vector(words):
        return attention(model.encoder.fit(lstm(words[None])[0][0])).mean(0)

    assert largest_difference(model, vector) < 1e-10


def test_self_attention_on_top_of_convolutions_is_torchs_convolution_and_encoder():
    below = {"kind": "convolutional", "layers": 2, "kernel": 3, "position": "none"}
    model = make({"kind": "stacked", "below": below, "above": {**LAYER, "position": "none"}}, "mean")
    attention = torch_transformer(model.encoder.above)

    def vector(words):
        x = words.T[None]  # (1, DIM, T)
        for layer in model.encoder.below.layers:
            x = x + torch.relu(nn.functional.conv1d(x, layer.weight.weight, layer.weight.bias, padding=1))
        return attention(x[0].T).mean(0)

    assert largest_difference(model, vector) < 1e-10
