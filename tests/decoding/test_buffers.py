"""Sizes and reuse of the buffers of the CUDA engine. Covers buffers.py."""

import torch

from regard.decoding.beam import Beam
from regard.decoding.engine.cuda import buffers as buffers_module
from regard.decoding.engine.cuda import engine
from regard.decoding.engine.cuda.buffers import Buffers, bucket
from regard.pipelines.translate import translate_tokens
from tests.decoding.cuda_cases import SENTENCES, as_approx_tuples, as_tuples, small


def test_buckets_are_few_and_at_most_half_too_large():
    sizes = {bucket(n) for n in range(1, 5000)}
    assert len(sizes) < 24 and all(size % 8 == 0 for size in sizes)
    assert all(
        n <= bucket(n) <= max(8, 2 * n, 16) and (n < 16 or bucket(n) < 1.5 * n) for n in range(1, 5000)
    )


def test_unused_buffers_are_kept_within_a_limit(monkeypatch):
    fast_model = engine(small())
    pool = fast_model.pool
    with torch.inference_mode():
        first, second = pool.take(fast_model, 3, 1, 9, 20), pool.take(fast_model, 3, 1, 9, 20)
        assert first is not second
        monkeypatch.setattr(pool, "_max_bytes", first.bytes)
        pool.release(first)
        assert pool.take(fast_model, 8, 1, 16, 17) is first
        pool.release(first)
        pool.release(second)
        assert pool._free == [second]


def test_unused_buffers_are_freed_when_memory_runs_out(monkeypatch):
    fast_model, refused = engine(small()), []

    class Scarce(Buffers):
        def __init__(self, *args):
            if not refused:
                refused.append(args)
                raise torch.OutOfMemoryError("the GPU is full")
            super().__init__(*args)

    monkeypatch.setattr(fast_model.pool, "_max_bytes", 1 << 30)
    translate_tokens(fast_model, SENTENCES[:9])
    assert fast_model.pool._free
    monkeypatch.setattr(buffers_module, "Buffers", Scarce)
    outputs = translate_tokens(fast_model, SENTENCES[:3], strategy=Beam(2))
    assert refused and {type(buffers) for buffers in fast_model.pool._free} == {Scarce}
    assert as_tuples(outputs) == as_approx_tuples(
        translate_tokens(fast_model.model, SENTENCES[:3], strategy=Beam(2))
    )
