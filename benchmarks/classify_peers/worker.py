"""The worker process in which one system trains and classifies."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.classify_peers import systems
from benchmarks.peers.memory import peak_memory
from benchmarks.peers.worker_loop import serve_commands


class Worker:
    """One system and the texts of SST-2. The parent calls each method by name."""

    def __init__(self, name: str, folder: Path) -> None:
        inputs = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
        self.splits: dict[str, systems.Rows] = {
            split: (rows[0], rows[1]) for split, rows in inputs["splits"].items()
        }
        self.all_texts = [text for texts, _ in self.splits.values() for text in texts]
        self.system = systems.create_system(name, inputs["models"].get(name, ""))

    def train(self) -> dict:
        return self.system.train(self.splits["train"], self.splits["validation"])

    def classify_all(self) -> dict:
        """Classify all texts of the corpus in one call: wall-clock seconds and CPU seconds."""
        start, cpu_start = time.perf_counter(), time.process_time()
        self.system.classify(self.all_texts)
        return {
            "seconds": time.perf_counter() - start,
            "busy": time.process_time() - cpu_start,
            "texts": len(self.all_texts),
        }

    def latency(self, count: int) -> dict:
        """Classify the first test texts one at a time: the seconds of each."""
        seconds = []
        for text in self.splits["test"][0][:count]:
            start = time.perf_counter()
            self.system.classify([text])
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds}

    def test_labels(self) -> dict:
        """The labels of the test set, and the peak memory of this process."""
        return {"labels": self.system.classify(self.splits["test"][0]), "peak": peak_memory()}


def main() -> None:
    name, folder = sys.argv[1:]
    serve_commands(lambda: Worker(name, Path(folder)))


if __name__ == "__main__":
    main()
