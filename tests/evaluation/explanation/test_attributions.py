"""attributions.py, probe.py and explained_models.py: explanations against loops, for every kind of model."""

import math
from itertools import combinations

import pytest
import torch

import regard
from regard.attention import Uniform
from regard.data.tokenizer import BOS, EOS
from regard.errors import DataError, OptionError
from regard.evaluation import MeasureOptions, faithfulness
from regard.evaluation.explanation.attributions import (
    gradient_times_input,
    integrated_gradients,
    leave_one_out,
)
from regard.evaluation.explanation.comparisons import total_variation
from regard.evaluation.explanation.explained_models import explained_model
from regard.evaluation.explanation.probe import Probe
from tests.evaluation.explanation import small_models
from tests.evaluation.explanation.small_models import BILSTM, TRANSFORMER, weights_of

TEXT = "three one seven two five"


def probe_of(model, text=TEXT, **options):
    return Probe(explained_model(model), text, **options)


def ids_of(model, text=TEXT):
    return [*model.source_tokenizer.encode(text), EOS]


@pytest.mark.parametrize(
    "encoder", ["embedding", BILSTM, TRANSFORMER], ids=["embedding", "bilstm", "transformer"]
)
def test_leave_one_out_is_a_loop_over_shorter_texts(encoder):
    model = small_models.classifier(encoder, labels=("a", "b", "c"))
    ids = ids_of(model)
    with torch.no_grad():
        full = model(torch.tensor([ids]))[0].double().softmax(-1)
        without = [model(torch.tensor([ids[:t] + ids[t + 1 :]]))[0].double().softmax(-1) for t in range(5)]
    expected = torch.stack([total_variation(p, full) for p in without])
    torch.testing.assert_close(leave_one_out(probe_of(model)), expected, atol=1e-6, rtol=1e-5)


def test_leave_one_out_and_gradient_of_frames_by_hand():
    """p = softmax(W Σ αₜ V xₜ): without frame t, the other weights are divided by 1 − αₜ."""
    model, sequence = small_models.frame_classifier(labels=("a", "b", "c")), small_models.frames(7)
    probe = probe_of(model, sequence)
    scores = leave_one_out(probe), gradient_times_input(probe)
    tau = faithfulness(model, sequence, measures=["correlation"]).means["tau_leave_one_out"].value
    model, frames = model.double(), probe.inputs.double()  # standardized frames (1, 7, channels)
    attention = weights_of(model, "pooling.attention.cross", frames)[0, 0]
    with torch.no_grad():
        values = model.source.projection(frames)[0] @ model.pooling.attention.Wv.weight.T  # (7, dim)
        bias, head = model.pooling.attention.Wv.bias, model.head.labels

        def output(weights):
            return head(weights @ values / weights.sum() + bias).softmax(-1)

        p, at = output(attention), torch.arange(7)
        changes = torch.stack([(output(attention * (at != t)) - p).abs().sum() / 2 for t in range(7)])
        slope = p[probe.predicted] * (head.weight[probe.predicted] - p @ head.weight)
    torch.testing.assert_close(probe.distribution, p, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(scores[0], changes, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(scores[1], (attention * (values @ slope)).abs(), atol=1e-6, rtol=1e-4)
    agree = [
        (attention[i] - attention[j]) * (changes[i] - changes[j]) > 0 for i, j in combinations(range(7), 2)
    ]
    assert tau == pytest.approx(2 * sum(map(int, agree)) / len(agree) - 1)


def test_a_frame_of_a_tagger_is_removed_by_a_zero_vector():
    model, sequence = small_models.frame_tagger(), small_models.frames(6)
    probe = probe_of(model, sequence)
    frame = probe.given.output
    encoded = torch.tensor(model.source_tokenizer.encode(sequence))[None]
    expected = []
    with torch.no_grad():
        full = model(encoded)[0, frame].double().softmax(-1)
        for t in range(6):
            x = model.source(encoded)
            x[0, t] = 0
            p = model.output(model.encoder(x, None).states)[0, frame].double().softmax(-1)
            expected.append(total_variation(p, full))
    torch.testing.assert_close(leave_one_out(probe), torch.stack(expected), atol=1e-6, rtol=1e-4)
    weights = weights_of(model, "encoder.layers.1.attention.self", encoded)
    torch.testing.assert_close(probe.attention, weights.double().mean(0)[frame], atol=1e-6, rtol=1e-4)


def test_a_translator_of_frames_explains_one_step_by_its_cross_attention():
    model, sequence = small_models.frame_translator(), small_models.frames(6)
    probe = probe_of(model, sequence, seed=2)
    encoded = torch.tensor(model.source_tokenizer.encode(sequence))[None]
    with torch.no_grad():
        scores = model(encoded, torch.tensor([probe.given.prefix]))[0, -1]
    torch.testing.assert_close(probe.distribution, scores.double().softmax(-1))
    assert list(probe.weights) == ["decoder.layers.1.cross"] and probe.attention.shape == (6,)


def test_a_sequence_longer_than_the_position_table_is_cut():
    encoder = {**TRANSFORMER, "position": "learned", "max_positions": 4}
    assert probe_of(small_models.frame_classifier(encoder), small_models.frames(9)).count == 4


def test_gradient_times_input_by_hand():
    """p = softmax(W Σ αₜ V xₜ): with α fixed, x · ∂p/∂x of a token is αₜ p_c (W_c − Σ_k p_k W_k) V xₜ."""
    model = small_models.classifier(labels=("a", "b", "c"))
    ids = ids_of(model)
    x = model.source(torch.tensor(ids)).detach().double()  # (6, dim)
    attention = weights_of(model, "pooling.attention.cross", torch.tensor([ids])).double()[0, 0]
    W, b = model.head.labels.weight.detach().double(), model.head.labels.bias.detach().double()
    V = model.pooling.attention.Wv
    values = x @ V.weight.detach().double().T
    p = (W @ (attention @ (values + V.bias.detach().double())) + b).softmax(-1)
    best = int(p.argmax())
    expected = attention * p[best] * (values @ (W[best] - p @ W))
    computed = gradient_times_input(probe_of(model))
    torch.testing.assert_close(computed, expected[:5].abs(), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "encoder", ["embedding", BILSTM, TRANSFORMER], ids=["embedding", "bilstm", "transformer"]
)
def test_integrated_gradients_sum_to_the_difference_of_outputs(encoder):
    model = small_models.classifier(encoder)
    probe = probe_of(model)

    def zero(x):
        return torch.cat([torch.zeros_like(x[:, :5]), x[:, 5:]], 1)  # EOS stays

    with torch.no_grad(), probe.explained.vectors(zero):
        start = probe.output(probe.inputs)[0, probe.predicted]
    expected = float(probe.distribution[probe.predicted] - start)
    computed = float(integrated_gradients(probe, 256).sum())
    assert computed == pytest.approx(expected, abs=2e-3) and abs(expected) > 1e-3


def test_attention_of_pooling_is_the_mean_of_heads_and_queries():
    model = small_models.classifier(pooling={"kind": "attention", "queries": 3, "heads": 2})
    weights = weights_of(model, "pooling.attention.cross", torch.tensor([ids_of(model)]))
    torch.testing.assert_close(probe_of(model).attention, weights.double().mean((0, 1))[:5])


def test_attention_of_a_transformer_is_what_tokens_receive_in_its_last_layer():
    model = small_models.classifier(TRANSFORMER, "mean")
    weights = weights_of(model, "encoder.layers.1.attention.self", torch.tensor([ids_of(model)]))
    probe = probe_of(model)
    torch.testing.assert_close(probe.attention, weights.double().mean((0, 1))[:5])
    assert len(probe.layers) == 2 and float(probe.top.sum()) == pytest.approx(1)
    first = probe_of(model, attention="encoder.layers.0.*")
    assert list(first.weights) == ["encoder.layers.0.attention.self"]


def test_bos_is_not_explained():
    model = small_models.classifier(TRANSFORMER, "mean")
    model.prepend_bos = True
    weights = weights_of(model, "encoder.layers.1.attention.self", torch.tensor([ids_of(model)]))
    torch.testing.assert_close(probe_of(model).attention, weights.double().mean((0, 1))[1:6])
    assert gradient_times_input(probe_of(model)).shape == (5,)


def test_a_tagger_explains_one_word_by_its_row():
    model = small_models.tagger()
    probe = probe_of(model)
    ids = torch.tensor([model.source_tokenizer.encode(TEXT)])
    word = probe.given.output
    weights = weights_of(model, "encoder.layers.1.attention.self", ids, None, torch.tensor([5]))
    torch.testing.assert_close(probe.attention, weights.double().mean(0)[word])
    with torch.no_grad():
        expected = model(ids, None, torch.tensor([5]))[0, word].double().softmax(-1)
    torch.testing.assert_close(probe.distribution, expected)
    assert leave_one_out(probe).shape == (5,) and bool((leave_one_out(probe) > 0).any())
    assert integrated_gradients(probe).abs().sum() > 0


DECODERS = {
    "transformer": {"kind": "transformer", "layers": 2, "heads": 2, "inner": 16},
    "bahdanau": {"kind": "bahdanau"},
    "bilinear": {"kind": "recurrent", "attention": "bilinear"},
}


@pytest.mark.parametrize("kind", DECODERS)
def test_a_translator_explains_one_step_by_its_cross_attention(kind):
    model = small_models.translator(DECODERS[kind])
    probe = probe_of(model, seed=3)
    prefix, source = probe.given.prefix, torch.tensor([ids_of(model)])
    assert prefix[0] == BOS
    with torch.no_grad(), regard.watch(model) as seen:
        scores = model(source, torch.tensor([prefix]))[0, -1]
    torch.testing.assert_close(probe.distribution, scores.double().softmax(-1))
    (name,) = probe.weights
    expected = seen.calls(name)[-1].weights(batch=0)[:, -1].double().mean(0)[:5]
    torch.testing.assert_close(probe.attention, expected)
    # Uniform attention in the last step only, by hand for the kinds that have one call per step.
    uniform = probe.under(Uniform())[0]
    assert float(total_variation(uniform, probe.distribution)) > 0
    if kind == "transformer":  # the last layer's other rows do not matter for the last output
        with torch.no_grad(), regard.intervene(model, {name: Uniform()}):
            everywhere = model(source, torch.tensor([prefix]))[0, -1].double().softmax(-1)
        torch.testing.assert_close(uniform, everywhere)
    assert leave_one_out(probe).shape == gradient_times_input(probe).shape == (5,)


def test_a_language_model_explains_the_next_token():
    model = small_models.language_model()
    probe = probe_of(model)
    ids = torch.tensor([[BOS, *model.target_tokenizer.encode(TEXT)]])
    weights = weights_of(model, "decoder.layers.1.attention.self", ids)
    torch.testing.assert_close(probe.attention, weights.double().mean(0)[-1, 1:])
    assert int(leave_one_out(probe).numel()) == 5


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: small_models.classifier(BILSTM, "max"), "no attention that could explain"),
        (lambda: small_models.classifier(labels=("only",)), "one output class"),
        (lambda: torch.nn.Linear(2, 2), "got Linear"),
        (lambda: None, "got NoneType"),
    ],
    ids=["no attention", "one label", "module", "none"],
)
def test_a_model_without_an_explanation_is_refused_in_one_sentence(model, message):
    with pytest.raises(OptionError, match=message):
        probe_of(model())


@pytest.mark.parametrize("make", [small_models.classifier, small_models.tagger, small_models.language_model])
def test_a_text_without_tokens_is_refused(make):
    for text in ("", "  "):
        with pytest.raises(DataError, match="has no tokens"):
            probe_of(make(), text)


def test_the_error_for_an_unknown_attention_lists_the_available_ones():
    with pytest.raises(OptionError, match=r"matches none of pooling\.attention\.cross"):
        probe_of(small_models.classifier(), attention="decoder.*")


def test_the_attention_of_a_translator_must_read_the_source():
    model = small_models.translator(DECODERS["transformer"])
    assert list(probe_of(model, attention="decoder.layers.0.*").weights) == ["decoder.layers.0.cross"]
    with pytest.raises(OptionError, match=r"matches none of decoder\.layers\.0\.cross"):
        probe_of(model, attention="decoder.*.self")


def test_one_token_has_metrics_without_a_rank_correlation():
    probe = probe_of(small_models.classifier(), "two")
    assert probe.count == 1 and not math.isnan(float(leave_one_out(probe)[0]))


@pytest.mark.parametrize("kind", ["bert", "gpt2", "bart", "marian"])
def test_hugging_face_models_can_be_explained(kind):
    hf = pytest.importorskip("transformers")
    regard.huggingface.register()
    torch.manual_seed(0)
    tokenizer = small_models.huggingface_tokenizer()
    options = {"vocab_size": 20, "attn_implementation": "regard", "pad_token_id": 0}
    if kind == "bert":
        config = hf.BertConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, **options
        )
        model = hf.BertForSequenceClassification(config)
    elif kind == "gpt2":
        model = hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, **options))
    else:
        name = kind.capitalize()
        config = getattr(hf, f"{name}Config")(
            d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, bos_token_id=2, eos_token_id=3,
            decoder_start_token_id=2, forced_eos_token_id=None, init_std=0.5, **options,
        )  # fmt: skip
        model = {"bart": hf.BartForConditionalGeneration, "marian": hf.MarianMTModel}[kind](config)
    model.eval()
    probe = Probe(explained_model(model, tokenizer), TEXT)
    assert probe.tokens == TEXT.split()
    assert probe.row == (0 if kind == "bert" else -1)
    (name,) = probe.weights
    assert ("encoder_attn" in name) == (kind in ("bart", "marian")) and len(probe.layers) == 2
    for scores in (leave_one_out(probe), gradient_times_input(probe), integrated_gradients(probe)):
        assert scores.shape == (5,) and bool(scores.isfinite().all()) and bool((scores != 0).any())
    options = MeasureOptions(permutations=5, adversary_steps=2)
    result = faithfulness(model, TEXT, tokenizer=tokenizer, options=options)
    assert 0 <= result.means["change_uniform"].value <= 1 and result.attention == [name]
    with pytest.raises(OptionError, match="tokenizer"):
        explained_model(model)
    model.set_attn_implementation("eager")
    with pytest.raises(OptionError, match='load it with attn_implementation="regard"'):
        faithfulness(model, TEXT, tokenizer=tokenizer)
