"""Fit each kind of interaction model to ratings; every function returns a `Recommender`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from regard.interactions.als import BilinearAls, run_als
from regard.interactions.factorization import FactorizationMachine
from regard.interactions.linear_models import Polynomial2
from regard.interactions.loss import Squared
from regard.interactions.ratings import Ratings
from regard.interactions.recommender import Recommender
from regard.interactions.regularization import LearnedPenalty, WeightGroup
from regard.interactions.repeated_rows import Array, RepeatedRows, hstack

PENALTY = 5.0  # ridge penalty of the polynomial model: many weights, few ratings each


@dataclass(frozen=True)
class RecommenderSettings:
    """Options of all kinds of recommenders."""

    factors: int = 8
    max_iter: int = 20
    seed: int = 0
    features: tuple[str, ...] = ("tags", "raters")  # of `machine`, besides user and item; keys of FEATURES


def one_hot(count: int) -> Any:
    return sparse.identity(count, format="csr")


def tags(ratings: Ratings) -> list[Any]:
    """One column per tag (genre), rows normalised to length 1; no matrix without tags."""
    names = {tag: k for k, tag in enumerate(sorted({tag for item_tags in ratings.tags for tag in item_tags}))}
    if not names:
        return []
    entries = [
        (i, names[tag]) for i, item_tags in enumerate(ratings.tags) for tag in dict.fromkeys(item_tags)
    ]
    row, column = np.array(entries).T
    return [
        normalize_rows(
            sparse.csr_matrix((np.ones(len(row)), (row, column)), shape=(len(ratings.items), len(names)))
        )
    ]


def history(ratings: Ratings) -> Any:
    """Binary (users, items) matrix of rated items: the implicit feedback of SVD++."""
    shape = (len(ratings.users), len(ratings.items))
    return sparse.csr_matrix((np.ones(len(ratings)), (ratings.user, ratings.item)), shape=shape)


def normalize_rows(table: Any) -> Any:
    """Normalise rows to length 1; empty rows stay empty."""
    length = np.sqrt(np.asarray(table.multiply(table).sum(1)).ravel())
    return (sparse.diags(1 / np.where(length > 0, length, 1.0)) @ table).tocsr()


def mean(ratings: Ratings, settings: RecommenderSettings) -> Recommender:
    """Predict the mean rating for every pair."""
    u, i = len(ratings.users), len(ratings.items)
    return _build_recommender(
        ratings, float(ratings.rating.mean()), np.zeros(u), np.zeros(i), np.zeros((u, 0)), np.zeros((i, 0))
    )


def biases(ratings: Ratings, settings: RecommenderSettings) -> Recommender:
    """The linear model: user and item biases."""
    return _fit_bilinear(ratings, [one_hot(len(ratings.users))], [one_hot(len(ratings.items))], 0, settings)


def factorization(ratings: Ratings, settings: RecommenderSettings) -> Recommender:
    """Matrix factorisation: (W x₁)ᵀ(V x₂), both one-hot."""
    return _fit_bilinear(
        ratings, [one_hot(len(ratings.users))], [one_hot(len(ratings.items))], settings.factors, settings
    )


def machine(ratings: Ratings, settings: RecommenderSettings) -> Recommender:
    """Factorisation machine with [W 0], [0 V] and features: history of a user, tags and raters of an item."""
    sides: dict[str, list[Any]] = {
        "user": [one_hot(len(ratings.users))],
        "item": [one_hot(len(ratings.items))],
    }
    for name in settings.features:
        side, make = FEATURES[name]
        sides[side] += make(ratings)
    return _fit_bilinear(ratings, sides["user"], sides["item"], settings.factors, settings)


def polynomial(ratings: Ratings, settings: RecommenderSettings) -> Recommender:
    """Polynomial model on user, item and tags: a weight for each (user, tag) pair.

    The weight of a (user, item) pair is 0 unless the user rated the item, so it cannot recommend and is left
    out.
    """
    u, i = len(ratings.users), len(ratings.items)
    table = hstack(sparse.csr_matrix((i, 0)), *tags(ratings))
    x = hstack(one_hot(u)[ratings.user], one_hot(i)[ratings.item], table[ratings.item])
    fitted = Polynomial2(penalty=PENALTY).fit(x, ratings.rating)
    w, pairs = fitted.coef_ + fitted.W_.diagonal(), fitted.W_
    own = hstack(one_hot(i), table)
    among = np.asarray(own.multiply(own @ sparse.triu(pairs[u:, u:], 1)).sum(1)).ravel()
    squares = own.multiply(own).tocsr() @ pairs.diagonal()[u:]
    item_bias = own @ fitted.coef_[u:] + squares + among
    return _build_recommender(
        ratings, fitted.intercept_, w[:u], item_bias, pairs[:u, u + i :].toarray(), table.toarray()
    )


def rendle(ratings: Ratings, settings: RecommenderSettings) -> Recommender:
    """Rendle's factorisation machine on user, item and tags."""
    u, i = len(ratings.users), len(ratings.items)
    items = hstack(one_hot(i), *tags(ratings))
    groups = np.concatenate([np.zeros(u), np.full(i, 1), np.full(items.shape[1] - i, 2)])
    x = hstack(one_hot(u)[ratings.user], items[ratings.item])
    fitted = FactorizationMachine(
        settings.factors, form="rendle", groups=groups, max_iter=settings.max_iter, random_state=settings.seed
    ).fit(x, ratings.rating)
    w, v = fitted.coef_, fitted.V_.T
    # interactions among the features of one item
    among = 0.5 * (((items @ v[u:]) ** 2).sum(1) - items.multiply(items).tocsr() @ (v[u:] ** 2).sum(1))
    return _build_recommender(ratings, fitted.intercept_, w[:u], items @ w[u:] + among, v[:u], items @ v[u:])


# Feature name → side (user or item) and a function from ratings to feature matrices.
FEATURES: dict[str, tuple[str, Callable[[Ratings], list[Any]]]] = {
    "tags": ("item", tags),
    "raters": ("item", lambda ratings: [normalize_rows(history(ratings).T.tocsr())]),
    "history": ("user", lambda ratings: [normalize_rows(history(ratings))]),
}
RECOMMENDERS: dict[str, Callable[[Ratings, RecommenderSettings], Recommender]] = {
    "mean": mean,
    "biases": biases,
    "polynomial": polynomial,
    "factorization": factorization,
    "rendle": rendle,
    "machine": machine,
}


def _fit_bilinear(
    ratings: Ratings, left: list[Any], right: list[Any], factors: int, settings: RecommenderSettings
) -> Recommender:
    rng, prior = np.random.default_rng(settings.seed), LearnedPenalty()
    linear, products = [], []
    for tables, index in ((left, ratings.user), (right, ratings.item)):
        rows = RepeatedRows(hstack(*tables), index)
        blocks = np.repeat(np.arange(len(tables)), [table.shape[1] for table in tables])
        linear.append(WeightGroup(rows, 1, blocks, prior, np.zeros((1, rows.width))))
        products.append(
            WeightGroup(rows, factors, blocks, prior, rng.normal(0.0, 0.1, (factors, rows.width)))
        )
    model = BilinearAls(len(ratings), linear, products, intercept=True)
    run_als(model, ratings.rating, Squared(), settings.max_iter, 1e-3)
    return _build_recommender(
        ratings,
        model.intercept,
        *(group.value[0] for group in linear),
        *(group.value.T for group in products),
    )


def _build_recommender(
    ratings: Ratings, b: float, user_bias: Array, item_bias: Array, user_vectors: Array, item_vectors: Array
) -> Recommender:
    seen = history(ratings)
    rated = {u: seen.indices[seen.indptr[u] : seen.indptr[u + 1]].tolist() for u in range(len(ratings.users))}
    low, high = float(ratings.rating.min()), float(ratings.rating.max())
    vectors = np.ascontiguousarray(user_vectors), np.ascontiguousarray(item_vectors)
    return Recommender(
        ratings.users, ratings.items, ratings.titles, b, user_bias, item_bias, *vectors, low, high, rated
    )
