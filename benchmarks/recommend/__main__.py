"""`python -m benchmarks.recommend`: RMSE, MAE, time and memory on MovieLens, ours beside scikit-surprise."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from benchmarks.peers import command, machine
from benchmarks.peers.environments import own_environment, peer_environment
from benchmarks.peers.process import WorkerError, WorkerProcess, log
from benchmarks.recommend.systems import OURS, SURPRISE
from regard.interactions.cross_validation import splits
from regard.interactions.ratings import movielens_files, read_ratings


def main() -> None:
    systems = [*OURS, *SURPRISE]
    parser = argparse.ArgumentParser("python -m benchmarks.recommend", description=__doc__)
    parser.add_argument(
        "--data",
        default="movielens-latest-small",
        help="a MovieLens corpus by name, or its folder (default movielens-latest-small)",
    )
    parser.add_argument("--folds", type=int, default=5, help="folds of the cross-validation (default 5)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the folds and of every system (default 0)"
    )
    parser.add_argument(
        "--systems",
        nargs="*",
        choices=systems,
        default=systems,
        metavar="SYSTEM",
        help="systems to measure (default all): " + ", ".join(systems),
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = write_inputs(folder, options.data, options.folds, options.seed)
        print(
            f"{options.data}: {count:,} ratings, {options.folds} folds (seed {options.seed}); "
            f"one thread, load {machine.load_average()}; {machine.stamp()}"
        )
        print(f"\n| {'system':58} | RMSE | ± folds | MAE | fit, CPU s | peak MB |")
        print("|---" * 6 + "|")
        for system in options.systems:
            print(measure(system, folder, options.folds, options.seed), flush=True)


def write_inputs(folder: Path, data: str, folds: int, seed: int) -> int:
    """Write the ratings and their folds for the workers; return the number of ratings."""
    ratings_file, movies = movielens_files(data)
    ratings = read_ratings([ratings_file])
    fold = np.zeros(len(ratings), int)
    for number, (_, test) in enumerate(splits(len(ratings), folds, seed=seed)):
        fold[test] = number
    np.savez(folder / "ratings.npz", user=ratings.user, item=ratings.item, rating=ratings.rating, fold=fold)
    (folder / "paths.txt").write_text(f"{ratings_file.resolve()}\n{movies.resolve()}", encoding="utf-8")
    return len(ratings)


def measure(system: str, folder: Path, folds: int, seed: int) -> str:
    """Cross-validate one system in a worker; return its row of the table, or why it failed."""
    name = {**OURS, **SURPRISE}[system]
    environment = peer_environment("surprise") if system in SURPRISE else own_environment()
    try:
        process = WorkerProcess("benchmarks.recommend.worker", [system], environment, folder, threads=1)
    except WorkerError as error:
        return f"| {name:58} | {error} |"
    results = []
    try:
        for number in range(folds):
            log(f"{name}: fold {number + 1} of {folds}")
            results.append(process.call("fold", number=number, seed=seed))
    except WorkerError as error:
        return f"| {name:58} | {error} |"
    finally:
        process.close()
    rmse, mae, seconds = ([result[key] for result in results] for key in ("rmse", "mae", "seconds"))
    memory = max(result["memory"] or 0 for result in results) / 1e6
    errors = f"{mean(rmse):.4f} | {stdev(rmse):.4f} | {mean(mae):.4f}"
    return f"| {name:58} | {errors} | {mean(seconds):.1f} | {memory:.0f} |"


if __name__ == "__main__":
    command.run(main)
