"""The worker process in which one system translates in one precision."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.decode_peers import systems
from benchmarks.peers.memory import peak_memory
from benchmarks.peers.worker_loop import serve_commands


def create_system(name: str, precision: str, folder: Path, inputs: dict[str, Any]) -> systems.System:
    """The system of that name. Only its own packages are imported, the others may be missing here."""
    if name == systems.OURS:
        from benchmarks.decode_peers.ours import Regard

        return Regard(folder, precision, inputs)
    if name == systems.JOEY:
        from benchmarks.decode_peers.joey import JoeyNMT

        return JoeyNMT(folder, precision, inputs)
    return {systems.CT2: systems.CTranslate2, systems.HF: systems.HuggingFace}[name](
        folder, precision, inputs
    )


class Worker:
    """One system in one precision. The parent calls each method by name."""

    def __init__(self, name: str, precision: str, folder: Path) -> None:
        inputs = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
        self.texts: dict[str, systems.Sentences] = inputs["texts"]
        self.system = create_system(name, precision, folder, inputs)
        self.last_outputs: systems.Sentences = []

    def settings(self) -> dict:
        """The settings to try for many sentences, and for a single one."""
        return {"many": self.system.settings(), "single": self.system.single_settings()}

    def translate(
        self, text: str, indices: list[int], beam: int, limit: int, setting: systems.Setting
    ) -> dict:
        """Translate these sentences of a text; return the seconds and the number of tokens with EOS."""
        prepared = self.system.prepare(setting, [self.texts[text][i] for i in indices])
        start = time.perf_counter()
        translations = self.system.translate(prepared, beam, limit, setting)
        seconds = time.perf_counter() - start
        self.last_outputs = self.system.tokens(translations, limit)
        return {"seconds": seconds, "tokens": sum(map(len, self.last_outputs))}

    def outputs(self) -> dict:
        """The outputs of the last `translate`, as token ids."""
        return {"outputs": self.last_outputs}

    def describe(self) -> dict:
        return {"peak": peak_memory(), "note": self.system.note, "version": self.system.version}


def main() -> None:
    name, precision, folder = sys.argv[1:]
    serve_commands(lambda: Worker(name, precision, Path(folder)))


if __name__ == "__main__":
    main()
