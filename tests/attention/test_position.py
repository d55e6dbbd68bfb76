"""Position encodings and biases against the papers' formulas. Covers position.py and bias.py."""

import math

import pytest
import torch

import regard
from regard import ALiBi, Causal, MultiHead, Rotary, Sinusoidal, attend, weights
from regard.attention import Channel, Learned, RelativeBuckets, RelativeVectors  # fmt: skip
from regard.errors import OptionError, ShapeError


def test_sinusoidal_is_vaswanis_formula():
    table = Sinusoidal(6).table(5, dtype=torch.float64)
    for t in range(5):
        for i in range(3):
            assert table[t, 2 * i].item() == pytest.approx(math.sin(t / 10000 ** (2 * i / 6)))
            assert table[t, 2 * i + 1].item() == pytest.approx(math.cos(t / 10000 ** (2 * i / 6)))
    assert torch.equal(Sinusoidal(6, first=1).table(4), Sinusoidal(6).table(5)[1:])
    x = torch.randn(2, 5, 6)
    assert torch.allclose(Sinusoidal(6)(x, offset=3), x + Sinusoidal(6).table(8)[3:])


def test_sinusoidal_similarity_depends_on_distance_alone_and_is_largest_at_none():
    position = Sinusoidal(64)
    similarity = position.similarity(50)
    table = position.table(200, dtype=torch.float64)
    for t in (0, 17, 120):
        assert torch.allclose(table[t : t + 50] @ table[t] / 32, similarity)
    assert similarity[0] == 1
    assert (similarity[1:] < similarity[0]).all()
    assert (similarity[:4].diff() < 0).all()
    assert torch.allclose(Sinusoidal(64, first=1).similarity(50), similarity)


def test_channel_appends_the_position():
    x = torch.randn(2, 3, 4)
    assert Channel()(x)[..., -1].tolist() == [[0, 1, 2]] * 2
    assert Channel(first=1)(x, offset=5)[..., -1].tolist() == [[6, 7, 8]] * 2
    assert torch.equal(Channel()(x)[..., :-1], x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_scaled_position_channel_is_rounded_once(dtype):
    """float16 has no position 70 000, and bfloat16 none between 256 and 258; times 0.001 both have."""
    t = Channel(scale=1e-3, first=1)(torch.zeros(1, 70_000, 1, dtype=dtype))[0, :, 1]
    assert torch.equal(t, (torch.arange(1, 70_001, dtype=torch.float64) * 1e-3).to(dtype))


def test_offsets_are_integers_and_fit_the_batch():
    x = torch.randn(2, 3, 5, 4)
    assert Rotary(4)(x, torch.tensor([1, 2])).shape == x.shape
    assert ALiBi(3, offset=torch.tensor([1, 2], dtype=torch.int8)).offset.dtype == torch.int64
    for call in (lambda: Rotary(4)(x, 1.5), lambda: ALiBi(3, offset=1.5), lambda: ALiBi(3, offset="1")):
        with pytest.raises(OptionError, match="offset is an integer or one integer per sequence"):
            call()
    for bad, offset in ((x[0], [1, 2]), (x[:1], [1, 2]), (x, [1, 2, 3])):
        with pytest.raises(ShapeError, match="Rotary's offset has one entry for each of"):
            Rotary(4)(bad, torch.tensor(offset))


def test_a_learned_table_has_a_maximum_length_and_other_encodings_do_not():
    x = torch.randn(1, 9, 8)
    with pytest.raises(
        ShapeError, match="ends at position 7 and position 8 was requested; make it with maxlen=9"
    ):
        Learned(8, 8)(x)
    with pytest.raises(ShapeError, match="maxlen=10"):
        Learned(8, 8)(x[:, :1], offset=9)
    assert Learned(9, 8)(x).shape == x.shape
    for position in (Sinusoidal(8), Channel(), Rotary(8)):
        assert position(torch.randn(1, 5000, 8)).shape[1] == 5000


@pytest.mark.parametrize("halves", [False, True])
def test_rotary_products_depend_on_the_distance_of_positions(halves):
    rotary = Rotary(8, halves=halves)
    q, k = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    at = lambda x, t: rotary(x[None, None], offset=t)[0, 0]  # noqa: E731
    assert at(q, 5).dot(at(k, 3)).item() == pytest.approx(at(q, 105).dot(at(k, 103)).item())
    assert at(q, 7).norm().item() == pytest.approx(q.norm().item())
    assert torch.allclose(at(q, 0), q)
    x, t = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64), 2
    turned = at(x, t)
    assert turned[0].item() == pytest.approx(math.cos(t))
    assert turned[4 if halves else 1].item() == pytest.approx(math.sin(t))
    part = Rotary(8, fraction=0.5)
    assert torch.equal(part(q[None, None], offset=3)[0, 0, 4:], q[4:])


def test_rotary_offsets_may_differ_between_sequences():
    x = torch.randn(2, 3, 4, 8)
    both = Rotary(8)(x, offset=torch.tensor([1, 6]))
    assert torch.allclose(both[1], Rotary(8)(x[1:], offset=6)[0])


def test_alibi_slopes_are_the_published_ones():
    assert ALiBi(8).slopes == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert ALiBi(16).slopes[:3] == pytest.approx([2**-0.5, 2**-1, 2**-1.5])
    assert ALiBi(1).slopes == [2**-8]
    assert ALiBi(6).slopes == pytest.approx([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    assert ALiBi(12).slopes == pytest.approx(
        [2**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    )


def test_alibi_is_minus_slope_times_distance_causal_and_symmetric():
    q = torch.zeros(1, 2, 4, 3)
    e = weights(q, q, bias=ALiBi(2), stage="biased")[0]
    for h, m in enumerate(ALiBi(2).slopes):
        for i in range(4):
            for j in range(4):
                assert e[h, i, j].item() == pytest.approx(-m * abs(i - j))
    causal = weights(q, q, bias=ALiBi(2), mask=Causal(), stage="masked")[0, 0]
    assert causal[3].tolist() == pytest.approx([-3 / 16, -2 / 16, -1 / 16, 0])
    assert causal[0, 1] == -math.inf
    step = weights(q[:, :, :1], q, bias=ALiBi(2), stage="biased")[
        0
    ]  # one query with a cache stands at the last key
    assert torch.equal(step[:, 0], e[:, 3])


def test_buckets_are_t5s():
    """Worked from the formula: 32 buckets, half per direction, 8 exact, then logarithmic up to 128."""
    both = RelativeBuckets(2, buckets=32, max_distance=128)
    distance = torch.tensor([0, -1, -7, -8, -15, -16, -127, -500, 1, 7, 8, 500])
    assert both.bucket(distance).tolist() == [0, 1, 7, 8, 9, 10, 15, 15, 17, 23, 24, 31]
    causal = RelativeBuckets(2, buckets=32, max_distance=128, causal=True)
    assert causal.bucket(torch.tensor([3, 0, -5, -15, -16, -1000])).tolist() == [0, 0, 5, 15, 16, 31]


def test_relative_vectors_are_shaws_equation():
    q, k = torch.randn(1, 2, 5, 4, dtype=torch.float64), torch.randn(1, 2, 5, 4, dtype=torch.float64)
    for bias in (RelativeVectors(4, clip=2).double(), RelativeVectors(4, clip=2, heads=2).double()):
        e = weights(q, k, bias=bias, stage="biased")
        for h in range(2):
            table = bias.weight if bias.heads is None else bias.weight[h]
            for i in range(5):
                for j in range(5):
                    a = table[max(-2, min(2, j - i)) + 2]
                    assert e[0, h, i, j].item() == pytest.approx((q[0, h, i] @ (k[0, h, j] + a) / 2).item())


@pytest.mark.parametrize(
    "bias",
    [
        RelativeBuckets(2, buckets=4, max_distance=4),
        RelativeVectors(3, clip=2),
        RelativeVectors(3, clip=2, heads=2),
    ],
    ids=lambda b: type(b).__name__,
)
@pytest.mark.parametrize("kernel", ["reference", "tiled"])
def test_gradcheck_of_every_learned_bias(bias, kernel):
    bias = bias.double()
    q, k, v = (torch.randn(1, 2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    run = lambda q, k, v, *_: attend(q, k, v, bias=bias, mask=Causal(), kernel=kernel)  # noqa: E731
    assert torch.autograd.gradcheck(run, (q, k, v, *bias.parameters()))
    dense = torch.randn(2, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda b: attend(q, k, v, bias=b, kernel=kernel), (dense,))


def embed(sentence):
    words = sorted("are you happy today the teacher told students to open their".split())
    table = torch.randn(len(words), 16, generator=torch.Generator().manual_seed(3))
    return table[[words.index(w) for w in sentence.lower().split()]][None]


def test_every_position_scheme_distinguishes_word_order_and_plain_attention_does_not():
    question, statement = embed("Are you happy today"), embed("you are happy today")
    pool = lambda layer, x: layer(x).mean(1)  # noqa: E731
    plain = MultiHead(16, 2)
    assert torch.allclose(pool(plain, question), pool(plain, statement), atol=1e-6)
    added = [Sinusoidal(16), Learned(8, 16)]
    for position in added:
        assert not torch.allclose(
            pool(plain, position(question)), pool(plain, position(statement)), atol=1e-3
        )
    channel, wide = Channel(), MultiHead(17, 1)
    assert not torch.allclose(pool(wide, channel(question)), pool(wide, channel(statement)), atol=1e-3)
    loud = RelativeBuckets(2)
    torch.nn.init.normal_(loud.weight)
    for options in (
        {"bias": ALiBi(2)},
        {"bias": loud},
        {"bias": RelativeVectors(8)},
        {"rotary": Rotary(8)},
        {"mask": Causal()},
    ):
        layer = MultiHead(16, 2, **options)
        assert not torch.allclose(pool(layer, question), pool(layer, statement), atol=1e-4), options


def test_predictions_ignore_word_order_without_positions():
    words = "the teacher told the students to open their".split()
    sentence = embed(" ".join(words))
    order = torch.tensor([3, 5, 0, 6, 1, 4, 2, 7])  # all but the last word change places
    layer = MultiHead(16, 2)
    predict = lambda x: layer(x)[:, -1]  # noqa: E731
    assert torch.allclose(predict(sentence), predict(sentence[:, order]), atol=1e-6)
    with_order = Sinusoidal(16)
    assert not torch.allclose(
        predict(with_order(sentence)), predict(with_order(sentence[:, order])), atol=1e-3
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sinusoidal(5), "even"),
        (lambda: Rotary(8, fraction=0), "fraction"),
        (lambda: ALiBi(0), "heads"),
        (lambda: Sinusoidal(4)(torch.randn(2, 3, 5)), "width 4"),
        (lambda: RelativeBuckets(2, buckets=3), "buckets"),
        (lambda: attend(*torch.randn(3, 1, 4, 5, 6), bias=ALiBi(3)), "made for 3 heads and the call has 4"),
        (lambda: attend(*torch.randn(3, 1, 4, 5, 6), bias=RelativeVectors(7)), "width 7"),
        (lambda: attend(*torch.randn(3, 1, 4, 5, 6), bias=torch.randn(5, 4)), "does not broadcast"),
        (lambda: attend(*torch.randn(3, 1, 4, 5, 6), bias=torch.ones(5, 5).bool()), "is a mask="),
        (lambda: attend(*torch.randn(3, 1, 4, 5, 6), bias=lambda t, s: 3), "the bias function returned"),
    ],
)
def test_bad_positions_are_refused_with_the_reason(make, message):
    with pytest.raises(regard.RegardError, match=message):
        make()
