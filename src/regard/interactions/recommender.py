"""A fitted recommender: biases and K latent factors per user and item."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import FolderError
from regard.files.atomic import write_file
from regard.interactions.repeated_rows import Array
from regard.version import __version__

FORMAT = 1
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
        """Write model.safetensors, names.json, card.json and, last, config.json, which marks the folder
        complete.
        """
        from safetensors.numpy import save

        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise FolderError(f"{folder} is a file; give the name of a folder")
        counts = [len(self.rated.get(u, [])) for u in range(len(self.users))]
        rated = np.array([i for u in range(len(self.users)) for i in self.rated.get(u, [])], np.int64)
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAYS}
        arrays |= {"rated": rated, "rated_counts": np.array(counts, np.int64)}
        write_file(folder / "model.safetensors", save(arrays))
        write_file(
            folder / "names.json", _json({"users": self.users, "items": self.items, "titles": self.titles})
        )
        write_file(folder / "card.json", _json(self.card))
        config = {"format": FORMAT, "regard": __version__, "kind": "recommender"}
        config |= {
            "intercept": self.intercept,
            "low": self.low,
            "high": self.high,
            "factors": self.user_vectors.shape[1],
        }
        write_file(folder / "config.json", _json(config))

    @classmethod
    def load(cls, folder: str | Path) -> Recommender:
        """Load a recommender written by `save`."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        folder = Path(folder)
        config, names, card = (_read(folder, name) for name in ("config.json", "names.json", "card.json"))
        if config.get("kind") != "recommender":
            raise FolderError(
                f"{folder} holds a {config.get('kind', 'model of no kind')}, not a recommender; "
                "give what `regard recommend FILE -o FOLDER` wrote"
            )
        if config.get("format") != FORMAT:
            raise FolderError(
                f"{folder} has format {config.get('format')} and this regard reads format {FORMAT}; fit it "
                f"again"
            )
        try:
            arrays = load_file(folder / "model.safetensors")
            cuts = np.cumsum(arrays["rated_counts"])[:-1]
            rated = {u: part.tolist() for u, part in enumerate(np.split(arrays["rated"], cuts))}
            weights = {name: arrays[name] for name in ARRAYS}
            recommender = cls(
                **names,
                **weights,
                **{k: config[k] for k in ("intercept", "low", "high")},
                rated=rated,
                card=card,
            )
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            raise FolderError(
                f"{folder / 'model.safetensors'} cannot be read ({error}); it is damaged, so copy it again"
            ) from None
        arrays_per_user = (recommender.user_bias, recommender.user_vectors)
        arrays_per_item = (recommender.item_bias, recommender.item_vectors)
        if any(len(array) != len(recommender.users) for array in arrays_per_user) or any(
            len(array) != len(recommender.items) for array in arrays_per_item
        ):
            raise FolderError(
                f"names and arrays in {folder} differ in size; "
                "its files belong to different models, so copy it again"
            )
        return recommender


def _json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _read(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).is_file():
        raise FolderError(
            f"{folder} has no {name}, so it is no recommender; give what `regard recommend FILE -o FOLDER` wrote"
        )
    try:
        value = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(
            f"{folder / name} cannot be read ({error}); it is damaged, so copy it again"
        ) from None
    if not isinstance(value, dict):
        raise FolderError(f"{folder / name} is not a JSON object; it is damaged, so copy it again")
    return value
