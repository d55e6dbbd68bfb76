"""Every model family on regard against its eager attention: the table in docs/your-own-model.md.

Only real positions are compared: rows that see no key, the padding on the left, give zeros here and an
average of all values in eager. Eager attention of Llama, Mistral, Gemma-2 and ViT computes its softmax in
float32, so these are compared in float32, and so is GPT-OSS, whose experts do not run in float64; the others
in float64.
"""

import copy
import re
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", minversion="5")

import transformers as hf
from transformers.generation.configuration_utils import CompileConfig

import regard
from regard.huggingface import masks, register
from tests.huggingface.families import BY_NAME, FAMILIES, GENERATION, model_of

register()
IN_FLOAT32 = ("Llama", "Mistral", "Gemma-2", "GPT-OSS", "ViT")
TEXT = [f for f in FAMILIES if f.kind != "vision"]
GENERATING = [f for f in FAMILIES if f.kind in ("decoder", "seq2seq")]
every = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
text = pytest.mark.parametrize("family", TEXT, ids=lambda f: f.name)
slow = lambda x: pytest.param(x, marks=pytest.mark.slow)  # noqa: E731
quick = lambda *names: [f if f.name in names else slow(f) for f in FAMILIES]  # noqa: E731
generating = pytest.mark.parametrize("family", GENERATING, ids=lambda f: f.name)


@pytest.fixture(autouse=True)
def quiet():
    """Silence Transformers' warnings about small configurations; forget compiled graphs."""
    hf.logging.set_verbosity_error()
    torch._dynamo.reset()
    yield
    hf.logging.set_verbosity_warning()


def model_in(family, dtype=None):
    """The shared model, in the dtype in which its eager attention can be compared."""
    return (
        model_of(family.name)
        .to(dtype or (torch.float32 if family.name in IN_FLOAT32 else torch.float64))
        .eval()
    )


def inputs_in(family, model, padded=False):
    return {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in family.inputs(padded).items()}


def on_both(model, run):
    """The results of eager and of regard."""
    results = []
    for name in ("eager", "regard"):
        model.set_attn_implementation(name)
        results.append(run())
    return results


LIMITS = {torch.float32: 2e-5, torch.float64: 1e-11}


def relative_error(a, b):
    """The largest difference, relative to the largest value: small values are differences of large ones."""
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max()) / max(1.0, float(a.abs().max()))


@every
@torch.no_grad()
def test_prefill_equals_eager(family):
    model = model_in(family)
    inputs = inputs_in(family, model)
    eager, ours = on_both(model, lambda: family.output(model, inputs))
    assert eager.std() > 0.1
    assert relative_error(eager, ours) <= LIMITS[model.dtype]


@text
@torch.no_grad()
def test_a_padded_batch_equals_eager_at_real_positions(family):
    model = model_in(family)
    inputs = inputs_in(family, model, padded=True)
    eager, ours = on_both(model, lambda: family.output(model, inputs))
    real = (
        torch.ones_like(inputs["decoder_input_ids"]) if family.kind == "seq2seq" else inputs["attention_mask"]
    )
    assert relative_error(eager[real.bool()], ours[real.bool()]) <= LIMITS[model.dtype]
    if family.kind == "decoder":  # positions count from the first real token, so padding changes nothing
        unpadded = {name: tensor[:1, 4:] for name, tensor in inputs.items()}
        position = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        ours = family.output(model, inputs, position_ids=position)
        assert relative_error(family.output(model, unpadded), ours[:1, 4:]) <= LIMITS[model.dtype]


CACHES = {
    "dynamic": {"cache_implementation": "dynamic"},
    "static": {"cache_implementation": "static"},
    "none": {"use_cache": False},
}


@generating
@pytest.mark.parametrize("cache", CACHES)
def test_generation_gives_the_tokens_of_eager(family, cache):
    model = model_in(family)
    inputs = {k: v for k, v in inputs_in(family, model, padded=True).items() if k != "decoder_input_ids"}
    options = {**GENERATION, "no_repeat_ngram_size": 2, **CACHES[cache]}
    eager, ours = on_both(model, lambda: model.generate(**inputs, **options))
    assert torch.equal(eager, ours)
    assert len(set(ours[0].tolist())) > 4


@pytest.mark.parametrize("cache", ["sliding_window", "hybrid"])
@pytest.mark.parametrize("name", ["Mistral", "Gemma-2"])
def test_older_names_of_sliding_caches_give_the_tokens_of_eager(name, cache):
    model = model_in(BY_NAME[name])
    inputs = BY_NAME[name].inputs(padded=True)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
    assert torch.equal(*on_both(model, lambda: model.generate(**inputs, **options)))


def test_the_families_include_caches_with_sliding_full_and_both_kinds_of_layers():
    """So the rows of the table cover them: 16 to 23 tokens are more than the window of 5."""
    for name, sliding in {"Llama": {False}, "Mistral": {True}, "Gemma-2": {True, False}}.items():
        config = model_of(name).config
        for cache in (hf.DynamicCache(config=config), hf.StaticCache(config=config, max_cache_len=20)):
            assert {"Sliding" in type(layer).__name__ for layer in cache.layers} == sliding


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma-2", "T5"])
def test_a_static_cache_whose_counter_is_not_read_gives_the_tokens_of_eager(name, monkeypatch):
    """As on a GPU, where a decoding step does not read the cache's counter: the mask keeps it as a tensor."""
    family = BY_NAME[name]
    model = model_in(family)
    monkeypatch.setattr(masks, "_may_read", lambda counter, q_length: q_length > 1)
    inputs = {k: v for k, v in inputs_in(family, model, padded=True).items() if k != "decoder_input_ids"}
    options = {**GENERATION, "cache_implementation": "static"}
    assert torch.equal(*on_both(model, lambda: model.generate(**inputs, **options)))


@pytest.mark.parametrize("name", ["Llama", "Mistral", "BART"])
def test_beam_search_gives_the_tokens_of_eager(name):
    family = BY_NAME[name]
    model = model_in(family)
    inputs = {k: v for k, v in inputs_in(family, model, padded=True).items() if k != "decoder_input_ids"}
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "num_beams": 3, "do_sample": False}
    assert torch.equal(*on_both(model, lambda: model.generate(**inputs, **options)))


@every
def test_a_training_step_has_the_gradients_of_eager(family):
    model = model_in(family)
    inputs = inputs_in(family, model, padded=family.kind in ("encoder", "seq2seq"))

    def step():
        model.train()
        model.zero_grad()
        out = family.output(model, inputs)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
        model.eval()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    eager, ours = on_both(model, step)
    assert eager.keys() == ours.keys()
    largest = max(float(g.abs().max()) for g in eager.values())
    limit = 5e-5 if model.dtype == torch.float32 else 1e-11
    for name, grad in eager.items():
        assert (grad - ours[name]).abs().max() <= limit * largest, name
    if family.name == "GPT-OSS":
        assert float(ours["model.layers.0.self_attn.sinks"].abs().max()) > 0
    model.zero_grad()


@every
@torch.no_grad()
def test_watch_gives_the_weights_of_each_layer(family):
    model = model_in(family)
    inputs = inputs_in(family, model)
    model.set_attn_implementation("eager")
    outputs = model(**inputs, output_attentions=True)
    model.set_attn_implementation("regard")
    with regard.watch(model) as seen:
        model(**inputs)
    assert set(family.attention) <= set(seen)
    attentions = {}
    if family.kind == "seq2seq":
        for kind in ("encoder", "decoder", "cross"):
            attentions |= {(kind, i): w for i, w in enumerate(outputs[f"{kind}_attentions"])}
    else:
        attentions = {("", i): w for i, w in enumerate(outputs["attentions"])}
    assert len(seen) == len(attentions)
    for name in seen:
        layer = int(re.search(r"\.(\d+)\.", name)[1])
        kind = ""
        if re.search("encoder_attn|EncDec", name):
            kind = "cross"
        elif family.kind == "seq2seq":
            kind = "encoder" if "encoder." in name else "decoder"
        assert relative_error(attentions[kind, layer], seen[name].weights()) <= LIMITS[model.dtype]


@pytest.mark.parametrize("family", quick("Llama", "BERT", "ViT"), ids=lambda f: f.name)
@torch.no_grad()
def test_the_model_compiles_as_one_graph(family):
    model = model_in(family)
    model.set_attn_implementation("regard")
    inputs = inputs_in(family, model, padded=True)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert (
        relative_error(family.output(model, inputs), family.output(compiled, inputs)) <= LIMITS[model.dtype]
    )


@pytest.mark.parametrize("name", [slow("Llama"), "Mistral", slow("T5")])
def test_generation_with_a_static_cache_compiles_and_gives_the_tokens_of_eager(name):
    family = BY_NAME[name]
    model = model_in(family)
    inputs = {k: v for k, v in inputs_in(family, model, padded=True).items() if k != "decoder_input_ids"}
    options = {**GENERATION, "cache_implementation": "static"}
    model.set_attn_implementation("eager")
    eager = model.generate(**inputs, **options)
    model.set_attn_implementation("regard")
    compile_config = CompileConfig(backend="eager", fullgraph=True, mode=None)
    compile_config._compile_all_devices = True
    torch._dynamo.utils.counters.clear()
    assert torch.equal(eager, model.generate(**inputs, **options, compile_config=compile_config))
    assert 0 < torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4  # not one graph per step


@pytest.mark.slow
@torch.no_grad()
def test_a_model_compiled_by_inductor_equals_the_uncompiled_one():
    family = FAMILIES[0]
    model = model_in(family)
    model.set_attn_implementation("regard")
    inputs = family.inputs(padded=True)
    assert (
        relative_error(family.output(model, inputs), family.output(torch.compile(model), inputs))
        <= LIMITS[model.dtype]
    )


@pytest.mark.parametrize("name", [slow("Llama"), "Mistral", slow("Gemma-2"), slow("GPT-OSS")])
@torch.no_grad()
def test_a_compiled_step_on_a_static_cache_has_the_logits_of_the_full_text(name):
    family = BY_NAME[name]
    model = model_in(family, torch.float32)
    register("regard-near", mask=regard.Window(3), bias=regard.ALiBi(4))
    ids, mask = (family.inputs(padded=True)[k] for k in ("input_ids", "attention_mask"))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for variant, runs in (("regard", [model]), ("regard-near", [model, compiled])):
        model.set_attn_implementation(variant)
        full = model(ids, attention_mask=mask).logits[:, 4:]
        for run in runs:
            cache = hf.StaticCache(config=model.config, max_cache_len=20)
            steps = [model(ids[:, :8], attention_mask=mask[:, :8], past_key_values=cache).logits[:, 4:]]
            for t in range(8, 11):
                steps.append(
                    run(ids[:, t : t + 1], attention_mask=mask[:, : t + 1], past_key_values=cache).logits
                )
            assert relative_error(full, torch.cat(steps, 1)) <= LIMITS[torch.float32]


@pytest.mark.parametrize("name", ["Llama", "BERT", "GPT-OSS"])
def test_dropout_in_training_equals_eager_with_the_same_seed(name):
    family = BY_NAME[name]
    option = {"BERT": "attention_probs_dropout_prob"}.get(name, "attention_dropout")
    model = family.build(**{option: 0.4})

    def run():
        torch.manual_seed(5)
        return family.output(model.train(), family.inputs())

    eager, ours = on_both(model, run)
    assert relative_error(eager, ours) <= LIMITS[torch.float32]
    assert (ours - family.output(model.eval(), family.inputs())).abs().max() > 0.01


@pytest.mark.parametrize("name", ["Llama", "T5", "BART"])
def test_gradient_checkpointing_changes_no_gradient(name):
    family = BY_NAME[name]
    model = copy.deepcopy(model_in(family))
    model.set_attn_implementation("regard")
    grads = []
    for _ in range(2):
        model.train().zero_grad()
        family.output(model, inputs_in(family, model)).square().mean().backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.gradient_checkpointing_enable()
    assert grads[0].keys() == grads[1].keys()
    assert all(torch.allclose(grads[0][n], grads[1][n], atol=1e-5) for n in grads[0])


@text
@torch.no_grad()
def test_half_precision_is_as_close_to_float32_as_eager(family):
    model = copy.deepcopy(model_in(family)).float()
    exact = family.output(model, inputs_in(family, model))
    model = model.bfloat16()
    eager, ours = on_both(model, lambda: family.output(model, inputs_in(family, model)))
    assert (ours - exact).abs().mean() <= 2 * (eager - exact).abs().mean() + 1e-3


ROWS = [
    "prefill",
    "generate: dynamic cache",
    "static cache",
    "no cache",
    "padded batch",
    "training step",
    "watch",
    "torch.compile (one graph; inductor: Llama)",
]


def test_the_table_in_the_documentation_has_these_families_and_cells():
    page = (Path(__file__).parents[2] / "docs/your-own-model.md").read_text(encoding="utf-8")
    header = next(line for line in page.splitlines() if line.startswith("| |") and "Llama" in line)
    assert [x.strip() for x in header.strip("| ").split("|")] == [f.name for f in FAMILIES]
    for row in ROWS:
        line = next(line for line in page.splitlines() if line.startswith(f"| {row} |"))
        cells = line.strip("| ").split("|")[1:]
        for family, cell in zip(FAMILIES, cells, strict=True):
            applies = family in GENERATING if "cache" in row else family in TEXT or row != "padded batch"
            assert cell.strip() == ("yes" if applies else "–"), (row, family.name)
