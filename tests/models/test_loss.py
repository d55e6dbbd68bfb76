"""The loss in pieces is torch's cross-entropy, and never holds all scores at once."""

import pytest
import torch

from regard.models import loss
from regard.models.loss import cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("room", [1 << 22, 64])
def test_it_equals_torchs_cross_entropy_with_all_gradients(smoothing, room, monkeypatch):
    monkeypatch.setitem(loss.ROOM, "cpu", room)
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    w = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    b = torch.randn(11, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 11, (3, 5))
    found = cross_entropy(x, w, labels, smoothing, b)
    want = torch.nn.functional.cross_entropy(
        (x @ w.T + b).flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum", label_smoothing=smoothing
    )
    torch.testing.assert_close(found.total, want)
    for got, expected in zip(
        torch.autograd.grad(3 * found.total, (x, w, b)), torch.autograd.grad(3 * want, (x, w, b)), strict=True
    ):
        torch.testing.assert_close(got, expected)
    plain = torch.nn.functional.cross_entropy((x @ w.T + b).flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum")
    torch.testing.assert_close(found.nll, plain.detach())
    assert found.tokens == int((labels != 0).sum())


def test_the_way_without_counting_padding_gives_the_same():
    """What a GPU runs: padding stays in and is multiplied by zero."""
    x, w = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((9, 8), (11, 8)))
    labels = torch.tensor([4, 0, 5, 0, 0, 6, 7, 8, 0])
    total, nll = loss._Chunked.apply(x[None], w, None, labels, labels != 0, 0.1, 0.0)
    found = cross_entropy(x, w, labels, 0.1)
    torch.testing.assert_close((total, nll), (found.total, found.nll))
    for a, b in zip(torch.autograd.grad(total, (x, w)), torch.autograd.grad(found.total, (x, w)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("room", [1 << 22, 64])
def test_two_readings_that_should_agree_give_r_drops_loss(room, monkeypatch):
    monkeypatch.setitem(loss.ROOM, "cpu", room)
    x, w, b = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((2, 3, 5, 8), (11, 8), (11,)))
    labels = torch.randint(0, 11, (3, 5))
    found = cross_entropy(x, w, labels, 0.1, b, agreement=5.0)
    scores, real = (x @ w.T + b).flatten(1, 2), labels.flatten() != 0
    entropies = [
        torch.nn.functional.cross_entropy(s, labels.flatten(), ignore_index=0, reduction="sum", label_smoothing=0.1) for s in scores
    ]
    p, q = torch.log_softmax(scores[0][real], -1), torch.log_softmax(scores[1][real], -1)
    apart = ((p.exp() * (p - q)).sum() + (q.exp() * (q - p)).sum()) / 2
    want = sum(entropies) / 2 + 5.0 / 2 * apart
    torch.testing.assert_close(found.total, want)
    for got, expected in zip(torch.autograd.grad(found.total, (x, w, b)), torch.autograd.grad(want, (x, w, b)), strict=True):
        torch.testing.assert_close(got, expected)
    total, nll = loss._Chunked.apply(x.flatten(1, 2), w, b, labels.flatten(), real, 0.1, 5.0)
    torch.testing.assert_close((total, nll), (found.total, found.nll))


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
    with Largest() as seen:
        cross_entropy(x, w, torch.randint(1, 8000, (4000,)), 0.1).total.backward()
    assert seen.size <= loss.ROOM["cpu"] < 4000 * 8000


def test_no_words_are_no_loss():
    found = cross_entropy(torch.randn(2, 3, 4, requires_grad=True), torch.randn(7, 4), torch.zeros(2, 3, dtype=torch.long))
    assert float(found.total.detach()) == 0 and found.tokens == 0
    found.total.backward()


@pytest.mark.parametrize("agreement", [0.0, 5.0])
def test_half_precise_features_learn_from_a_right_word_that_is_nearly_sure(agreement):
    """p rounded to bfloat16 would be 1 and its gradient 0; it is rounded after the 1 is taken off."""
    w = torch.eye(4, dtype=torch.bfloat16)[:, :3].contiguous().requires_grad_()
    x = torch.tensor([[0.0, 7.0, 0.0]] * (2 if agreement else 1), dtype=torch.bfloat16)[:, None].requires_grad_()
    found = cross_entropy(x if agreement else x[0], w, torch.tensor([1]), 0.0, agreement=agreement)
    (grad,) = torch.autograd.grad(found.total, x)
    want = torch.softmax(torch.tensor([0.0, 7.0, 0.0, 0.0]), 0)[1] - 1
    torch.testing.assert_close(grad.float().sum(0)[0, 1], want, rtol=0.01, atol=0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("room", [1 << 27, 1 << 14])
def test_on_a_gpu_in_bfloat16_it_is_close_to_the_exact_loss(smoothing, room, monkeypatch):
    monkeypatch.setitem(loss.ROOM, "cuda", room)
    x, w, b = (torch.randn(*size, device="cuda") * 0.3 for size in ((500, 64), (777, 64), (777,)))
    labels = torch.randint(0, 777, (500,), device="cuda")
    found, exact = [], []
    for kept, to in ((found, torch.float32), (exact, torch.float64)):
        leaves = [t.to(to).requires_grad_() for t in (x.bfloat16(), w.bfloat16(), b)]
        with torch.autocast("cuda", torch.bfloat16, enabled=to == torch.float32):
            got = cross_entropy(*leaves[:2], labels, smoothing, leaves[2])
        kept += [got.total, got.nll, *torch.autograd.grad(got.total, leaves)]
    for a, e in zip(found, exact, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=0.01, atol=0.01 * float(e.abs().max()))
