"""Tests of recommender.py on generated ratings, and of `regard recommend`.

Covers cross_validation.py, fit_recommender.py and cli/recommend.py.
"""

import json
import os
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy import sparse

import regard
from regard.data.corpora import data_folder
from regard.errors import FolderError, OptionError
from regard.interactions import FactorizationMachine, Polynomial2, Recommender
from regard.interactions.cross_validation import evaluate_split, splits
from regard.interactions.fit_recommender import (
    FEATURES,
    PENALTY,
    RECOMMENDERS,
    RecommenderSettings,
    one_hot,
    tags,
)
from regard.interactions.ratings import Ratings, add_item_info, movielens_files, read_ratings

GENRES = ["war", "love", "crime"]


@pytest.fixture(scope="module")
def ratings():
    """60 users with genre preferences, 40 films of one or two genres, 1500 ratings from 1 to 5."""
    rng = np.random.default_rng(0)
    tagged = [list(rng.choice(GENRES, rng.integers(1, 3), replace=False)) for _ in range(40)]
    likes, quality = rng.normal(size=(60, 3)), rng.normal(size=40)
    user, item = np.divmod(rng.permutation(60 * 40)[:1500], 40)
    taste = np.array(
        [np.mean([likes[u, GENRES.index(t)] for t in tagged[i]]) for u, i in zip(user, item, strict=True)]
    )
    rating = np.clip(np.round(2 * (3 + 0.3 * quality[item] + taste + 0.2 * rng.normal(size=1500))) / 2, 1, 5)
    return Ratings(
        [f"u{n}" for n in range(60)],
        [f"i{n}" for n in range(40)],
        user,
        item,
        rating,
        [f"Film {n}" for n in range(40)],
        tagged,
    )


def test_richer_models_have_a_lower_error(ratings):
    ((train, test),) = splits(len(ratings), None, 0.2, 0)
    result = {
        kind: evaluate_split(ratings, kind, RecommenderSettings(factors=3), train, test).rmse
        for kind in RECOMMENDERS
    }
    assert result["machine"] < result["factorization"] < result["biases"] < result["mean"]
    assert result["rendle"] < result["biases"] and result["polynomial"] < result["biases"]


def features(ratings):
    x = sparse.hstack([one_hot(40), *tags(ratings)], "csr")
    return sparse.hstack([one_hot(60)[ratings.user], x[ratings.item]], "csr")


def test_a_recommender_predicts_like_its_estimator(ratings):
    """A recommender stores one vector and one bias per user and item, which sum up all their features."""
    rows = np.arange(1200)
    train, test = ratings.subset(rows), ratings.subset(np.arange(1200, 1500))
    groups = np.repeat([0, 1, 2], [60, 40, 3])
    estimators = {
        "rendle": FactorizationMachine(2, form="rendle", groups=groups, max_iter=20, random_state=3),
        "polynomial": Polynomial2(penalty=PENALTY),
    }
    for kind, estimator in estimators.items():
        expected = estimator.fit(features(train), train.rating).predict(features(test))
        predicted = RECOMMENDERS[kind](train, RecommenderSettings(factors=2, seed=3)).predict(
            test.user, test.item
        )
        np.testing.assert_allclose(predicted, np.clip(expected, 1, 5), atol=1e-8)


@pytest.mark.parametrize("kind", RECOMMENDERS)
def test_saving_and_loading_keeps_predictions(kind, ratings, tmp_path):
    fitted = RECOMMENDERS[kind](ratings, RecommenderSettings(factors=2, max_iter=3))
    fitted.card = {"kind": kind}
    fitted.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    assert loaded.top("u5", 7) == fitted.top("u5", 7) and loaded.card == fitted.card
    np.testing.assert_array_equal(
        loaded.predict(ratings.user, ratings.item), fitted.predict(ratings.user, ratings.item)
    )


def test_top_returns_unrated_items_by_predicted_rating(ratings):
    fitted = RECOMMENDERS["machine"](ratings, RecommenderSettings(factors=2))
    top = fitted.top("u5", 100)
    rated = {ratings.items[i] for i in ratings.item[ratings.user == 5]}
    assert {item for item, _, _ in top} == set(ratings.items) - rated
    assert [score for _, _, score in top] == sorted((score for _, _, score in top), reverse=True)
    indices = np.array([ratings.items.index(item) for item, _, _ in top])
    np.testing.assert_allclose([score for _, _, score in top], fitted.predict(np.full(len(top), 5), indices))
    for_unknown_user = fitted.top("nobody", 3)
    assert [item for item, _, _ in for_unknown_user] == [
        fitted.items[i] for i in np.argsort(-fitted.item_bias, kind="stable")[:3]
    ]


def test_damaged_and_foreign_folders_are_errors(ratings, tmp_path):
    with pytest.raises(FolderError, match="has no config.json"):
        Recommender.load(tmp_path)
    RECOMMENDERS["mean"](ratings, RecommenderSettings()).save(tmp_path)
    (tmp_path / "config.json").write_text('{"kind": "translator"}')
    with pytest.raises(FolderError, match="holds a translator, not a recommender"):
        Recommender.load(tmp_path)
    RECOMMENDERS["mean"](ratings, RecommenderSettings()).save(tmp_path)
    with pytest.raises(FolderError, match="is a recommender: use it with `regard recommend --model"):
        regard.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(FolderError, match="model.safetensors is damaged"):
        Recommender.load(tmp_path)


def json_value(name, key, value):
    """Return a function that changes a value in a JSON file of a folder."""

    def edit(path):
        record = json.loads((path / name).read_text(encoding="utf-8"))
        (path / name).write_text(json.dumps(record | {key: value}), encoding="utf-8")

    return edit


def array(name, change):
    """Return a function that changes an array of the weights in a folder."""

    def edit(path):
        states = load_file(path / "model.safetensors")
        save_file(states | {name: change(states[name])}, path / "model.safetensors")

    return edit


DAMAGES = {
    "a string instead of a number": json_value("config.json", "intercept", "3"),
    "NaN instead of a number": json_value("config.json", "high", float("nan")),
    "another number of factors": json_value("config.json", "factors", 7),
    "a list as the format": json_value("config.json", "format", [1]),
    "an object as the kind": json_value("config.json", "kind", {}),
    "a string instead of a list of users": json_value("names.json", "users", "u1"),
    "numbers as users": json_value("names.json", "users", list(range(60))),
    "fewer titles": json_value("names.json", "titles", ["one"]),
    "an unknown key": json_value("names.json", "films", []),
    "a card that is a list": lambda path: (path / "card.json").write_text("[]"),
    "deeply nested names": lambda path: (path / "names.json").write_text("[" * 100_000 + "]" * 100_000),
    "NaN weights": array("item_bias", lambda x: x * np.nan),
    "integer weights": array("user_bias", lambda x: x.astype(np.int64)),
    "vectors of another shape": array("user_vectors", lambda x: x[:, :1]),
    "rated items that do not exist": array("rated", lambda x: x + 1000),
    "counts that are too large": array("rated_counts", lambda x: x + 1),
    "truncated weights": lambda path: os.truncate(path / "model.safetensors", 100),
    "empty weights": lambda path: os.truncate(path / "model.safetensors", 0),
    "no weights": lambda path: (path / "model.safetensors").unlink(),
}


@pytest.mark.parametrize("checksums", [True, False], ids=["with checksums", "without checksums"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_recommender_is_refused_in_one_sentence(ratings, tmp_path, damage, checksums):
    RECOMMENDERS["factorization"](ratings, RecommenderSettings(factors=3, max_iter=1)).save(tmp_path)
    DAMAGES[damage](tmp_path)
    if not checksums:
        (tmp_path / "checksums.json").unlink()
    with pytest.raises(FolderError) as error:
        Recommender.load(tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize("name", ["model.safetensors", "names.json", "card.json", "config.json"])
def test_a_flipped_byte_of_a_recommender_is_detected(ratings, tmp_path, name):
    RECOMMENDERS["mean"](ratings, RecommenderSettings()).save(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        FolderError, match=f"{name} (is damaged: its SHA-256|cannot be read)|not a recommender|reads format"
    ):
        Recommender.load(tmp_path)


def test_folds_cover_every_rating_once():
    folds = splits(103, 5, seed=1)
    assert sorted(np.concatenate([test for _, test in folds])) == list(range(103))
    assert all(sorted(np.append(train, test)) == list(range(103)) for train, test in folds)
    with pytest.raises(OptionError, match="3 ratings cannot be split into 5 folds"):
        splits(3, 5)


@pytest.mark.skipif(
    not (data_folder() / "movielens-latest-small").is_dir(),
    reason="REGARD_DATA has no movielens-latest-small",
)
def test_movielens_is_predicted_as_well_as_the_docs_say():
    """Five folds of surprise's SVD give 0.876 ± 0.006 when tuned."""
    files = movielens_files("movielens-latest-small")
    movielens = add_item_info(read_ratings(files[:1]), files[1])
    assert (len(movielens), len(movielens.users), len(movielens.items)) == (100_004, 671, 9066)
    ((train, test),) = splits(len(movielens), None, 0.2, 0)
    assert evaluate_split(movielens, "factorization", RecommenderSettings(), train, test).rmse < 0.88
    assert evaluate_split(movielens, "machine", RecommenderSettings(), train, test).rmse < 0.85


@pytest.fixture
def run(run_regard):
    return partial(run_regard, "recommend")


@pytest.fixture
def files(ratings, tmp_path):
    rows = zip(ratings.user, ratings.item, ratings.rating, strict=True)
    text = "user,item,rating\n" + "".join(f"u{u},i{i},{r}\n" for u, i, r in rows)
    (tmp_path / "ratings.csv").write_text(text, encoding="utf-8")
    films = "id,title,genres\n" + "".join(
        f"i{n},Film {n},{'|'.join(tag)}\n" for n, tag in enumerate(ratings.tags)
    )
    (tmp_path / "films.csv").write_text(films, encoding="utf-8")
    return tmp_path


def test_the_command_fits_saves_and_recommends(run, files):
    code, out, err = run(
        files / "ratings.csv", "--items", files / "films.csv", "--factors", 3, "-o", files / "model",
        "--user", "u5", "-n", 2,
    )  # fmt: skip
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "1,500 ratings of 40 items by 60 users"
    baseline, ours = (
        float(next(line for line in lines if line.startswith(kind)).split()[1])
        for kind in ("biases", "machine")
    )
    assert ours < baseline
    code, top, _ = run("--model", files / "model", "--user", "u5", "-n", 2)
    assert code == 0 and top.split() == out[out.index("user u5") :].split() and "Film" in top
    card = json.loads((files / "model" / "card.json").read_text(encoding="utf-8"))
    assert card["held out"]["machine"][0]["rmse"] == pytest.approx(ours, abs=1e-4)
    assert len(card["data"]["ratings.csv"]) == 64  # the SHA-256 of the file


def test_compare_with_folds_prints_json(run, files):
    code, out, err = run(
        files / "ratings.csv", "--compare", "--folds", 2, "--json", "--sweeps", 3,
        "--features", ",".join(FEATURES),
    )  # fmt: skip
    assert code == 0, err
    record = json.loads(out)["held_out"]
    assert set(record) == set(RECOMMENDERS) and all(len(scores) == 2 for scores in record.values())


def test_an_unknown_user_gets_popular_items_and_a_warning(run, files):
    run(files / "ratings.csv", "-o", files / "model", "--test", 0)
    code, out, err = run("--model", files / "model", "--user", "nobody", "-n", 1)
    assert code == 0 and "user nobody has rated nothing" in err and len(out.strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give either FILES with ratings to fit, or --model FOLDER"),
        (["ratings.csv", "--kind", "svd"], "--kind must be one of mean, biases"),
        (
            ["ratings.csv", "--features", "weather"],
            "--features must be from tags, raters, history, got 'weather'",
        ),
        (["missing.csv"], "there is no file"),
        (["words.csv"], "line 2 of .*words.csv, column 3: the rating 'many' is not a number"),
        (["--model", "model"], "add --user ID"),
        (["--model", "model", "--user", "u5"], "has no config.json, so it is not a recommender"),
        (["ratings.csv", "-o", "ratings.csv"], "already exists; give another folder, or --overwrite"),
        (["ratings.csv", "-o", "ratings.csv/new"], "cannot be created"),
    ],
)
def test_invalid_input_is_one_line_and_exit_code_2(run, files, monkeypatch, args, message):
    import re

    monkeypatch.chdir(files)
    (files / "words.csv").write_text("user,item,rating\na,b,many\n", encoding="utf-8")
    code, out, err = run(*args)
    assert code == 2 and re.search(message, err) and err.count("\n") == 1 and not out
