"""Packed sequences equal separate sequences on every kernel, forward and backward."""

import pytest
import torch

import regard
from regard import ALiBi, Causal, MultiHead, Padding, Window, attend
from regard.attention import Dense, Diagonal, Dilated, Documents, Packed, Prefix, RelativeBuckets
from regard.attention.mask import EMPTY, FULL, Mask
from regard.attention.plan import KERNELS
from regard.errors import KernelError

H, D = 2, 8
SELF = [3, 0, 7, 1, 5]
CROSS = [6, 2, 4, 1, 0]


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def separately(q, k, v, lengths, key_lengths, mask=None, bias=None):
    """Each sequence separately, by the reference."""
    split = zip(q.split(lengths, -2), k.split(key_lengths, -2), v.split(key_lengths, -2), strict=True)
    return torch.cat([attend(*qkv, mask=mask, bias=bias, kernel="reference") for qkv in split], -2)


class Even(Mask):
    """A user-defined mask: keys at an even distance before the query."""

    def allowed(self, grid):
        return (grid.k <= grid.position()) & ((grid.position() - grid.k) % 2 == 0)


MASKS = {
    "none": None,
    "causal": Causal(),
    "torch's causal": Causal(offset=0),
    "window": Causal() & Window(2),
    "both sides": Window(1, 1),
    "prefix": Causal() | Prefix(1),
    "dilated": Dilated(2),
    "not itself": ~Diagonal(),
    "user-defined": Even(),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("key_lengths", [SELF, CROSS], ids=["self", "cross"])
@pytest.mark.parametrize("leading", [(), (2,)], ids=["row", "batch"])
def test_packed_sequences_equal_separate_sequences(mask, key_lengths, leading):
    if mask == "prefix" and key_lengths is CROSS:
        key_lengths = [6, 2, 4, 1, 1]  # a separate sequence without keys refuses Prefix(1)
    lengths = [3, 1, 7, 1, 5] if mask == "prefix" else SELF
    key_lengths = lengths if key_lengths is SELF else key_lengths
    inputs = [draw(*leading, H, sum(n), D).requires_grad_() for n in (lengths, key_lengths, key_lengths)]
    out = attend(*inputs, mask=Packed.of_lengths(lengths, key_lengths, mask=MASKS[mask]))
    true = separately(*inputs, lengths, key_lengths, MASKS[mask])
    torch.testing.assert_close(out, true)
    gradient = draw(*out.shape)
    for a, b in zip(
        torch.autograd.grad(out, inputs, gradient), torch.autograd.grad(true, inputs, gradient), strict=True
    ):
        torch.testing.assert_close(a, b)


# Flex is tested by the conformance suite, which has the time to compile it.
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "flex"])
@pytest.mark.parametrize("key_lengths", [[90, 3, 150, 40], [30, 200, 1, 77]], ids=["self", "cross"])
def test_every_kernel_computes_packed_sequences_correctly_or_refuses(kernel, key_lengths):
    lengths, leaf = [90, 3, 150, 40], dict(dtype=torch.float32)
    q, k, v = (draw(H, sum(n), D, **leaf).requires_grad_() for n in (lengths, key_lengths, key_lengths))
    mask = Packed.of_lengths(lengths, key_lengths, mask=Causal())
    try:
        out = attend(q, k, v, mask=mask, kernel=kernel)
    except KernelError as error:
        pytest.skip(str(error))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    true = separately(*exact, lengths, key_lengths, Causal())
    torch.testing.assert_close(out.double(), true, atol=1e-5, rtol=1e-5)
    grads = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    for a, b in zip(grads, torch.autograd.grad(true, exact, torch.ones_like(true)), strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "bias", [ALiBi(H), RelativeBuckets(H, buckets=8, max_distance=20).double()], ids=["ALiBi", "buckets"]
)
@torch.no_grad()
def test_position_masks_and_biases_combine_with_packed_sequences_of_equal_lengths(bias):
    q, k, v = (draw(H, sum(SELF), D) for _ in range(3))
    out = attend(q, k, v, mask=Packed.of_lengths(SELF) & Causal(), bias=bias)
    torch.testing.assert_close(out, separately(q, k, v, SELF, SELF, Causal(), bias))


def test_numbers_per_sequence_in_a_mask_refer_to_packed_sequences():
    lengths, key_lengths, counts = [2, 3, 1], [4, 3, 2], [1, 3, 2]
    q, k, v = (draw(H, sum(n), D) for n in (lengths, key_lengths, key_lengths))
    out = attend(q, k, v, mask=Packed.of_lengths(lengths, key_lengths, mask=Padding(counts)))
    split = zip(q.split(lengths, -2), k.split(key_lengths, -2), v.split(key_lengths, -2), counts, strict=True)
    separate = [attend(a, b[:, :n], c[:, :n], kernel="reference") for a, b, c, n in split]
    torch.testing.assert_close(out, torch.cat(separate, -2))
    offsets = torch.tensor([1, 0, -1])
    dense = Packed.of_lengths(lengths, key_lengths, mask=Causal(offset=offsets)).dense(6, 9).int()
    assert dense.sum(-1).tolist() == [2, 3, 1, 2, 3, 0]


def test_boundaries_may_be_int32_and_equal_key_boundaries_are_merged():
    cu = torch.tensor([0, 3, 3, 5], dtype=torch.int32)
    mask = Packed(cu, cu.clone())
    assert mask.cu_seqlens_k is None and mask.sequences == 3
    assert mask.ids.tolist() == [0, 0, 0, 2, 2] and mask.index.tolist() == [0, 1, 2, 0, 1]
    cu.zero_()  # the mask has its own copy
    assert torch.equal(mask.dense(5, 5), Documents.of_lengths([3, 2]).dense(5, 5))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("key_lengths", [SELF, CROSS], ids=["self", "cross"])
@pytest.mark.parametrize("block", [1, 2, 5, 16])
def test_key_ranges_and_blocks_agree_with_the_dense_mask(mask, key_lengths, block):
    packed = Packed.of_lengths(SELF, key_lengths, mask=MASKS[mask])
    Tq, Tk = sum(SELF), sum(key_lengths)
    dense, blocks = packed.dense(Tq, Tk), packed.blocks(Tq, Tk, block)
    for i in range(blocks.shape[0]):
        for j in range(blocks.shape[1]):
            pairs = dense[i * block : (i + 1) * block, j * block : (j + 1) * block]
            assert pairs.all() if blocks[i, j] == FULL else blocks[i, j] != EMPTY or not pairs.any()
    ranges = packed.key_ranges(Tq, Tk)
    assert (ranges is None) == (mask in ("dilated", "not itself", "user-defined"))
    if ranges is not None:
        j = torch.arange(Tk)
        assert torch.equal((j >= ranges[0][:, None]) & (j < ranges[1][:, None]), dense)


def test_a_layer_with_a_packed_mask_works_and_compiles():
    torch.manual_seed(0)
    layer, x = (
        MultiHead(8, 2, mask=Packed.of_lengths(SELF, mask=Causal()), rotary=regard.Rotary(4)).double(),
        draw(sum(SELF), 8),
    )
    plain = MultiHead(8, 2, mask=Causal(), rotary=regard.Rotary(4)).double()
    plain.load_state_dict(layer.state_dict())
    true = torch.cat([plain(sequence) for sequence in x.split(SELF)])
    torch.testing.assert_close(layer(x), true)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), true)
    assert all(t.device.type == "meta" for t in layer.to("meta").mask.tensors())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda q: Packed([1, 3]), "cu_seqlens must start at 0, got 1"),
        (lambda q: Packed([0, 3, 2]), "cu_seqlens must not decrease, got 2 after 3 at index 2"),
        (lambda q: Packed([0, 3], [0, 1, 3]), "cu_seqlens has 1 sequences and cu_seqlens_k 2"),
        (lambda q: Packed(torch.tensor([0.0, 3.0])), "cu_seqlens holds integers, got torch.float32"),
        (lambda q: Packed(torch.zeros(2, 2).long()), r"shape \(sequences \+ 1,\), got shape \(2, 2\)"),
        (lambda q: Packed(5), r"shape \(sequences \+ 1,\), got 5"),
        (
            lambda q: Packed([0, 3], mask=Dense(torch.ones(3, 3).bool())),
            "Packed's mask is counted within each sequence, and Dense",
        ),
        (lambda q: Packed([0, 3], mask=torch.ones(3, 3).bool()), "Packed's mask is a Mask such as Causal"),
        (
            lambda q: attend(q, q, q, mask=Packed([0, 3, 5])),
            "cu_seqlens ends at 5 and the call has 6 queries; it must end at 6",
        ),
        (
            lambda q: attend(q, q[:, :5], q[:, :5], mask=Packed([0, 6])),
            "give cu_seqlens_k for keys of other lengths",
        ),
        (
            lambda q: attend(q, q, q, mask=Packed([0, 3, 6], [0, 2, 5])),
            "cu_seqlens_k ends at 5 and the call has 6 keys",
        ),
        (
            lambda q: attend(q, q, q, mask=Packed([0, 3, 6], [0, 2, 6]) & Causal()),
            r"cu_seqlens_k, mask=Causal\(\)\)",
        ),
        (
            lambda q: attend(q, q, q, mask=Packed([0, 3, 6], [0, 2, 6]), bias=ALiBi(H)),
            "give the bias as a tensor",
        ),
        (lambda q: attend(q, q, q, mask=Packed([0, 3, 6], mask=Padding([1, 2, 3]))), r"the batch is \(2,\)"),
        (lambda q: attend(q, q, q, mask=Packed([0, 6]).to("meta")), "Packed is on meta and the query on cpu"),
    ],
)
def test_invalid_packed_masks_are_refused(make, message):
    with pytest.raises(regard.RegardError, match=message):
        make(draw(H, 6, D))
