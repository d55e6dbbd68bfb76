"""Export to Hugging Face transformers: a translator as MarianMT, a language model as GPT-2."""

from __future__ import annotations

from pathlib import Path

from regard.interchange.export import gpt2, marian
from regard.interchange.export.compare import Model
from regard.interchange.export.format import FORMATS, ExportFormat
from regard.interchange.export.libraries import quiet_transformers, require_library
from regard.interchange.export.readme import write_readme
from regard.models.translator import Translator


@FORMATS.add("huggingface")
class HuggingFace(ExportFormat):
    """A folder for `AutoModelForSeq2SeqLM` or `AutoModelForCausalLM`, and for `AutoTokenizer`."""

    title = "Hugging Face transformers"

    def check_supported(self, model: Model) -> None:
        require_library("transformers")
        (marian if isinstance(model, Translator) else gpt2).check_supported(model)

    def write(self, model: Model, folder: Path) -> None:
        layout = marian if isinstance(model, Translator) else gpt2
        with quiet_transformers():
            layout.write(model, folder)
        for path in folder.rglob("*.safetensors"):
            path.chmod(0o644)  # like the other files; transformers makes it readable for the owner only
        write_readme(model, folder, f"{self.title} ({layout.TITLE})", layout.example_program(model))

    def load(self, model: Model, folder: Path) -> marian.MarianRunner | gpt2.Gpt2Runner:
        with quiet_transformers():
            return (marian.MarianRunner if isinstance(model, Translator) else gpt2.Gpt2Runner)(folder)
