"""Hugging Face transformers: a translator as MarianMT, a language model as GPT-2. Both load with plain `transformers`."""

from __future__ import annotations

from pathlib import Path

from regard.interchange.export import gpt2, marian
from regard.interchange.export.check import Model
from regard.interchange.export.libraries import need, quiet_transformers
from regard.interchange.export.readme import write_readme
from regard.models.translator import Translator


class HuggingFace:
    """A folder for `AutoModelForSeq2SeqLM` or `AutoModelForCausalLM`, with a tokenizer for `AutoTokenizer`."""

    name = "Hugging Face transformers"

    @property
    def exact(self) -> HuggingFace:
        return self

    def refuse(self, model: Model) -> None:
        need("transformers")
        (marian if isinstance(model, Translator) else gpt2).refuse_model(model)

    def write(self, model: Model, folder: Path) -> None:
        layout = marian if isinstance(model, Translator) else gpt2
        with quiet_transformers():
            layout.write(model, folder)
        for path in folder.rglob("*.safetensors"):
            path.chmod(0o644)  # as every other file; transformers lets nobody else read it
        write_readme(model, folder, f"Hugging Face transformers ({layout.NAME})", layout.program(model))

    def load(self, model: Model, folder: Path) -> marian.Translating | gpt2.Generating:
        with quiet_transformers():
            return marian.Translating(folder) if isinstance(model, Translator) else gpt2.Generating(folder)
