"""`register`: variants, layers and 4-D masks.

Covers variants.py, changes.py and interface.py; errors are in test_model_checks.py, masks in test_masks.py.
"""

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", minversion="5")

import transformers as hf

import regard
from regard import ALiBi, Causal, Softmax, Sparsemax, Window
from regard.attention import Cosine, Documents, Energy, Entmax, RelativeBuckets
from regard.errors import OptionError
from regard.huggingface import masks, register
from regard.huggingface.interface import make_attention
from tests.huggingface.families import BY_NAME, FAMILIES, llama, logits, model_of

register()


def recorded_and_expected_weights(model, name, change, layers=(0, 1)):
    """By layer: the weights that a variant records, and those computed from its queries and keys."""
    model.set_attn_implementation(name)
    inputs, result = BY_NAME["Llama"].inputs(), {}
    with regard.watch(model) as seen, torch.no_grad():
        model(**inputs)
    for i in layers:
        call = seen[f"model.layers.{i}.self_attn"].call
        options = {"mask": Causal(), **change}
        result[i] = (
            seen[f"model.layers.{i}.self_attn"].weights(),
            regard.weights(call.query, call.key, **options),
        )
    return result


CHANGES = {
    "window": ({"mask": Window(3)}, {"mask": Causal() & Window(3)}),
    "function": ({"bias": lambda t, s: -0.3 * (t - s).abs()}, {"bias": lambda t, s: -0.3 * (t - s).abs()}),
    "alibi": ({"bias": ALiBi(4)}, {"bias": ALiBi(4)}),
    "sparsemax": ({"normalize": Sparsemax()}, {"normalize": Sparsemax()}),
    "temperature": ({"normalize": Softmax(2.0)}, {"normalize": Softmax(2.0)}),
    "energy": ({"energy": Cosine(5.0)}, {"energy": Cosine(5.0)}),
    "all": (
        {"energy": Cosine(5.0), "mask": Window(4), "bias": ALiBi(4), "normalize": Entmax(1.5)},
        {"energy": Cosine(5.0), "mask": Causal() & Window(4), "bias": ALiBi(4), "normalize": Entmax(1.5)},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_variant_changes_the_attention_of_a_model(change):
    options, expected_change = CHANGES[change]
    name = register(f"regard-{change}", **options)
    model = llama()
    before = logits(model)
    for result, expected in recorded_and_expected_weights(model, name, expected_change).values():
        assert torch.allclose(result, expected, atol=1e-6)
    assert (logits(model) - before).abs().max() > 0.01


def test_variants_do_not_affect_each_other_or_the_plain_one():
    register("regard-window", mask=Window(2))
    register("regard-sparse", normalize=Sparsemax())
    plain, window, sparse = (logits(llama(n)) for n in ("regard", "regard-window", "regard-sparse"))
    assert torch.equal(plain, logits(llama()))
    assert len({float(x.sum()) for x in (plain, window, sparse)}) == 3


def test_registering_a_name_again_replaces_it_also_for_models_that_use_it():
    register("regard-again", mask=Window(2))
    model = llama("regard-again")
    narrow = logits(model)
    register("regard-again")
    assert torch.equal(logits(model), logits(llama()))
    assert not torch.equal(narrow, logits(model))


def test_the_mask_of_a_variant_is_combined_with_the_models_own():
    register("regard-window", mask=Window(3, None))  # leaves the future open; the model does not
    model = llama("regard-window")
    with regard.watch(model) as seen:
        logits(model, padded=True)
    weights = seen["model.layers.1.self_attn"].weights()
    t = torch.arange(11)
    allowed = (t <= t[:, None]) & (t >= t[:, None] - 3)
    assert not weights[..., ~allowed].any()
    assert not weights[0, ..., :4].any()
    assert (weights[1].sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "GPT-2", "GPT-OSS", "Gemma-2"])
def test_a_variant_generates_the_same_tokens_with_every_cache(name, cache):
    register("regard-near", mask=Window(4), bias=ALiBi(4), normalize=Softmax(1.5))
    model = model_of(name).float().eval()
    model.set_attn_implementation("regard-near")
    inputs = BY_NAME[name].inputs(padded=True)
    options = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "no_repeat_ngram_size": 2}
    without = model.generate(**inputs, **options, use_cache=False)
    assert torch.equal(without, model.generate(**inputs, **options, cache_implementation=cache))


def test_a_variant_has_correct_positions_if_the_counter_of_a_static_cache_is_not_read(monkeypatch):
    monkeypatch.setattr(masks, "_may_read", lambda counter, q_length: q_length > 1)  # as on a GPU
    inputs = BY_NAME["Llama"].inputs(padded=True)
    options = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "no_repeat_ngram_size": 2}
    for bias in (ALiBi(4), RelativeBuckets(4, causal=True)):
        model = llama(register("regard-near", mask=Window(4), bias=bias))
        without = model.generate(**inputs, **options, use_cache=False)
        assert torch.equal(without, model.generate(**inputs, **options, cache_implementation="static"))


def test_layers_are_chosen_by_index_and_by_name():
    window = {"mask": Window(2)}
    by_index = register("regard-index", layers={1: window})
    by_name = register("regard-name", layers={"model.layers.1.*": window})
    all_but_one = register("regard-but", mask=Window(2), layers={0: {"mask": None}})
    outputs = [logits(llama(name)) for name in (by_index, by_name, all_but_one)]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])
    model = llama(by_index)
    with regard.watch(model) as seen:
        logits(model)
    full, near = (seen[f"model.layers.{i}.self_attn"].weights()[0, 0, 9] > 0 for i in (0, 1))
    assert full[:10].all() and near.nonzero().flatten().tolist() == [7, 8, 9]


def test_layers_by_name_distinguish_encoder_decoder_and_cross_attention():
    register("regard-encoder", layers={"*encoder.layers*": {"mask": Window(1, 1)}})
    model = model_of("BART").float().eval()
    model.set_attn_implementation("regard-encoder")
    with regard.watch(model) as seen:
        logits(model, "BART")
    assert {name.split(".")[1] for name in seen} == {"encoder", "decoder"}
    for name in seen:
        weights = seen[name].weights()
        narrow = "model.encoder" in name
        assert (weights[0, 0, 5].count_nonzero() == 3) == narrow, name


def test_layers_by_name_hold_for_a_model_that_is_made_with_the_variant():
    name = register("regard-name", layers={"model.layers.1.*": {"mask": Window(2)}})
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM._from_config(
        hf.LlamaConfig(**BY_NAME["Llama"].options), attn_implementation=name
    ).eval()
    with regard.watch(model) as seen:
        logits(model)
    first, second = (seen[f"model.layers.{i}.self_attn"].weights()[0, 0, 9] for i in (0, 1))
    assert (first.count_nonzero(), second.count_nonzero()) == (10, 3)


def test_a_learned_energy_and_bias_of_a_variant_get_gradients():
    class LearnedScale(nn.Module, Energy):
        """q·k/√d times a learned scalar."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, query, key):
            return self.scale * (query @ key.mT) / math.sqrt(query.shape[-1])

        def __call__(self, query, key):
            return nn.Module.__call__(self, query, key)

        def tensors(self):
            return (self.scale,)

    energy, bias = LearnedScale(), RelativeBuckets(4, causal=True)
    name = register("regard-learned", energy=energy, bias=bias)
    model = llama(name)
    BY_NAME["Llama"].output(model, BY_NAME["Llama"].inputs()).square().mean().backward()
    assert float(energy.scale.grad.abs()) > 0 and float(bias.weight.grad.abs().max()) > 0
    model.zero_grad()


# Masks and other arguments of models and users


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_4d_mask_is_used(dtype):
    torch.manual_seed(2)
    allowed = (torch.rand(2, 1, 11, 11) < 0.6) | torch.eye(11, dtype=torch.bool)
    mask = allowed if dtype == torch.bool else torch.where(allowed, 0.0, torch.finfo(dtype).min)
    added = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    ids = BY_NAME["Llama"].inputs()["input_ids"]
    with torch.no_grad():
        eager = llama("eager")(ids, attention_mask=added).logits
        ours = llama()(ids, attention_mask=mask).logits
    assert torch.allclose(eager, ours, atol=1e-4)


def test_a_float_mask_with_finite_values_is_added():
    torch.manual_seed(2)
    mask = torch.randn(2, 4, 11, 11)
    ids = BY_NAME["Llama"].inputs()["input_ids"]
    with torch.no_grad():
        assert torch.allclose(
            llama("eager")(ids, attention_mask=mask).logits,
            llama()(ids, attention_mask=mask).logits,
            atol=1e-4,
        )


def test_a_float_mask_that_a_soft_cap_would_change_is_refused():
    model = model_of("Gemma-2").float().eval()
    ids = BY_NAME["Gemma-2"].inputs()["input_ids"]
    mask = torch.zeros(2, 1, 11, 11).masked_fill(~Causal().dense(11, 11), torch.finfo(torch.float32).min)
    with torch.no_grad():
        outputs = []
        for name in ("eager", "regard"):
            model.set_attn_implementation(name)
            outputs.append(
                model(ids, attention_mask={"full_attention": mask, "sliding_attention": mask}).logits
            )
        assert torch.allclose(*outputs, atol=1e-4)
        mask[..., 0] -= 1
        with pytest.raises(
            OptionError, match=r"Gemma2Attention \(model.layers.0.self_attn\) has a soft cap.*boolean"
        ):
            model(ids, attention_mask={"full_attention": mask, "sliding_attention": mask})


@torch.no_grad()
def test_packed_texts_equal_separate_ones():
    model = llama()
    a, b = torch.randint(3, 60, (1, 5)), torch.randint(3, 60, (1, 7))
    position = torch.cat([torch.arange(5), torch.arange(7)])[None]
    packed, separate = torch.cat([a, b], 1), torch.cat([model(a).logits, model(b).logits], 1)
    assert torch.allclose(model(packed, position_ids=position, use_cache=False).logits, separate, atol=1e-4)
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)
    as_flash = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 7, "max_length_k": 7}
    assert torch.allclose(model(packed, position_ids=position, **as_flash).logits, separate, atol=1e-4)
    with regard.watch(model) as seen:
        model(packed, position_ids=position, use_cache=False)
    assert isinstance(seen["model.layers.0.self_attn"].call.mask.b, Documents)


@pytest.mark.parametrize("name", [f.name for f in FAMILIES])
@torch.no_grad()
def test_output_attentions_gives_the_true_weights(name):
    dtype = torch.float64 if name == "T5" else torch.float32  # T5's scores are large
    model = model_of(name).to(dtype).eval()
    inputs, result = BY_NAME[name].inputs(), []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        out = model(**inputs, output_attentions=True)
        keys = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
        result.append([weights for key in keys for weights in out.get(key) or ()])
    assert len(result[0]) == len(result[1]) > 1
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*result, strict=True))


@torch.no_grad()
def test_output_attentions_has_all_keys_of_a_static_cache():
    model = llama()
    cache = hf.StaticCache(config=model.config, max_cache_len=16)
    out = model(BY_NAME["Llama"].inputs()["input_ids"], past_key_values=cache, output_attentions=True)
    assert out.attentions[0].shape == (2, 4, 11, 16)


def test_a_head_mask_multiplies_the_weights_of_each_head():
    class Module(nn.Module):
        pass

    q, heads = torch.randn(1, 3, 5, 4), torch.tensor([0.0, 1.0, 0.5])
    run = make_attention("regard", regard.huggingface.variants.Changes({}, None))
    plain, _ = run(Module(), q, q, q, None)
    for mask in (heads, heads.view(1, 3, 1, 1)):
        masked, _ = run(Module(), q, q, q, None, head_mask=mask)
        assert torch.allclose(masked, plain * heads.view(1, 1, 3, 1), atol=1e-6)


def test_importing_regard_huggingface_does_not_import_transformers():
    code = "import sys, regard; regard.huggingface.register; print('transformers' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"


def test_a_copied_model_keeps_its_variant():
    register("regard-index", layers={1: {"mask": Window(2)}})
    model = llama("regard-index")
    assert torch.equal(logits(copy.deepcopy(model)), logits(model))


def test_layers_by_name_follow_layers_that_are_removed():
    register("regard-second", layers={"model.layers.1.*": {"mask": Window(1)}})
    model = copy.deepcopy(llama("regard-second"))
    model.model.layers.append(copy.deepcopy(model.model.layers[1]))
    model.set_attn_implementation("regard-second")
    logits(model)
    del model.model.layers[1]
    with regard.watch(model) as seen:
        model(input_ids=torch.arange(3, 9)[None], use_cache=False)
    assert "Window" in repr(seen["model.layers.1.self_attn"])


def test_a_model_on_regard_needs_no_patching_of_torchs_functions_unless_it_has_other_modules():
    from torch.overrides import _get_current_function_mode

    class OtherAttention(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    register()
    for name, modules, patched in (
        ("regard", [], False),
        ("sdpa", [], True),
        ("regard", [OtherAttention()], True),
    ):
        with regard.watch(torch.nn.Sequential(llama(name), *modules)):
            assert (_get_current_function_mode() is not None) == patched


def test_a_watch_begun_in_on_call_names_the_calls_of_the_modules_that_run_there():
    """The interface tells `watch` which module calls `attend`; that module is not the caller in `on_call`."""
    model, inputs, names = llama("regard"), BY_NAME["Llama"].inputs(), []

    class Inner(nn.Module):
        def forward(self, x):
            return regard.attend(x, x, x)

    inner = Inner()
    both = nn.ModuleDict({"model": model, "inner": inner})

    def on_call(name, recorded):
        with regard.watch(both) as seen:
            inner(torch.randn(1, 1, 3, 4))
        names.append((name, *seen))

    with regard.watch(model, on_call=on_call), torch.no_grad():
        model(**inputs)
    assert names == [(f"model.layers.{i}.self_attn", "inner") for i in range(len(model.model.layers))]
