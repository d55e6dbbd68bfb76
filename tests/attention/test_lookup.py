"""`lookup`: hard and soft dictionary lookup, and the limits of the temperature."""

import pytest
import torch

from regard import lookup
from regard.attention import Dot
from regard.errors import OptionError

RECORD = {
    "name": "Jane Doe",
    "address": "37 Coronation Street",
    "date of birth": "May 5th 2000",
    "place of birth": "Hull",
}


def spell(text):
    return torch.tensor([float(ord(c)) for c in text.ljust(14)])


def test_lookup_finds_entries_of_the_lectures_example():
    keys, values = torch.stack([spell(name) for name in RECORD]), torch.eye(4)
    result = lookup(torch.stack([spell("date of birth"), spell("name")]), keys, values)
    assert [list(RECORD.values())[i] for i in result.argmax(-1)] == ["May 5th 2000", "Jane Doe"]
    assert result.sum().item() == 2


def test_a_missing_key_gives_zero_and_equal_keys_add_up():
    keys = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    values = torch.tensor([[10.0], [20.0], [30.0]])
    result = lookup(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), keys, values)
    assert result.flatten().tolist() == [40.0, 20.0, 0.0]


def test_high_temperature_gives_the_mean_and_low_temperature_the_dictionary():
    keys, values = torch.randn(20, 8, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    query = keys[[4, 11]]
    assert torch.allclose(
        lookup(query, keys, values, temperature=1e12), values.mean(0).expand(2, 3), atol=1e-9
    )
    assert torch.allclose(
        lookup(query, keys, values, temperature=1e-4), lookup(query, keys, values), atol=1e-9
    )


def test_with_a_dot_product_long_keys_win_unless_all_have_unit_length():
    keys = torch.tensor([[1.0, 0.0], [5.0, 5.0]], dtype=torch.float64)
    values = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    assert lookup(keys[:1], keys, values, temperature=1e-3, similarity=Dot()).item() == pytest.approx(
        2.0
    )  # the long key
    unit = keys / keys.norm(dim=-1, keepdim=True)
    assert lookup(unit[:1], unit, values, temperature=1e-3, similarity=Dot()).item() == pytest.approx(1.0)


def test_equal_keys_are_averaged_by_a_soft_lookup_and_summed_by_a_hard_one():
    keys = torch.tensor([[1.0], [1.0], [9.0]], dtype=torch.float64)
    values = torch.tensor([[10.0], [30.0], [7.0]], dtype=torch.float64)
    assert lookup(keys[:1], keys, values, temperature=1e-6).item() == pytest.approx(20.0)
    assert lookup(keys[:1], keys, values).item() == 40.0


def test_bad_temperatures_are_refused():
    with pytest.raises(OptionError, match="temperature must be a number above 0"):
        lookup(torch.randn(1, 2), torch.randn(3, 2), torch.randn(3, 1), temperature=0)
