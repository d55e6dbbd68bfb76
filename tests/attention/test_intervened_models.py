"""`intervene` in translators and other models of regard, of torch and of Hugging Face."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard import Beam, Limits, Sample, intervene, watch
from regard.attention import Pinned, Uniform, Zero
from regard.data.tokenizer import BOS, EOS, Tokenizer
from regard.decoding.attention_weights import attention_maps
from regard.decoding.engine import Engine, why_not
from regard.decoding.engine.cuda.cuda_engine import CudaTranslator
from regard.errors import OptionError
from regard.models.autoregressive import log_probabilities
from regard.pipelines.translate import translate_tokens
from tests.attention.intervened import SOURCE, Model, X, expand, inputs
from tests.decoding.model_folders import classifier
from tests.decoding.small_models import language_model
from tests.models.small import DECODERS, ENCODERS, make


@pytest.fixture
def model():
    return Model().double().eval()


TEXTS = ["ab cd", "d c b a", "a", "cd ab cd ab"]


@pytest.fixture(scope="module")
def translator():
    tokenizer = Tokenizer.train(["ab cd", "d c b a"], "character", 30)
    torch.manual_seed(3)
    model = make(ENCODERS["transformer"], DECODERS["transformer"], vocab=len(tokenizer)).eval()
    model.source_tokenizer = model.target_tokenizer = tokenizer
    return model


def scores(model, **options):
    translations = regard.translate(TEXTS, model, limits=Limits(max_length=8), **options)
    return [(h.tokens, h.log_p) for t in translations for h in t.hypotheses]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam": 3, "nbest": 3},
        {"strategy": Sample(seed=1)},
        {"strategy": Beam(4, groups=2, diversity=0.5)},
    ],
    ids=["greedy", "beam", "sampling", "diverse"],
)
def test_a_translator_is_changed_in_every_search_and_unchanged_after(translator, options):
    plain = scores(translator, **options)
    with intervene(translator, {"decoder.*.cross": Uniform(), "encoder.*.self": Zero(heads=[1])}) as changed:
        edited = scores(translator, **options)
        assert scores(translator, **options) == edited
    assert edited != plain and scores(translator, **options) == plain
    assert any(name.startswith("decoder") for name in changed)


def test_a_search_and_a_teacher_forced_pass_are_changed_equally(translator):
    edits = {"decoder.*.cross": [Pinned(0, queries=[1]), Uniform(queries=slice(2, 4))]}
    with intervene(translator, edits):
        translations = regard.translate(TEXTS, translator, beam=3, limits=Limits(max_length=8))
        for translation in translations:
            h = translation.hypotheses[0]
            source = torch.tensor([[*translation.source_tokens, EOS]])
            target = [*h.tokens, EOS] if h.ended else h.tokens
            with torch.no_grad():
                scores = translator(
                    source, torch.tensor([[BOS, *target[:-1]]]), torch.tensor([source.shape[1]])
                )
            total = log_probabilities(scores)[0, torch.arange(len(target)), target].sum()
            assert abs(float(total) - h.log_p) < 1e-6
        (maps,) = attention_maps([translations[0].source_tokens], [[5, 6, 7, 8, EOS]], translator)
    cross = maps.cross()
    assert torch.equal(cross[1], torch.eye(cross.shape[1]).to(cross)[0])
    assert torch.allclose(cross[3], torch.full_like(cross[3], 1 / cross.shape[1]))
    assert not torch.allclose(cross[4], cross[3])


def test_workers_of_a_search_are_changed_too(translator):
    texts = TEXTS * 5

    def translations(workers):
        limits = Limits(max_length=6, workers=workers)
        translations = regard.translate(texts, translator, limits=limits)
        return torch.tensor([t.hypotheses[0].log_p for t in translations], dtype=torch.float64)

    plain = translations(1)
    with intervene(translator, {"decoder.*.cross": Pinned(0)}) as changed:
        alone, workers = translations(1), translations(2)
    torch.testing.assert_close(workers, alone)
    assert (alone - plain).abs().min() > 1e-6 and changed
    torch.testing.assert_close(translations(2), plain)


def test_an_engine_is_refused(translator):
    class Native:
        model = translator

    with (
        pytest.raises(OptionError, match=r"Native computes attention in native code.*use the plain model"),
        intervene(Native(), {"decoder.*": Uniform()}),
    ):
        pass


@pytest.mark.parametrize("kind", ["cpp", "cuda"])
def test_the_engine_of_a_changed_model_is_refused(kind, model):
    layers = {"kind": "transformer", "layers": 1, "heads": 2, "inner": 48}
    plain = make(layers, layers, vocab=50).float().eval()
    if kind == "cpp" and (reason := why_not(plain)):
        pytest.skip(reason)
    engine = Engine(plain) if kind == "cpp" else CudaTranslator(plain)  # the latter also runs on a CPU
    limits = Limits(max_length=4)
    with (
        pytest.raises(OptionError, match="computes attention in native code, where it cannot be set"),
        intervene(plain, {"decoder.*.cross": Uniform()}),
    ):
        translate_tokens(engine, [[4, 5]], limits=limits)
    with intervene(model, {"cross": Uniform()}):
        model(X, SOURCE)
        assert translate_tokens(engine, [[4, 5]], limits=limits)  # the engine of another model


def test_recurrent_decoders_are_changed_and_have_no_positions():
    for decoder in ("bahdanau", "projected"):
        model = make(ENCODERS["gru"], DECODERS[decoder], vocab=20).eval()
        plain = translate_tokens(model, [[4, 5, 6], [7]], limits=Limits(max_length=5))[0][0].log_p
        with intervene(model, {"decoder.attention": Uniform()}) as changed:
            edited = translate_tokens(model, [[4, 5, 6], [7]], limits=Limits(max_length=5))[0][0].log_p
        assert edited != plain and changed["decoder.attention.cross"] >= 2
        with (
            pytest.raises(OptionError, match="queries= needs positions"),
            intervene(model, {"decoder.attention": Uniform(queries=[0])}),
        ):
            translate_tokens(model, [[4, 5, 6]], limits=Limits(max_length=5))


def test_generating_and_classifying_are_changed(tmp_path):
    model = language_model()
    log_p = lambda: regard.generate("the cat", model, limits=Limits(max_length=6)).hypotheses[0].log_p  # noqa: E731
    plain = log_p()
    with intervene(model, {"decoder.*.self": Zero()}):
        assert log_p() != plain
    assert log_p() == plain
    encoder = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 32}
    reader = regard.load(classifier(tmp_path / "model", encoder=encoder))
    plain = regard.classify("so good", reader).probabilities
    with intervene(reader, {"encoder.*": Uniform(), "pooling.*": Uniform()}):
        assert regard.classify("so good", reader).probabilities != plain
    assert regard.classify("so good", reader).probabilities == plain


class Sdpa(nn.Module):
    def forward(self, q, k, v, **options):
        return F.scaled_dot_product_attention(q, k, v, **options)


def test_callers_of_sdpa_are_changed():
    q, k, v = inputs(key_heads=2)
    model = nn.ModuleDict({"attention": Sdpa()})
    allowed = torch.rand(2, 1, 5, 7) > 0.3
    allowed[..., 0] = True
    expected = (allowed / allowed.sum(-1, keepdim=True)).double() @ expand(v, 4)
    zeros = torch.zeros(2, 1, 5, 7, dtype=torch.float64)
    for hidden in (None, -torch.inf, torch.finfo(torch.float64).min):  # the lowest number masks too
        mask = allowed if hidden is None else zeros.masked_fill(~allowed, hidden)
        with intervene(model, {"attention": Uniform()}), watch(model) as seen:
            out = model["attention"](q, k, v, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(seen["attention"].weights() @ expand(v, 4), expected)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"kdim": 6, "vdim": 9}, {"add_bias_kv": True, "add_zero_attn": True}]
)
@torch.no_grad()
def test_multihead_attention_of_torch_is_changed(batch_first, options):
    layer = nn.MultiheadAttention(16, 4, batch_first=batch_first, dtype=torch.float64, **options).eval()
    flip = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1))
    memory = (
        torch.randn(2, 7, options.get("kdim", 16)).double(),
        torch.randn(2, 7, options.get("vdim", 16)).double(),
    )
    key_value = [flip(x) for x in memory]
    hidden = torch.arange(7) >= torch.tensor([7, 4])[:, None]
    call = lambda **more: layer(flip(X), *key_value, key_padding_mask=hidden, **more)  # noqa: E731
    plain, given = call(average_attn_weights=False)
    with intervene(layer, {"cross": lambda w: w}):  # the identity: our path gives what torch gives
        again, same = call(average_attn_weights=False)
    torch.testing.assert_close((again, same), (plain, given))
    with intervene(layer, {"cross": Uniform(heads=1)}):
        out, average = call()
        unweighted, nothing = call(need_weights=False)
    assert nothing is None and torch.equal(out, unweighted) and not torch.allclose(out, plain)
    edited = given.clone()
    edited[:, 1] = (given[:, 1] > 0).double() / (given[:, 1] > 0).sum(-1, keepdim=True)
    torch.testing.assert_close(average, edited.mean(1))


def test_a_transformer_of_torch_is_changed_and_its_gradient_follows():
    model = nn.Transformer(16, 4, 1, 2, 32, batch_first=True, dtype=torch.float64).eval()
    plain = model(SOURCE, X)
    with intervene(model, {"decoder.*.multihead_attn": Uniform(queries=[0])}) as changed:
        (model(SOURCE, X) * X).sum().backward()  # the sum of a LayerNorm is constant
    assert len(changed) == 2
    values = model.decoder.layers[0].multihead_attn.in_proj_weight.grad[32:]
    assert values.abs().sum() > 0 and torch.equal(model(SOURCE, X), plain)
    single, x = nn.MultiheadAttention(16, 4).double(), X[0]  # (T, dim), without a batch
    with intervene(single, {"self": lambda w: w}):
        out, w = single(x, x, x)
    torch.testing.assert_close((out, w), single(x, x, x))


def test_a_compiled_model_runs_eagerly_inside(model):
    compiled = torch.compile(model, backend="eager")
    plain = compiled(X, SOURCE)
    with intervene(compiled, {"cross": Zero()}):
        torch.testing.assert_close(compiled(X, SOURCE), X + model.cross.Wo.bias)
    assert torch.equal(compiled(X, SOURCE), plain)


@torch.no_grad()
def test_a_llama_of_hugging_face_is_changed_in_a_pass_and_while_generating():
    pytest.importorskip("transformers", minversion="5")
    from regard.huggingface import register
    from tests.huggingface.families import model_of

    register()
    model = model_of("Llama").float().eval()
    ids = torch.randint(3, 60, (2, 9))
    outputs = {}
    for name in ("sdpa", "regard"):
        model.set_attn_implementation(name)
        plain = model(ids).logits
        with intervene(model, {"model.layers.*.self_attn": [Uniform(heads=[0]), Zero(queries=[9, 10])]}):
            outputs[name] = model(ids).logits
            tokens = model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
            full = model(tokens).logits
            if name == "regard":
                attentions = model(tokens, output_attentions=True).attentions
        assert not torch.allclose(outputs[name], plain, atol=1e-4) and torch.equal(model(ids).logits, plain)
        assert torch.equal(full[:, 8:-1].argmax(-1), tokens[:, 9:])  # steps with a cache = one pass
    torch.testing.assert_close(outputs["sdpa"], outputs["regard"], atol=1e-5, rtol=1e-4)
    assert attentions[1][:, :, 9:11].abs().sum() == 0
    torch.testing.assert_close(attentions[0][0, 0, 4, :5], torch.full((5,), 0.2))
