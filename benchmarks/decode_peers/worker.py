"""The worker process in which one system translates in one precision."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.decode_peers import systems
from benchmarks.peers.answering import answer, peak_memory


def make(name: str, precision: str, folder: Path, handout: dict[str, Any]) -> systems.System:
    """The system of that name; what the others need is not imported."""
    if name == systems.OURS:
        from benchmarks.decode_peers.ours import Regard

        return Regard(folder, precision, handout)
    if name == systems.JOEY:
        from benchmarks.decode_peers.joey import JoeyNMT

        return JoeyNMT(folder, precision, handout)
    return {systems.CT2: systems.CTranslate2, systems.HF: systems.HuggingFace}[name](
        folder, precision, handout
    )


class Worker:
    """`settings`, `translate`, `outputs` and `tell` are what the parent asks for."""

    def __init__(self, name: str, precision: str, folder: Path) -> None:
        handout = json.loads((folder / "handout.json").read_text(encoding="utf-8"))
        self.texts: dict[str, systems.Sentences] = handout["texts"]
        self.system = make(name, precision, folder, handout)
        self.found: systems.Sentences = []

    def settings(self) -> dict:
        return {"many": self.system.settings(), "alone": self.system.alone()}

    def translate(self, text: str, which: list[int], beam: int, limit: int, setting: systems.Setting) -> dict:
        """Translate these sentences of a text. Return the seconds and the tokens written, with end marks."""
        prepared = self.system.prepare(setting, [self.texts[text][i] for i in which])
        start = time.perf_counter()
        found = self.system.translate(prepared, beam, limit, setting)
        seconds = time.perf_counter() - start
        self.found = self.system.tokens(found, limit)
        return {"seconds": seconds, "tokens": sum(map(len, self.found))}

    def outputs(self) -> dict:
        return {"outputs": self.found}

    def tell(self) -> dict:
        return {"peak": peak_memory(), "note": self.system.note, "version": self.system.version}


def main() -> None:
    name, precision, folder = sys.argv[1:]
    answer(lambda: Worker(name, precision, Path(folder)))


if __name__ == "__main__":
    main()
