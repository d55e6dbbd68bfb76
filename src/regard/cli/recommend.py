"""`regard recommend`: fit a recommender to ratings, test it, and recommend items."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.option_groups import INPUT, OptionGroup, grouped, option

if TYPE_CHECKING:
    from regard.interactions.fit_recommender import RecommenderSettings
    from regard.interactions.ratings import Ratings
    from regard.interactions.recommender import Recommender

COMPARED = ("mean", "biases", "polynomial", "factorization", "rendle", "machine")
MODEL, TEST, USE = "Model", "Test", "Recommend"  # panels of the help


@dataclass(frozen=True)
class RatingOptions(OptionGroup):
    """Where the ratings are."""

    items: Annotated[
        Path | None,
        option(metavar="FILE", help="Table of the items: id, title, genres (a|b|c).", rich_help_panel=INPUT),
    ] = None
    user_column: Annotated[
        str | None, option(help="Column of the user (name, or number from 1).", rich_help_panel=INPUT)
    ] = None
    item_column: Annotated[str | None, option(help="Column of the item.", rich_help_panel=INPUT)] = None
    rating_column: Annotated[str | None, option(help="Column of the rating.", rich_help_panel=INPUT)] = None

    def read(self, files: list[str]) -> tuple[list[Path], Ratings]:
        """Read ratings from files, or from a MovieLens corpus, which is downloaded if the user agrees."""
        from regard.cli.data import offer
        from regard.cli.jobs import report
        from regard.interactions.ratings import MOVIELENS, add_item_info, movielens_files, read_ratings

        paths, items = [Path(file) for file in files], self.items
        if len(files) == 1 and files[0] in MOVIELENS and not paths[0].exists():
            offer({"corpus": files[0]})
            ratings_file, movies = movielens_files(files[0])
            paths, items = [ratings_file], items or movies
        columns = {"user": self.user_column, "item": self.item_column, "rating": self.rating_column}
        ratings = read_ratings(paths, columns)
        for line in ratings.assumed:
            report(line)
        if ratings.repeated:
            report(f"warning: {ratings.repeated}")
        return paths, add_item_info(ratings, items) if items is not None else ratings


@dataclass(frozen=True)
class RecommenderOptions(OptionGroup):
    """The model and its fit."""

    kind: Annotated[
        str,
        option(
            help="mean, biases, polynomial, factorization, or a factorisation machine: rendle, or machine "
            "(Schmidt-Thieme's).",
            rich_help_panel=MODEL,
        ),
    ] = "machine"
    features: Annotated[
        str,
        option(
            help="Features of machine besides user and item: tags, raters (of the item), history (of the "
            "user).",
            rich_help_panel=MODEL,
        ),
    ] = "tags,raters"
    factors: Annotated[
        int, option(min=1, max=1000, help="Number of latent factors K.", rich_help_panel=MODEL)
    ] = 8
    sweeps: Annotated[
        int,
        option(min=1, max=10000, help="Maximum number of passes over all weights.", rich_help_panel=MODEL),
    ] = 20
    seed: Annotated[
        int, option(min=0, help="Seed of the split and of the initial factors.", rich_help_panel=MODEL)
    ] = 0

    def settings(self) -> RecommenderSettings:
        """Return the settings of the fit; unknown names are an error."""
        from regard.errors import OptionError
        from regard.interactions.fit_recommender import FEATURES, RECOMMENDERS, RecommenderSettings

        if self.kind not in RECOMMENDERS:
            raise OptionError(f"--kind must be one of {', '.join(RECOMMENDERS)}, got {self.kind!r}")
        names = tuple(dict.fromkeys(name.strip() for name in self.features.split(",") if name.strip()))
        for name in names:
            if name not in FEATURES:
                raise OptionError(f"--features must be from {', '.join(FEATURES)}, got {name!r}")
        return RecommenderSettings(self.factors, self.sweeps, self.seed, names)


@dataclass(frozen=True)
class TestOptions(OptionGroup):
    """Held-out ratings."""

    test: Annotated[
        float,
        option(
            min=0.0, max=0.99, help="Share of ratings held out for testing; 0: none.", rich_help_panel=TEST
        ),
    ] = 0.2
    folds: Annotated[
        int | None, option(min=2, help="Cross-validate with this many folds instead.", rich_help_panel=TEST)
    ] = None
    compare: Annotated[
        bool, option("--compare", help="Compare all kinds of model.", rich_help_panel=TEST)
    ] = False

    def evaluate(
        self, ratings: Ratings, model: RecommenderOptions, settings: RecommenderSettings
    ) -> dict[str, Any]:
        """Return RMSE, MAE and seconds of each kind of model on each split."""
        from regard.files.progress import track
        from regard.interactions.cross_validation import cross_validate, splits

        if not self.folds and not self.test:
            return {}
        kinds = COMPARED if self.compare else tuple(dict.fromkeys(("biases", model.kind)))
        parts = splits(len(ratings), self.folds, self.test, model.seed)
        with track(len(parts) * len(kinds), "fitting", "fits") as progress:
            return {
                kind: [
                    asdict(fit) for fit in cross_validate(ratings, kind, settings, parts, progress.advance)
                ]
                for kind in kinds
            }


@dataclass(frozen=True)
class UseOptions(OptionGroup):
    """What happens with the fitted model."""

    output: Annotated[
        Path | None,
        option("-o", "--output", metavar="FOLDER", help="Fit on all ratings and save the model here."),
    ] = None
    overwrite: Annotated[bool, option("--overwrite", help="With -o: replace a folder that regard wrote.")] = (
        False
    )
    model: Annotated[
        Path | None,
        option(
            metavar="FOLDER",
            help="Use a model saved with -o instead of fitting FILES.",
            rich_help_panel=USE,
        ),
    ] = None
    user: Annotated[
        list[str] | None,
        option(metavar="ID", help="Recommend items to this user; repeatable.", rich_help_panel=USE),
    ] = None
    n: Annotated[int, option("-n", min=1, help="Items to recommend.", rich_help_panel=USE)] = 10


@grouped
def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES",
            help="Ratings: .csv, .tsv or separated by ::, also .gz and .xz; or the corpus "
            "movielens-latest-small.",
        ),
    ] = None,
    *,
    ratings: RatingOptions,
    options: RecommenderOptions,
    test: TestOptions,
    use: UseOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit a recommender (matrix factorisation, factorisation machine) to ratings and recommend items.

    Prints RMSE and MAE on held-out ratings, beside a baseline of user and item biases.

    Examples:

        regard recommend movielens-latest-small

        regard recommend ratings.csv --items movies.csv --folds 5

        regard recommend ratings.tsv --user-column who --rating-column 4

        regard recommend movielens-latest-small -o films

        regard recommend --model films --user 42 -n 5
    """
    from regard.errors import OptionError
    from regard.interactions.recommender import Recommender
    from regard.interchange.export.export_model import check_free

    if bool(files) == (use.model is not None):
        raise OptionError("give either FILES with ratings to fit, or --model FOLDER with a fitted model")
    if use.model is not None:
        if not use.user:
            raise OptionError("--model needs users to recommend to; add --user ID")
        _recommend(Recommender.load(use.model), use, {}, as_json)
        return
    settings = options.settings()
    if use.output is not None:
        check_free(use.output, use.overwrite)
        _create_folder(use.output)
    paths, data = ratings.read(files or [])
    report = test.evaluate(data, options, settings)
    if not as_json:
        _print(data, report, test)
    if use.output is not None or use.user:
        fitted = _fit(data, options.kind, settings)
        if use.output is not None:
            fitted.card = _card(paths, data, options.kind, settings, report)
            fitted.save(use.output)
            print(f"regard: wrote {use.output}", file=sys.stderr)
        _recommend(fitted, use, report, as_json)
    elif as_json:
        print(json.dumps({"held_out": report, "top": {}}, indent=2))


def _create_folder(folder: Path) -> None:
    """Create the output folder before the work, so that an error costs nothing."""
    from regard.errors import OptionError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"--output {folder} cannot be created: {error.strerror or error}; choose another folder"
        ) from None


def _print(ratings: Ratings, report: dict[str, Any], test: TestOptions) -> None:
    from statistics import mean, stdev

    print(f"{len(ratings):,} ratings of {len(ratings.items):,} items by {len(ratings.users):,} users")
    if not report:
        return
    held_out = f"{test.folds} folds, ± standard deviation" if test.folds else f"{test.test:.0%}"
    print(f"errors on held-out ratings ({held_out}):")
    print(f"{'':15}{'RMSE':>8}{'':9}{'MAE':>8}{'seconds':>9}")
    for kind, folds in report.items():
        rmse = [fold["rmse"] for fold in folds]
        deviation = f" ± {stdev(rmse):.4f}" if len(rmse) > 1 else ""
        mae, seconds = (mean(fold[name] for fold in folds) for name in ("mae", "seconds"))
        print(f"{kind:15}{mean(rmse):8.4f}{deviation:9}{mae:8.4f}{seconds:9.2f}")


def _fit(ratings: Ratings, kind: str, settings: RecommenderSettings) -> Recommender:
    from regard.files.progress import track
    from regard.interactions.fit_recommender import RECOMMENDERS

    with track(None, "fitting all ratings"):
        return RECOMMENDERS[kind](ratings, settings)


def _card(
    paths: list[Path], ratings: Ratings, kind: str, settings: RecommenderSettings, report: dict[str, Any]
) -> dict[str, Any]:
    from regard.files.checksums import file_sha256

    return {
        "command": " ".join(["regard", *sys.argv[1:]]),
        "kind": kind,
        **asdict(settings),
        "data": {path.name: file_sha256(path) for path in paths},
        "ratings": len(ratings),
        "held out": report,
    }


def _recommend(fitted: Recommender, use: UseOptions, report: dict[str, Any], as_json: bool) -> None:
    from regard.cli import jobs

    users = use.user or []
    best = {user: fitted.top(user, use.n) for user in users}
    for user in users:
        if user not in fitted.users:
            jobs.report(f"warning: user {user} has rated nothing; these are the best items on average")
    if as_json:
        names = ("item", "title", "rating")
        top = {user: [dict(zip(names, row, strict=True)) for row in rows] for user, rows in best.items()}
        print(json.dumps({"held_out": report, "top": top}, indent=2, ensure_ascii=False))
        return
    for user, rows in best.items():
        print(f"\nuser {user}")
        for item, title, rating in rows:
            print(f"{rating:5.2f}  {title}" + (f"  ({item})" if title != item else ""))
