"""The worker process in which one system trains and classifies."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.classify_peers import systems
from benchmarks.peers.answering import answer, peak_memory


class Worker:
    """`train`, `label`, `one` and `outputs` are what the parent asks for."""

    def __init__(self, name: str, folder: Path) -> None:
        handout = json.loads((folder / "handout.json").read_text(encoding="utf-8"))
        self.parts: dict[str, systems.Rows] = {
            part: (rows[0], rows[1]) for part, rows in handout["parts"].items()
        }
        self.all = [text for texts, _ in self.parts.values() for text in texts]
        self.system = systems.make(name, handout["models"].get(name, ""))

    def train(self) -> dict:
        found = self.system.train(self.parts["train"], self.parts["validation"])
        return found | {"trained": peak_memory()}

    def label(self) -> dict:
        """Classify all texts of the corpus in one call."""
        start, busy = time.perf_counter(), time.process_time()
        self.system.label(self.all)
        return {
            "seconds": time.perf_counter() - start,
            "busy": time.process_time() - busy,
            "texts": len(self.all),
        }

    def one(self, count: int) -> dict:
        """Texts that come one by one: the seconds of each."""
        texts = self.parts["test"][0][:count]
        seconds = []
        for text in texts:
            start = time.perf_counter()
            self.system.label([text])
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds}

    def outputs(self) -> dict:
        return {"labels": self.system.label(self.parts["test"][0]), "peak": peak_memory()}


def main() -> None:
    name, folder = sys.argv[1:]
    answer(lambda: Worker(name, Path(folder)))


if __name__ == "__main__":
    main()
