"""`lookup`, `lookup_path`: attention as a dictionary over vectors, hard or soft, also of nested records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.arguments import quoted
from regard.attention.attend import attend
from regard.attention.call import EnergyLike
from regard.attention.energy import Distance, Match
from regard.attention.normalize import Raw, Softmax
from regard.errors import OptionError, ShapeError

KeyPath = tuple[Any, ...]


def lookup(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    temperature: float | None = None,
    similarity: EnergyLike | None = None,
) -> Tensor:
    """Dictionary lookup, z = Σⱼ 1[q = kⱼ] vⱼ. query (..., Tq, D) → (..., Tq, Dv).

    >>> keys, values = torch.eye(3), torch.tensor([[10.0], [20.0], [30.0]])
    >>> regard.lookup(keys[:1], keys, values)
    tensor([[10.]])
    >>> regard.lookup(keys[:1], keys, values, temperature=1000.0)  # almost the mean, 20
    tensor([[19.9933]])

    A missing key gives zeros; values of equal keys are summed. With a temperature τ the lookup is soft, z =
    Σⱼ softmaxⱼ(similarity(q, kⱼ)/τ) vⱼ: the mean of all values as τ → ∞, the hard lookup as τ → 0 if exactly
    one key equals the query. The default similarity is −‖q − k‖². A dot product prefers long keys, so its
    limit is the hard lookup only for unit vectors.
    """
    if temperature is None and similarity is None:
        return attend(query, key, value, energy=Match(), normalize=Raw())
    return attend(
        query, key, value,
        energy=Distance() if similarity is None else similarity,
        normalize=Softmax(1.0 if temperature is None else temperature),
    )  # fmt: skip


def lookup_path(
    path: Sequence[Any],
    record: Mapping[Any, Any] | Sequence[Any],
    embed: Callable[[Any], Tensor],
    *,
    temperature: float | None = None,
    similarity: EnergyLike | None = None,
) -> dict[KeyPath, Tensor]:
    """Look up a path in nested records, one `lookup` per level; return the weight of each entry.

    >>> person = {"age": 27, "address": {"city": "New York", "state": "NY"}}
    >>> letters = lambda text: torch.tensor([float(text.count(c)) for c in "abcdefghijklmnopqrstuvwxyz"])
    >>> weights = regard.attention.lookup_path(["address", "city"], person, letters)
    >>> {path: weight.item() for path, weight in weights.items()}
    {('age',): 0.0, ('address', 'city'): 1.0, ('address', 'state'): 0.0}

    The weight of an entry is the product of the weights along its path. The hard lookup (no temperature) is
    `record["address"]["city"]`; a path that does not exist gives zeros. In a soft lookup the weights sum to
    1, and the limit τ → 0 is the hard one for a path that exists.

    Args:
        path: one query for each level; `embed` turns it into a vector.
        record: mappings inside mappings; the keys of a list are its indices.
        embed: a key or query → vector (D,), of one size for all.
        temperature: as in `lookup`.
        similarity: as in `lookup`.

    Returns:
        The weights (scalar tensors) by path: entries at the depth of `path`, and values at a smaller depth.
    """
    if isinstance(path, str) or not isinstance(path, Sequence) or not path:
        raise OptionError(f"path must be a list of keys, one for each level, got {quoted(path)}")
    level = _level(record)
    if level is None:
        raise OptionError(f"record must be a mapping or a list, got {quoted(record)}")
    if not level:
        return {}
    query, keys = _vector(embed, path[0])[None], torch.stack([_vector(embed, key) for key in level])
    if keys.shape[-1] != query.shape[-1]:
        raise ShapeError(
            f"embed must return vectors of one size, got {query.shape[-1]} for the query {path[0]!r} and "
            f"{keys.shape[-1]} for the keys"
        )
    values = torch.eye(len(level), dtype=keys.dtype, device=keys.device)
    weights = lookup(query, keys, values, temperature=temperature, similarity=similarity)[0]  # (entries,)
    by_path: dict[KeyPath, Tensor] = {}
    for (key, value), weight in zip(level.items(), weights, strict=True):
        if len(path) == 1:
            by_path[key,] = weight
        elif _level(value) is None:  # the path is longer than the record is deep
            is_hard = temperature is None and similarity is None
            by_path[key,] = torch.zeros_like(weight) if is_hard else weight
        else:
            inner = lookup_path(path[1:], value, embed, temperature=temperature, similarity=similarity)
            by_path |= {(key, *rest): weight * share for rest, share in inner.items()}
    return by_path


def _level(record: Any) -> dict[Any, Any] | None:
    """The entries of a record by key, of a list by index; None for a value."""
    if isinstance(record, Mapping):
        return dict(record)
    if isinstance(record, Sequence) and not isinstance(record, (str, bytes)):
        return dict(enumerate(record))
    return None


def _vector(embed: Callable[[Any], Tensor], key: Any) -> Tensor:
    vector = embed(key)
    if not isinstance(vector, Tensor) or vector.ndim != 1:
        got = f"shape {tuple(vector.shape)}" if isinstance(vector, Tensor) else quoted(vector)
        raise ShapeError(f"embed must return a vector (D,) for the key {key!r}, got {got}")
    return vector
