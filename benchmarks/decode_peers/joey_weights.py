"""Weights of a regard translator under Joey NMT's names (2.x, pre- or post-norm Transformer, sinusoids).

Two things differ. Joey NMT's ids 0 and 1 are unk and pad, ours are pad and unk: the first two rows are
swapped. Its layer norms have ε = 1e-6, ours 1e-5: `same_epsilon` changes them in its model.
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
    state, joey = model.state_dict(), {}
    embeddings = {
        "source.table": "src_embed.lut",
        "target.table": "trg_embed.lut",
        "output.projection": "decoder.output_layer",
    }
    for ours, theirs in embeddings.items():
        rows = state[f"{ours}.weight"].clone()
        rows[[0, 1]] = rows[[1, 0]]
        joey[f"{theirs}.weight"] = rows
    for side, parts in (("encoder", ENCODER), ("decoder", DECODER)):
        for i in range(model.config[side]["layers"]):
            for ours, theirs in _layer(parts).items():
                for end in ("weight", "bias"):
                    joey[f"{side}.layers.{i}.{theirs}.{end}"] = state[
                        f"{side}.layers.{i}.{ours}.{end}"
                    ].clone()
        if model.config[side]["norm"] == "pre":
            joey |= {
                f"{side}.layer_norm.{end}": state[f"{side}.norm.{end}"].clone() for end in ("weight", "bias")
            }
    return joey


def joey_tokens(pieces):
    """Our vocabulary in Joey NMT's order; the four special tokens by its names."""
    return ["<unk>", "<pad>", "<s>", "</s>", *pieces[4:]]


def same_epsilon(joey_model):
    """Set the epsilon of all layer norms to that of torch and regard."""
    for part in joey_model.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 1e-5


def _layer(parts):
    """Our parameter names in a layer → Joey NMT's."""
    names = {}
    for ours, theirs in parts.items():
        if "norm" in ours:
            names[ours] = theirs
        else:
            names |= {f"{ours}.{a}": f"{theirs}.{b}" for a, b in ATTENTION.items()}
    return names | FEED
