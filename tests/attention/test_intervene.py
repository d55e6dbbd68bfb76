"""`intervene`: every edit against weights @ values, in layers, translators and third-party models.

Tests of intervening.py and edits.py.
"""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import regard
from regard import Beam, Cache, Causal, Limits, MultiHead, Padding, Sample, attend, intervene, watch, weights
from regard.attention import Edit, Mapped, Permuted, Pinned, Uniform, Weights, Zero
from regard.data.tokenizer import BOS, EOS, Tokenizer
from regard.decoding.attention_weights import attention_maps
from regard.decoding.engine import Engine, why_not
from regard.decoding.engine.cuda.cuda_engine import CudaTranslator
from regard.errors import OptionError, ShapeError
from regard.layers import StaticCache
from regard.models.autoregressive import log_probabilities
from regard.pipelines.translate import translate_tokens
from tests.decoding.model_folders import classifier
from tests.decoding.small_models import language_model
from tests.models.small import DECODERS, ENCODERS, make


def inputs(heads=4, key_heads=4, Tq=5, Tk=7, batch=2):
    q = torch.randn(batch, heads, Tq, 8, dtype=torch.float64)
    k, v = (torch.randn(batch, key_heads, Tk, 8, dtype=torch.float64) for _ in "kv")
    return q, k, v


def run(edit, q, k, v, **options):
    with intervene(None, {"attend.0": edit}):
        return attend(q, k, v, **options)


def expand(v, heads):
    return v.repeat_interleave(heads // v.shape[1], 1)


PADDING = Padding(torch.tensor([7, 4]))
MASKS = {"no mask": None, "padding": PADDING, "causal": Causal()}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_uniform_is_the_mean_of_the_values_that_the_mask_allows(mask, key_heads):
    q, k, v = inputs(key_heads=key_heads)
    allowed = torch.ones(2, 1, 5, 7).bool() if mask is None else mask.dense(5, 7).expand(2, 1, 5, 7)
    expected = (allowed / allowed.sum(-1, keepdim=True)).double() @ expand(v, 4)
    torch.testing.assert_close(run(Uniform(), q, k, v, mask=mask), expected)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_zero_uniform_and_given_weights_touch_the_selected_rows_only(mask):
    q, k, v = inputs(key_heads=2)
    before, values = weights(q, k, mask=mask), expand(v, 4)
    given = torch.rand(4, 5, 7, dtype=torch.float64)
    for edit, new in ((Zero, torch.zeros(1)), (lambda **where: Weights(given, **where), given)):
        for where, index in (
            ({"heads": [1, -1]}, (slice(None), [1, 3])),
            ({"queries": slice(2, 4)}, (slice(None), slice(None), slice(0, 2))),
            ({"batch": 1}, (1,)),
            ({"heads": 2, "batch": [0], "queries": 6}, (0, 2, 4)),
        ):
            expected = before.clone()
            expected[index] = new.double().expand(2, 4, 5, 7)[index]
            out = run(edit(**where), q, k, v, mask=mask)  # 5 queries at the last of 7 keys: positions 2 to 6
            torch.testing.assert_close(out, expected @ values)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_permuted_keeps_the_weights_of_a_row_among_the_allowed_keys(mask):
    q, k, _ = inputs(Tk=12, Tq=12)
    mask = Padding(torch.tensor([12, 7])) if mask is PADDING else mask
    v = torch.eye(12, dtype=torch.float64).expand(2, 4, 12, 12)  # the output is the weights
    before = weights(q, k, mask=mask)
    new, again, other = (run(Permuted(seed), q, k, v, mask=mask) for seed in (3, 3, 4))
    assert torch.equal(new, again) and not torch.equal(new, other) and not torch.equal(new, before)
    torch.testing.assert_close(new.sort(-1).values, before.sort(-1).values)
    if mask is not None:
        assert new.masked_select(~mask.dense(12, 12).expand(2, 4, 12, 12)).abs().sum() == 0
    moved = (new != before).float().mean()
    assert moved > (0.5 if mask is None else 0.3)


def test_pinned_reads_one_value():
    q, k, v = inputs()
    out = run(Pinned(3, heads=0), q, k, v, mask=PADDING)
    torch.testing.assert_close(out[:, 0], v[:, 0, 3, None].expand(2, 5, 8))
    torch.testing.assert_close(out[:, 1:], attend(q, k, v, mask=PADDING)[:, 1:])
    with pytest.raises(OptionError, match=r"hides key 5 from row 1 of the batch, query 2; choose another"):
        run(Pinned(5), q, k, v, mask=PADDING)
    torch.testing.assert_close(run(Pinned(5, batch=0), q, k, v, mask=PADDING)[0, :, 0], v[0, :, 5])
    with pytest.raises(OptionError, match=r"attend.0 has 7 keys here"):
        run(Pinned(7), q, k, v)
    square = inputs(Tq=7)
    with pytest.raises(OptionError, match="hides key 5"):
        run(Pinned(5), *square, mask=Causal())
    run(Pinned(5, queries=slice(5, None)), *square, mask=Causal())


def test_a_function_gets_gated_weights_and_masked_keys_stay_zero():
    q, k, v = inputs()
    gate = torch.rand(4, 1, 1, dtype=torch.float64)
    seen = []
    out = run(lambda w: seen.append(w) or w + 1, q, k, v, mask=PADDING, gate=gate, dropout=0.0)
    before = weights(q, k, mask=PADDING, gate=gate)
    torch.testing.assert_close(seen[0], before)
    torch.testing.assert_close(out, ((before + 1) * PADDING.dense(5, 7)) @ v)
    square = run(Mapped(torch.square, heads=1), q, k, v)
    torch.testing.assert_close(square[:, 1], (weights(q, k)[:, 1] ** 2) @ v[:, 1])


def test_given_weights_may_unmask_a_key():
    q, k, v = inputs()
    row = torch.zeros(7)
    row[6] = 1
    torch.testing.assert_close(run(Weights(row), q, k, v, mask=PADDING), v[..., 6:, :].expand(2, 4, 5, 8))


def test_gradients_reach_values_always_and_weights_through_a_function():
    q, k, v = (x.requires_grad_() for x in inputs())
    scale = torch.full((), 0.5, dtype=torch.float64, requires_grad=True)
    for edit, expected in (
        (lambda w: w * scale, lambda w: w * scale),
        (Mapped(lambda w: w * scale, heads=1), None),
        (Permuted(1), None),
    ):
        out = run(edit, q, k, v).square().sum()
        gradients = torch.autograd.grad(out, (q, k, v))
        assert all(g.abs().sum() > 0 for g in gradients)
        if expected is not None:
            by_hand = torch.autograd.grad((expected(weights(q, k)) @ v).square().sum(), (q, k, v))
            torch.testing.assert_close(gradients, by_hand)
    assert torch.autograd.gradcheck(lambda v: run(Uniform(), q.detach(), k.detach(), v), v)
    assert torch.autograd.grad(run(Uniform(), q, k, v).sum(), q, allow_unused=True)[0] is None


def test_nan_in_padding_has_no_effect_and_half_precision_is_rounded_once():
    q, k, v = inputs()
    clean = run(Uniform(), q, k, v, mask=PADDING)
    k[1, :, 4:], v[1, :, 4:] = torch.nan, torch.nan
    torch.testing.assert_close(run(Uniform(), q, k, v, mask=PADDING), clean)
    assert run(Permuted(), q, k, v, mask=PADDING).isfinite().all()
    half = [x.bfloat16() for x in inputs()]
    out = run(Uniform(), *half)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, half[2].float().mean(-2, keepdim=True).expand(2, 4, 5, 8).bfloat16())


class Model(nn.Module):
    def __init__(self, key_heads=4):
        super().__init__()
        self.encoder = nn.ModuleList(MultiHead(16, 4, key_heads=key_heads) for _ in range(2))
        self.cross = MultiHead(16, 4, key_heads=key_heads)

    def forward(self, x, source, lengths=None):
        for layer in self.encoder:
            source = source + layer(source, mask=None if lengths is None else Padding(lengths))
        return x + self.cross(x, source)


@pytest.fixture
def model():
    return Model().double().eval()


X, SOURCE = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 7, 16, dtype=torch.float64)


@pytest.mark.parametrize("key_heads", [4, 2])
def test_layers_are_changed_by_name_and_pattern(key_heads):
    model = Model(key_heads).double().eval()
    plain = model(X, SOURCE)
    edits = {"encoder.*.self": Uniform(heads=[1]), "cross": Zero()}
    with intervene(model, edits) as changed:
        out = model(X, SOURCE)
    assert changed == {"encoder.0.self": 1, "encoder.1.self": 1, "cross": 1}
    torch.testing.assert_close(out, X + model.cross.Wo.bias)  # the cross-attention adds nothing
    with intervene(model, {"encoder.1": Uniform(heads=1)}), watch(model) as seen:
        model(X, SOURCE)
    recorded = seen["encoder.1.self"]
    assert recorded.edited and "edited" in repr(recorded) and not seen["encoder.0.self"].edited
    torch.testing.assert_close(recorded.weights(head=1), torch.full((2, 7, 7), 1 / 7, dtype=torch.float64))
    torch.testing.assert_close(
        recorded.weights(batch=0, head=[1], query=3), torch.full((1, 7), 1 / 7).double()
    )
    assert not torch.allclose(recorded.weights(head=1, stage="normalised"), recorded.weights(head=1))
    torch.testing.assert_close(recorded.entropy(head=1).exp(), torch.full((2, 7), 7.0).double())
    torch.testing.assert_close(recorded.column_sums(), recorded.weights().sum(-2))
    assert torch.equal(recorded.top(7)[0], recorded.weights().topk(7).values)
    assert torch.equal(model(X, SOURCE), plain)  # bit-equal after the block


def test_output_and_recorded_weights_agree(model):
    values = {}
    with (
        intervene(model, {"*": Permuted(5)}),
        watch(model, on_call=lambda n, r: values.update({n: r.weights()})),
    ):
        out = model(X, SOURCE)
    with intervene(model, {name: Weights(w) for name, w in values.items()}):
        torch.testing.assert_close(model(X, SOURCE), out)


def test_edits_of_one_call_apply_in_order_and_nested_ones_after_the_outer(model):
    log = []

    def note(name):
        return lambda w: log.append((name, float(w.detach().sum(-1).mean()))) or w * 2

    with intervene(model, {"cross": [note("a"), note("b")], "*": note("c")}):
        with intervene(model, {"cross": note("d")}):
            model.cross(X, SOURCE)
        model.encoder[0](SOURCE)
    assert [name for name, _ in log] == ["a", "b", "c", "d", "c"]
    assert [round(total) for _, total in log] == [1, 2, 4, 8, 1]


def test_an_error_inside_the_block_leaves_everything_as_it_was(model):
    plain = model(X, SOURCE)
    with pytest.raises(RuntimeError, match="stop"), intervene(model, {"cross": Uniform()}):
        raise RuntimeError("stop")
    with pytest.raises(ZeroDivisionError), intervene(model, {"cross": lambda w: 1 / 0}):
        model(X, SOURCE)
    assert torch.equal(model(X, SOURCE), plain)
    assert not regard.attention.watching.is_watching()


def test_other_threads_are_not_affected(model):
    plain, results = model(X, SOURCE), {}

    def work():
        results["out"] = model(X, SOURCE)

    with intervene(model, {"cross": Zero()}):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not torch.equal(model(X, SOURCE), plain)
    assert torch.equal(results["out"], plain)


def test_attention_that_an_edit_computes_is_not_edited(model):
    with intervene(model, {"*": lambda w: w + 0 * attend(w, w, w)}) as changed:
        model(X, SOURCE)
    assert changed == {"encoder.0.self": 1, "encoder.1.self": 1, "cross": 1}


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_recomputes_with_the_edit(model, reentrant):
    x = X.clone().requires_grad_()

    def gradient(through):
        with intervene(model, {"cross": Mapped(lambda w: w**2)}):
            return torch.autograd.grad(through(x), x) if reentrant is False else backward(through(x))

    def backward(out):
        x.grad = None
        out.sum().backward()
        return (x.grad.clone(),)

    loss = lambda x: model(x, SOURCE).square().sum()  # noqa: E731
    torch.testing.assert_close(
        gradient(lambda x: checkpoint(loss, x, use_reentrant=reentrant)), gradient(loss)
    )


# ------------------------------------------------------------------------------------------------- positions
@pytest.mark.parametrize("cache", ["growing", "static"])
def test_queries_are_absolute_positions_with_a_cache(cache):
    layer = MultiHead(16, 4, mask=Causal()).double().eval()
    edits = {"self": [Uniform(queries=[3, 5], heads=1), Zero(queries=slice(6, None))]}
    with torch.no_grad(), intervene(layer, edits):
        together = layer(SOURCE)
        store = Cache() if cache == "growing" else StaticCache(2, 4, 70, 4, dtype=torch.float64)
        steps = [layer(SOURCE[:, :2], cache=store)]
        steps += [layer(SOURCE[:, t : t + 1], cache=store) for t in range(2, 7)]
    torch.testing.assert_close(torch.cat(steps, 1), together)
    assert not torch.allclose(together, layer(SOURCE))


def test_rows_of_a_static_cache_have_their_own_positions():
    layer, store = (
        MultiHead(16, 4, mask=Causal()).double().eval(),
        StaticCache(2, 4, 70, 4, dtype=torch.float64),
    )
    with torch.no_grad():
        layer(SOURCE[:, :4], cache=store)
        store.crop(torch.tensor([4, 2]))
        with intervene(layer, {"self": Zero(queries=2)}):
            out = layer(SOURCE[:, 4:5], cache=store)
    torch.testing.assert_close(out[1, 0], layer.Wo.bias)  # row 1 is at position 2, row 0 at 4
    assert not torch.allclose(out[0, 0], layer.Wo.bias)


# ------------------------------------------------------------------------------------ regard's models, search
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


# ---------------------------------------------------------------------------------------- third-party models
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
        model(SOURCE, X).sum().backward()
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


# ------------------------------------------------------------------------------------------------ wrong input
def test_an_edit_that_changes_nothing_is_an_error(model):
    with (
        pytest.raises(
            OptionError, match=r"'decodr.\*' matches no module of this model; its modules are encoder"
        ),
        intervene(model, {"decodr.*": Uniform()}),
    ):
        pass
    with (
        pytest.raises(OptionError, match=r"changed nothing for 'encoder.0': the calls that ran are cross"),
        intervene(model, {"encoder.0": Uniform(), "cross": Uniform()}),
    ):
        model.cross(X, SOURCE)
    with (
        pytest.raises(OptionError, match=r"changed nothing for 'cross': no model ran inside intervene"),
        intervene(model, {"cross": Uniform()}),
    ):
        pass
    with (
        pytest.warns(UserWarning, match=r"changed nothing for 'cross': cross ran, without the queries"),
        intervene(model, {"cross": Uniform(queries=[50])}) as changed,
    ):
        model(X, SOURCE)
    assert changed == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with intervene(model, {"cross": Uniform(queries=[50, 1])}):
            model(X, SOURCE)

    class ByHand(nn.Module):
        def forward(self, x):
            return (x @ x.mT).softmax(-1) @ x

    with (
        pytest.raises(OptionError, match="which looks like attention written out"),
        intervene(written := nn.Sequential(ByHand()), {"0": Uniform()}),
    ):
        written(X)


@pytest.mark.parametrize(
    ("make_edit", "message"),
    [
        (lambda: Uniform(heads=1.5), "Uniform's heads must be an integer, a slice or a list of integers"),
        (lambda: Uniform(heads="all"), "Uniform's heads must be an integer"),
        (lambda: Zero(queries=-1), "Zero's queries must not be negative"),
        (lambda: Zero(batch=[0, -2]), "Zero's batch must not be negative"),
        (lambda: Zero(queries=slice(0, 9, 2)), "must be a slice without a step"),
        (lambda: Pinned(-1), "Pinned's key must be"),
        (lambda: Pinned("x"), "Pinned's key must be"),
        (lambda: Permuted(seed=-1), "Permuted's seed must be"),
        (lambda: Weights([1, 2]), "Weights takes a tensor"),
        (lambda: Mapped(3), "Mapped takes a function"),
    ],
)
def test_wrong_edits_are_refused(make_edit, message):
    with pytest.raises(OptionError, match=message):
        make_edit()


def test_wrong_arguments_and_wrong_results_are_refused(model):
    for given, message in (
        ({"cross": Uniform}, "got the class Uniform, not an object of it"),
        ({"cross": 3}, "'cross' must be given an edit such as Uniform"),
        ({"cross": []}, "empty list of edits"),
        ({}, "edits must be a dictionary"),
        ([Uniform()], "edits must be a dictionary"),
        ({3: Uniform()}, "must be a name, a glob"),
    ):
        with pytest.raises(OptionError, match=message), intervene(model, given):
            pass
    with (
        pytest.raises(OptionError, match="takes a torch module or None, got 'model'"),
        intervene("model", {}),
    ):
        pass
    for edit, kind, message in (
        (lambda w: None, OptionError, "must return a tensor of weights, got NoneType"),
        (lambda w: w[..., :2], ShapeError, r"is \(2, 4, 5, 2\), and the weights of cross are \(2, 4, 5, 7\)"),
        (Weights(torch.ones(6)), ShapeError, r"the tensor of Weights is \(6,\)"),
        (Uniform(heads=4), OptionError, "cross: heads=4 is out of range; there are 4"),
    ):
        with pytest.raises(kind, match=message), intervene(model, {"cross": edit}):
            model(X, SOURCE)
    with pytest.raises(OptionError, match="batch= selects from one batch axis, and attend.0 has 2"):
        run(Uniform(batch=0), *(torch.randn(2, 3, 4, 5, 8) for _ in "qkv"))


def test_a_user_defined_edit_is_a_subclass(model):
    class Sharper(Edit):
        def apply(self, rows, selected):
            return (rows.weights**4) / (rows.weights**4).sum(-1, keepdim=True)

    with intervene(model, {"cross": Sharper(heads=0)}), watch(model) as seen:
        model(X, SOURCE)
    recorded = seen["cross"]
    plain = recorded.weights(stage="normalised")
    torch.testing.assert_close(
        recorded.weights(head=[0]), (plain**4 / (plain**4).sum(-1, keepdim=True))[:, :1]
    )
    assert torch.equal(recorded.weights(head=1), plain[:, 1])


def test_layers_that_no_edit_matches_keep_their_kernel(model, monkeypatch):
    ran = []
    original = regard.attention.kernels.reference.Reference.run
    monkeypatch.setattr(
        regard.attention.kernels.reference.Reference, "run",
        lambda self, call, machine: ran.append(call.Tk) or original(self, call, machine),
    )  # fmt: skip
    big = torch.randn(2, 300, 16, dtype=torch.float64)
    with intervene(model, {"cross": Uniform()}):
        model(big[:, :60], big)
    assert ran == [300]
