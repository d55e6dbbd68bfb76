"""The peers, each by its documented calls. One class per system; each imports its package when created.

A source sentence is a list of token ids without EOS; an output ends with EOS unless the limit cut it off.
`settings` are what a user may change for speed, the likely fastest first; `single_settings` are those for
one sentence at a time. `note` names a difference from the other systems.
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
THREADS = sorted({CORES, 1}, reverse=True)  # numbers of threads to try


class System(Protocol):
    """What a worker needs of a system."""

    note: str
    version: str

    def settings(self) -> list[Setting]: ...
    def single_settings(self) -> list[Setting]: ...

    def prepare(self, setting: Setting, sentences: Sentences) -> Any:
        """Before the clock starts: set the threads, and convert the sentences to the system's input."""
        ...

    def translate(self, prepared: Any, beam: int, limit: int, setting: Setting) -> Any:
        """Translate, timed; the outputs are in the system's own form."""
        ...

    def tokens(self, translations: Any, limit: int) -> Sentences:
        """The outputs as token ids, after the clock has stopped."""
        ...


class CTranslate2:
    """`Translator.translate_batch`, which takes tokens as strings and forms batches itself.

    torch is not imported in its process, as for a user who installs CTranslate2 alone, so that the measured
    memory is its own.
    """

    note = "takes and gives pieces as strings"

    def __init__(self, folder: Path, precision: str, inputs: dict[str, Any]) -> None:
        sys.modules["torch"] = None  # type: ignore[assignment]
        import ctranslate2

        self.package, self.folder, self.precision, self.version = (
            ctranslate2,
            folder,
            precision,
            ctranslate2.__version__,
        )
        self.source, self.eos = inputs["source_pieces"], inputs["specials"]["eos"]
        self.number = {piece: i for i, piece in enumerate(inputs["target_pieces"])}
        self.threads: tuple[int, int] | None = None

    def settings(self) -> list[Setting]:
        return [
            {"inter": n, "intra": CORES // n, "tokens": tokens}
            for n in THREADS
            for tokens in (1024, 512, 2048, 4096)
        ]

    def single_settings(self) -> list[Setting]:
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

    def tokens(self, translations: Any, limit: int) -> Sentences:
        outputs = [[self.number[piece] for piece in result.hypotheses[0]] for result in translations]
        return [tokens if len(tokens) >= limit else [*tokens, self.eos] for tokens in outputs]


class Batching:
    """For systems that leave batching to the user: sort sentences by length, a fixed number at a time."""

    def settings(self) -> list[Setting]:
        return [{"threads": n, "sentences": size} for n in THREADS for size in (128, 32, 256)]

    def single_settings(self) -> list[Setting]:
        return [{"threads": n, "sentences": 1} for n in THREADS]

    def prepare(self, setting: Setting, sentences: Sentences) -> Sentences:
        import torch

        torch.set_num_threads(setting["threads"])
        return sentences

    def translate(self, prepared: Sentences, beam: int, limit: int, setting: Setting) -> Sentences:
        order = sorted(range(len(prepared)), key=lambda i: -len(prepared[i]))
        outputs: Sentences = [[]] * len(prepared)
        for start in range(0, len(order), setting["sentences"]):
            batch = order[start : start + setting["sentences"]]
            # A lower limit for shorter sentences saves steps.
            batch_limit = min(limit, (len(prepared[batch[0]]) + 1) * 3 // 2 + 20)
            translations = self.batch([prepared[i] for i in batch], beam, batch_limit)
            for i, tokens in zip(batch, translations, strict=True):
                outputs[i] = tokens
        return outputs

    def batch(self, sentences: Sentences, beam: int, limit: int) -> Sentences:
        """Translate one batch."""
        raise NotImplementedError

    def tokens(self, translations: Sentences, limit: int) -> Sentences:
        return translations


def padded(sentences: Sentences, pad: int, eos: int) -> Tensor:
    """Token ids with EOS and padding, (sentences, longest + 1)."""
    import torch

    longest = max(map(len, sentences))
    return torch.tensor([[*s, eos, *[pad] * (longest - len(s))] for s in sentences])


def cut(tokens: list[int], eos: int) -> list[int]:
    """The tokens up to and including the first EOS."""
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


class HuggingFace(Batching):
    """`MarianMTModel.generate`; in int8 with torch's dynamic quantisation of the linear layers."""

    def __init__(self, folder: Path, precision: str, inputs: dict[str, Any]) -> None:
        import torch
        import transformers

        self.special, self.version = inputs["specials"], transformers.__version__
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
            generated = self.model.generate(
                input_ids=source, attention_mask=(source != self.special["pad"]).long(), num_beams=beam,
                do_sample=False, max_new_tokens=limit,
                **({"length_penalty": 1.0, "early_stopping": True} if beam > 1 else {}),
            )  # fmt: skip
        return [cut(tokens, self.special["eos"]) for tokens in generated[:, 1:].tolist()]
