"""CTranslate2: our weights in its specification. Transformers of either norm, most positions; translators and language models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from regard.data.tokenizer import EOS
from regard.errors import OptionError
from regard.interchange.export.check import Model
from regard.interchange.export.ctranslate2_spec import language_model, translator
from regard.interchange.export.libraries import need
from regard.interchange.export.readme import write_readme
from regard.interchange.export.supported import refuse, same
from regard.interchange.export.tokens import pieces, save_tokenizers
from regard.models.translator import Translator

NAME = "CTranslate2"
QUANTIZATIONS = (
    "float32",
    "int8",
    "int8_float32",
    "int16",
    "float16",
    "int8_float16",
    "bfloat16",
    "int8_bfloat16",
)
BOTH = {
    "norm": ("pre", "post"),
    "norm_kind": ("layer", "rms"),
    "activation": ("relu", "gelu", "gelu-tanh", "swish", "swiglu"),
}
ENCODER = BOTH | {"position": ("sinusoidal", "learned", "rotary", "none")}
DECODER = BOTH | {"position": ("sinusoidal", "learned", "rotary", "alibi", "none")}

TRANSLATE = """
import sys
import ctranslate2
from tokenizers import Tokenizer

folder = sys.argv[1]
source, target = (Tokenizer.from_file(f"{folder}/{name}") for name in (SOURCE_FILE, TARGET_FILE))
model = ctranslate2.Translator(folder)
pieces = [source.encode(line.rstrip("\\n"), add_special_tokens=False).tokens for line in sys.stdin]
for found in model.translate_batch(pieces, beam_size=4):
    print(target.decode([target.token_to_id(piece) for piece in found.hypotheses[0]], skip_special_tokens=False))
"""
GENERATE = """
import sys
import ctranslate2
from tokenizers import Tokenizer

folder = sys.argv[1]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
model = ctranslate2.Generator(folder)
for line in sys.stdin:
    pieces = ["< s >", *tokenizer.encode(line.rstrip("\\n"), add_special_tokens=False).tokens]
    found = model.generate_batch([pieces], max_length=50, sampling_topk=1)[0]
    print(tokenizer.decode([tokenizer.token_to_id(piece) for piece in found.sequences[0][1:]], skip_special_tokens=False))
"""


class CTranslate2:
    """A folder that `ctranslate2.Translator` or `ctranslate2.Generator` loads; weights in `quantization`."""

    def __init__(self, quantization: str = "float32") -> None:
        if quantization not in QUANTIZATIONS:
            raise OptionError(f"quantization is one of {', '.join(QUANTIZATIONS)}, got {quantization!r}")
        self.quantization = quantization

    name = NAME

    @property
    def exact(self) -> CTranslate2:
        return self if self.quantization == "float32" else CTranslate2()

    def refuse(self, model: Model) -> None:
        need("ctranslate2")
        refuse(model, NAME, encoder=ENCODER, decoder=DECODER)
        if isinstance(model, Translator):
            same(model, NAME, "norm_kind")

    def write(self, model: Model, folder: Path) -> None:
        spec = translator(model) if isinstance(model, Translator) else language_model(model)
        spec.validate()
        spec.optimize(quantization=self.quantization)
        spec.save(str(folder))
        save_tokenizers(model, folder)
        write_readme(model, folder, NAME, TRANSLATE if isinstance(model, Translator) else GENERATE)

    def load(self, model: Model, folder: Path) -> Translating | Generating:
        return (Translating if isinstance(model, Translator) else Generating)(model, folder)


class Translating:
    """A translator in CTranslate2, as the check runs it."""

    def __init__(self, model: Model, folder: Path) -> None:
        import ctranslate2

        self.inner = ctranslate2.Translator(
            str(folder), device="cpu", compute_type="default", inter_threads=1, intra_threads=1
        )
        self.source, self.target = pieces(model.source_tokenizer), pieces(model.target_tokenizer)  # type: ignore[arg-type]
        self.number = {piece: i for i, piece in enumerate(self.target)}

    def write(self, prompt: list[int], limit: int) -> list[int]:
        given = [[self.source[i] for i in prompt[:-1]]]  # it adds the end mark itself
        found = self.inner.translate_batch(given, beam_size=1, max_decoding_length=limit)
        return [self.number[piece] for piece in found[0].hypotheses[0]]

    def score(self, prompt: list[int], words: list[int]) -> list[float]:
        text = [self.target[i] for i in words if i != EOS]
        return self.inner.score_batch([[self.source[i] for i in prompt[:-1]]], [text])[0].log_probs[
            : len(words)
        ]


class Generating:
    """A language model in CTranslate2, as the check runs it."""

    def __init__(self, model: Model, folder: Path) -> None:
        import ctranslate2

        self.inner = ctranslate2.Generator(
            str(folder), device="cpu", compute_type="default", inter_threads=1, intra_threads=1
        )
        self.pieces = pieces(model.target_tokenizer)  # type: ignore[arg-type]

    def write(self, prompt: list[int], limit: int) -> list[int]:
        given = [[self.pieces[i] for i in prompt]]
        found = self.inner.generate_batch(
            given, beam_size=1, sampling_topk=1, max_length=limit, include_prompt_in_result=False
        )
        return [i for i in found[0].sequences_ids[0] if i != EOS]

    def score(self, prompt: list[int], words: list[int]) -> list[float]:
        given = [[self.pieces[i] for i in [*prompt, *words[:-1]]]]
        scores = torch.from_numpy(np.array(self.inner.forward_batch(given)))[0]
        return (
            torch.log_softmax(scores, -1)[len(prompt) - 1 :]
            .gather(-1, torch.tensor(words)[:, None])[:, 0]
            .tolist()
        )
