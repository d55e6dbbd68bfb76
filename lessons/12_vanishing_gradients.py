# %% [markdown]
# # Lesson 12: Vanishing gradients, and a short way around them
#
# In a recurrent translator the gradient reaches the first of 60 words through 60 steps and is gone before it
# arrives. Attention gives every word an edge of its own to the output, and the gradient takes it.
#
# Source: Enevoldsen's lecture ("the gradient has to flow through the entire sequence") and *Deep Learning IX*
# ("attention allows the decoder to look back into the past as far as it wants"). The argument is that of
# Bengio, Simard and Frasconi (1994): a product of many factors below 1 vanishes exponentially.

# %%
import math

import torch

import regard
from regard.lessons import expect, show
from regard.pictures import LineChart

WORDS = 60


def translator(attention: str, cell: str = "gru") -> torch.nn.Module:
    torch.manual_seed(0)
    encoder = {"kind": "recurrent", "cell": cell, "bidirectional": False}
    decoder = {"kind": "recurrent", "cell": cell, "attention": attention}
    options = {"dim": 64, "dropout": 0.0, "encoder": encoder, "decoder": decoder}
    return regard.build(options, 100, 100).eval()


# %% [markdown]
# ## Two models that differ by one word
# Without attention everything about the source goes through the last encoder state. With `attention: dot`
# each step of the decoder also reads all encoder states, by the orange edges of the drawing.

# %%
for attention in ("none", "dot"):
    show(regard.draw(translator(attention), steps=4), f"attention: {attention}")

# %% [markdown]
# ## The gradient at each word
# The loss is that of one target word, the last of six. Its gradient with respect to the embedding of source
# word s says how much the model would learn from an error about that word. The models are untrained: this is
# what the first step of training sees.


# %%
def gradient_by_word(model: torch.nn.Module, words: int = WORDS, sentences: int = 16) -> torch.Tensor:
    """Mean norm of the gradient of the last target word's loss at each source embedding, (words,)."""
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, 100, (sentences, n), generator=generator) for n in (words, 7))
    embedded = []
    hook = model.source.register_forward_hook(lambda module, inputs, out: embedded.append(out))
    scores = model(source, target[:, :-1])  # (sentences, 6, 100)
    hook.remove()
    loss = torch.nn.functional.cross_entropy(scores[:, -1], target[:, -1], reduction="sum")
    (gradient,) = torch.autograd.grad(loss, embedded[0])  # (sentences, words, 64)
    return gradient.norm(dim=-1).mean(0)


plain, attending = (gradient_by_word(translator(attention)) for attention in ("none", "dot"))
print(f"first word, no attention: {plain[0]:.1e}   last word: {plain[-1]:.1e}")
print(f"first word, attention:    {attending[0]:.1e}   last word: {attending[-1]:.1e}")


# %%
def curve(gradients: torch.Tensor) -> list[tuple[float, float]]:
    return [(word + 1, float(norm)) for word, norm in enumerate(gradients)][:: max(1, len(gradients) // 20)]


series = {"no attention": curve(plain), "attention: dot": curve(attending)}
title = "Gradient that reaches each of 60 source words"
show(LineChart(series, title, "source word", "norm of the gradient", log_y=True))

# %% [markdown]
# Without attention the last word gets ten orders of magnitude more than the first: in an update that adds
# both, the first word does not count. The lectures name the effect and give no number. We compare with an
# earlier run of this project, 3.5e-12 and 2.9e-2, by order of magnitude, since width and initial weights move
# the numbers.

# %%
source = "an earlier run of ours"
expect(
    "log10 of the gradient, no attention",
    math.log10(plain[0]),
    math.log10(3.5e-12),
    within=2.5,
    source=source,
)
expect("log10, attention", math.log10(attending[0]), math.log10(2.9e-2), within=1.5, source=source)
assert attending[0] / plain[0] > 1e6

# %% [markdown]
# ## Why a straight line?
# The axis is logarithmic, so a straight line is a constant factor per step. ∂h_T/∂h_0 is a product of T
# Jacobians; if each shrinks a vector by about the factor λ, the product is λ^T. Measure λ between words 10
# and 50, and predict the first word from it.

# %%
factor = float(plain[10] / plain[50]) ** (1 / 40)
predicted = float(plain[10]) * factor**10
print(f"each step keeps {factor:.2f} of the gradient, and {factor:.2f}^60 = {factor**60:.0e}")
assert 0.4 < factor < 0.9
gap = math.log10(predicted) - math.log10(plain[0])
expect(
    "predicted / measured at the first word, log10", gap, 0.0, within=1.0, source="Bengio et al. 1994, λ^T"
)

# %% [markdown]
# ## Gates help, attention more
# An LSTM keeps more: its cell is a sum, and with a forget gate near 1 the factor is near 1 (Hochreiter and
# Schmidhuber 1997). It still falls by many orders of magnitude here. Attention's curve is flat for all cells.

# %%
cells = {}
for cell in ("rnn", "gru", "lstm"):
    cells[cell] = gradient_by_word(translator("none", cell))
    print(f"{cell:4}  no attention {cells[cell][0]:.1e}", end="")
    flat = gradient_by_word(translator("dot", cell))
    print(f"   attention {flat[0]:.1e}   first / last word with attention {flat[0] / flat[-1]:.2f}")
    assert flat[0] / cells[cell][0] > 1e2 and 0.1 < flat[0] / flat[-1] < 10
show(
    LineChart(
        {name: curve(values) for name, values in cells.items()},
        "No attention: three cells",
        "source word",
        "norm of the gradient",
        log_y=True,
    )
)
assert cells["lstm"][0] > 1e2 * cells["gru"][0]

# %% [markdown]
# ## What this does not say
# These are untrained models. Training moves gates towards 1 where memory pays, and a trained LSTM without
# attention does translate 20 words. But it has to learn that first, against this gradient; lesson 13 measures
# how far it gets. And a gradient that arrives is not yet a good translation.

# %% [markdown]
# ## Exercises
# 1. Write `step_factor(gradients)`: the factor per step λ for a tensor of gradient norms (T,) that fall by a
#    constant factor from the last word to the first. Return a float.
# 2. For h_t = tanh(W h_(t−1) + x_t), write `jacobian(W, states)`: ∂h_T/∂h_0 as a matrix (d, d), from W and
#    the states h_1 … h_T, (T, d), without autograd.
#
# Put both into a file and run `regard lessons check 12 answer.py`.
