"""Tests of engine/cuda: the CUDA engine equals the torch model; in float64 without a GPU, marked `cuda` with
one.

Covers packed_weights.py.
"""

import copy

import pytest
import torch

from regard.data.tokenizer import BOS, EOS
from regard.decoding.beam import Beam
from regard.decoding.constraints import TokenConstraints
from regard.decoding.engine import fast
from regard.decoding.engine.cuda import engine, on_cuda
from regard.decoding.engine.cuda.buffers import Buffers
from regard.decoding.engine.cuda.step_operations import top
from regard.decoding.engine.layout import Unsupported
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.decoding.search import Search
from regard.decoding.strategy import SearchTask
from regard.errors import OptionError
from regard.layers.fused_parts import use_parts
from regard.models.autoregressive import log_probabilities
from regard.pipelines.translate import start, translate_tokens
from tests.decoding.cuda_cases import (
    SENTENCES,
    VARIANTS,
    VOCAB,
    as_approx_tuples,
    as_tuples,
    ends_early,
    needs_cuda,
    padded,
    small,
)
from tests.decoding.enumeration import all_outputs, near_ties, ranked
from tests.models.small import DECODERS, ENCODERS, make


# Complete searches.
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_search_on_the_device_equals_search_on_the_host(name, size):
    model = small(**VARIANTS[name])
    assert as_tuples(translate_tokens(engine(model), SENTENCES, strategy=Beam(size))) == as_approx_tuples(
        translate_tokens(model, SENTENCES, strategy=Beam(size))
    )


@pytest.mark.parametrize(("size", "penalty"), [(1, 1.0), (2, 0.0), (3, 1.0), (5, 0.6), (40, 1.0)])
def test_hypotheses_that_end_at_any_step_are_sorted(size, penalty):
    model = ends_early()
    expected = translate_tokens(model, SENTENCES, strategy=Beam(size, penalty))
    hypotheses = [h for texts in expected for h in texts]
    assert len({len(h.tokens) for h in hypotheses if h.ended}) > 3 and (
        size == 40 or not all(h.ended for h in hypotheses)
    )
    assert as_tuples(
        translate_tokens(engine(model), SENTENCES, strategy=Beam(size, penalty))
    ) == as_approx_tuples(expected)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_large_beam_finds_all_outputs_sorted_by_score(penalty):
    model = small(vocab=7)
    expected = ranked(all_outputs(model, 3), penalty)
    outputs = translate_tokens(
        engine(model), [[4, 5, 6]], strategy=Beam(100, penalty), limits=Limits(max_length=3)
    )[0]
    assert [((*h.tokens,), h.ended) for h in outputs] == [text for text, _ in expected]
    assert [h.score for h in outputs] == pytest.approx([score for _, score in expected], abs=1e-10)


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9, 17])
def test_every_length_limit_applies(limit):
    model = ends_early()
    for size in (1, 3):
        expected = translate_tokens(
            model, SENTENCES[:5], strategy=Beam(size), limits=Limits(max_length=limit)
        )
        assert as_tuples(
            translate_tokens(
                engine(model), SENTENCES[:5], strategy=Beam(size), limits=Limits(max_length=limit)
            )
        ) == as_approx_tuples(expected)


def test_sentences_of_a_batch_have_different_limits():
    model = ends_early()
    fast_model, limits = engine(model), [1, 30, 2, 9, 16, 8]
    tasks = [SearchTask(n, SENTENCES[3]) for n in limits]
    fast_model.search(tasks, *start(fast_model, tasks), Beam(3), EOS)
    for task in tasks:
        assert as_tuples([task.hypotheses]) == as_approx_tuples(
            translate_tokens(
                model, [SENTENCES[3]], strategy=Beam(3), limits=Limits(max_length=task.max_length)
            )
        )


def test_the_remaining_sentences_move_to_smaller_buffers(monkeypatch):
    sizes, narrow = [], Buffers.continue_search
    monkeypatch.setattr(
        Buffers,
        "continue_search",
        lambda self, *args: (sizes.append(self.size.sentences), narrow(self, *args))[1],
    )
    model = ends_early()
    sentences = [SENTENCES[i % 20][: 1 + i % 7] for i in range(40)]
    for size in (1, 3):
        assert as_tuples(translate_tokens(engine(model), sentences, strategy=Beam(size))) == as_approx_tuples(
            translate_tokens(model, sentences, strategy=Beam(size))
        )
    assert len(sizes) >= 2 and min(sizes) < 40


@pytest.mark.parametrize("size", [1, 4])
def test_batches_order_and_workers_change_nothing(size):
    fast_model = engine(ends_early())
    alone = [translate_tokens(fast_model, [s], strategy=Beam(size))[0] for s in SENTENCES]
    assert as_tuples(
        translate_tokens(fast_model, SENTENCES[::-1], strategy=Beam(size))[::-1]
    ) == as_approx_tuples(alone)
    assert as_tuples(
        translate_tokens(fast_model, SENTENCES, strategy=Beam(size), limits=Limits(batch_tokens=40 * size))
    ) == as_approx_tuples(alone)
    assert as_tuples(
        translate_tokens(
            fast_model, SENTENCES, strategy=Beam(size), limits=Limits(batch_tokens=64 * size, workers=3)
        )
    ) == as_approx_tuples(alone)


@pytest.mark.parametrize("size", [1, 3])
def test_a_language_model_continues_its_prompt(size):
    model = ends_early(language=True, norm="pre")
    fast_model, prompts = engine(model), torch.tensor([[BOS, 5, 6, 7], [BOS, 9, 9, 100]])
    results, expected = [], []
    for item, texts in ((fast_model, results), (model, expected)):
        tasks, running = [SearchTask(12, row) for row in prompts.tolist()], Search(item, Beam(size))
        with torch.inference_mode():
            state = item.read(prompts[:, :-1], item.start(None, prompts[:, 0]))
            if item is fast_model:
                fast_model.search(tasks, state, prompts[:, -1], Beam(size), EOS)
            else:
                running.add(tasks, state, prompts[:, -1])
                while running:
                    running.step()
        texts.extend(task.hypotheses for task in tasks)
    assert as_tuples(results) == as_approx_tuples(expected)
    assert not hasattr(fast_model, "encode")


def test_without_an_end_token_outputs_reach_their_limit():
    model = ends_early(language=True)
    fast_model, tasks = engine(model), [SearchTask(11, [BOS]), SearchTask(5, [BOS])]
    fast_model.search(
        tasks, fast_model.start(None, torch.full((2,), BOS)), torch.full((2,), BOS), Beam(2), -1
    )
    assert [[len(h.tokens) for h in task.hypotheses] for task in tasks] == [[11, 11], [5, 5]]
    assert any(EOS in h.tokens for task in tasks for h in task.hypotheses)  # an ordinary token here


def test_nan_weights_are_an_error():
    model = small()
    with torch.no_grad():
        model.target.table.weight[9] = torch.nan
        model.decoder.layers[0].feed.W1.weight[:] = torch.nan
    with pytest.raises(OptionError, match="sentence 1 no output with a finite score"):
        translate_tokens(engine(model), [[5]])


def test_nan_of_one_batch_does_not_reach_the_next(monkeypatch):
    """A NaN embedding affects its own sentence, not a later sentence in the same slot of reused buffers."""
    model = small(tie="none")
    expected = translate_tokens(model, [[5, 6, 7]])
    with torch.no_grad():
        model.source.table.weight[9] = torch.nan
    fast_model = engine(model)
    monkeypatch.setattr(fast_model.pool, "_max_bytes", 1 << 30)
    with pytest.raises(OptionError):
        translate_tokens(fast_model, [[9, 6, 7]])
    assert as_tuples(translate_tokens(fast_model, [[5, 6, 7]])) == as_approx_tuples(expected)


# Single steps, and the search on the host.
@torch.inference_mode()
def test_steps_equal_those_of_the_torch_model_after_reordering():
    model = small()
    models, (source, lengths) = (model, engine(model)), padded(SENTENCES[:9])
    tokens = torch.full((9,), BOS)
    state = [w.start(w.encode(source, lengths), tokens) for w in models]
    draw = torch.Generator().manual_seed(1)
    for step, rows in enumerate((9, 9, 30, 7, 7, 2, 20)):
        pick = torch.randint(0, len(tokens), (rows,), generator=draw)
        tokens, state = tokens[pick], [c.reorder(pick) for c in state]
        if step % 2:
            (want, state[0]), (result, state[1]) = (
                w.step(tokens, c) for w, c in zip(models, state, strict=True)
            )
            torch.testing.assert_close(result[:, EOS:], want[:, EOS:], atol=1e-12, rtol=0)
        else:
            answers = [w.best(tokens, c, 5) for w, c in zip(models, state, strict=True)]
            torch.testing.assert_close(answers[1][0], answers[0][0], atol=1e-12, rtol=0)
            assert torch.equal(answers[1][1], answers[0][1])
        tokens = torch.randint(4, VOCAB, (rows,), generator=draw)


@torch.inference_mode()
def test_the_best_tokens_are_the_best_of_all_scores():
    fast_model = engine(small())
    source, lengths = padded(SENTENCES[:4])
    first, memory = torch.full((4,), BOS), fast_model.encode(source, lengths)
    scores, _ = fast_model.step(first, fast_model.start(memory, first))
    for k in (1, 2, 3, 7, 148, 1000):
        log_p, tokens, _ = fast_model.best(first, fast_model.start(memory, first), k)
        expected, expected_tokens = log_probabilities(scores.clone()).topk(min(k, VOCAB), -1)
        torch.testing.assert_close(log_p, expected, atol=1e-12, rtol=0)
        assert torch.equal(tokens[:, :148], expected_tokens[:, :148])  # neither PAD nor BOS


def test_top_k_by_chunks_equals_top_k():
    scores = torch.randn(50, 1024, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[::2, 70:90] += 5  # many of the best in one chunk
    for k in (1, 2, 9, 15, 16, 100):
        result, expected = top(scores, k), scores.topk(k, -1)
        assert torch.equal(result[0], expected.values) and torch.equal(result[1], expected.indices)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": Beam(3), "constraints": TokenConstraints(min_length=5, no_repeat=2)},
        {"constraints": TokenConstraints(prefixes=[s[:2] for s in SENTENCES])},
        {"strategy": Beam(4, groups=2)},
        {"strategy": Beam(3), "constraints": TokenConstraints(required=[[[7, 8]] for _ in SENTENCES])},
        {"strategy": Sample(count=3, seed=1, top_k=20)},
        {
            "strategy": Beam(2),
            "constraints": TokenConstraints(min_length=70),  # more than the first buffer holds
            "limits": Limits(max_length=80),
        },
    ],
    ids=["rules", "prefixes", "groups", "required", "sample", "long"],
)
def test_other_strategies_and_constraints_use_the_common_search(options):
    model = ends_early()
    options = {"limits": Limits(max_length=12), **options}
    assert as_tuples(translate_tokens(engine(model), SENTENCES, **options)) == as_approx_tuples(
        translate_tokens(model, SENTENCES, **options)
    )


def test_attention_and_coverage_use_the_torch_model():
    model = ends_early()
    beam = Beam(3, coverage_penalty=0.5)
    assert as_tuples(translate_tokens(engine(model), SENTENCES[:4], strategy=beam)) == as_approx_tuples(
        translate_tokens(model, SENTENCES[:4], strategy=beam)
    )


# Supported models and buffer sizes.
@pytest.mark.parametrize(
    ("changes", "reason"), [({"position": "rotary"}, "rotation"), ({"key_heads": 1}, "shared key heads")]
)
def test_unsupported_models_are_refused(changes, reason):
    with pytest.raises(Unsupported, match=reason):
        engine(small(**changes))


def test_recurrent_models_run_in_torch(capsys):
    model = make(ENCODERS["gru"], DECODERS["bahdanau"])
    assert on_cuda(model) is model and not capsys.readouterr().err
    assert on_cuda(model, "bfloat16") is model
    assert capsys.readouterr().err.startswith("regard: float32 instead of bfloat16: it runs Transformers")


def test_int8_on_a_gpu_becomes_float32_and_is_reported(capsys):
    fast_model = on_cuda(small().float(), "int8")
    assert fast_model.dtype == torch.float32
    assert (
        capsys.readouterr().err
        == "regard: float32 instead of int8: the GPU engine runs float32 or bfloat16\n"
    )


def test_the_weights_of_the_model_are_not_changed():
    model = small()
    before = copy.deepcopy(model.state_dict())
    fast_model = engine(model, torch.bfloat16)
    assert {str(p.dtype) for p in model.parameters()} == {
        "torch.float64"
    } and fast_model.readout.weight.dtype == torch.bfloat16
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


def torch_log_p(model, source, text):
    """log p of an output under the torch model."""
    with torch.inference_mode():
        state, last_token = start(model, [SearchTask(99, source)])
        total = 0.0
        for token in text.all_tokens:
            scores, state = model.step(last_token, state)
            total, last_token = total + float(log_probabilities(scores)[0, token]), torch.tensor([token])
    return total


def output_log_p(fast_model, model):
    """log p of each output by the engine and by the model, the latter with a tolerance per token."""
    outputs = [texts[0] for texts in translate_tokens(fast_model, SENTENCES)]
    expected = [
        pytest.approx(torch_log_p(model, source, text), abs=0.03 * len(text.all_tokens))
        for source, text in zip(SENTENCES, outputs, strict=True)
    ]
    return [text.log_p for text in outputs], expected


def test_bfloat16_is_close_to_float64():
    model = small()
    computed, expected = output_log_p(engine(model, torch.bfloat16), model)
    assert computed == expected


# On a GPU.
FUSED_PARTS = [
    pytest.param([], id="torch"),
    pytest.param(["decoding"], id="fused"),
    pytest.param(["decoding", "beam"], id="fused-beam"),
]


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_beam_kernel_in_graphs_finds_the_same_as_the_torch_code(size):
    model = ends_early().float().cuda()
    results = []
    for parts in (["decoding"], ["decoding", "beam"]):
        with use_parts(*parts):
            fast_model = engine(model, fused=True)
        assert fast_model.fused_beam == ("beam" in parts)
        results += [translate_tokens(fast_model, SENTENCES, strategy=Beam(size)) for _ in range(3)]
    assert len({len(texts[0].tokens) for texts in results[0]}) > 3
    assert all(result == results[0] for result in results)  # eager, captured, replayed


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("size", [1, 4])
def test_graphs_in_float64_find_the_same_as_the_cpu(size):
    model = ends_early()
    expected = translate_tokens(model, SENTENCES, strategy=Beam(size))
    fast_model = fast(copy.deepcopy(model).cuda())
    for _ in range(3):  # eager, captured, replayed
        assert as_tuples(translate_tokens(fast_model, SENTENCES, strategy=Beam(size))) == as_approx_tuples(
            expected
        )
    assert as_tuples(
        translate_tokens(
            fast_model, SENTENCES[::-1], strategy=Beam(size), limits=Limits(batch_tokens=60 * size)
        )[::-1]
    ) == as_approx_tuples(expected)


@pytest.mark.cuda
@needs_cuda
def test_graphs_of_the_common_search_find_the_same_as_the_cpu():
    model = ends_early()
    fast_model = fast(copy.deepcopy(model).cuda())
    for options in (
        {"strategy": Beam(3), "constraints": TokenConstraints(min_length=4)},
        {"strategy": Sample(count=2, seed=3, top_k=9)},
    ) * 3:
        assert as_tuples(translate_tokens(fast_model, SENTENCES, **options)) == as_approx_tuples(
            translate_tokens(model, SENTENCES, **options)
        )


@pytest.mark.cuda
@needs_cuda
def test_threads_share_an_engine_on_a_gpu():
    model = ends_early()
    expected, fast_model = (
        translate_tokens(model, SENTENCES, strategy=Beam(3)),
        fast(copy.deepcopy(model).cuda()),
    )
    for _ in range(3):
        assert as_tuples(
            translate_tokens(
                fast_model, SENTENCES, strategy=Beam(3), limits=Limits(workers=3, batch_tokens=150)
            )
        ) == as_approx_tuples(expected)


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("parts", FUSED_PARTS)
@pytest.mark.parametrize("name", VARIANTS)
def test_graphs_in_float32_differ_from_torch_only_at_near_ties(name, parts):
    model = small(**VARIANTS[name]).float()
    exact = translate_tokens(copy.deepcopy(model).double(), SENTENCES, strategy=Beam(2))
    with use_parts(*parts):
        fast_model = engine(model.cuda(), fused=bool(parts))
    outputs = [translate_tokens(fast_model, SENTENCES, strategy=Beam(2)) for _ in range(3)][-1]
    margin = [texts[0].score - texts[1].score for texts in exact]
    differ, tied = near_ties([t[0].tokens for t in outputs], [t[0].tokens for t in exact], margin)
    print(f"{name}: {differ} of {len(SENTENCES)} differ, {tied} of them near-ties")
    assert differ == tied


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("parts", FUSED_PARTS)
def test_bfloat16_on_a_gpu_is_close_to_float64(parts):
    model = small()
    with use_parts(*parts):
        fast_model = engine(copy.deepcopy(model).float().cuda(), torch.bfloat16, fused=bool(parts))
    for _ in range(3):
        computed, expected = output_log_p(fast_model, model)
        assert computed == expected
