"""Tests of cpp_engine.py and layout.py: the C++ engine equals the torch model, and batches change no bit."""

import copy
import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from regard.data.tokenizer import BOS, EOS
from regard.decoding.beam import Beam
from regard.decoding.engine import Engine, fast, why_not
from regard.decoding.engine.cpp_engine import Slots
from regard.decoding.limits import Limits
from regard.errors import KernelError, OptionError
from regard.models.autoregressive import log_probabilities
from regard.pipelines.translate import translate_tokens
from tests import forked
from tests.decoding.batch_checks import assert_batches_change_nothing
from tests.models.small import DECODERS, ENCODERS, make

LAYERS = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 48}
VOCAB = 150  # more than two panels of output columns
SENTENCES = [
    [5, 9, 20],
    [7],
    [30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50],
    [8, 8, 9],
    [99, 4],
]


def small(*, vocab=VOCAB, language=False, **changes):
    """A model in float32."""
    rest = {key: changes.pop(key) for key in ("tie", "output_bias", "scale_embeddings") if key in changes}
    spec = {**LAYERS, **changes}
    return make(None if language else spec, spec, vocab=vocab, **rest).float().eval()


def ready(model, precision="float32"):
    reason = why_not(model, precision)
    if reason is not None:
        pytest.skip(reason)
    return Engine(model, precision)


def padded(sentences):
    rows = [torch.tensor([*s, EOS]) for s in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(r) for r in rows])


VARIANTS = {
    "post": {},
    "pre": {"norm": "pre"},
    "no norm": {"norm": "none"},
    "rms": {"norm": "pre", "norm_kind": "rms"},
    "learned positions": {"position": "learned", "max_positions": 64},
    "no positions": {"position": "none"},
    "gelu": {"activation": "gelu"},
    "gelu-tanh": {"activation": "gelu-tanh"},
    "swish": {"activation": "swish"},
    "swiglu": {"activation": "swiglu"},
    "untied": {"tie": "none"},
    "output bias": {"output_bias": True},
    "unscaled embeddings": {"scale_embeddings": False},
    "one layer, one head": {"layers": 1, "heads": 1},
}


@torch.inference_mode()
def errors(model, engine, steps=6):
    """The largest error of float32 torch and of the engine against float64, over some steps of a batch."""
    exact = make_exact(model)
    source, lengths = padded(SENTENCES)
    first = torch.full((len(SENTENCES),), BOS)
    models = (exact, model, engine)
    state = [candidate.start(candidate.encode(source, lengths), first) for candidate in models]
    result, tokens = [0.0, 0.0], first
    for _ in range(steps):
        all_logits = []
        for i, candidate in enumerate(models):
            logits, state[i] = candidate.step(tokens, state[i])
            all_logits.append(logits.double()[:, EOS:])
        result = [
            max(error, float((logits - all_logits[0]).abs().max()))
            for error, logits in zip(result, all_logits[1:], strict=True)
        ]
        tokens = all_logits[0].argmax(-1) + EOS
    return result


def make_exact(model):
    return copy.deepcopy(model).double()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_supported_model_is_as_accurate_as_torch(name):
    model = small(**VARIANTS[name])
    torch_error, engine_error = errors(model, ready(model))
    assert engine_error <= 4 * torch_error + 2e-6


@pytest.mark.parametrize(("precision", "bound"), [("int8", 0.5), ("bfloat16", 0.2)])
def test_bfloat16_and_int8_are_close_to_float32(precision, bound):
    model = small()
    assert 0 < errors(model, ready(model, precision))[1] < bound


@torch.inference_mode()
def test_the_best_tokens_are_the_best_of_all_scores():
    model = small()
    engine = ready(model)
    source, lengths = padded(SENTENCES)
    first = torch.full((len(SENTENCES),), BOS)
    for k in (1, 2, 7, 147, 1000):
        memory = engine.encode(source, lengths)
        scores, _ = engine.step(first, engine.start(memory, first))
        log_p, tokens, _ = engine.best(first, engine.start(memory, first), k)
        expected, expected_tokens = log_probabilities(scores).topk(min(k, VOCAB), -1)
        allowed = VOCAB - 2  # neither PAD nor BOS
        torch.testing.assert_close(log_p[:, :allowed], expected[:, :allowed], atol=2e-6, rtol=0)
        assert torch.equal(tokens[:, :allowed], expected_tokens[:, :allowed])


@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("beam", [1, 4])
def test_batch_order_and_workers_change_no_bit(precision, beam):
    engine = ready(small(), precision)
    sentences = [[4 + (7 * i + j) % 140 for j in range(1 + 5 * i % 17)] for i in range(24)]
    assert_batches_change_nothing(engine, sentences, beam)


@pytest.mark.parametrize("beam", [1, 4])
def test_the_search_finds_the_same_as_with_torch(beam):
    model = small(norm="pre")
    engine = ready(model)
    exact = make_exact(model)
    for ours, expected in zip(
        translate_tokens(engine, SENTENCES, strategy=Beam(beam)),
        translate_tokens(exact, SENTENCES, strategy=Beam(beam)),
        strict=True,
    ):
        assert [h.score for h in ours] == pytest.approx([h.score for h in expected], abs=1e-4)
        assert ours[0].tokens == expected[0].tokens or ours[0].score - ours[1].score < 1e-4


def test_unused_slots_are_dropped(monkeypatch):
    engine = ready(small())
    expected = translate_tokens(engine, SENTENCES, strategy=Beam(3), limits=Limits(max_length=40))
    compactions = []
    compact = Slots._compact
    monkeypatch.setattr(
        Slots, "_compact", lambda self, *args: (compactions.append(1), compact(self, *args))[1]
    )
    monkeypatch.setattr(
        Slots,
        "__init__",
        lambda self, size, rows, dtype: (
            setattr(self, "buffer", torch.empty(rows, size)),
            setattr(self, "used", 0),
            None,
        )[2],
    )
    outputs = translate_tokens(engine, SENTENCES, strategy=Beam(3), limits=Limits(max_length=40))
    assert compactions
    assert [[h.log_p for h in texts] for texts in outputs] == [[h.log_p for h in texts] for texts in expected]


@torch.inference_mode()
def test_a_language_model_reads_its_prompt():
    model = small(language=True, norm="pre")
    engine = ready(model)
    prompt = torch.tensor([[BOS, 5, 6, 7], [BOS, 9, 9, 100]])
    ours = engine.read(prompt[:, :-1], engine.start(None, prompt[:, 0]))
    scores, _ = engine.step(prompt[:, -1], ours)
    torch.testing.assert_close(scores[:, EOS:], model(prompt)[:, -1, EOS:], atol=1e-5, rtol=0)


def test_outputs_may_be_longer_than_the_initial_position_table():
    model = small(layers=1)
    engine = ready(model)
    long = [[4 + i % 100 for i in range(400)]]
    ours, expected = (
        translate_tokens(w, long, limits=Limits(max_length=300))[0][0] for w in (engine, make_exact(model))
    )
    assert ours.log_p == pytest.approx(expected.log_p, abs=1e-2) and len(ours.tokens) == len(expected.tokens)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"position": "rotary"}, "rotation"),
        ({"position": "alibi"}, "bias"),
        ({"energy": "dot"}, "scaled dot"),
        ({"normalize": "sparsemax"}, "normalised by Sparsemax"),
        ({"key_heads": 1}, "shared key heads"),
        ({"heads": 4}, "multiples of 16"),
    ],
)
def test_unsupported_models_run_in_torch(changes, reason):
    model = small(**changes)
    assert reason in (why_not(model) or "")
    assert fast(model) is model


def test_recurrent_models_run_in_torch():
    model = make(ENCODERS["gru"], DECODERS["bahdanau"]).float()
    assert "Transformers" in (why_not(model) or "") and fast(model) is model


def test_without_a_compiler_torch_runs_and_a_line_says_so(monkeypatch, capsys):
    from regard.decoding.engine import cpp_engine

    monkeypatch.setattr(cpp_engine, "_REPORTED", set())
    monkeypatch.setattr(cpp_engine, "lacks", lambda *names: None)
    monkeypatch.setattr(
        cpp_engine, "library", lambda source: "no C++ compiler (g++ or clang++) was found on PATH"
    )
    model = small()
    assert fast(model, "int8") is model
    reason = "no C++ compiler (g++ or clang++) was found on PATH"
    assert capsys.readouterr().err == f"regard: float32 instead of int8, by PyTorch: {reason}\n"
    assert fast(model) is model
    assert (
        capsys.readouterr().err
        == f"regard: decoding with PyTorch, which is slower than the C++ engine: {reason}\n"
    )
    assert fast(model) is model and not capsys.readouterr().err  # reported once


def test_unavailable_int8_reports_which_engine_runs(monkeypatch, capsys):
    from regard.decoding.engine import cpp_engine

    model, why_not_here = small(), cpp_engine._why_not_here
    if why_not_here("float32"):
        pytest.skip(f"the engine does not run here: {why_not_here('float32')}")
    reason = "this processor has no instructions for int8"
    monkeypatch.setattr(
        cpp_engine,
        "_why_not_here",
        lambda precision: reason if precision == "int8" else why_not_here(precision),
    )
    assert fast(model, "int8").precision == "float32"
    assert capsys.readouterr().err == f"regard: float32 instead of int8, by the C++ engine: {reason}\n"


def test_a_processor_without_avx512_is_reported(monkeypatch, capsys):
    from regard.attention.kernels import build_cpp
    from regard.decoding.engine import cpp_engine

    monkeypatch.setattr(cpp_engine, "_REPORTED", set())
    monkeypatch.setattr(build_cpp, "_cpu_flags", lambda: "flags : fpu sse2 avx2")
    assert fast(small()) is not None and "PyTorch" in capsys.readouterr().err
    assert why_not(small()) == "this processor has no AVX-512"
    fast(make(ENCODERS["gru"], DECODERS["bahdanau"]).float().eval())  # not a Transformer: nothing to report
    assert not capsys.readouterr().err


@pytest.mark.parametrize("switch", ["0", "1"])
def test_switching_native_code_off_is_reported_once(switch):
    code = (
        "from tests.decoding.test_cpp_engine import small; from regard.decoding.engine import fast, why_not; "
        "model = small();"
        "fast(model); fast(model); print(why_not(model))"
    )
    done = forked.run(code=code, env={**os.environ, "REGARD_NATIVE": switch})
    message = (
        "regard: decoding with PyTorch, which is slower than the C++ engine: "
        "REGARD_NATIVE=0 switches it off\n"
    )
    assert done.returncode == 0
    if switch == "0":
        assert done.stderr == message
    else:  # without a message if the engine runs, else with another reason
        assert "REGARD_NATIVE" not in done.stderr
        assert ("PyTorch" in done.stderr) == (done.stdout != "None\n")


def test_an_unknown_precision_is_named():
    with pytest.raises(
        OptionError, match="precision must be one of auto, float32, int8, bfloat16, got 'int4'"
    ):
        fast(small(), "int4")


def test_an_engine_of_a_language_model_has_no_encode():
    assert not hasattr(ready(small(language=True)), "encode") and hasattr(ready(small()), "encode")


@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
def test_a_second_thread_changes_no_bit(precision):
    model = small(inner=300, vocab=1000)  # several panels, an uneven number of them
    engine, before, result = ready(model, precision), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            for size in (1, 4):
                texts = translate_tokens(engine, SENTENCES * 3, strategy=Beam(size), limits=Limits(workers=1))
                result.append([[(h.tokens, h.log_p) for h in text] for text in texts])
    finally:
        torch.set_num_threads(before)
        engine._share()
    assert result[:2] == result[2:4] == result[4:]


def test_out_of_memory_is_an_error_and_the_engine_works_afterwards():
    model = small()
    engine = ready(model)
    before = translate_tokens(engine, SENTENCES[:2], limits=Limits(max_length=5))
    limit = engine._library.engine_limit_allocation
    limit(ctypes.c_int64(16))
    try:
        with pytest.raises(KernelError, match="the decoding engine got no memory"):
            Engine(model)
        # In a new thread: this one may have buffers from earlier tests, which are large enough.
        with ThreadPoolExecutor(1) as pool:
            search = pool.submit(
                translate_tokens, engine, [[5, 6] * 200], limits=Limits(max_length=5, workers=1)
            )
            with pytest.raises(KernelError, match="the decoding engine got no memory"):
                search.result()
    finally:
        limit(ctypes.c_int64(2**62))
    after = translate_tokens(engine, SENTENCES[:2], limits=Limits(max_length=5))
    assert [[h.tokens for h in row] for row in after] == [[h.tokens for h in row] for row in before]
