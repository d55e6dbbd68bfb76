"""Hugging Face models on regard on an NVIDIA GPU: prefill, generation with each cache, gradients."""

import copy

import pytest
import torch

pytest.importorskip("transformers", minversion="5")

import regard
from regard.huggingface import register
from tests.huggingface.families import BY_NAME, FAMILIES, GENERATION, model_of

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and torch with CUDA"),
]
GENERATING = [f for f in FAMILIES if f.kind in ("decoder", "seq2seq")]
CACHES = {
    "dynamic": {"cache_implementation": "dynamic"},
    "static": {"cache_implementation": "static", "disable_compile": True},
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    register()


def on_gpu(family, dtype=torch.float32):
    return copy.deepcopy(model_of(family.name)).to("cuda", dtype).eval()


def inputs_of(family, model, padded):
    return {
        k: v.to("cuda", model.dtype if v.is_floating_point() else v.dtype)
        for k, v in family.inputs(padded).items()
    }


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_output_and_gradients_equal_those_of_eager(family):
    model = on_gpu(family)
    inputs = inputs_of(family, model, padded=False)
    results = []
    for name in ("eager", "regard"):
        model.set_attn_implementation(name)
        model.zero_grad()
        out = family.output(model, inputs)
        out.square().mean().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        assert (a - b).abs().max() <= 1e-3 * max(1.0, float(a.abs().max()))


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("family", GENERATING, ids=lambda f: f.name)
def test_generation_gives_the_tokens_of_eager(family, cache):
    model = on_gpu(family)
    inputs = {k: v for k, v in inputs_of(family, model, padded=True).items() if k != "decoder_input_ids"}
    options = {**GENERATION, "no_repeat_ngram_size": 2, **CACHES[cache]}
    results = []
    for name in ("eager", "regard"):
        model.set_attn_implementation(name)
        results.append(model.generate(**inputs, **options))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ["Llama", "Mistral", "GPT-OSS", "Gemma-2", "BERT"])
def test_half_precision_is_as_close_to_float32_as_eager(name):
    family = BY_NAME[name]
    model, half = on_gpu(family), on_gpu(family, torch.bfloat16)
    inputs = inputs_of(family, model, padded=True)
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = family.output(model, inputs)[real]
        errors = []
        for implementation in ("eager", "regard"):
            half.set_attn_implementation(implementation)
            errors.append(float((family.output(half, inputs)[real].float() - expected).abs().mean()))
    assert errors[1] <= 1.5 * errors[0]


def test_sinks_run_on_our_triton_kernel_in_half_precision():
    q, k, v = (
        torch.randn(2, 4, 100, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    sinks = torch.randn(4, device="cuda", requires_grad=True)
    options = {"mask": regard.Window(20, 0), "normalize": regard.Softmax(sinks=sinks)}
    assert regard.explain(q, k, v, **options).kernel == "triton"
    leaves = (q, k, v, sinks)
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    out = regard.attend(q, k, v, **options)
    exact_out = regard.attend(
        *doubles[:3], mask=options["mask"], normalize=regard.Softmax(sinks=doubles[3]), kernel="reference"
    )
    grad = torch.randn_like(out)
    results = (out, *torch.autograd.grad(out, leaves, grad))
    expected = (exact_out, *torch.autograd.grad(exact_out, doubles, grad.double()))
    for a, b in zip(results, expected, strict=True):
        assert (a.double() - b).abs().max() <= 0.02 * (1 + b.abs().max())
