"""StaticCache: rows of different lengths in fixed memory give the attention over each row's own keys."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import regard
from regard import ALiBi, Cache, Causal, MultiHead, Rotary, Window, attend
from regard.attention import Diagonal, Dilated, Prefix, RelativeBuckets, RelativeVectors
from regard.attention.mask import Mask
from regard.attention.plan import KERNELS
from regard.errors import DtypeError, KernelError, OptionError, ShapeError
from regard.layers import SlicedMultiHead, StaticCache

B, H, D, ROOM = 3, 2, 4, 12


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def filled_cache(lengths, dtype=torch.float64, room=ROOM):
    """A cache whose rows have these lengths, and the keys and values of each row."""
    n = max(lengths)
    k, v = draw(len(lengths), H, n, D, dtype=dtype), draw(len(lengths), H, n, D, dtype=dtype) * 2
    cache = StaticCache(len(lengths), H, room, D, dtype=dtype)
    cache.append(k, v)
    cache.crop(torch.tensor(lengths))
    return cache, [(k[b, :, :t], v[b, :, :t]) for b, t in enumerate(lengths)]


class EverySecondKey(Mask):
    """A user-defined mask: the query's own position and every second key before it."""

    def allowed(self, grid):
        return (grid.k <= grid.position()) & ((grid.position() - grid.k) % 2 == 0)


MASKS = {
    "causal": Causal(),
    "none": None,
    "window": Causal() & Window(3),
    "centred window": Window(1, 1),
    "dilated": Dilated(2) & Causal(),
    "not itself": Causal() & ~Diagonal(),
    "prefix": Causal() | Prefix(1),
    "user-defined": EverySecondKey(),
}
BIASES = {
    "none": None,
    "ALiBi": ALiBi(H),
    "buckets": RelativeBuckets(H, buckets=8, max_distance=20).double(),
    "vectors": RelativeVectors(D, clip=3).double(),
    "function": regard.attention.bias.PositionBias(lambda t, s: -0.1 * (t - s) ** 2),
}


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
@torch.no_grad()
def test_attention_over_a_static_cache_equals_attention_over_each_rows_keys(new, mask, bias):
    lengths = [5, 0, 9]
    cache, rows = filled_cache(lengths)
    q, k, v = draw(B, H, new, D), draw(B, H, new, D) + 1, draw(B, H, new, D) - 1
    keys, values = cache.append(k, v)
    out = attend(q, keys, values, mask=cache.mask(MASKS[mask]), bias=cache.with_offset(BIASES[bias]))
    for b, (key, value) in enumerate(rows):
        key, value = torch.cat([key, k[b]], -2), torch.cat([value, v[b]], -2)
        expected = attend(q[b], key, value, mask=MASKS[mask], bias=BIASES[bias], kernel="reference")
        torch.testing.assert_close(out[b], expected)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "flex"])  # the conformance suite compiles flex
@pytest.mark.parametrize("new", [1, 3])
@torch.no_grad()
def test_every_kernel_gives_the_same_result_on_a_static_cache_or_refuses(kernel, new):
    cache, _ = filled_cache([5, 1, 9], torch.float32)
    q, k, v = (draw(B, H, new, D, dtype=torch.float32) for _ in range(3))
    keys, values = cache.append(k, v)
    for mask in (Causal(), None, Window(2)):
        cache_mask = cache.mask(mask)
        expected = attend(q.double(), keys.double(), values.double(), mask=cache_mask, kernel="reference")
        try:
            out = attend(q, keys, values, mask=cache_mask, kernel=kernel)
        except KernelError as error:
            assert kernel != "reference" and str(error)
            continue
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [dict(mask=Causal()), dict(mask=Causal() & Window(3), bias=ALiBi(2), rotary=Rotary(4))]
)
@torch.no_grad()
def test_decoding_in_chunks_after_padded_prompts_equals_each_row_alone(options):
    torch.manual_seed(0)
    layer, x = MultiHead(8, 2, key_heads=1, **options).double().eval(), draw(B, 11, 8)
    prompts = [4, 1, 6]
    cache = StaticCache.of(layer, B, 20)
    memory = cache.key.data_ptr()
    first = layer(x[:, :6], cache=cache)  # prompts padded to 6
    cache.crop(torch.tensor(prompts))
    ends = torch.tensor(prompts)
    parts = [[first[b, :t]] for b, t in enumerate(prompts)]
    for size in (1, 3, 1):
        chunk = torch.stack([x[b, ends[b] : ends[b] + size] for b in range(B)])
        for b, out in enumerate(layer(chunk, cache=cache)):
            parts[b].append(out)
        ends += size
    assert cache.lengths.tolist() == ends.tolist() and cache.length == 11
    assert cache.key.data_ptr() == memory
    for b in range(B):
        torch.testing.assert_close(torch.cat(parts[b]), layer(x[b : b + 1, : ends[b]])[0])


@torch.no_grad()
def test_sliced_heads_and_tensor_masks_work_with_a_static_cache():
    torch.manual_seed(0)
    layer, x = SlicedMultiHead(8, 2, mask=Causal()).double(), draw(B, 6, 8)
    cache = StaticCache(B, 2, 6, 4, dtype=torch.float64)
    parts = [layer(part, cache=cache) for part in x.split([2, 4], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), layer(x))
    allowed = torch.arange(6) != 3  # masks one key for all queries
    cache.crop(2)
    torch.testing.assert_close(
        layer(x[:, 2:], mask=allowed.expand(4, 6), cache=cache), layer(x, mask=allowed.expand(6, 6))[:, 2:]
    )


@torch.no_grad()
def test_both_caches_give_the_same_result():
    torch.manual_seed(0)
    layer, x = MultiHead(8, 2, mask=Causal(), rotary=Rotary(4)).double(), draw(B, 8, 8)
    for cache in (Cache(), StaticCache.of(layer, B, 8)):
        parts = [layer(part, cache=cache) for part in x.split([3, 1, 4], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), layer(x))
        cache.crop(5)
        torch.testing.assert_close(layer(x[:, 5:], cache=cache), layer(x)[:, 5:])
        cache.reorder(torch.tensor([2, 0, 0]))
        cache.crop(7)
        torch.testing.assert_close(layer(x[[2, 0, 0], 7:], cache=cache), layer(x)[[2, 0, 0], 7:])


@torch.no_grad()
def test_reordering_moves_lengths_too_and_stays_in_place():
    cache, rows = filled_cache([5, 2, 9])
    memory = cache.key.data_ptr(), cache.lengths.data_ptr()
    cache.reorder(torch.tensor([2, 2, 1]))
    assert cache.lengths.tolist() == [9, 9, 2]
    assert (cache.key.data_ptr(), cache.lengths.data_ptr()) == memory
    for b, old in enumerate([2, 2, 1]):
        assert torch.equal(cache.key[b, :, : cache.lengths[b]], rows[old][0])
        assert not cache.value[b, :, cache.lengths[b] :].any()


@torch.no_grad()
def test_cropped_tokens_have_no_effect_even_if_they_are_nan():
    cache, rows = filled_cache([5, 2, 9])
    nan = torch.full((B, H, 2, D), float("nan"), dtype=torch.float64)
    cache.append(nan, nan)
    cache.crop(torch.tensor([5, 2, 9]))
    q, k, v = (draw(B, H, 1, D) for _ in range(3))
    keys, values = cache.append(k, v)
    assert attend(q, keys, values, mask=cache.mask(Causal())).isfinite().all()
    assert torch.equal(cache.key[0, :, :5], rows[0][0])


@pytest.mark.parametrize("new", [1, 3])
@torch.no_grad()
def test_a_compiled_step_is_not_compiled_again_for_the_next_steps(new):
    torch.manual_seed(0)
    layer, x = MultiHead(8, 2, mask=Causal(), rotary=Rotary(4)).double().eval(), draw(B, 12, 8)
    cache, compiled = StaticCache.of(layer, B, 12), StaticCache.of(layer, B, 12)
    for c in (cache, compiled):
        layer(x[:, :3], cache=c)
        c.crop(torch.tensor([3, 1, 2]))
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda x, cache: layer(x, cache=cache), fullgraph=True, backend=counter)
    for t in range(3):
        part = x[:, 3 + new * t : 3 + new * (t + 1)]
        torch.testing.assert_close(step(part, compiled), layer(part, cache=cache))
    assert counter.frame_count == 1
    assert compiled.lengths.tolist() == [3 + 3 * new, 1 + 3 * new, 2 + 3 * new]
    with pytest.raises(RuntimeError, match="room for 12 tokens in a row and a row cannot take"):
        _ = [step(x[:, :new], compiled) for _ in range(12)]


@torch.no_grad()
def test_compiling_steps_of_one_token_and_of_any_length_takes_two_graphs():
    torch.manual_seed(0)
    layer, x = MultiHead(8, 2, mask=Causal()).double().eval(), draw(B, 30, 8)
    cache = StaticCache.of(layer, B, 30)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(layer, fullgraph=True, backend=counter)
    out = torch.cat([step(part, cache=cache) for part in x.split([1, 4, 7, 1, 2, 1, 9, 5], 1)], 1)
    assert counter.frame_count == 2
    torch.testing.assert_close(out, layer(x))


def test_a_static_cache_works_in_inference_mode_and_under_watch():
    torch.manual_seed(0)
    layer, x = MultiHead(8, 2, mask=Causal()).double(), draw(B, 6, 8)
    cache = StaticCache.of(layer, B, 6)
    with torch.inference_mode(), regard.watch(layer) as seen:
        layer(x[:, :4], cache=cache)
        cache.crop(torch.tensor([4, 2, 3]))
        layer(x[:, 4:5], cache=cache)
        before = seen["self"].weights()
        layer(x[:, 5:], cache=cache)
    first = seen.calls("self")[1].weights()
    assert torch.equal(first, before)
    assert (first[:, 0, 0] > 0).sum(-1).tolist() == [5, 3, 4]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda c, x: [c.append(x, x) for _ in range(3)],
            "room for 12 tokens in a row and a row of 10 cannot take 5 more",
        ),
        (lambda c, x: c.append(x[:, :1], x), r"a key of shape \(3, 2, k, 4\), got \(3, 1, 5, 4\)"),
        (lambda c, x: c.append(x, x[:, :, :2]), "5 new keys and 2 new values"),
        (lambda c, x: c.append(x.float(), x.float()), "make the cache with dtype=torch.float32"),
        (lambda c, x: c.append(x.to("meta"), x), "make it with device='meta'"),
        (lambda c, x: c.append(x.repeat(1, 1, 3, 1), x.repeat(1, 1, 3, 1)), "cannot take 15 more"),
        (lambda c, x: c.mask(Causal()), "append keys and values before"),
        (lambda c, x: c.reorder(torch.tensor([0, 1])), r"one index for each, got \(2,\)"),
        (lambda c, x: c.crop(-1), "crop's length must be an integer of at least 0, got -1"),
        (lambda c, x: c.crop(torch.tensor([1, 2])), r"the batch is \(3,\)"),
        (lambda c, x: c.crop(torch.tensor([0.5] * 3)), "crop takes integers, got torch.float32"),
        (
            lambda c, x: StaticCache(3, 2, 0, 4),
            "StaticCache's max_len must be an integer of at least 1, got 0",
        ),
        (
            lambda c, x: StaticCache.of(SlicedMultiHead(8, 2), 3, 5),
            "takes a MultiHead, got SlicedMultiHead; give the sizes",
        ),
        (
            lambda c, x: MultiHead(8, 2)(torch.randn(3, 2, 8), torch.randn(3, 2, 8), cache=c),
            "is for self-attention",
        ),
    ],
)
def test_wrong_uses_of_a_cache_are_refused_with_a_fix(use, message):
    with pytest.raises(regard.RegardError, match=message):
        use(StaticCache(B, H, ROOM, D, dtype=torch.float64), draw(B, H, 5, D))


def test_a_failed_append_leaves_the_cache_unchanged():
    cache, _ = filled_cache([5, 2, 9])
    before = cache.key.clone(), cache.lengths.clone()
    with pytest.raises(ShapeError):
        cache.append(draw(B, H, 4, D), draw(B, H, 4, D))
    assert torch.equal(cache.key, before[0]) and torch.equal(cache.lengths, before[1])


@pytest.mark.parametrize("cache", [Cache(), StaticCache(2, 3, 9, 4)], ids=["Cache", "StaticCache"])
def test_tokens_that_do_not_fit_the_cache_are_errors_and_change_nothing(cache):
    """Copying them into the memory would broadcast them or round them."""
    first, new = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 1, 4)
    cache.append(first, first)
    for bad in (new[:1], new[:, :1], new[..., :1], new[0]):
        for pair in ((bad, new), (new, bad)):
            with pytest.raises(ShapeError, match=r"shape \(2, 3, k, 4\), got"):
                cache.append(*pair)
    with pytest.raises(ShapeError, match="2 new keys and 1 new values"):
        cache.append(first[..., :2, :], new)
    with pytest.raises(DtypeError, match="the cache holds torch.float32 and the value is torch.float64"):
        cache.append(new, new.double())
    keys, values = (x[..., :6, :] for x in cache.append(new, new))
    assert torch.equal(keys, torch.cat([first, new], -2)) and torch.equal(keys, values)


def test_reorder_takes_indices():
    cache = Cache()
    cache.append(torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4))
    for rows in (torch.tensor([True, False]), torch.tensor([0.0, 1.0]), torch.tensor(0), [0, 1]):
        with pytest.raises(OptionError, match="reorder takes a tensor of row indices"):
            cache.reorder(rows)
