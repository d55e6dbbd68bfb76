"""Weights of a regard translator under Joey NMT's names (2.x, pre- or post-norm Transformer, sinusoids).

Two things differ. Joey numbers unk, pad, bos, eos and we pad, unk, bos, eos: the first two rows are swapped.
Its layer norms have ε = 1e-6 and ours 1e-5: `same_epsilon` sets them in the model that was built.
"""

from torch import nn

ATTENTION = {"Wq": "q_layer", "Wk": "k_layer", "Wv": "v_layer", "Wo": "output_layer"}
ENCODER = {"attention": "src_src_att", "around_attention.norm": "layer_norm"}
DECODER = {
    "attention": "trg_trg_att",
    "cross": "src_trg_att",
    "around_attention.norm": "x_layer_norm",
    "around_cross.norm": "dec_layer_norm",
}
FEED = {
    "feed.W1": "feed_forward.pwff_layer.0",
    "feed.W2": "feed_forward.pwff_layer.3",
    "around_feed.norm": "feed_forward.layer_norm",
}


def joey_state(model):
    """A state dict for `load_state_dict(…, strict=False)`: sinusoids are buffers. One or two vocabularies."""
    state, found = model.state_dict(), {}
    words = {
        "source.table": "src_embed.lut",
        "target.table": "trg_embed.lut",
        "output.projection": "decoder.output_layer",
    }
    for ours, theirs in words.items():
        rows = state[f"{ours}.weight"].clone()
        rows[[0, 1]] = rows[[1, 0]]
        found[f"{theirs}.weight"] = rows
    for side, parts in (("encoder", ENCODER), ("decoder", DECODER)):
        for i in range(model.config[side]["layers"]):
            for ours, theirs in _layer(parts).items():
                for end in ("weight", "bias"):
                    found[f"{side}.layers.{i}.{theirs}.{end}"] = state[
                        f"{side}.layers.{i}.{ours}.{end}"
                    ].clone()
        if model.config[side]["norm"] == "pre":
            found |= {
                f"{side}.layer_norm.{end}": state[f"{side}.norm.{end}"].clone() for end in ("weight", "bias")
            }
    return found


def joey_tokens(pieces):
    """Our pieces in Joey's order of numbers, the four special ones by its names."""
    return ["<unk>", "<pad>", "<s>", "</s>", *pieces[4:]]


def same_epsilon(joey_model):
    for part in joey_model.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 1e-5


def _layer(parts):
    found = {}
    for ours, theirs in parts.items():
        if "norm" in ours:
            found[ours] = theirs
        else:
            found |= {f"{ours}.{a}": f"{theirs}.{b}" for a, b in ATTENTION.items()}
    return found | FEED
