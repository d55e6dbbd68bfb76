"""`regard recommend`: fit ratings, say how well they are predicted, and what somebody would like."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.interactions.ratings import Ratings
    from regard.interactions.recommender import Recommender
    from regard.interactions.recommenders import RecommenderSettings

COMPARED = ("mean", "biases", "polynomial", "factorization", "rendle", "machine")


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES",
            help="Ratings: .csv, .tsv or separated by ::, also .gz and .xz; or the corpus movielens-latest-small.",
        ),
    ] = None,
    items: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Table of the items: id, title, genres (a|b|c).")
    ] = None,
    user_column: Annotated[
        str | None, typer.Option(help="Column of the user (name, or number from 1).")
    ] = None,
    item_column: Annotated[str | None, typer.Option(help="Column of the item.")] = None,
    rating_column: Annotated[str | None, typer.Option(help="Column of the rating.")] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="Model: biases, polynomial, factorization, rendle (factorisation machine), machine (Schmidt-Thieme's)."
        ),
    ] = "machine",
    features: Annotated[
        str,
        typer.Option(
            help="Features of machine beside user and item: tags, raters (of the item), history (of the user)."
        ),
    ] = "tags,raters",
    factors: Annotated[int, typer.Option(min=1, max=1000, help="Number of latent factors K.")] = 8,
    sweeps: Annotated[
        int, typer.Option(min=1, max=10000, help="Maximum number of passes over all weights.")
    ] = 20,
    test: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Share of ratings held out for testing; 0: none.")
    ] = 0.2,
    folds: Annotated[
        int | None, typer.Option(min=2, help="Cross-validate with this many folds instead.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Compare all kinds of model.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Fit on all ratings and save the model here."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Use a model saved with -o instead of fitting FILES."),
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Recommend items to this user; repeatable.")
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Items to recommend.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and of the initial factors.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit a recommender (matrix factorisation, factorisation machine) to ratings and recommend items.

    Prints RMSE and MAE on held-out ratings, beside a baseline of user and item biases.

    \b
    regard recommend movielens-latest-small            # in REGARD_DATA
    regard recommend ratings.csv --items movies.csv --folds 5
    regard recommend ratings.tsv --user-column who --rating-column 4
    regard recommend movielens-latest-small --compare  # all kinds
    regard recommend movielens-latest-small -o films   # fit all, keep
    regard recommend --model films --user 42 -n 5
    """
    from regard.errors import OptionError

    if bool(files) == (model is not None):
        raise OptionError("give either FILES with ratings to fit, or --model FOLDER with a fitted one")
    if model is not None:
        if not user:
            raise OptionError("--model recommends to somebody; name them: --user ID")
        from regard.interactions.recommender import Recommender

        _recommend(Recommender.load(model), user, n, {}, as_json)
        return
    settings = _settings(kind, features, factors, sweeps, seed)
    if output is not None:
        _writable(output)
    paths, items = _files(files or [], items)
    ratings = _read(paths, items, {"user": user_column, "item": item_column, "rating": rating_column})
    report = (
        _evaluate(ratings, COMPARED if compare else ("biases", kind), settings, folds, test, seed)
        if folds or test
        else {}
    )
    if not as_json:
        _print(ratings, report, folds, test)
    if output is None and not user:
        if as_json:
            print(json.dumps({"held_out": report, "top": {}}, indent=2))
        return
    fitted = _fit(ratings, kind, settings)
    if output is not None:
        fitted.card = _card(paths, ratings, kind, settings, report)
        fitted.save(output)
        print(f"regard: wrote {output}", file=sys.stderr)
    _recommend(fitted, user or [], n, report, as_json)


def _settings(kind: str, features: str, factors: int, sweeps: int, seed: int) -> RecommenderSettings:
    from regard.errors import OptionError
    from regard.interactions.recommenders import FEATURES, RECOMMENDERS, RecommenderSettings

    if kind not in RECOMMENDERS:
        raise OptionError(f"--kind must be one of {', '.join(RECOMMENDERS)}, got {kind!r}")
    names = tuple(dict.fromkeys(name.strip() for name in features.split(",") if name.strip()))
    for name in names:
        if name not in FEATURES:
            raise OptionError(f"--features are {', '.join(FEATURES)}, got {name!r}")
    return RecommenderSettings(factors, sweeps, seed, names)


def _writable(folder: Path) -> None:
    """Find out before the work, not after it."""
    from regard.errors import OptionError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"--output {folder} cannot be made a folder: {error.strerror or error}; choose another"
        ) from None


def _files(files: list[str], items: Path | None) -> tuple[list[Path], Path | None]:
    from regard.cli.data import offer
    from regard.interactions.ratings import MOVIELENS, movielens_files

    if len(files) == 1 and files[0] in MOVIELENS and not Path(files[0]).exists():
        offer({"corpus": files[0]})
        ratings, movies = movielens_files(files[0])
        return [ratings], items or movies
    return [Path(file) for file in files], items


def _read(paths: list[Path], items: Path | None, columns: dict[str, str | None]) -> Ratings:
    from regard.interactions.ratings import add_item_info, read_ratings

    ratings = read_ratings(paths, columns)
    if ratings.repeated:
        print(f"regard: warning: {ratings.repeated}", file=sys.stderr)
    return add_item_info(ratings, items) if items is not None else ratings


def _evaluate(
    ratings: Ratings,
    kinds: tuple[str, ...],
    settings: RecommenderSettings,
    folds: int | None,
    share: float,
    seed: int,
) -> dict[str, Any]:
    from dataclasses import asdict

    from regard.files.progress import track
    from regard.interactions.cross_validation import cross_validate, splits

    parts = splits(len(ratings), folds, share, seed)
    kinds = tuple(dict.fromkeys(kinds))
    with track(len(parts) * len(kinds), "fitting", "fits") as progress:
        return {
            kind: [asdict(each) for each in cross_validate(ratings, kind, settings, parts, progress.advance)]
            for kind in kinds
        }


def _print(ratings: Ratings, report: dict[str, Any], folds: int | None, share: float) -> None:
    from statistics import mean, stdev

    print(f"{len(ratings):,} ratings of {len(ratings.items):,} items by {len(ratings.users):,} users")
    if not report:
        return
    print(f"errors on ratings held out ({f'{folds} folds, ± their spread' if folds else f'{share:.0%}'}):")
    print(f"{'':15}{'RMSE':>8}{'':9}{'MAE':>8}{'seconds':>9}")
    for kind, trials in report.items():
        rmse = [each["rmse"] for each in trials]
        spread = f" ± {stdev(rmse):.4f}" if len(rmse) > 1 else ""
        mae, seconds = (mean(each[name] for each in trials) for name in ("mae", "seconds"))
        print(f"{kind:15}{mean(rmse):8.4f}{spread:9}{mae:8.4f}{seconds:9.2f}")


def _fit(ratings: Ratings, kind: str, settings: RecommenderSettings) -> Recommender:
    from regard.files.progress import track
    from regard.interactions.recommenders import RECOMMENDERS

    with track(None, "fitting all ratings"):
        return RECOMMENDERS[kind](ratings, settings)


def _card(
    paths: list[Path], ratings: Ratings, kind: str, settings: RecommenderSettings, report: dict[str, Any]
) -> dict[str, Any]:
    from dataclasses import asdict

    from regard.files.checksums import file_sha256

    return {
        "command": " ".join(["regard", *sys.argv[1:]]),
        "kind": kind,
        **asdict(settings),
        "data": {path.name: file_sha256(path) for path in paths},
        "ratings": len(ratings),
        "held out": report,
    }


def _recommend(fitted: Recommender, users: list[str], n: int, report: dict[str, Any], as_json: bool) -> None:
    found = {user: fitted.top(user, n) for user in users}
    for user in users:
        if user not in fitted.users:
            print(
                f"regard: warning: user {user} has rated nothing, so this is what people like in general",
                file=sys.stderr,
            )
    if as_json:
        best = {
            user: [dict(zip(("item", "title", "rating"), each, strict=True)) for each in top]
            for user, top in found.items()
        }
        print(json.dumps({"held_out": report, "top": best}, indent=2, ensure_ascii=False))
        return
    for user, top in found.items():
        print(f"\nuser {user}")
        for item, title, rating in top:
            print(f"{rating:5.2f}  {title}" + (f"  ({item})" if title != item else ""))
