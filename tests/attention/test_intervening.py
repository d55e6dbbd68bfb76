"""`intervene`: layers by name, order of edits, positions, threads, errors. Covers intervening.py."""

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import regard
from regard import Cache, Causal, MultiHead, attend, intervene, watch
from regard.attention import Edit, Mapped, Permuted, Uniform, Weights, Zero
from regard.errors import OptionError, ShapeError
from regard.layers import StaticCache
from tests.attention.intervened import SOURCE, Model, X, run


@pytest.fixture
def model():
    return Model().double().eval()


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
