"""`python -m benchmarks.recommend`: RMSE, MAE, time and memory on MovieLens, ours beside scikit-surprise."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from benchmarks.peers import machine
from benchmarks.peers.environments import here, peer
from benchmarks.peers.process import Failed, Process, say
from benchmarks.recommend.systems import OURS, SURPRISE
from regard.interactions.cross_validation import splits
from regard.interactions.ratings import movielens_files, read_ratings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="movielens-latest-small")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the folds and of every system")
    parser.add_argument("--systems", nargs="*", default=[*OURS, *SURPRISE])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = hand_out(folder, given.data, given.folds, given.seed)
        print(
            f"{given.data}: {count:,} ratings, {given.folds} folds (seed {given.seed}); "
            f"one thread, load {machine.load()}; {machine.stamp()}"
        )
        print(f"\n| {'system':58} | RMSE | ± folds | MAE | fit, CPU s | peak MB |")
        print("|---" * 6 + "|")
        for system in given.systems:
            print(row(system, folder, given.folds, given.seed), flush=True)


def hand_out(folder: Path, data: str, folds: int, seed: int) -> int:
    """Ratings and the fold of each, for both sides."""
    ratings_file, movies = movielens_files(data)
    ratings = read_ratings([ratings_file])
    fold = np.zeros(len(ratings), int)
    for number, (_, test) in enumerate(splits(len(ratings), folds, seed=seed)):
        fold[test] = number
    np.savez(folder / "ratings.npz", user=ratings.user, item=ratings.item, rating=ratings.rating, fold=fold)
    (folder / "paths.txt").write_text(f"{ratings_file.resolve()}\n{movies.resolve()}", encoding="utf-8")
    return len(ratings)


def row(system: str, folder: Path, folds: int, seed: int) -> str:
    name = {**OURS, **SURPRISE}[system]
    place = peer("surprise") if system in SURPRISE else here()
    if place.python is None:
        return f"| {name:58} | {place.trouble} |"
    process = Process("benchmarks.recommend.worker", [system], place, folder, threads=1)
    try:
        found = []
        for number in range(folds):
            say(f"{name}: fold {number + 1} of {folds}")
            found.append(process.ask("fold", number=number, seed=seed))
    except Failed as trouble:
        return f"| {name:58} | {trouble} |"
    finally:
        process.end()
    rmse, mae, seconds = ([each[key] for each in found] for key in ("rmse", "mae", "seconds"))
    memory = max(each["memory"] or 0 for each in found) / 1e6
    errors = f"{mean(rmse):.4f} | {stdev(rmse):.4f} | {mean(mae):.4f}"
    return f"| {name:58} | {errors} | {mean(seconds):.1f} | {memory:.0f} |"


if __name__ == "__main__":
    main()
