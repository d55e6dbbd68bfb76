"""Near-duplicate pairs, exact and by HNSW, and the groups they form."""

import numpy as np
import pytest

from regard.errors import OptionError
from regard.search.duplicates import Pair, find_pairs, group_pairs

pytest.importorskip("usearch")


def vectors():
    """500 random vectors, and noisy copies of the first five."""
    draw = np.random.default_rng(1)
    x = draw.standard_normal((500, 32)).astype(np.float32)
    x = np.concatenate([x, x[:5] + 0.02 * draw.standard_normal((5, 32)).astype(np.float32)])
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("exact", [True, False])
def test_only_near_copies_are_found(exact):
    x = vectors()
    pairs = find_pairs(x, 0.95, exact=exact, threads=1)
    assert {(pair.first, pair.second) for pair in pairs} == {(i, 500 + i) for i in range(5)}
    assert all(
        pair.cosine == pytest.approx(float(x[pair.first] @ x[pair.second]), abs=1e-6) for pair in pairs
    )
    assert pairs == sorted(pairs, key=lambda pair: -pair.cosine)


def test_pairs_across_blocks_are_found_exactly_once(monkeypatch):
    from regard.search import duplicates

    monkeypatch.setattr(duplicates, "BLOCK", 7)
    x = vectors()[:60]
    cosines = np.triu(x @ x.T, 1)
    expected = {(int(i), int(j)) for i, j in zip(*np.nonzero(cosines >= 0.3), strict=True)}
    pairs = [(pair.first, pair.second) for pair in find_pairs(x, 0.3)]
    assert len(pairs) == len(set(pairs)) and set(pairs) == expected and expected


def test_groups_are_connected_components():
    assert group_pairs([Pair(4, 9, 1.0), Pair(1, 2, 1.0), Pair(2, 7, 1.0), Pair(0, 7, 1.0)]) == [
        [0, 1, 2, 7],
        [4, 9],
    ]
    assert group_pairs([]) == []


def test_a_threshold_outside_the_cosine_range_is_an_error():
    with pytest.raises(OptionError, match="between -1 and 1, got 95"):
        find_pairs(vectors(), 95)
