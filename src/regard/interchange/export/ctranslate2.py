"""Export to CTranslate2: Transformer translators and language models, optionally quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data.tokenizer import EOS
from regard.interchange.export.compare import Model
from regard.interchange.export.ctranslate2_spec import language_model_spec, translator_spec
from regard.interchange.export.format import FORMATS, ExportFormat
from regard.interchange.export.libraries import require_library
from regard.interchange.export.readme import write_readme
from regard.interchange.export.supported import check_options, check_same
from regard.interchange.export.tokenizer_files import save_tokenizers, vocabulary_list
from regard.models.translator import Translator

PLAIN = ("float32", "float16", "bfloat16", "int16", "int8")
QUANTIZATIONS = (*PLAIN, "int8_float32", "int8_float16", "int8_bfloat16")
ONE_THREAD: Any = {"device": "cpu", "compute_type": "default", "inter_threads": 1, "intra_threads": 1}
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
tokens = [source.encode(line.rstrip("\\n"), add_special_tokens=False).tokens for line in sys.stdin]
for result in model.translate_batch(tokens, beam_size=4, min_decoding_length=0):
    ids = [target.token_to_id(token) for token in result.hypotheses[0]]
    print(target.decode(ids, skip_special_tokens=False))
"""
GENERATE = """
import sys
import ctranslate2
from tokenizers import Tokenizer

folder = sys.argv[1]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
model = ctranslate2.Generator(folder)
for line in sys.stdin:
    tokens = ["< s >", *tokenizer.encode(line.rstrip("\\n"), add_special_tokens=False).tokens]
    result = model.generate_batch([tokens], max_length=50, sampling_topk=1)[0]
    ids = [tokenizer.token_to_id(token) for token in result.sequences[0][1:]]
    print(tokenizer.decode(ids, skip_special_tokens=False))
"""


@FORMATS.add("ctranslate2")
class CTranslate2(ExportFormat):
    """A folder for `ctranslate2.Translator` or `ctranslate2.Generator`."""

    title = "CTranslate2"
    quantizations = QUANTIZATIONS

    def check_supported(self, model: Model) -> None:
        require_library("ctranslate2")
        check_options(model, self.title, encoder=ENCODER, decoder=DECODER)
        if isinstance(model, Translator):
            check_same(model, self.title, "norm_kind")

    def write(self, model: Model, folder: Path) -> None:
        translates = isinstance(model, Translator)
        spec = translator_spec(model) if translates else language_model_spec(model)
        spec.validate()
        spec.optimize(quantization=self.quantization)
        spec.save(str(folder))
        save_tokenizers(model, folder)
        write_readme(model, folder, self.title, TRANSLATE if translates else GENERATE)

    def load(self, model: Model, folder: Path) -> TranslatorRunner | GeneratorRunner:
        return (TranslatorRunner if isinstance(model, Translator) else GeneratorRunner)(model, folder)


class TranslatorRunner:
    """A translator in CTranslate2."""

    def __init__(self, model: Model, folder: Path) -> None:
        import ctranslate2

        self.translator = ctranslate2.Translator(str(folder), **ONE_THREAD)
        self.source, self.target = (
            vocabulary_list(tokenizer)  # type: ignore[arg-type]
            for tokenizer in (model.source_tokenizer, model.target_tokenizer)
        )
        self.ids = {token: i for i, token in enumerate(self.target)}

    def generate(self, prompt: list[int], limit: int) -> list[int]:
        results = self.translator.translate_batch(
            [self._source_tokens(prompt)],
            beam_size=1,
            min_decoding_length=0,  # a translation may be empty
            max_decoding_length=limit,
        )
        return [self.ids[token] for token in results[0].hypotheses[0]]

    def log_probs(self, prompt: list[int], tokens: list[int]) -> list[float]:
        target = [self.target[i] for i in tokens if i != EOS]
        result = self.translator.score_batch([self._source_tokens(prompt)], [target])[0]
        return result.log_probs[: len(tokens)]

    def _source_tokens(self, prompt: list[int]) -> list[str]:
        return [self.source[i] for i in prompt[:-1]]  # CTranslate2 adds EOS itself


class GeneratorRunner:
    """A language model in CTranslate2."""

    def __init__(self, model: Model, folder: Path) -> None:
        import ctranslate2

        self.generator = ctranslate2.Generator(str(folder), **ONE_THREAD)
        self.vocabulary = vocabulary_list(model.target_tokenizer)  # type: ignore[arg-type]

    def generate(self, prompt: list[int], limit: int) -> list[int]:
        results = self.generator.generate_batch(
            [[self.vocabulary[i] for i in prompt]],
            beam_size=1,
            sampling_topk=1,
            max_length=limit,
            include_prompt_in_result=False,
        )
        return [i for i in results[0].sequences_ids[0] if i != EOS]

    def log_probs(self, prompt: list[int], tokens: list[int]) -> list[float]:
        given = [[self.vocabulary[i] for i in [*prompt, *tokens[:-1]]]]
        logits = torch.from_numpy(np.array(self.generator.forward_batch(given)))[0]  # (time, vocabulary)
        log_probs = torch.log_softmax(logits, -1)[len(prompt) - 1 :]
        return log_probs.gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()
