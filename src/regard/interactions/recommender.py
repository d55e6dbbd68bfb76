"""A fitted recommender: biases and K latent factors per user and item."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import FolderError
from regard.files.atomic import write_file
from regard.files.checksums import CHECKSUMS, verify_listed
from regard.interactions.repeated_rows import Array
from regard.version import __version__

FORMAT = 1
NUMBERS = ("intercept", "low", "high")
ARRAYS = ("user_bias", "item_bias", "user_vectors", "item_vectors")


@dataclass
class Recommender:
    """y = b + b_u + b_i + ⟨p_u, q_i⟩, clipped to the range of the ratings.

    Every model of this package takes this form once features are summed: a user vector is W x₁, an item
    vector V x₂, and interactions among the features of one item are part of its bias.
    """

    users: list[str]
    items: list[str]
    titles: list[str]
    intercept: float
    user_bias: Array
    item_bias: Array
    user_vectors: Array  # (users, K)
    item_vectors: Array  # (items, K)
    low: float
    high: float
    rated: dict[int, list[int]] = field(default_factory=dict)  # user → rated items, which are not recommended
    card: dict[str, Any] = field(default_factory=dict)

    def predict(self, user: NDArray[np.int64], item: NDArray[np.int64]) -> Array:
        """Ratings of (user, item) index pairs; user −1 is an unknown user."""
        known = user >= 0
        ratings = self.intercept + self.item_bias[item]
        ratings = ratings + np.where(
            known, self.user_bias[user] + (self.user_vectors[user] * self.item_vectors[item]).sum(1), 0.0
        )
        return np.clip(ratings, self.low, self.high)

    def top(self, user: str, n: int = 10) -> list[tuple[str, str, float]]:
        """The n unrated items with the highest predicted rating: (id, title, rating).

        An unknown user gets the items with the highest bias.
        """
        number = self.users.index(user) if user in self.users else -1
        scores = self.item_bias + self.intercept
        if number >= 0:
            scores = scores + self.user_bias[number] + self.item_vectors @ self.user_vectors[number]
        scores[self.rated.get(number, [])] = -np.inf
        best = np.argsort(-scores, kind="stable")[: min(n, int(np.isfinite(scores).sum()))]
        return [
            (
                self.items[i],
                self.titles[i] if self.titles else self.items[i],
                float(np.clip(scores[i], self.low, self.high)),
            )
            for i in best
        ]

    def save(self, folder: str | Path) -> None:
        """Write the model folder. config.json is written last: a folder that has it is complete."""
        from safetensors.numpy import save

        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise FolderError(f"{folder} is a file; give the name of a folder")
        counts = [len(self.rated.get(u, [])) for u in range(len(self.users))]
        rated = np.array([i for u in range(len(self.users)) for i in self.rated.get(u, [])], np.int64)
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAYS}
        arrays |= {"rated": rated, "rated_counts": np.array(counts, np.int64)}
        config = {"format": FORMAT, "regard": __version__, "kind": "recommender"}
        config |= {
            "intercept": self.intercept,
            "low": self.low,
            "high": self.high,
            "factors": self.user_vectors.shape[1],
        }
        files = {
            "model.safetensors": save(arrays),
            "names.json": _json({"users": self.users, "items": self.items, "titles": self.titles}),
            "card.json": _json(self.card),
            "config.json": _json(config),
        }
        sums = {name: sha256(content).hexdigest() for name, content in files.items()}
        (folder / CHECKSUMS).unlink(missing_ok=True)  # those of a recommender that was there before
        (folder / "config.json").unlink(missing_ok=True)
        for name, content in ({CHECKSUMS: _json(sums)} | files).items():
            write_file(folder / name, content)

    @classmethod
    def load(cls, folder: str | Path) -> Recommender:
        """Load what `save` wrote. Files are checked against checksums.json, array sizes against the names."""
        folder = Path(folder)
        config = _read(folder, "config.json")
        if config.get("kind") != "recommender":
            raise FolderError(
                f"{folder} holds a {config.get('kind', 'model of no kind')!s:.40}, not a recommender; "
                "give what `regard recommend FILE -o FOLDER` wrote"
            )
        if config.get("format") != FORMAT:
            raise FolderError(
                f"{folder} has format {config.get('format')!r:.40} and this regard reads format {FORMAT}; "
                "fit it again"
            )
        verify_listed(folder)
        names, card = _read(folder, "names.json"), _read(folder, "card.json")
        arrays = _arrays(folder)
        problem = _problem(config, names, arrays)
        if problem:
            raise FolderError(
                f"{folder}: {problem}; its files were changed or belong to different models, so copy it again"
            )
        rated = np.split(arrays["rated"], np.cumsum(arrays["rated_counts"])[:-1])
        fields: dict[str, Any] = {
            **names,
            **{name: arrays[name] for name in ARRAYS},
            **{name: config[name] for name in NUMBERS},
        }
        return cls(**fields, rated={user: items.tolist() for user, items in enumerate(rated)}, card=card)


def _arrays(folder: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(folder / "model.safetensors")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FolderError(
            f"{folder / 'model.safetensors'} cannot be read ({reason}); it is damaged, so copy it again"
        ) from None


def _problem(config: dict[str, Any], names: dict[str, Any], arrays: dict[str, Any]) -> str | None:
    """What is wrong with the parts of a folder, or None."""
    for name in NUMBERS:
        value = config.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
            return f"{name} in config.json is {value!r:.40}, not a finite number"
    if set(names) != {"users", "items", "titles"}:
        return "names.json does not have users, items and titles"
    if not all(
        isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in names.values()
    ):
        return "names.json does not hold lists of texts"
    users, items, factors = len(names["users"]), len(names["items"]), config.get("factors")
    if names["titles"] and len(names["titles"]) != items:
        return f"names.json has {len(names['titles'])} titles for {items} items"
    shapes = {
        "user_bias": (users,),
        "item_bias": (items,),
        "user_vectors": (users, factors),
        "item_vectors": (items, factors),
    }
    for name, shape in shapes.items():
        array = arrays.get(name)
        if array is None or array.shape != shape or array.dtype.kind != "f":
            sizes = f"{users} users, {items} items and {factors!r:.40} factors"
            return f"{name} in model.safetensors does not fit the {sizes}"
        if not np.isfinite(array).all():
            return f"{name} in model.safetensors holds NaN or infinity"
    return _rated_problem(arrays, users, items)


def _rated_problem(arrays: dict[str, Any], users: int, items: int) -> str | None:
    rated, counts = arrays.get("rated"), arrays.get("rated_counts")
    if rated is None or counts is None or any(x.ndim != 1 or x.dtype != np.int64 for x in (rated, counts)):
        return "model.safetensors has no lists of rated items"
    if (
        len(counts) != users
        or (counts < 0).any()
        or counts.sum() != len(rated)
        or ((rated < 0) | (rated >= items)).any()
    ):
        return f"the rated items in model.safetensors do not fit the {users} users and {items} items"
    return None


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _read(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).is_file():
        raise FolderError(
            f"{folder} has no {name}, so it is not a recommender; "
            "give what `regard recommend FILE -o FOLDER` wrote"
        )
    try:
        value = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(
            f"{folder / name} cannot be read ({error}); it is damaged, so copy it again"
        ) from None
    if not isinstance(value, dict):
        raise FolderError(f"{folder / name} is not a JSON object; it is damaged, so copy it again")
    return value
