"""`lookup`: attention as a dictionary over vectors, hard or soft."""

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
    """Dictionary lookup, z = Σⱼ 1[q = kⱼ] vⱼ. query (..., Tq, D) → (..., Tq, Dv).

    >>> keys, values = torch.eye(3), torch.tensor([[10.0], [20.0], [30.0]])
    >>> regard.lookup(keys[1:2], keys, values)
    tensor([[20.]])
    >>> regard.lookup(keys[1:2], keys, values, temperature=1000.0)  # almost the mean
    tensor([[20.]])

    A missing key gives zeros; values of equal keys are summed. With a temperature τ the lookup is soft, z =
    Σⱼ softmaxⱼ(similarity(q, kⱼ)/τ) vⱼ: the mean of all values as τ → ∞, the dictionary as τ → 0 if exactly
    one key equals the query. The default similarity is −‖q − k‖². A dot product prefers long keys, so its
    limit is the dictionary only for unit vectors.
    """
    if temperature is None and similarity is None:
        return attend(query, key, value, energy=Match(), normalize=Raw())
    return attend(
        query, key, value,
        energy=Distance() if similarity is None else similarity,
        normalize=Softmax(1.0 if temperature is None else temperature),
    )  # fmt: skip
