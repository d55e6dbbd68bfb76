"""The chunked loss equals torch's cross-entropy and never holds the full logits."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.models import chunked_loss
from regard.models.chunked_loss import cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_size", [1 << 22, 64])
def test_the_chunked_loss_and_its_gradients_equal_torchs_cross_entropy(smoothing, chunk_size, monkeypatch):
    monkeypatch.setitem(chunked_loss.CHUNK_SCORES, "cpu", chunk_size)
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    w = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    b = torch.randn(11, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 11, (3, 5))
    result = cross_entropy(x, w, labels, smoothing, b)
    expected = torch.nn.functional.cross_entropy(
        (x @ w.T + b).flatten(0, 1),
        labels.flatten(),
        ignore_index=0,
        reduction="sum",
        label_smoothing=smoothing,
    )
    torch.testing.assert_close(result.total, expected)
    gradients = torch.autograd.grad(3 * result.total, (x, w, b))
    torch.testing.assert_close(gradients, torch.autograd.grad(3 * expected, (x, w, b)))
    plain = torch.nn.functional.cross_entropy(
        (x @ w.T + b).flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum"
    )
    torch.testing.assert_close(result.nll, plain.detach())
    assert result.tokens == int((labels != 0).sum())


def test_multiplying_padding_by_zero_as_on_a_gpu_gives_the_same_loss():
    x, w = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((9, 8), (11, 8)))
    labels = torch.tensor([4, 0, 5, 0, 0, 6, 7, 8, 0])
    objective = chunked_loss.Objective(0.1)
    total, nll = chunked_loss._Chunked.apply(x[None], w, None, labels, labels != 0, objective)
    result = cross_entropy(x, w, labels, 0.1)
    torch.testing.assert_close((total, nll), (result.total, result.nll))
    gradients = torch.autograd.grad(total, (x, w))
    torch.testing.assert_close(gradients, torch.autograd.grad(result.total, (x, w)))


@pytest.mark.parametrize("chunk_size", [1 << 22, 64])
def test_two_passes_with_agreement_give_the_r_drop_loss(chunk_size, monkeypatch):
    monkeypatch.setitem(chunked_loss.CHUNK_SCORES, "cpu", chunk_size)
    x, w, b = (
        torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((2, 3, 5, 8), (11, 8), (11,))
    )
    labels = torch.randint(0, 11, (3, 5))
    result = cross_entropy(x, w, labels, 0.1, b, agreement=5.0)
    scores, real = (x @ w.T + b).flatten(1, 2), labels.flatten() != 0
    entropies = [
        torch.nn.functional.cross_entropy(
            s, labels.flatten(), ignore_index=0, reduction="sum", label_smoothing=0.1
        )
        for s in scores
    ]
    p, q = torch.log_softmax(scores[0][real], -1), torch.log_softmax(scores[1][real], -1)
    divergence = ((p.exp() * (p - q)).sum() + (q.exp() * (q - p)).sum()) / 2
    expected = sum(entropies) / 2 + 5.0 / 2 * divergence
    torch.testing.assert_close(result.total, expected)
    gradients = torch.autograd.grad(result.total, (x, w, b))
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, (x, w, b)))
    objective = chunked_loss.Objective(0.1, 5.0)
    total, nll = chunked_loss._Chunked.apply(x.flatten(1, 2), w, b, labels.flatten(), real, objective)
    torch.testing.assert_close((total, nll), (result.total, result.nll))


def plain_loss(x, w, b, labels, smoothing, agreement):
    """The loss by its definition, for features of two passes (2, rows, D) or of one (1, rows, D)."""
    logs, real = torch.log_softmax(x @ w.T + b, -1), labels != 0
    total = 0.0
    for one_pass in logs:
        correct = one_pass.gather(-1, labels[:, None])[:, 0]
        total = total - ((1 - smoothing) * correct + smoothing * one_pass.mean(-1))[real].sum() / len(logs)
    if agreement:
        p, q = logs[:, real]
        total = total + agreement / 4 * ((p.exp() * (p - q)).sum() + (q.exp() * (q - p)).sum())
    return total


def random_inputs(passes):
    """Random features, weight and bias, and labels."""
    sizes = ((passes, 6, 4), (7, 4), (7,))
    tensors = [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes]
    return tensors, torch.tensor([3, 0, 6, 1, 0, 2])


@pytest.mark.parametrize("remove_padding", [True, False])  # as on a CPU; a GPU multiplies it by zero
@pytest.mark.parametrize(("smoothing", "agreement"), [(0.0, 0.0), (0.1, 0.0), (0.1, 5.0)])
def test_second_derivatives_are_those_of_the_plain_formula(smoothing, agreement, remove_padding):
    (x, w, b), labels = random_inputs(2 if agreement else 1)

    def ours(x, w, b):
        if remove_padding:
            return cross_entropy(x if agreement else x[0], w, labels, smoothing, b, agreement).total
        objective = chunked_loss.Objective(smoothing, agreement)
        return chunked_loss._Chunked.apply(x, w, b, labels, labels != 0, objective)[0]

    assert torch.autograd.gradcheck(ours, (x, w, b))
    assert torch.autograd.gradgradcheck(ours, (x, w, b))
    results = []
    for total in (ours(x, w, b), plain_loss(x, w, b, labels, smoothing, agreement)):
        gradients = torch.autograd.grad(total, (x, w, b), create_graph=True)
        second = torch.autograd.grad(sum(s.square().sum() for s in gradients), (x, w, b))
        results.append([*gradients, *second])
    torch.testing.assert_close(*results)


def test_second_derivatives_where_the_features_depend_on_the_weights():
    (x, w, _), labels = random_inputs(1)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    results = []
    for f in (
        lambda *t: cross_entropy(*t, labels).total,
        lambda x, w: plain_loss(x[None], w, 0, labels, 0.0, 0.0),
    ):
        (slope,) = torch.autograd.grad(f(x[0] * w.mean() * scale, w), w, create_graph=True)
        results.append(torch.autograd.grad(slope.sin().sum(), (x, w, scale)))
    torch.testing.assert_close(*results)


def test_frozen_features_or_weights_have_second_derivatives_too():
    (x, w, b), labels = random_inputs(1)
    for frozen in range(3):
        inputs = [t.detach().requires_grad_(i != frozen) for i, t in enumerate((x, w, b))]
        trainable = [t for t in inputs if t.requires_grad]
        results = []
        for total in (
            cross_entropy(inputs[0][0], inputs[1], labels, 0.1, inputs[2]).total,
            plain_loss(*inputs, labels, 0.1, 0.0),
        ):
            gradients = torch.autograd.grad(total, trainable, create_graph=True)
            results.append(torch.autograd.grad(sum(s.square().sum() for s in gradients), trainable))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("agreement", [0.0, 5.0])
def test_torch_func_uses_the_plain_formula(agreement):
    (x, w, b), labels = random_inputs(2)
    features = x if agreement else x[0]

    def ours(x, w, b, labels):
        return cross_entropy(x, w, labels, 0.1, b, agreement).total

    expected = torch.autograd.grad(
        plain_loss(x if agreement else x[:1], w, b, labels, 0.1, agreement), (w, b)
    )
    torch.testing.assert_close(torch.func.grad(ours, (1, 2))(features, w, b, labels), expected)
    rows = features.unsqueeze(-2)  # one token at a time
    item = torch.func.vmap(torch.func.grad(ours, (1, 2)), (rows.ndim - 3, None, None, 0))(
        rows, w, b, labels[:, None]
    )
    torch.testing.assert_close(tuple(g.sum(0) for g in item), expected)


def test_fake_tensors_give_shapes_without_computing():
    with FakeTensorMode():
        x, w = torch.randn(9, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
        result = cross_entropy(x, w, torch.ones(9, dtype=torch.long), 0.1)
        assert result.total.shape == () and torch.autograd.grad(result.total, w)[0].shape == w.shape


def test_no_tensor_of_batch_times_vocabulary_exists():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.size = max(self.size, out.numel())
            return out

    x, w = torch.randn(4000, 16, requires_grad=True), torch.randn(8000, 16, requires_grad=True)
    with Largest() as largest:
        cross_entropy(x, w, torch.randint(1, 8000, (4000,)), 0.1).total.backward()
    assert largest.size <= chunked_loss.CHUNK_SCORES["cpu"] < 4000 * 8000


def test_a_batch_without_tokens_has_zero_loss():
    result = cross_entropy(
        torch.randn(2, 3, 4, requires_grad=True), torch.randn(7, 4), torch.zeros(2, 3, dtype=torch.long)
    )
    assert float(result.total.detach()) == 0 and result.tokens == 0
    result.total.backward()


@pytest.mark.parametrize("agreement", [0.0, 5.0])
def test_bfloat16_features_get_a_gradient_from_a_nearly_certain_correct_token(agreement):
    """p rounded to bfloat16 would be 1 and its gradient 0, so 1 is subtracted before rounding."""
    w = torch.eye(4, dtype=torch.bfloat16)[:, :3].contiguous().requires_grad_()
    x = torch.tensor([[0.0, 7.0, 0.0]] * (2 if agreement else 1), dtype=torch.bfloat16)[
        :, None
    ].requires_grad_()
    result = cross_entropy(x if agreement else x[0], w, torch.tensor([1]), 0.0, agreement=agreement)
    (grad,) = torch.autograd.grad(result.total, x)
    expected = torch.softmax(torch.tensor([0.0, 7.0, 0.0, 0.0]), 0)[1] - 1
    torch.testing.assert_close(grad.float().sum(0)[0, 1], expected, rtol=0.01, atol=0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_size", [1 << 27, 1 << 14])
def test_the_bfloat16_loss_on_a_gpu_is_close_to_the_exact_loss(smoothing, chunk_size, monkeypatch):
    monkeypatch.setitem(chunked_loss.CHUNK_SCORES, "cuda", chunk_size)
    x, w, b = (torch.randn(*size, device="cuda") * 0.3 for size in ((500, 64), (777, 64), (777,)))
    labels = torch.randint(0, 777, (500,), device="cuda")
    results, exact = [], []
    for values, to in ((results, torch.float32), (exact, torch.float64)):
        leaves = [t.to(to).requires_grad_() for t in (x.bfloat16(), w.bfloat16(), b)]
        with torch.autocast("cuda", torch.bfloat16, enabled=to == torch.float32):
            loss = cross_entropy(*leaves[:2], labels, smoothing, leaves[2])
        values += [loss.total, loss.nll, *torch.autograd.grad(loss.total, leaves)]
    for a, e in zip(results, exact, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=0.01, atol=0.01 * float(e.abs().max()))
