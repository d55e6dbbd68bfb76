"""Every encoder with every decoder: steps equal the full pass, padding changes nothing, published sizes.

Covers autoregressive.py, cross_attention.py, decoder.py, embedding.py, encoder.py, language_model.py,
memory.py, model.py, text_model.py, transformer.py, translator.py.
"""

import pytest
import torch

from regard.data.batch import Batch
from regard.errors import OptionError, ShapeError
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build
from regard.models.embedding import Embedding
from tests.models.small import DECODERS, ENCODERS, LAYER, make, make_batch

PAIRS = [(e, d) for e in ENCODERS for d in DECODERS]


def parameter_count(section, vocab):
    with torch.device("meta"):
        model = build(AutoregressiveOptions.model_validate(section).model_dump(), vocab, vocab)
    return sum(p.numel() for p in model.parameters())


def test_transformer_base_and_big_have_the_published_sizes():
    assert parameter_count({"dim": 512, "encoder": {}, "decoder": {}}, 37000) == 63_082_496
    big = {"heads": 16, "inner": 4096}
    assert parameter_count({"dim": 1024, "encoder": big, "decoder": big}, 37000) == 214_245_376


def test_no_vocabulary_gives_both_sizes_of_the_paper():
    """Vaswani et al. report 65 and 213 million; a row of the shared embedding has `dim` parameters."""
    sizes = {512: (63_082_496, 65e6), 1024: (214_245_376, 213e6)}
    vocabularies = {  # smallest and largest vocabulary with the published size, which is rounded to millions
        dim: [37000 + (published + rounding - ours) / dim for rounding in (-5e5, 5e5)]
        for dim, (ours, published) in sizes.items()
    }
    assert [round(size, -2) for size in vocabularies[512]] == [39_800, 41_700]
    assert [round(size, -2) for size in vocabularies[1024]] == [35_300, 36_300]


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_decoding_steps_equal_the_full_pass_and_padding_changes_nothing(encoder, decoder):
    model, batch = make(ENCODERS[encoder], DECODERS[decoder]).eval(), make_batch()
    target = batch.target[:, :-1]
    full = model(batch.source, target, batch.source_lengths)
    torch.testing.assert_close(scores_by_steps(model, batch), full)
    for b in range(3):
        n = int(batch.source_lengths[b])
        torch.testing.assert_close(model(batch.source[b : b + 1, :n], target[b : b + 1]), full[b : b + 1])


@pytest.mark.parametrize("decoder", DECODERS)
def test_reordered_states_continue_the_rows_they_were_copied_from(decoder):
    model, batch = make(ENCODERS["gru"], DECODERS[decoder]).eval(), make_batch()
    rows = torch.tensor([2, 0, 0, 1])

    def run(reorder):
        state = model.start(model.encode(batch.source, batch.source_lengths), batch.source)
        _, state = model.step(batch.target[:, 0], state)
        tokens = batch.target[:, 1]
        if reorder:
            state, tokens = model.reorder(state, rows), tokens[rows]
        scores, state = model.step(tokens, state)
        return scores

    torch.testing.assert_close(run(True), run(False)[rows])


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_every_encoder_and_decoder_pair_overfits_one_batch(encoder, decoder):
    torch.manual_seed(1)
    model, batch = make(ENCODERS[encoder], DECODERS[decoder]).float(), make_batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)  # 1e-2 is unstable for some pairs
    labels = batch.target[:, 1:]
    for step in range(151):
        if step % 10 == 0:
            predictions = model(batch.source, batch.target[:, :-1], batch.source_lengths).argmax(-1)
            correct = bool((predictions == labels)[labels != 0].all())
            if correct:
                break
        loss = model.loss(batch)
        mean = loss.total / loss.tokens
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
    assert correct


def scores_by_steps(model, batch):
    """Scores (batch, time, vocabulary) computed one token at a time."""
    state, steps = model.start(model.encode(batch.source, batch.source_lengths), batch.source), []
    for t in range(batch.target.shape[1] - 1):
        scores, state = model.step(batch.target[:, t], state)
        steps.append(scores)
    return torch.stack(steps, 1)


@pytest.mark.parametrize(
    "position",
    ["sinusoidal", "learned", "channel", "rotary", "alibi", "relative-buckets", "relative-vectors", "none"],
)
@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_every_position_scheme_and_norm_decodes_as_it_trains(position, norm):
    layer = {
        "kind": "transformer",
        **LAYER,
        "position": position,
        "norm": norm,
        "norm_kind": "rms",
        "activation": "swiglu",
    }
    model, batch = make(layer, layer).eval(), make_batch()
    full = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    torch.testing.assert_close(scores_by_steps(model, batch), full)


MASKS = [
    {"kind": "window", "left": 2, "right": 1},
    {"kind": "centered", "width": 4},
    {"kind": "dilated", "step": 2},
    {"kind": "not", "of": {"kind": "diagonal"}},
    {"kind": "or", "of": [{"kind": "window", "left": 1}, {"kind": "prefix", "length": 1}]},
]


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: m["kind"])
def test_masks_by_name_apply_in_training_and_in_decoding_steps(mask):
    layer = {"kind": "transformer", **LAYER, "mask": mask}
    model, batch = make(layer, layer).eval(), make_batch()
    full = model(batch.source, batch.target[:, :-1], batch.source_lengths)
    torch.testing.assert_close(scores_by_steps(model, batch), full)
    plain = make({"kind": "transformer", **LAYER}, {"kind": "transformer", **LAYER})
    plain.load_state_dict(model.state_dict())
    assert (plain.eval()(batch.source, batch.target[:, :-1], batch.source_lengths) - full).abs().max() > 1e-6


@pytest.mark.parametrize("energy", ["dot", "scaled-dot", "cosine", "additive", "bilinear"])
@pytest.mark.parametrize("normalize", ["softmax", "sparsemax", "entmax", "sigmoid"])
def test_every_energy_and_normaliser_by_name_trains(energy, normalize):
    layer = {"kind": "transformer", **LAYER, "energy": energy, "normalize": normalize}
    model, batch = make(layer, layer), make_batch()
    model.loss(batch).total.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("decoder", ["none", "transformer"])
def test_a_decoder_without_an_encoder_is_a_language_model(decoder):
    model, batch = make(None, DECODERS[decoder]).eval(), make_batch()
    full, state = model(batch.target[:, :-1]), model.start(None, batch.target)
    for t in range(batch.target.shape[1] - 1):
        scores, state = model.step(batch.target[:, t], state)
        torch.testing.assert_close(scores, full[:, t])


def test_a_recurrent_language_model_continues_from_its_returned_state():
    model, batch = make(None, DECODERS["none"]).eval(), make_batch()
    batch.target[:] = torch.randint(4, 20, batch.target.shape)
    full = model.loss(batch)
    parts = (batch.target[:, :4], batch.target[:, 3:])
    first, second = (Batch(target=t, target_lengths=torch.full((3,), 3), rows=batch.rows) for t in parts)
    a = model.loss(first)
    b = model.loss(second, state=a.state)
    torch.testing.assert_close(a.nll + b.nll, full.nll)


def test_dot_attention_over_unequal_widths_suggests_projected_attention():
    with pytest.raises(ShapeError, match="projected"):
        make({"kind": "recurrent", "width": 48}, {"kind": "recurrent", "attention": "dot"})


def test_a_shared_embedding_for_two_vocabularies_is_refused():
    section = AutoregressiveOptions.model_validate({"dim": 32, "encoder": {}, "decoder": {}}).model_dump()
    with pytest.raises(OptionError, match="joint tokenizer"):
        build(section, 20, 30)


def test_a_bahdanau_decoder_without_an_encoder_is_refused():
    with pytest.raises(OptionError, match="attends to an encoder"):
        make(None, {"kind": "bahdanau"})


def test_flops_are_those_of_the_matrix_products():
    """A one-layer Transformer counted by hand: 2 operations per multiply-add."""
    layer = {"kind": "transformer", **LAYER}
    model, S, T, d, V = make(layer, layer), 11, 9, 32, 20
    encoder = S * (4 * d * d + 2 * d * 64) + 2 * S * S * d
    decoder = T * (4 * d * d + 2 * d * d + 2 * d * 64) + S * 2 * d * d + 2 * T * T * d + 2 * T * S * d
    assert model.flops(S, T) == 2 * (encoder + decoder + T * d * V)


def test_flops_of_a_recurrence_are_those_of_its_matrices():
    model = make(None, {"kind": "recurrent", "cell": "lstm", "width": 24}, tie="none")
    T, d, h = 10, 32, 24
    assert model.flops(1, T) == 2 * T * (4 * h * (d + h) + h * 20)


def test_recurrent_weights_are_dropped_in_training_only_and_parameters_do_not_change():
    model = make(None, {"kind": "recurrent", "cell": "lstm", "dropout_weight": 0.5})
    batch, before = make_batch(), {n: p.clone() for n, p in model.named_parameters()}
    a, b = model.loss(batch).nll, model.loss(batch).nll
    assert a != b
    model.eval()
    assert model.loss(batch).nll == model.loss(batch).nll
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    model.train()
    model.loss(batch).total.backward()
    grad = model.decoder.stack.layers[0].weight_hh_l0.grad
    assert 0.3 < float((grad == 0).double().mean()) < 0.7  # a dropped weight has no gradient


class Shifted(torch.nn.Module):
    """A wrapper such as LoRA that exposes the weight of the wrapped layer."""

    def __init__(self, base):
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, getattr(base, "bias", None)
        self.num_embeddings = getattr(base, "num_embeddings", None)

    def forward(self, x):
        out = self.base(x)
        return out + torch.arange(out.shape[-1]) / 10


@pytest.mark.parametrize("agreement", [0.0, 3.0])
@pytest.mark.parametrize("change", ["wrapper", "hook"])
@pytest.mark.parametrize("where", ["output", "embedding"])
def test_wrappers_and_hooks_on_the_output_or_the_embedding_affect_the_loss(where, change, agreement):
    model, batch = make(None, DECODERS["transformer"]), make_batch()
    before = model.loss(batch, 0.1, agreement=agreement).total
    owner, name = (model.output, "projection") if where == "output" else (model.target, "table")
    if change == "wrapper":
        setattr(owner, name, Shifted(getattr(owner, name)))
    else:
        getattr(owner, name).register_forward_hook(lambda _, x, out: out + torch.arange(out.shape[-1]) / 10)
    result = model.loss(batch, 0.1, agreement=agreement)
    labels = batch.target[:, 1:]
    scores = model(batch.target[:, :-1])[labels != 0]
    expected = torch.nn.functional.cross_entropy(
        scores, labels[labels != 0], label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(result.total, expected)  # without dropout both passes agree
    torch.testing.assert_close(
        result.nll, torch.nn.functional.cross_entropy(scores, labels[labels != 0], reduction="sum")
    )
    assert result.tokens == len(scores) and not torch.allclose(result.total, before)


def test_dropped_embeddings_of_a_wrapped_table_are_zeros():
    embedding = Embedding(20, 6, embedding_dropout=0.5)
    embedding.table = Shifted(embedding.table)
    tokens = torch.arange(20).repeat(3, 1)
    torch.manual_seed(3)
    result = embedding(tokens)
    dropped = (result == 0).all(-1)
    assert bool((dropped == dropped[:1]).all()) and 0 < int(dropped[0].sum()) < 20
    torch.testing.assert_close(result[~dropped], 2 * embedding.table(tokens)[~dropped])
