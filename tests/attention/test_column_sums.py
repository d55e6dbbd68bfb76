"""Column sums by the Triton kernels: cached launches read the tensors of each call."""

import pytest
import torch

import regard
from regard.attention import Recorded, column_sums
from regard.attention.mask import Mask

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def record_call(q: torch.Tensor, k: torch.Tensor, mask: Mask | None) -> Recorded:
    with regard.watch() as seen:
        regard.attend(q, k, k, mask=mask)
    return seen["attend.0"]


def test_on_the_cpu_the_sums_are_those_of_the_tiles():
    torch.manual_seed(0)
    call = record_call(torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), regard.Causal())
    assert column_sums.column_sums_by_triton(call.call) is None
    torch.testing.assert_close(call.column_sums(), call.weights().sum(-2))


@CUDA
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "misaligned"])
@pytest.mark.parametrize(
    "mask", [None, regard.Causal(), regard.Window(5), regard.Padding(torch.tensor([3, 70]))]
)
def test_calls_of_one_signature_get_their_own_sums(layout, mask):
    torch.manual_seed(0)
    mask = mask if mask is None else mask.to("cuda")
    for _ in range(3):  # the first call compiles, later ones use the cached launch
        if layout == "transposed":
            q, k = (torch.randn(2, 70, h, 32, device="cuda").transpose(1, 2) for h in (4, 2))
        else:
            offset = int(layout == "misaligned")
            q, k = (
                torch.randn(2 * h * 70 * 32 + offset, device="cuda").half()[offset:].view(2, h, 70, 32)
                for h in (4, 2)
            )
        call = record_call(q.half(), k.half(), mask)
        expected = regard.weights(q.double(), k.double(), mask=mask).sum(-2)
        torch.testing.assert_close(call.column_sums().double(), expected, rtol=5e-3, atol=5e-3)
        torch.testing.assert_close(call.column_sums(batch=1).double(), expected[1], rtol=5e-3, atol=5e-3)
