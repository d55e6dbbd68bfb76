"""`lookup`, `lookup_path`: hard and soft dictionary lookup, the limits of the temperature, nested records."""

import pytest
import torch

from regard import lookup
from regard.attention import Dot, lookup_path
from regard.errors import OptionError, ShapeError

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


# The JSON file of *Neural Computation*: records inside a record.
PERSON = {
    "first_name": "John",
    "age": 27,
    "address": {"street_address": "21 2nd Street", "city": "New York", "postal_code": "10021-3100"},
    "phone_numbers": [{"type": "home", "number": "212 555-1234"}, {"type": "fax", "number": "646 555-4567"}],
}


def letters(key):
    """A vector for any key: its characters."""
    return torch.tensor([float(ord(c)) for c in str(key).ljust(16)], dtype=torch.float64)


def at(path):
    """The value at a path by Python's own brackets."""
    value = PERSON
    for key in path:
        value = value[key]
    return value


@pytest.mark.parametrize(
    "path", [["age"], ["address"], ["address", "city"], ["phone_numbers", 1, "number"], ["phone_numbers", 0]]
)
def test_a_hard_path_finds_what_pythons_brackets_find(path):
    weights = lookup_path(path, PERSON, letters)
    (only,) = [place for place, weight in weights.items() if weight > 0]
    assert weights[only] == 1 and at(only) == at(path)


@pytest.mark.parametrize(
    "path", [["shoe size"], ["address", "shoe size"], ["age", "city"], ["first_name", 0]]
)
def test_a_path_that_does_not_exist_gives_zeros(path):
    assert sum(lookup_path(path, PERSON, letters).values()) == 0


def test_weights_of_a_soft_path_are_products_and_sum_to_one():
    path = ["adress", "citty"]  # two typing errors
    weights = lookup_path(path, PERSON, letters, temperature=3000.0)
    assert max(weights, key=lambda place: weights[place]) == ("address", "city")
    assert sum(weights.values()).item() == pytest.approx(1.0)
    softmax = lambda query, keys: torch.softmax(  # noqa: E731
        torch.stack([-(letters(query) - letters(key)).square().sum() for key in keys]) / 3000.0, 0
    )
    outer, inner = softmax("adress", PERSON), softmax("citty", PERSON["address"])
    assert weights["address", "city"].item() == pytest.approx((outer[2] * inner[1]).item())
    assert weights["age",].item() == pytest.approx(outer[1].item())  # a leaf: the path ends there


def test_the_limit_of_low_temperature_is_the_hard_path():
    path = ["phone_numbers", 1, "number"]
    soft, hard = (lookup_path(path, PERSON, letters, temperature=t) for t in (1e-3, None))
    assert soft.keys() == hard.keys()
    assert all(torch.allclose(soft[place], hard[place]) for place in hard)


def test_gradients_reach_the_query_through_all_levels():
    query = letters("citty").requires_grad_()
    weights = lookup_path(
        ["address", "x"], PERSON, lambda key: query if key == "x" else letters(key), temperature=3000.0
    )
    weights["address", "city"].backward()
    assert query.grad.abs().sum() > 0


def test_bad_paths_and_records_are_errors_of_one_sentence():
    with pytest.raises(OptionError, match="path must be a list of keys, one for each level, got 'age'"):
        lookup_path("age", PERSON, letters)
    with pytest.raises(OptionError, match="record must be a mapping or a list, got 3"):
        lookup_path(["age"], 3, letters)
    with pytest.raises(ShapeError, match="embed must return a vector"):
        lookup_path(["age"], PERSON, lambda key: torch.zeros(1, 2))
    assert lookup_path(["age"], {}, letters) == {}
