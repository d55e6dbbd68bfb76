"""`watch` on compiled models: they run uncompiled inside it and compiled again afterwards."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard import Causal, watch
from regard.attention import watching
from regard.attention.call import make_call
from regard.errors import OptionError
from tests.attention.sdpa_modules import Attention


def test_compiled_models_are_seen_under_the_names_from_before_compiling():
    x = torch.randn(2, 6, 8)
    inner, full, in_place = (nn.Sequential(Attention(), Attention()) for _ in range(3))
    compiled = torch.compile(full, backend="eager")
    inner[1] = torch.compile(inner[1], backend="eager")
    in_place.compile(backend="eager", fullgraph=True)
    for model, run in (
        (full, compiled),
        (compiled, compiled),
        (inner, inner),
        (in_place, in_place),
    ):
        run(x)  # compile before watch
        with watch(model) as seen:
            run(x)
        assert list(seen) == ["0", "1"]
        assert [len(seen.calls(name)) for name in seen] == [1, 1]


def test_compiled_models_of_our_layers_are_seen():
    model, x = nn.Sequential(regard.MultiHead(8, 2, mask=Causal())), torch.randn(2, 6, 8)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    with watch(compiled) as seen:
        compiled(x)
    assert torch.allclose(seen["0.self"].weights().sum(-1), torch.ones(2, 2, 6))


def counting_backend(runs):
    """A backend of torch.compile that appends to a list whenever a compiled graph runs."""

    def backend(graph, inputs):
        def run(*args):
            runs.append(1)
            return graph(*args)

        return run

    return backend


def test_compiled_models_run_compiled_again_after_watch():
    runs = []
    model, x = Attention(), torch.randn(2, 6, 8)
    compiled = torch.compile(model, backend=counting_backend(runs))
    compiled(x)

    def run_and_fail():
        compiled(x)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), watch(model), watch(compiled):
        run_and_fail()
    assert len(runs) == 1
    compiled(x)
    assert len(runs) == 2


def test_a_compiled_kernel_of_attend_runs_compiled_inside_watch():
    """Flex is one: uncompiled it would build the T × T matrix."""
    runs, q = [], torch.randn(1, 1, 3, 4)

    kernel = torch.compile(lambda x: x * 2, backend=counting_backend(runs))
    kernel(q)
    with watch() as seen:
        watching.record(make_call(q, q, q), watching.targets())
        with watching.running_kernel(compiles=True):
            kernel(q)
    assert len(runs) == 2
    assert list(seen) == ["attend.0"]


def test_two_watching_threads_restore_the_compiler_stance():
    from torch._dynamo import eval_frame

    model, x = torch.compile(Attention(), backend="eager"), torch.randn(2, 6, 8)
    begun, ended, counts = threading.Event(), threading.Event(), []

    def other():
        with watch(model) as seen:
            begun.set()
            ended.wait(10)
            model(x)
        counts.append(len(seen))

    thread = threading.Thread(target=other)
    with watch(model) as seen:
        thread.start()
        begun.wait(10)
        model(x)
    ended.set()
    thread.join()
    assert len(seen) == 1
    assert counts == [1]
    assert eval_frame._stance.stance == "default"


def test_watch_inside_a_compiled_function_is_refused():
    @torch.compile(backend="eager")
    def run(x):
        with watch():
            return F.scaled_dot_product_attention(x, x, x)

    with pytest.raises(OptionError, match="cannot begin inside a compiled function"):
        run(torch.randn(1, 1, 3, 4))


@pytest.mark.filterwarnings("ignore")
def test_code_that_is_first_compiled_inside_watch_runs_as_one_graph(monkeypatch):
    """As in flex_attention: torch._dynamo is not imported when watch begins, so there is no stance yet."""
    monkeypatch.setattr(watching.eager_stance, "_set", lambda: None)
    torch._dynamo.reset()

    @torch.compile(backend="eager", fullgraph=True)
    def attention(x):
        return F.scaled_dot_product_attention(x, x, x) + torch.softmax(x @ x.mT, -1) @ x

    x = torch.randn(1, 2, 6, 8)
    with watch() as seen:
        out = attention(x)
    assert torch.allclose(out, attention(x))
    assert list(seen) == ["attend.0"]
