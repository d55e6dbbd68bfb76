"""Captured steps of the CUDA engine, replayed on a CPU. Covers graphs.py."""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.data.tokenizer import EOS
from regard.decoding.beam import Beam
from regard.decoding.constraints import TokenConstraints
from regard.decoding.engine.cuda import engine
from regard.decoding.engine.cuda.device_beam import beam_step
from regard.decoding.engine.cuda.graphs import Graphs, StepRunner
from regard.decoding.limits import Limits
from regard.decoding.sampling import Sample
from regard.pipelines.translate import translate_tokens
from tests.decoding.cuda_cases import (
    SENTENCES,
    VARIANTS,
    as_approx_tuples,
    as_tuples,
    ends_early,
    needs_cuda,
    small,
)


# Captured steps.
class _OperationRecorder(TorchDispatchMode):
    """Records each operation with the tensors it reads and writes."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result


class ReplayRunner(StepRunner):
    """Replays the recorded operations on the same tensors, as a CUDA graph does, but on a CPU.

    Values that are not tensors are frozen at capture, as in a CUDA graph.
    """

    replays = 0

    def capture(self, body):
        with _OperationRecorder() as recorder:
            result = body()
        ran = [True]  # the capture executed the step, so the first replay does nothing

        def replay():
            self.replays += 1
            if ran and ran.pop():
                return
            for operation in recorder.operations:
                self._replay_operation(*operation)

        return replay, result

    @staticmethod
    def _replay_operation(func, args, kwargs, out):
        new = func(*args, **kwargs)
        if any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments):
            return  # an in-place operation wrote its result
        for held, fresh in zip(out, new, strict=True) if isinstance(out, tuple | list) else [(out, new)]:
            if isinstance(held, torch.Tensor) and held.data_ptr() != fresh.data_ptr():  # not a view
                held.copy_(fresh)


@pytest.mark.parametrize("size", [1, 3])
def test_a_step_is_captured_once_and_replayed(monkeypatch, size):
    model, run = ends_early(), ReplayRunner()
    fast_model = engine(model, run=run)
    monkeypatch.setattr(fast_model.pool, "_max_bytes", 1 << 30)  # unused buffers are kept, as on a GPU
    expected = translate_tokens(model, SENTENCES, strategy=Beam(size))
    assert as_tuples(translate_tokens(fast_model, SENTENCES, strategy=Beam(size))) == as_approx_tuples(
        expected
    )
    before = run.replays
    assert as_tuples(translate_tokens(fast_model, SENTENCES, strategy=Beam(size))) == as_approx_tuples(
        expected
    )
    again = translate_tokens(
        fast_model, SENTENCES[::-1], strategy=Beam(size), limits=Limits(batch_tokens=60 * size)
    )[::-1]
    assert as_tuples(again) == as_approx_tuples(expected)
    assert run.replays > before > 0


def test_steps_of_the_common_search_are_captured_too(monkeypatch):
    model, run = ends_early(), ReplayRunner()
    fast_model = engine(model, run=run)
    monkeypatch.setattr(fast_model.pool, "_max_bytes", 1 << 30)
    for options in (
        {"strategy": Beam(3), "constraints": TokenConstraints(min_length=4)},
        {"strategy": Sample(count=2, seed=3, top_k=9)},
    ) * 2:
        assert as_tuples(translate_tokens(fast_model, SENTENCES, **options)) == as_approx_tuples(
            translate_tokens(model, SENTENCES, **options)
        )
    assert run.replays > 20


@pytest.mark.parametrize(("width", "k"), [(1, 1), (3, 4)])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_does_not_synchronise_with_the_host(name, width, k):
    """Run on meta tensors, where reading a value is an error. No CPU tensor takes part: copying one to the
    GPU would abort the graph capture.
    """
    fast_model = engine(small(**VARIANTS[name]).to("meta"), torch.bfloat16)
    with torch.no_grad():
        buffers = fast_model.pool.take(fast_model, 5, width, 16, 20)
        with _OperationRecorder() as recorder:
            fast_model.run_on(
                buffers,
                "beam_step",
                8,
                lambda buffers, length: beam_step(fast_model, buffers, length, k, EOS),
            )
            fast_model.run_on(
                buffers, "best", 8, lambda buffers, length: fast_model.best_tokens(buffers, length, k)
            )
    tensors = [
        x for operation in recorder.operations for x in tree_leaves(operation) if isinstance(x, torch.Tensor)
    ]
    assert len(tensors) > 100 and {x.device.type for x in tensors} == {"meta"}


def test_an_engine_is_freed_with_its_last_reference(monkeypatch):
    fast_model = engine(small(), run=ReplayRunner())
    monkeypatch.setattr(fast_model.pool, "_max_bytes", 1 << 30)
    translate_tokens(fast_model, SENTENCES[:3], strategy=Beam(2), constraints=TokenConstraints(min_length=3))
    translate_tokens(fast_model, SENTENCES[:3], strategy=Beam(2))
    references = [weakref.ref(x) for x in (fast_model, *fast_model.pool._free)]
    monkeypatch.undo()
    gc.disable()
    try:
        del fast_model
        # Freed at once, not by the next run of the cycle collector.
        assert len(references) > 2 and all(reference() is None for reference in references)
    finally:
        gc.enable()


@pytest.mark.cuda
@needs_cuda
def test_graphs_can_be_captured_after_all_others_were_freed():
    """torch fails to capture into memory whose last graph was freed, as by `BufferPool`."""
    runner, x = Graphs(torch.device("cuda")), torch.arange(8.0, device="cuda")
    for number in range(3):
        graphs = {}
        for _ in range(3):  # eagerly, captured, replayed
            result = runner(graphs, number, lambda: x * 2)
        assert torch.equal(result, x * 2)
        del result
