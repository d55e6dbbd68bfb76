"""The fused loss: its kernel in Triton's interpreter, when it runs, and a GPU's results.

Covers fused_loss.py, loss_kernel.py.
"""

from pathlib import Path

import pytest
import torch

from regard.layers.fused_parts import use_parts
from regard.models import fused_loss
from regard.models.chunked_loss import cross_entropy
from tests.triton_interpreter import run_interpreted

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def test_the_interpreted_kernel_equals_float64():
    process = run_interpreted(Path(__file__).with_name("loss_cases.py"))
    assert process.returncode == 0, process.stdout + process.stderr[-2000:]


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 25_000])
def test_chunks_cover_all_rows_and_have_about_one_size(rows):
    chunks = fused_loss._chunks(rows, 37_000)
    assert [i for chunk in chunks for i in range(rows)[chunk]] == list(range(rows))
    sizes = [chunk.stop - chunk.start for chunk in chunks]
    assert max(sizes) * 37_000 <= fused_loss.CHUNK_LOGITS + 128 * 37_000
    assert min(sizes) > max(sizes) - 128 * len(sizes)


def test_zero_rows_have_no_chunks():
    assert fused_loss._chunks(0, 37_000) == []


def test_a_cpu_takes_the_plain_path():
    x, w = torch.randn(1, 4, 8), torch.randn(2000, 8)
    with use_parts("loss"):
        assert not fused_loss.can_fuse(x, w)
        assert cross_entropy(x, w, torch.tensor([3, 4, 5, 6])).tokens == 4


@pytest.mark.cuda
@on_gpu
@pytest.mark.parametrize("logits", [torch.float32, None])
@pytest.mark.parametrize("vocabulary", [1037, 32768])
def test_a_gpu_has_the_losses_and_gradients_of_the_plain_path(logits, vocabulary, monkeypatch):
    monkeypatch.setattr(fused_loss, "LOGITS_DTYPE", logits)
    monkeypatch.setattr(fused_loss, "CHUNK_LOGITS", 700 * vocabulary)
    torch.manual_seed(1)
    x = torch.randn(2000, 64, device="cuda", requires_grad=True)
    w = (torch.randn(vocabulary, 64, device="cuda") / 8).requires_grad_()
    labels = torch.randint(0, vocabulary, (2000,), device="cuda")
    labels[::7] = 0
    results = []
    for parts in ((), ("loss",)):
        with use_parts(*parts), torch.autocast("cuda", torch.bfloat16):
            loss = cross_entropy(x, w, labels, 0.1)
        results.append([loss.total, loss.nll, *torch.autograd.grad(loss.total / 1714, (x, w))])
    for plain, fused in zip(*results, strict=True):
        assert float((plain - fused).norm() / plain.norm()) < 1e-2
