"""Every edit against weights @ values. Covers edits.py."""

import pytest
import torch

from regard import Causal, Padding, attend, weights
from regard.attention import Mapped, Permuted, Pinned, Uniform, Weights, Zero
from regard.errors import OptionError
from tests.attention.intervened import expand, inputs, run

PADDING = Padding(torch.tensor([7, 4]))
MASKS = {"no mask": None, "padding": PADDING, "causal": Causal()}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_uniform_is_the_mean_of_the_values_that_the_mask_allows(mask, key_heads):
    q, k, v = inputs(key_heads=key_heads)
    allowed = torch.ones(2, 1, 5, 7).bool() if mask is None else mask.dense(5, 7).expand(2, 1, 5, 7)
    expected = (allowed / allowed.sum(-1, keepdim=True)).double() @ expand(v, 4)
    torch.testing.assert_close(run(Uniform(), q, k, v, mask=mask), expected)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_zero_uniform_and_given_weights_touch_the_selected_rows_only(mask):
    q, k, v = inputs(key_heads=2)
    before, values = weights(q, k, mask=mask), expand(v, 4)
    given = torch.rand(4, 5, 7, dtype=torch.float64)
    for edit, new in ((Zero, torch.zeros(1)), (lambda **where: Weights(given, **where), given)):
        for where, index in (
            ({"heads": [1, -1]}, (slice(None), [1, 3])),
            ({"queries": slice(2, 4)}, (slice(None), slice(None), slice(0, 2))),
            ({"batch": 1}, (1,)),
            ({"heads": 2, "batch": [0], "queries": 6}, (0, 2, 4)),
        ):
            expected = before.clone()
            expected[index] = new.double().expand(2, 4, 5, 7)[index]
            out = run(edit(**where), q, k, v, mask=mask)  # 5 queries at the last of 7 keys: positions 2 to 6
            torch.testing.assert_close(out, expected @ values)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_permuted_keeps_the_weights_of_a_row_among_the_allowed_keys(mask):
    q, k, _ = inputs(Tk=12, Tq=12)
    mask = Padding(torch.tensor([12, 7])) if mask is PADDING else mask
    v = torch.eye(12, dtype=torch.float64).expand(2, 4, 12, 12)  # the output is the weights
    before = weights(q, k, mask=mask)
    new, again, other = (run(Permuted(seed), q, k, v, mask=mask) for seed in (3, 3, 4))
    assert torch.equal(new, again) and not torch.equal(new, other) and not torch.equal(new, before)
    torch.testing.assert_close(new.sort(-1).values, before.sort(-1).values)
    if mask is not None:
        assert new.masked_select(~mask.dense(12, 12).expand(2, 4, 12, 12)).abs().sum() == 0
    moved = (new != before).float().mean()
    assert moved > (0.5 if mask is None else 0.3)


def test_pinned_reads_one_value():
    q, k, v = inputs()
    out = run(Pinned(3, heads=0), q, k, v, mask=PADDING)
    torch.testing.assert_close(out[:, 0], v[:, 0, 3, None].expand(2, 5, 8))
    torch.testing.assert_close(out[:, 1:], attend(q, k, v, mask=PADDING)[:, 1:])
    with pytest.raises(OptionError, match=r"hides key 5 from row 1 of the batch, query 2; choose another"):
        run(Pinned(5), q, k, v, mask=PADDING)
    torch.testing.assert_close(run(Pinned(5, batch=0), q, k, v, mask=PADDING)[0, :, 0], v[0, :, 5])
    with pytest.raises(OptionError, match=r"attend.0 has 7 keys here"):
        run(Pinned(7), q, k, v)
    square = inputs(Tq=7)
    with pytest.raises(OptionError, match="hides key 5"):
        run(Pinned(5), *square, mask=Causal())
    run(Pinned(5, queries=slice(5, None)), *square, mask=Causal())


def test_a_function_gets_gated_weights_and_masked_keys_stay_zero():
    q, k, v = inputs()
    gate = torch.rand(4, 1, 1, dtype=torch.float64)
    seen = []
    out = run(lambda w: seen.append(w) or w + 1, q, k, v, mask=PADDING, gate=gate, dropout=0.0)
    before = weights(q, k, mask=PADDING, gate=gate)
    torch.testing.assert_close(seen[0], before)
    torch.testing.assert_close(out, ((before + 1) * PADDING.dense(5, 7)) @ v)
    square = run(Mapped(torch.square, heads=1), q, k, v)
    torch.testing.assert_close(square[:, 1], (weights(q, k)[:, 1] ** 2) @ v[:, 1])


def test_given_weights_may_unmask_a_key():
    q, k, v = inputs()
    row = torch.zeros(7)
    row[6] = 1
    torch.testing.assert_close(run(Weights(row), q, k, v, mask=PADDING), v[..., 6:, :].expand(2, 4, 5, 8))


def test_gradients_reach_values_always_and_weights_through_a_function():
    q, k, v = (x.requires_grad_() for x in inputs())
    scale = torch.full((), 0.5, dtype=torch.float64, requires_grad=True)
    for edit, expected in (
        (lambda w: w * scale, lambda w: w * scale),
        (Mapped(lambda w: w * scale, heads=1), None),
        (Permuted(1), None),
    ):
        out = run(edit, q, k, v).square().sum()
        gradients = torch.autograd.grad(out, (q, k, v))
        assert all(g.abs().sum() > 0 for g in gradients)
        if expected is not None:
            by_hand = torch.autograd.grad((expected(weights(q, k)) @ v).square().sum(), (q, k, v))
            torch.testing.assert_close(gradients, by_hand)
    assert torch.autograd.gradcheck(lambda v: run(Uniform(), q.detach(), k.detach(), v), v)
    assert torch.autograd.grad(run(Uniform(), q, k, v).sum(), q, allow_unused=True)[0] is None


def test_nan_in_padding_has_no_effect_and_half_precision_is_rounded_once():
    q, k, v = inputs()
    clean = run(Uniform(), q, k, v, mask=PADDING)
    k[1, :, 4:], v[1, :, 4:] = torch.nan, torch.nan
    torch.testing.assert_close(run(Uniform(), q, k, v, mask=PADDING), clean)
    assert run(Permuted(), q, k, v, mask=PADDING).isfinite().all()
    half = [x.bfloat16() for x in inputs()]
    out = run(Uniform(), *half)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, half[2].float().mean(-2, keepdim=True).expand(2, 4, 5, 8).bfloat16())


@pytest.mark.parametrize(
    ("make_edit", "message"),
    [
        (lambda: Uniform(heads=1.5), "Uniform's heads must be an integer, a slice or a list of integers"),
        (lambda: Uniform(heads="all"), "Uniform's heads must be an integer"),
        (lambda: Zero(queries=-1), "Zero's queries must not be negative"),
        (lambda: Zero(batch=[0, -2]), "Zero's batch must not be negative"),
        (lambda: Zero(queries=slice(0, 9, 2)), "must be a slice without a step"),
        (lambda: Pinned(-1), "Pinned's key must be"),
        (lambda: Pinned("x"), "Pinned's key must be"),
        (lambda: Permuted(seed=-1), "Permuted's seed must be"),
        (lambda: Weights([1, 2]), "Weights takes a tensor"),
        (lambda: Mapped(3), "Mapped takes a function"),
    ],
)
def test_wrong_edits_are_refused(make_edit, message):
    with pytest.raises(OptionError, match=message):
        make_edit()
