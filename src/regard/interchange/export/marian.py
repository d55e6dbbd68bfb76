"""Export a translator as Hugging Face's MarianMT: a post-norm Transformer with sinusoidal positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS
from regard.interchange.export.compare import Model
from regard.interchange.export.hf_tokenizer import save_tokenizer
from regard.interchange.export.marian_layout import ACTIVATIONS, channel_order, reorder, weight_names
from regard.interchange.export.supported import check_options, check_same
from regard.interchange.export.tokenizer_files import source_and_target

TITLE = "MarianMT"
POSITIONS = 1024
NEVER = -1e9  # bias of PAD and BOS, which regard never generates

PROGRAM = """
import sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

folder = sys.argv[1]
source, target = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder + TARGET)
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
lines = [line.rstrip("\\n") for line in sys.stdin]
outputs = model.generate(**source(lines, return_tensors="pt", padding=True), num_beams=4)
print(*target.batch_decode(outputs, skip_special_tokens=True), sep="\\n")
"""


def check_supported(model: Model) -> None:
    """Raise OptionError with the reason if MarianMT cannot express this model."""
    table: dict[str, tuple[Any, ...]] = {
        "norm": ("post",),
        "norm_kind": ("layer",),
        "position": ("sinusoidal",),
        "activation": tuple(ACTIVATIONS),
    }
    config: dict[str, Any] = model.config  # type: ignore[assignment]
    sides = {
        side: table | {"key_heads": (None, config[side].get("heads"))} for side in ("encoder", "decoder")
    }
    check_options(model, TITLE, encoder=sides["encoder"], decoder=sides["decoder"])
    check_same(model, TITLE, "activation")


def example_program(model: Model) -> str:
    """Return a program that translates lines with the exported model."""
    source, target = source_and_target(model)
    return PROGRAM.replace("folder + TARGET", "folder" if source == target else 'folder + "/target"')


def write(model: Model, folder: Path) -> None:
    """Write model and tokenizers as `save_pretrained` does."""
    from transformers import MarianMTModel

    theirs = MarianMTModel(_config(model))
    theirs.load_state_dict(_weights(model), strict=False)  # MarianMT has further names for tied weights
    theirs.generation_config.update(max_new_tokens=POSITIONS // 2, num_beams=1, forced_eos_token_id=None)
    theirs.save_pretrained(str(folder))
    source, target = source_and_target(model)
    save_tokenizer(source, folder, template=["$A", SPECIALS[EOS]])
    if source != target:
        save_tokenizer(target, folder / "target", template=["$A", SPECIALS[EOS]])


def _config(model: Any) -> Any:
    from transformers import MarianConfig

    config = model.config
    sides = {}
    for side in ("encoder", "decoder"):
        spec = config[side]
        sides |= {
            f"{side}_layers": spec["layers"],
            f"{side}_attention_heads": spec["heads"],
            f"{side}_ffn_dim": spec["inner"],
        }
    return MarianConfig(
        vocab_size=len(model.source_tokenizer),
        decoder_vocab_size=len(model.target_tokenizer),
        d_model=config["dim"],
        activation_function=ACTIVATIONS[config["decoder"]["activation"]],
        max_position_embeddings=POSITIONS,
        scale_embedding=config.get("scale_embeddings", True),
        share_encoder_decoder_embeddings=config["tie"] == "all",
        tie_word_embeddings=config["tie"] != "none",
        dropout=config["dropout"],
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        **sides,
    )


def _weights(model: Any) -> dict[str, torch.Tensor]:
    state, order = model.state_dict(), channel_order(model.config["dim"])
    weights = {
        name.theirs: reorder(state[name.ours], name.channel_axis, order)
        for name in weight_names(model.config)
    }
    shared = weights.get("model.shared.weight")
    if shared is not None:
        weights |= {f"model.{side}.embed_tokens.weight": shared for side in ("encoder", "decoder")}
    if "lm_head.weight" not in weights:
        weights["lm_head.weight"] = weights["model.decoder.embed_tokens.weight"]
    output = model.output.projection
    bias = torch.zeros(len(output.weight)) if output.bias is None else output.bias.data.clone()
    bias[[PAD, BOS]] = NEVER
    return weights | {"final_logits_bias": bias[None]}


class MarianRunner:
    """A MarianMT in transformers, which never generates the ids in `suppressed`."""

    def __init__(
        self, folder: Path, *, start: int = BOS, end: int = EOS, suppressed: Sequence[int] = ()
    ) -> None:
        from transformers import GenerationConfig, MarianMTModel

        self.model = MarianMTModel.from_pretrained(
            str(folder), dtype=torch.float32, use_safetensors=True
        ).eval()
        self.start, self.end, self.suppressed = start, end, list(suppressed)
        # Greedy search, whatever the folder's own options are.
        self.model.generation_config = GenerationConfig(
            decoder_start_token_id=start,
            eos_token_id=end,
            pad_token_id=end,
            suppress_tokens=self.suppressed or None,
        )

    @torch.inference_mode()
    def generate(self, prompt: list[int], limit: int) -> list[int]:
        given = torch.tensor([prompt])
        outputs = self.model.generate(  # type: ignore[operator]
            input_ids=given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=limit,
        )
        return [token for token in outputs[0, 1:].tolist() if token != self.end]

    @torch.inference_mode()
    def log_probs(self, prompt: list[int], tokens: list[int]) -> list[float]:
        decoder_input = torch.tensor([[self.start, *tokens[:-1]]])
        logits = self.model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder_input).logits[0]
        logits[:, self.suppressed] = -torch.inf
        return torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()
