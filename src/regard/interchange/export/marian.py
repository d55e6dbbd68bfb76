"""A translator in the layout of Hugging Face's MarianMT: a post-norm Transformer with sinusoids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS
from regard.interchange.export.check import Model
from regard.interchange.export.hf_tokenizer import save_tokenizer
from regard.interchange.export.marian_layout import ACTIVATIONS, halves, ordered, places
from regard.interchange.export.supported import refuse, same
from regard.interchange.export.tokens import both

NAME = "MarianMT"
POSITIONS = 1024
NEVER = -1e9  # added to the scores of PAD and BOS, which regard never writes

PROGRAM = """
import sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

folder = sys.argv[1]
source, target = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder + TARGET)
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
lines = [line.rstrip("\\n") for line in sys.stdin]
found = model.generate(**source(lines, return_tensors="pt", padding=True), num_beams=4)
print(*target.batch_decode(found, skip_special_tokens=True), sep="\\n")
"""


def refuse_model(model: Model) -> None:
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
    refuse(model, NAME, encoder=sides["encoder"], decoder=sides["decoder"])
    same(model, NAME, "activation")


def program(model: Model) -> str:
    source, target = both(model)
    return PROGRAM.replace("folder + TARGET", "folder" if source == target else 'folder + "/target"')


def write(model: Model, folder: Path) -> None:
    from transformers import MarianMTModel

    theirs = MarianMTModel(_config(model))
    theirs.load_state_dict(_weights(model), strict=False)  # what is tied has one name here, and several there
    theirs.generation_config.update(max_new_tokens=POSITIONS // 2, num_beams=1, forced_eos_token_id=None)
    theirs.save_pretrained(str(folder))
    source, target = both(model)
    save_tokenizer(source, folder, frame=["$A", SPECIALS[EOS]])
    if source != target:
        save_tokenizer(target, folder / "target", frame=["$A", SPECIALS[EOS]])


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
    state, order = model.state_dict(), halves(model.config["dim"])
    found = {place.theirs: ordered(state[place.ours], place.axis, order) for place in places(model.config)}
    shared = found.get("model.shared.weight")
    if shared is not None:
        found |= {f"model.{side}.embed_tokens.weight": shared for side in ("encoder", "decoder")}
    if "lm_head.weight" not in found:
        found["lm_head.weight"] = found["model.decoder.embed_tokens.weight"]
    words = model.output.words
    bias = torch.zeros(len(words.weight)) if words.bias is None else words.bias.data.clone()
    bias[[PAD, BOS]] = NEVER
    return found | {"final_logits_bias": bias[None]}


class Translating:
    """A MarianMT model as the check runs it; `never` are words whose score does not count."""

    def __init__(self, folder: Path, *, start: int = BOS, end: int = EOS, never: Sequence[int] = ()) -> None:
        from transformers import MarianMTModel

        self.inner = MarianMTModel.from_pretrained(
            str(folder), dtype=torch.float32, use_safetensors=True
        ).eval()
        self.start, self.end, self.never = start, end, list(never)

    @torch.inference_mode()
    def write(self, prompt: list[int], limit: int) -> list[int]:
        given = torch.tensor([prompt])
        found = self.inner.generate(  # type: ignore[operator]
            input_ids=given, attention_mask=torch.ones_like(given), max_new_tokens=limit, do_sample=False, num_beams=1,
            suppress_tokens=self.never or None, forced_eos_token_id=None,
        )  # fmt: skip
        return [word for word in found[0, 1:].tolist() if word != self.end]

    @torch.inference_mode()
    def score(self, prompt: list[int], words: list[int]) -> list[float]:
        begun = torch.tensor([[self.start, *words[:-1]]])
        scores = self.inner(input_ids=torch.tensor([prompt]), decoder_input_ids=begun).logits[0]
        scores[:, self.never] = -torch.inf
        return torch.log_softmax(scores, -1).gather(-1, torch.tensor(words)[:, None])[:, 0].tolist()
