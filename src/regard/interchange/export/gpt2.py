"""A language model in the layout of Hugging Face's GPT-2: a pre-norm Transformer with a table of positions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.position import Learned, Sinusoidal
from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS
from regard.interchange.export.check import Model
from regard.interchange.export.hf_tokenizer import save_tokenizer
from regard.interchange.export.supported import refuse

NAME = "GPT-2"
POSITIONS = 1024  # rows of the table that sinusoids are written out as
NEVER = -1e8  # a word whose score is lowered by more than this is never written
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "swish": "silu"}

PROGRAM = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = sys.argv[1]
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
for line in sys.stdin:
    given = tokenizer(line.rstrip("\\n"), return_tensors="pt")
    found = model.generate(**given, max_new_tokens=50)
    print(tokenizer.decode(found[0], skip_special_tokens=True))
"""


def refuse_model(model: Model) -> None:
    config: dict[str, Any] = model.config  # type: ignore[assignment]
    table: dict[str, tuple[Any, ...]] = {
        "norm": ("pre",),
        "norm_kind": ("layer",),
        "position": ("learned", "sinusoidal", "none"),
        "activation": tuple(ACTIVATIONS),
        "key_heads": (None, config["decoder"].get("heads")),
    }
    refuse(model, NAME, encoder={}, decoder=table)


def program(model: Model) -> str:
    return PROGRAM


def write(model: Model, folder: Path) -> None:
    from transformers import GPT2LMHeadModel

    config, weights, never = layout(model)
    theirs = GPT2LMHeadModel(config)
    theirs.load_state_dict(weights)
    theirs.generation_config.update(suppress_tokens=never, pad_token_id=PAD)
    theirs.save_pretrained(str(folder))
    save_tokenizer(model.target_tokenizer, folder, frame=[SPECIALS[BOS], "$A"])  # type: ignore[arg-type]


def layout(model: Any) -> tuple[Any, dict[str, Tensor], list[int]]:
    """GPT-2's config and weights, and the words that may never be written."""
    from transformers import GPT2Config

    spec, dim = model.config["decoder"], model.config["dim"]
    bias, never = _bias(model)
    wide: Widening = Widening(dim, spec["heads"]) if bias.any() else Widening(dim, 0)
    words, scale = model.output.words.weight.data, model.target.scale
    tied = wide.extra == 0 and scale == 1.0 and model.config["tie"] != "none"
    weights = {"transformer.wte.weight": wide.writes(model.target.table.weight.data * scale, 1)}
    weights["transformer.wpe.weight"] = wide.writes(_positions(model.decoder.position, dim), 1)
    for i, layer in enumerate(model.decoder.layers):
        weights |= {f"transformer.h.{i}.{name}": x for name, x in _layer(layer, wide).items()}
    weights |= {f"transformer.ln_f.{name}": x for name, x in wide.norm(model.decoder.norm).items()}
    weights["lm_head.weight"] = wide.reads(words)
    if wide.extra:  # one of the new channels is 1 behind the last norm, so that it can carry the bias
        weights["transformer.ln_f.bias"][dim] = 1.0
        weights["lm_head.weight"][:, dim] = bias
    config = GPT2Config(
        vocab_size=len(words), n_positions=len(weights["transformer.wpe.weight"]), n_embd=dim + wide.extra, n_layer=spec["layers"],
        n_head=spec["heads"], n_inner=spec["inner"], activation_function=ACTIVATIONS[spec["activation"]],
        layer_norm_epsilon=1e-5 * wide.share, tie_word_embeddings=tied, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD,
        resid_pdrop=model.config["dropout"], embd_pdrop=model.config["dropout"], attn_pdrop=spec["attention_dropout"],
    )  # fmt: skip
    return config, {name: x.contiguous() for name, x in weights.items()}, never


class Widening:
    """GPT-2's output has no bias, ours has. Room for it: `extra` channels, each the mean of the real ones all along the way.

    Layer norm then finds the same mean and a variance smaller by a fixed share, which its gain and its ε make good; what reads
    does not look at the new channels, what writes keeps them at the mean. Every head is one wider, with zeros.
    """

    def __init__(self, dim: int, heads: int) -> None:
        self.dim, self.extra, self.share = dim, heads, dim / (dim + heads)

    def writes(self, x: Tensor, axis: int) -> Tensor:
        """What makes channels along this axis makes their mean too."""
        mean = x.mean(axis, keepdim=True)
        return torch.cat([x, mean.expand(*(self.extra if i == axis else -1 for i in range(x.ndim)))], axis)

    def reads(self, x: Tensor) -> Tensor:
        """(out, dim) → (out, dim + extra)."""
        return nn.functional.pad(x, (0, self.extra))

    def norm(self, norm: Any) -> dict[str, Tensor]:
        gain = norm.weight.data * math.sqrt(self.share)
        return {
            "weight": nn.functional.pad(gain, (0, self.extra)),
            "bias": nn.functional.pad(norm.bias.data, (0, self.extra)),
        }

    def heads(self, x: Tensor, heads: int) -> Tensor:
        """(heads · width, …) → (heads · (width + 1), …)."""
        if not self.extra:
            return x
        split = x.unflatten(0, (heads, -1))
        return torch.cat([split, torch.zeros_like(split[:, :1])], 1).flatten(0, 1)


def _layer(layer: Any, wide: Widening) -> dict[str, Tensor]:
    """Its linear maps are stored the other way round: (in, out)."""
    attention, heads = layer.attention, layer.attention.heads
    width = attention.head_dim
    # Scores are divided by the root of a head's width, which has grown.
    more = math.sqrt((width + 1) / width) if wide.extra else 1.0
    parts = [(attention.Wq, more), (attention.Wk, 1.0), (attention.Wv, 1.0)]
    maps = [wide.heads(wide.reads(part.weight.data * factor), heads) for part, factor in parts]
    biases = [wide.heads(part.bias.data * factor, heads) for part, factor in parts]
    found = {
        "attn.c_attn.weight": torch.cat(maps).T,
        "attn.c_attn.bias": torch.cat(biases),
        "attn.c_proj.weight": wide.writes(wide.heads(attention.Wo.weight.data.T, heads), 1),
        "attn.c_proj.bias": wide.writes(attention.Wo.bias.data, 0),
        "mlp.c_fc.weight": wide.reads(layer.feed.W1.weight.data).T,
        "mlp.c_fc.bias": layer.feed.W1.bias.data,
        "mlp.c_proj.weight": wide.writes(layer.feed.W2.weight.data.T, 1),
        "mlp.c_proj.bias": wide.writes(layer.feed.W2.bias.data, 0),
    }
    for name, around in (("ln_1", layer.around_attention), ("ln_2", layer.around_feed)):
        found |= {f"{name}.{part}": x for part, x in wide.norm(around.norm).items()}
    return found


def _bias(model: Any) -> tuple[Tensor, list[int]]:
    """The bias of the output, and the words it rules out, which are left to `suppress_tokens`."""
    words = model.output.words
    bias = torch.zeros(len(words.weight)) if words.bias is None else words.bias.data.clone()
    bias[[PAD, BOS]] = 2 * NEVER
    ruled_out = bias < NEVER
    return bias.masked_fill(ruled_out, 0.0), ruled_out.nonzero()[:, 0].tolist()


def _positions(position: nn.Module, dim: int) -> Tensor:
    if isinstance(position, Learned):
        return position.weight.data
    return position.table(POSITIONS) if isinstance(position, Sinusoidal) else torch.zeros(POSITIONS, dim)


class Generating:
    """A GPT-2 as the check runs it."""

    def __init__(self, folder: Path, *, end: int = EOS) -> None:
        from transformers import GPT2LMHeadModel

        self.inner = GPT2LMHeadModel.from_pretrained(
            str(folder), dtype=torch.float32, use_safetensors=True
        ).eval()
        self.end = end
        self.never: list[int] = self.inner.generation_config.suppress_tokens or []  # type: ignore[union-attr]

    @torch.inference_mode()
    def write(self, prompt: list[int], limit: int) -> list[int]:
        given = torch.tensor([prompt])
        found = self.inner.generate(  # type: ignore[operator]
            input_ids=given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=limit,
            do_sample=False,
            pad_token_id=self.end,
        )
        return [word for word in found[0, len(prompt) :].tolist() if word != self.end]

    @torch.inference_mode()
    def score(self, prompt: list[int], words: list[int]) -> list[float]:
        scores = self.inner(input_ids=torch.tensor([[*prompt, *words[:-1]]])).logits[0, len(prompt) - 1 :]
        scores[:, self.never] = -torch.inf
        return torch.log_softmax(scores, -1).gather(-1, torch.tensor(words)[:, None])[:, 0].tolist()
