"""A dictionary over vectors, hard and soft: where attention comes from."""

from __future__ import annotations

from torch import Tensor

from regard.attention.attend import attend
from regard.attention.call import EnergyLike
from regard.attention.energy import Distance, Match
from regard.attention.normalize import Raw, Softmax


def lookup(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    temperature: float | None = None,
    similarity: EnergyLike | None = None,
) -> Tensor:
    """z = Σⱼ 1[q = kⱼ] vⱼ, a dictionary: a missing key gives zeros, equal keys add up. query (..., Tq, D) → (..., Tq, Dv).

    With a temperature τ the lookup is soft, z = Σⱼ softmaxⱼ(similarity(q, kⱼ)/τ) vⱼ: the mean of all values as τ → ∞, the
    dictionary as τ → 0 where exactly one key equals the query. The similarity is −‖q − k‖² unless given; a dot product lets
    long keys win, so with it the dictionary is reached only for vectors of unit length.
    """
    if temperature is None and similarity is None:
        return attend(query, key, value, energy=Match(), normalize=Raw())
    return attend(
        query, key, value,
        energy=Distance() if similarity is None else similarity,
        normalize=Softmax(1.0 if temperature is None else temperature),
    )  # fmt: skip
