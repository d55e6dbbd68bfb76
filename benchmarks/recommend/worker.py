"""One system in a process, one fold per command: `python -m benchmarks.recommend.worker SYSTEM FOLDER`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.peers.memory import peak_memory
from benchmarks.peers.worker_loop import serve_commands
from benchmarks.recommend.systems import SURPRISE, TUNED


class Worker:
    """A system that is fitted to the ratings of all folds but one, and scored on that one."""

    def __init__(self, system: str, folder: Path) -> None:
        self.system, self.folder = system, folder
        self.data = np.load(folder / "ratings.npz", allow_pickle=False)

    def fit(self, train, seed):
        """Fit the rows of the mask `train`; return a function that predicts those of another mask."""
        raise NotImplementedError

    def fold(self, number: int, seed: int) -> dict:
        """Errors on one fold, CPU seconds of the fit, and peak memory so far."""
        test = self.data["fold"] == number
        begin = time.process_time()
        predict = self.fit(~test, seed)
        seconds = time.process_time() - begin
        error = predict(test) - self.data["rating"][test]
        return {
            "rmse": float(np.sqrt((error**2).mean())),
            "mae": float(abs(error).mean()),
            "seconds": seconds,
            "memory": peak_memory(),
        }


class Regard(Worker):
    """A recommender of regard; `NAME+FEATURE` adds a feature to its predictors."""

    def __init__(self, system: str, folder: Path) -> None:
        super().__init__(system, folder)
        from regard.interactions.ratings import add_item_info, read_ratings

        paths = (folder / "paths.txt").read_text(encoding="utf-8").split("\n")
        self.ratings = add_item_info(read_ratings([Path(paths[0])]), Path(paths[1]))

    def fit(self, train, seed):
        from regard.interactions.fit_recommender import RECOMMENDERS, RecommenderSettings

        kind, _, feature = self.system.partition("+")
        features = ("tags", "raters", feature) if feature else ("tags", "raters")
        fitted = RECOMMENDERS[kind](
            self.ratings.subset(np.flatnonzero(train)), RecommenderSettings(seed=seed, features=features)
        )
        return lambda test: fitted.predict(self.ratings.user[test], self.ratings.item[test])


class Surprise(Worker):
    """An algorithm of scikit-surprise; `NAME-tuned` uses the settings of TUNED."""

    def fit(self, train, seed):
        import surprise

        data = self.data
        rows = [
            (int(u), int(i), float(r), None)
            for u, i, r in zip(*(data[name][train] for name in ("user", "item", "rating")), strict=True)
        ]
        low, high = data["rating"].min(), data["rating"].max()
        trainset = surprise.Dataset(surprise.Reader(rating_scale=(low, high))).construct_trainset(rows)
        options = (
            {"verbose": False}
            if self.system == "BaselineOnly"
            else {"random_state": seed, **TUNED.get(self.system, {})}
        )
        model = getattr(surprise, self.system.removesuffix("-tuned"))(**options).fit(trainset)
        return lambda test: np.array(
            [
                model.predict(int(u), int(i)).est
                for u, i in zip(data["user"][test], data["item"][test], strict=True)
            ]
        )


if __name__ == "__main__":
    system, folder = sys.argv[1], Path(sys.argv[2])
    serve_commands(lambda: (Surprise if system in SURPRISE else Regard)(system, folder))
