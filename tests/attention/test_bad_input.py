"""Invalid input raises an error of one sentence that names the thing, the value and the fix.

Covers errors.py and, together with tests/test_wrong_calls.py, arguments.py.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import Additive, ALiBi, Bilinear, Causal, MultiHead, Padding, attend, explain, weights
from regard.attention import Cosine, Dense, Distance, Documents, Dot, Entmax, Hard, Match, Prefix, Raw
from regard.errors import DeviceError, DtypeError, KernelError, OptionError, ShapeError
from regard.layers import SlicedMultiHead

q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (
            lambda: attend(q[0, 0, 0], k, v),
            ShapeError,
            r"query needs at least \(time, dim\), got shape \(8,\)",
        ),
        (lambda: attend(q, k, v[:, :, :4]), ShapeError, r"5 keys \(key \(2, 4, 5, 8\)\) and 4 values"),
        (
            lambda: attend(q, k[..., :7], v),
            ShapeError,
            r"queries and keys of the same width, got query \(2, 4, 5, 8\)",
        ),
        (
            lambda: attend(q, k[:, :3], v[:, :3]),
            ShapeError,
            "4 heads of queries, 3 of keys and 3 of values",
        ),
        (lambda: attend(q, k[:1].expand(3, 4, 5, 8), v), ShapeError, "the batch axes of query"),
        (
            lambda: attend(q, k, v, mask=torch.ones(5, 4, dtype=torch.bool)),
            ShapeError,
            r"\(5, 4\) does not broadcast",
        ),
        (
            lambda: attend(q, k, v, mask=torch.ones(5, 5)),
            DtypeError,
            "a mask is boolean.*got torch.float32; write mask.bool",
        ),
        (lambda: attend(q, k, v, mask=torch.ones(5, 5).int()), DtypeError, "got torch.int32"),
        (
            lambda: attend(q, k, v, mask=torch.ones(5, 5, device="meta").bool()),
            DeviceError,
            "the mask is on meta and the query on cpu",
        ),
        (lambda: attend(q, k.to("meta"), v), DeviceError, "query is on cpu, key on meta"),
        (lambda: attend(q, k.double(), v), DtypeError, "query is torch.float32, key torch.float64"),
        (
            lambda: attend(q.to(torch.complex64), k, v),
            DtypeError,
            "query must be float16, bfloat16, float32 or float64",
        ),
        (lambda: attend(q.int(), k, v), DtypeError, "got torch.int32; use .float"),
        (lambda: attend(q, k, [1.0]), OptionError, "value must be a tensor"),
        (lambda: attend(q, k, v, dropout=1.0), OptionError, r"dropout must be in \[0, 1\), got 1.0"),
        (lambda: attend(q, k, v, dropout=-0.1), OptionError, "got -0.1"),
        (lambda: attend(q, k, v, softcap=0), OptionError, "softcap must be a number above 0"),
        (lambda: attend(q, k, v, kernel="sdap"), KernelError, "did you mean 'sdpa'"),
        (lambda: attend(q, k, v, energy=Dot), OptionError, r"the class Dot \(call it"),
        (lambda: attend(q, k, v, mask="causal"), OptionError, "mask must be a Mask such as Causal"),
        (lambda: attend(q, k, v, normalize=None), OptionError, r"for none use Raw\(\)"),
        (lambda: attend(q, k, v, bias=3.0), OptionError, "bias must be a Bias"),
        (lambda: attend(q, k, v, gate="x"), OptionError, "gate must be a tensor"),
        (
            lambda: attend(q, k, v, mask=Padding([1, 2, 3])),
            ShapeError,
            r"one entry for each of \(3,\) sequences and the batch is \(2,\)",
        ),
        (
            lambda: attend(q, k, v, mask=Documents(torch.zeros(6).long())),
            ShapeError,
            "made for 6 positions and the call has 5",
        ),
        (
            lambda: attend(q, k, v, mask=Prefix(9)),
            ShapeError,
            r"Prefix\(9\) was made for at least 9 keys and the call has 5",
        ),
        (
            lambda: attend(q, k, v, mask=Causal(offset=torch.tensor([1, 2, 3]))),
            ShapeError,
            "Causal's offset",
        ),
        (
            lambda: attend(q, k, v, mask=Causal() & Dense(torch.ones(4, 4).bool())),
            ShapeError,
            "does not broadcast",
        ),
        (lambda: attend(q, k, v, energy=Additive(9)), ShapeError, "takes queries of width 9"),
        (
            lambda: attend(q, k, v, energy=Additive(8, heads=3)),
            ShapeError,
            "has 3 heads and the call has 4",
        ),
        (lambda: attend(q, k, v, energy=Bilinear(8, 9)), ShapeError, "takes keys of width 9"),
        (lambda: attend(q, k, v, energy=lambda q, k: q), ShapeError, "the energy function returned"),
        (
            lambda: attend(q, k, v, normalize=lambda e: e.sum(-1)),
            ShapeError,
            "the normaliser function returned",
        ),
        (lambda: attend(q, k, v, energy=Additive(8).to("meta")), DeviceError, "is on meta"),
        (lambda: attend(q, k, v, gate=torch.ones(3, 3)), ShapeError, "does not broadcast"),
        (lambda: weights(q, k, stage="none"), OptionError, "stage must be one of"),
        (lambda: explain(q, k, v[:, :, :1]), ShapeError, "every key needs its value"),
        (lambda: MultiHead(10, 3), OptionError, "dim 10 does not divide into 3 heads"),
        (lambda: MultiHead(8, 4, key_heads=3), OptionError, "key_heads must divide"),
        (
            lambda: MultiHead(8, 2)(torch.randn(2, 3, 7)),
            ShapeError,
            r"query is \(…, T, 8\), got \(2, 3, 7\)",
        ),
        (lambda: MultiHead(0, 2), OptionError, "dim must be an integer of at least 1"),
        (lambda: SlicedMultiHead(10, 4), OptionError, "does not divide into 4 equal slices"),
        (lambda: Additive(0), OptionError, "query_dim must be an integer"),
    ],
)
def test_one_sentence_names_the_thing_the_value_and_the_fix(run, error, message):
    with pytest.raises(error, match=message) as raised:
        run()
    assert isinstance(raised.value, ValueError)
    assert "\n" not in str(raised.value)


SIZES = st.integers(0, 4)


@settings(max_examples=400)
@given(
    shapes=st.lists(st.lists(SIZES, min_size=0, max_size=5), min_size=3, max_size=3),
    mask=st.one_of(
        st.none(),
        st.lists(SIZES, max_size=5),
        st.sampled_from([Causal(), Padding([1, 2]), Documents(torch.arange(3)), ALiBi(2)]),
    ),
    bias=st.one_of(st.none(), st.lists(SIZES, max_size=5), st.sampled_from([ALiBi(1), ALiBi(3)])),
    energy=st.sampled_from(
        [
            regard.ScaledDot(),
            Distance(),
            Match(),
            Cosine(),
            Additive(2),
            Bilinear(3, 2, rank=1),
        ]
    ),
    normalize=st.sampled_from([regard.Softmax(), regard.Sparsemax(), Hard(), Raw(), Entmax()]),
    kernel=st.sampled_from([None, "reference", "sdpa", "tiled", "additive", "cpp"]),
)
def test_random_arguments_work_or_raise_an_error_of_regard(shapes, mask, bias, energy, normalize, kernel):
    tensors = [torch.randn(s) for s in shapes]
    if isinstance(mask, list):
        mask = torch.rand(mask) < 0.5
    if isinstance(bias, list):
        bias = torch.randn(bias)
    try:
        out = attend(*tensors, mask=mask, bias=bias, energy=energy, normalize=normalize, kernel=kernel)
    except regard.RegardError as error:
        assert "\n" not in str(error)
    else:
        assert (out.shape[-2], out.shape[-1]) == (tensors[0].shape[-2], tensors[2].shape[-1])
