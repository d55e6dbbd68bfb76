"""Export a language model as Hugging Face's GPT-2: a pre-norm Transformer with a position table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.position import Learned, Sinusoidal
from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS
from regard.interchange.export.compare import Model
from regard.interchange.export.hf_tokenizer import save_tokenizer
from regard.interchange.export.supported import check_options

TITLE = "GPT-2"
POSITIONS = 1024  # rows of the table that sinusoidal positions are exported as
NEVER = -1e8  # a token whose bias is below this is never generated
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "swish": "silu"}

PROGRAM = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = sys.argv[1]
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
for line in sys.stdin:
    inputs = tokenizer(line.rstrip("\\n"), return_tensors="pt")
    outputs = model.generate(**inputs, max_new_tokens=50)
    print(tokenizer.decode(outputs[0], skip_special_tokens=True))
"""


def check_supported(model: Model) -> None:
    """Raise OptionError with the reason if GPT-2 cannot express this model."""
    config: dict[str, Any] = model.config  # type: ignore[assignment]
    table: dict[str, tuple[Any, ...]] = {
        "norm": ("pre",),
        "norm_kind": ("layer",),
        "position": ("learned", "sinusoidal", "none"),
        "activation": tuple(ACTIVATIONS),
        "key_heads": (None, config["decoder"].get("heads")),
    }
    check_options(model, TITLE, encoder={}, decoder=table)


def example_program(model: Model) -> str:
    """Return a program that continues lines of text with the exported model."""
    return PROGRAM


def write(model: Model, folder: Path) -> None:
    """Write model and tokenizer as `save_pretrained` does."""
    from transformers import GPT2LMHeadModel

    config, weights, never = layout(model)
    theirs = GPT2LMHeadModel(config)
    theirs.load_state_dict(weights)
    theirs.generation_config.update(suppress_tokens=never, pad_token_id=PAD)
    theirs.save_pretrained(str(folder))
    save_tokenizer(model.target_tokenizer, folder, template=[SPECIALS[BOS], "$A"])  # type: ignore[arg-type]


def layout(model: Any) -> tuple[Any, dict[str, Tensor], list[int]]:
    """Return GPT-2's config, its weights, and the ids of the tokens that must never be generated."""
    from transformers import GPT2Config

    spec, dim = model.config["decoder"], model.config["dim"]
    bias, never = _bias(model)
    wider = Widening(dim, spec["heads"] if bias.any() else 0)
    output, scale = model.output.projection.weight.data, model.target.scale
    tied = wider.extra == 0 and scale == 1.0 and model.config["tie"] != "none"
    weights = {"transformer.wte.weight": wider.outputs(model.target.table.weight.data * scale, 1)}
    weights["transformer.wpe.weight"] = wider.outputs(_positions(model.decoder.position, dim), 1)
    for i, layer in enumerate(model.decoder.layers):
        weights |= {f"transformer.h.{i}.{name}": x for name, x in _layer(layer, wider).items()}
    weights |= {f"transformer.ln_f.{name}": x for name, x in wider.norm(model.decoder.norm).items()}
    weights["lm_head.weight"] = wider.inputs(output)
    if wider.extra:  # one of the extra channels is 1 after the last norm, so that its weights are the bias
        weights["transformer.ln_f.bias"][dim] = 1.0
        weights["lm_head.weight"][:, dim] = bias
    config = GPT2Config(
        vocab_size=len(output),
        n_positions=len(weights["transformer.wpe.weight"]),
        n_embd=dim + wider.extra,
        n_layer=spec["layers"],
        n_head=spec["heads"],
        n_inner=spec["inner"],
        activation_function=ACTIVATIONS[spec["activation"]],
        layer_norm_epsilon=1e-5 * wider.variance_ratio,
        tie_word_embeddings=tied,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        resid_pdrop=model.config["dropout"],
        embd_pdrop=model.config["dropout"],
        attn_pdrop=spec["attention_dropout"],
    )
    return config, {name: x.contiguous() for name, x in weights.items()}, never


class Widening:
    """Widen the model by one channel per head, to express the output bias, which GPT-2 does not have.

    Every extra channel equals the mean of the real channels in all layers. Layer norm then computes the same
    mean, and a variance smaller by the factor `variance_ratio`, which its gain and its epsilon compensate.
    Layers ignore the extra channels of their input and write the mean of their output into them. Every head
    gets one more dimension, filled with zeros.
    """

    def __init__(self, dim: int, heads: int) -> None:
        self.dim, self.extra, self.variance_ratio = dim, heads, dim / (dim + heads)

    def outputs(self, x: Tensor, axis: int) -> Tensor:
        """Append the mean over the output channels along `axis`, once per extra channel."""
        mean = x.mean(axis, keepdim=True)
        return torch.cat([x, mean.expand(*(self.extra if i == axis else -1 for i in range(x.ndim)))], axis)

    def inputs(self, x: Tensor) -> Tensor:
        """Add zero weights for the extra input channels: (out, dim) → (out, dim + extra)."""
        return nn.functional.pad(x, (0, self.extra))

    def norm(self, norm: Any) -> dict[str, Tensor]:
        """Return gain and bias of a layer norm over the wider model."""
        gain = norm.weight.data * math.sqrt(self.variance_ratio)
        return {
            "weight": nn.functional.pad(gain, (0, self.extra)),
            "bias": nn.functional.pad(norm.bias.data, (0, self.extra)),
        }

    def heads(self, x: Tensor, heads: int) -> Tensor:
        """Add a zero dimension to each head: (heads · width, …) → (heads · (width + 1), …)."""
        if not self.extra:
            return x
        split = x.unflatten(0, (heads, -1))
        return torch.cat([split, torch.zeros_like(split[:, :1])], 1).flatten(0, 1)


def _layer(layer: Any, wider: Widening) -> dict[str, Tensor]:
    """Return the weights of one layer; GPT-2 stores linear layers transposed, (in, out)."""
    attention, heads = layer.attention, layer.attention.heads
    width = attention.head_dim
    # GPT-2 divides scores by √(width of a head), which has grown by one.
    rescale = math.sqrt((width + 1) / width) if wider.extra else 1.0
    projections = [(attention.Wq, rescale), (attention.Wk, 1.0), (attention.Wv, 1.0)]
    weights = [wider.heads(wider.inputs(layer.weight.data * factor), heads) for layer, factor in projections]
    biases = [wider.heads(layer.bias.data * factor, heads) for layer, factor in projections]
    state = {
        "attn.c_attn.weight": torch.cat(weights).T,
        "attn.c_attn.bias": torch.cat(biases),
        "attn.c_proj.weight": wider.outputs(wider.heads(attention.Wo.weight.data.T, heads), 1),
        "attn.c_proj.bias": wider.outputs(attention.Wo.bias.data, 0),
        "mlp.c_fc.weight": wider.inputs(layer.feed.W1.weight.data).T,
        "mlp.c_fc.bias": layer.feed.W1.bias.data,
        "mlp.c_proj.weight": wider.outputs(layer.feed.W2.weight.data.T, 1),
        "mlp.c_proj.bias": wider.outputs(layer.feed.W2.bias.data, 0),
    }
    for name, around in (("ln_1", layer.around_attention), ("ln_2", layer.around_feed)):
        state |= {f"{name}.{part}": x for part, x in wider.norm(around.norm).items()}
    return state


def _bias(model: Any) -> tuple[Tensor, list[int]]:
    """Return the output bias and the ids that it excludes, which become `suppress_tokens`."""
    output = model.output.projection
    bias = torch.zeros(len(output.weight)) if output.bias is None else output.bias.data.clone()
    bias[[PAD, BOS]] = 2 * NEVER
    excluded = bias < NEVER
    return bias.masked_fill(excluded, 0.0), excluded.nonzero()[:, 0].tolist()


def _positions(position: nn.Module, dim: int) -> Tensor:
    if isinstance(position, Learned):
        return position.weight.data
    return position.table(POSITIONS) if isinstance(position, Sinusoidal) else torch.zeros(POSITIONS, dim)


class Gpt2Runner:
    """A GPT-2 in transformers, which never generates the ids in `suppressed`, by default the folder's."""

    def __init__(self, folder: Path, *, end: int = EOS, suppressed: Sequence[int] | None = None) -> None:
        from transformers import GenerationConfig, GPT2LMHeadModel

        self.model = GPT2LMHeadModel.from_pretrained(
            str(folder), dtype=torch.float32, use_safetensors=True
        ).eval()
        self.end = end
        if suppressed is None:
            suppressed = self.model.generation_config.suppress_tokens or []  # type: ignore[union-attr]
        self.suppressed = list(suppressed)
        # Greedy search, whatever the folder's own options are.
        self.model.generation_config = GenerationConfig(
            eos_token_id=end, pad_token_id=end, suppress_tokens=self.suppressed or None
        )

    @torch.inference_mode()
    def generate(self, prompt: list[int], limit: int) -> list[int]:
        given = torch.tensor([prompt])
        outputs = self.model.generate(  # type: ignore[operator]
            input_ids=given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=limit,
        )
        return [token for token in outputs[0, len(prompt) :].tolist() if token != self.end]

    @torch.inference_mode()
    def log_probs(self, prompt: list[int], tokens: list[int]) -> list[float]:
        logits = self.model(input_ids=torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, len(prompt) - 1 :]
        logits[:, self.suppressed] = -torch.inf
        return torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()
