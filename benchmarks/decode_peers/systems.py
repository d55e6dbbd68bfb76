"""The peers, each by its documented calls. One class per system; each imports its package when created.

A sentence is a list of token ids without the end mark; an answer has the end mark if it was reached.
`settings` are what a user may change for speed, the likely best first, and `alone` those for one sentence
at a time; `note` names a difference from the other systems.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

OURS, CT2, HF, JOEY = "regard", "CTranslate2", "HF generate", "Joey NMT"
PRECISIONS: dict[str, tuple[str, ...]] = {
    OURS: ("float32", "int8", "bfloat16"),
    CT2: ("float32", "int8"),
    HF: ("float32", "int8"),
    JOEY: ("float32",),
}

Setting = dict[str, int]
Sentences = list[list[int]]
CORES = os.cpu_count() or 1
THREADS = sorted({CORES, 1}, reverse=True)  # that are tried


class System(Protocol):
    note: str
    version: str

    def settings(self) -> list[Setting]: ...
    def alone(self) -> list[Setting]: ...

    def prepare(self, setting: Setting, sentences: Sentences) -> Any:
        """What is not timed: threads, the form in which sentences are taken."""
        ...

    def translate(self, prepared: Any, beam: int, limit: int, setting: Setting) -> Any:
        """What is timed; the answers in the system's own form."""
        ...

    def tokens(self, found: Any, limit: int) -> Sentences:
        """The answers as token ids."""
        ...


class CTranslate2:
    """`translate_batch` with the pieces as strings, as its interface is; it sorts and cuts batches itself.

    Its process has no torch, as that of a user who installs it alone: its memory is its own.
    """

    note = "takes and gives pieces as strings"

    def __init__(self, folder: Path, precision: str, handout: dict[str, Any]) -> None:
        sys.modules["torch"] = None  # type: ignore[assignment]
        import ctranslate2

        self.package, self.folder, self.precision, self.version = (
            ctranslate2,
            folder,
            precision,
            ctranslate2.__version__,
        )
        self.source, self.eos = handout["source_pieces"], handout["specials"]["eos"]
        self.number = {piece: i for i, piece in enumerate(handout["target_pieces"])}
        self.threads: tuple[int, int] | None = None

    def settings(self) -> list[Setting]:
        return [
            {"inter": n, "intra": CORES // n, "tokens": tokens}
            for n in THREADS
            for tokens in (1024, 512, 2048, 4096)
        ]

    def alone(self) -> list[Setting]:
        return [{"inter": 1, "intra": n, "tokens": 1024} for n in THREADS]

    def prepare(self, setting: Setting, sentences: Sentences) -> list[list[str]]:
        threads = setting["inter"], setting["intra"]
        if threads != self.threads:
            self.model = self.package.Translator(
                str(self.folder / f"ctranslate2-{self.precision}"), device="cpu", compute_type=self.precision,
                inter_threads=threads[0], intra_threads=threads[1],
            )  # fmt: skip
            self.threads = threads
        return [[self.source[i] for i in sentence] for sentence in sentences]

    def translate(self, prepared: list[list[str]], beam: int, limit: int, setting: Setting) -> Any:
        return self.model.translate_batch(
            prepared, beam_size=beam, length_penalty=1.0, max_decoding_length=limit,
            max_batch_size=setting["tokens"], batch_type="tokens",
        )  # fmt: skip

    def tokens(self, found: Any, limit: int) -> Sentences:
        bare = [[self.number[piece] for piece in one.hypotheses[0]] for one in found]
        return [words if len(words) >= limit else [*words, self.eos] for words in bare]


class Batching:
    """For systems that leave batching to the user: sort sentences by length, a fixed number at a time."""

    def settings(self) -> list[Setting]:
        return [{"threads": n, "sentences": size} for n in THREADS for size in (128, 32, 256)]

    def alone(self) -> list[Setting]:
        return [{"threads": n, "sentences": 1} for n in THREADS]

    def prepare(self, setting: Setting, sentences: Sentences) -> Sentences:
        import torch

        torch.set_num_threads(setting["threads"])
        return sentences

    def translate(self, prepared: Sentences, beam: int, limit: int, setting: Setting) -> Sentences:
        order = sorted(range(len(prepared)), key=lambda i: -len(prepared[i]))
        found: Sentences = [[]] * len(prepared)
        for start in range(0, len(order), setting["sentences"]):
            part = order[start : start + setting["sentences"]]
            # Less to do than the limit of all sentences.
            most = min(limit, (len(prepared[part[0]]) + 1) * 3 // 2 + 20)
            for i, words in zip(part, self.batch([prepared[i] for i in part], beam, most), strict=True):
                found[i] = words
        return found

    def batch(self, sentences: Sentences, beam: int, limit: int) -> Sentences:
        raise NotImplementedError

    def tokens(self, found: Sentences, limit: int) -> Sentences:
        return found


def padded(sentences: Sentences, pad: int, eos: int) -> Tensor:
    import torch

    longest = max(map(len, sentences))
    return torch.tensor([[*s, eos, *[pad] * (longest - len(s))] for s in sentences])


def cut(words: list[int], eos: int) -> list[int]:
    """As far as the end mark, with it."""
    return words[: words.index(eos) + 1] if eos in words else words


class HuggingFace(Batching):
    """MarianMT and `generate`; in int8 its linear maps are quantised dynamically by torch."""

    def __init__(self, folder: Path, precision: str, handout: dict[str, Any]) -> None:
        import torch
        import transformers

        self.special, self.version = handout["specials"], transformers.__version__
        self.model: Any = transformers.MarianMTModel.from_pretrained(
            str(folder / "huggingface"), dtype=torch.float32
        ).eval()
        self.note = "beams stop early, as soon as so many texts have ended"
        if precision == "int8":
            self.model = torch.ao.quantization.quantize_dynamic(
                self.model, {torch.nn.Linear}, dtype=torch.qint8
            )
            self.note += "; int8 is torch's dynamic quantisation of the linear maps"

    def batch(self, sentences: Sentences, beam: int, limit: int) -> Sentences:
        import torch

        source = padded(sentences, self.special["pad"], self.special["eos"])
        with torch.inference_mode():
            found = self.model.generate(
                input_ids=source, attention_mask=(source != self.special["pad"]).long(), num_beams=beam,
                do_sample=False, max_new_tokens=limit,
                **({"length_penalty": 1.0, "early_stopping": True} if beam > 1 else {}),
            )  # fmt: skip
        return [cut(words, self.special["eos"]) for words in found[:, 1:].tolist()]
