import pytest

from regard.errors import OptionError
from regard.registry import Registry


@pytest.fixture
def registry() -> Registry[type]:
    result = Registry[type]("schedule")
    result.add("constant")(int)
    return result


def test_a_registered_part_is_found_by_its_name(registry: Registry[type]) -> None:
    assert registry["constant"] is int
    assert list(registry) == ["constant"] and "cosine" not in registry


def test_an_unknown_name_suggests_the_nearest(registry: Registry[type]) -> None:
    with pytest.raises(
        OptionError, match=r"^schedule must be one of constant, got 'constnt'; did you mean 'constant'\?$"
    ):
        registry["constnt"]
    assert registry.get("constnt") is None


def test_a_name_is_given_once(registry: Registry[type]) -> None:
    with pytest.raises(OptionError, match="already"):
        registry.add("constant")(float)
    registry.remove("constant")
    registry.add("constant")(float)
    assert registry["constant"] is float


def test_removing_an_unknown_name_is_an_error(registry: Registry[type]) -> None:
    with pytest.raises(OptionError, match="must be one of"):
        registry.remove("cosine")


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_non_empty_string(registry: Registry[type], name: str) -> None:
    with pytest.raises(OptionError, match="non-empty string"):
        registry.add(name)
