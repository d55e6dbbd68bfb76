# %% [markdown]
# # Lesson 7: Masks and language models
#
# A causal mask lets one pass train a prediction at every position; without it a model copies the answer
# instead of predicting it.
#
# Sources: Vaswani et al. 2017, section 3.2.3 (masking); Lars Schmidt-Thieme, *Deep Learning: Attention
# Layers* (decoding token by token); Shannon 1951, *Prediction and Entropy of Printed English*.

# %%
import math

import torch
from torch import nn

import regard
from regard.attention import Documents, RelativeBuckets
from regard.lessons import by_size, expect, show
from regard.lessons.texts import ALPHABET, letters
from regard.pictures import LineChart, MatrixPicture

torch.manual_seed(0)

# %% [markdown]
# ## The mask
# Before the softmax every score of a later position becomes −∞, so its weight is 0. Each row has one key more
# than the row before.

# %%
words = ["the", "cat", "sat", "on", "the", "mat"]
q, k = torch.randn(2, len(words), 16)
causal = regard.weights(q, k, mask=regard.Causal())
show(MatrixPicture(causal, words, words, title="Causal attention"))
expect(
    "weight above the diagonal",
    causal.triu(1).sum().item(),
    0.0,
    within=0,
    source="Vaswani et al., section 3.2.3",
)
expect("sum of each row", causal.sum(1).mean().item(), 1.0, within=1e-5, source="masked before the softmax")

# %% [markdown]
# ## One pass, T predictions
# With the mask, output t depends on inputs 1 … t alone. So one pass over a sentence gives the same outputs as
# T passes over its prefixes, and a training sentence of T words is T examples at the price of one.

# %%
layer = regard.MultiHead(16, heads=2, mask=regard.Causal())
x = torch.randn(1, 6, 16)
at_once = layer(x)
prefixes = torch.cat([layer(x[:, : t + 1])[:, -1:] for t in range(6)], 1)
expect(
    "one pass minus six passes",
    (at_once - prefixes).abs().max().item(),
    0.0,
    within=1e-5,
    source="output t sees inputs 1 … t",
)

# %%
x.requires_grad_()
gradient = torch.stack([torch.autograd.grad(layer(x)[0, t].sum(), x)[0][0].norm(dim=-1) for t in range(6)])
expect(
    "gradient from later inputs", gradient.triu(1).abs().max().item(), 0.0, within=0, source="nothing leaks"
)

# %% [markdown]
# ## How well can the next letter be guessed?
# Shannon measured English in 27 symbols, a … z and the space: 4.03 bits per letter if each is guessed from
# frequencies alone, 3.32 if the letter before is known. The text here, short sentences of Tatoeba, is simpler
# than his.

# %%
text = letters("en")
single = torch.bincount(text, minlength=27).double()
pairs = torch.zeros(27, 27, dtype=torch.double).index_put_(
    (text[:-1], text[1:]), torch.ones((), dtype=torch.double), accumulate=True
)


def entropy(counts: torch.Tensor) -> float:
    return torch.special.entr(counts / counts.sum()).sum().item() / math.log(2)


one, two = entropy(single), entropy(pairs) - entropy(single)
expect("bits per letter from frequencies", one, 4.03, within=0.15, source="Shannon 1951, F₁")
expect("bits per letter after one letter", two, 3.32, within=0.4, source="Shannon 1951, F₂")

# %% [markdown]
# ## With and without the mask
# Two equal models learn to predict the next letter, one with a causal mask, one without. The one without a
# mask sees the next letter in its input and only has to copy it.


# %%
class LettersModel(nn.Module):
    """Two attention layers over letters; a bias per distance (T5's) lets them point to one neighbour."""

    def __init__(self, mask: regard.Causal | None, dim: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(27, dim), nn.Linear(dim, 27)

        def make():
            return regard.MultiHead(dim, heads, mask=mask, bias=RelativeBuckets(heads))

        self.attends = nn.ModuleList(make() for _ in range(2))
        self.feeds = nn.ModuleList(regard.layers.FeedForward(dim, 4 * dim) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)  # (batch, time, dim)
        for i, (attend, feed) in enumerate(zip(self.attends, self.feeds, strict=True)):
            x = x + attend(self.norms[2 * i](x))
            x = x + feed(self.norms[2 * i + 1](x))
        return self.read(x)


L = 32
train_text, test_text = text[:-20_000], text[-20_000:]


def train(mask: regard.Causal | None) -> tuple[nn.Module, list[tuple[float, float]]]:
    """The model and the curve of its training loss in bits."""
    torch.manual_seed(4)
    model, curve = LettersModel(mask), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for step in range(by_size(full=500, small=70)):
        starts = torch.randint(len(train_text) - L - 1, (by_size(full=32, small=16), 1))
        windows = train_text[starts + torch.arange(L + 1)]
        loss = nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            curve.append((step, loss.item() / math.log(2)))
    return model.eval(), curve


@torch.no_grad()
def honest(model: nn.Module) -> float:
    """Bits for the letter after a window, which the model cannot see: the situation of generating text."""
    windows = test_text[torch.arange(0, 600 * L, L)[:, None] + torch.arange(L + 1)]
    return nn.functional.cross_entropy(model(windows[:, :-1])[:, -1], windows[:, -1]).item() / math.log(2)


with_mask, with_curve = train(regard.Causal())
without_mask, without_curve = train(None)
show(
    LineChart(
        {"causal mask": with_curve, "no mask": without_curve}, "Training loss", "step", "bits per letter"
    )
)

# %%
print(f"last training loss: causal {with_curve[-1][1]:.2f} bits, no mask {without_curve[-1][1]:.2f} bits")
with_bits, without_bits = honest(with_mask), honest(without_mask)
print(f"a letter that is not in the input: causal {with_bits:.2f} bits, no mask {without_bits:.2f} bits")
assert without_curve[-1][1] < with_curve[-1][1] - by_size(full=1.0, small=0.1)
assert honest(without_mask) > honest(with_mask) + by_size(full=0.8, small=0.1)
expect(
    "causal model, unseen letter, bits",
    honest(with_mask),
    by_size(full=1.75, small=3.0),
    within=by_size(full=0.3, small=0.6),
    source=f"measured here; a table of letter pairs needs {two:.2f}",
)

# %% [markdown]
# The training loss of the model without a mask falls to almost nothing, and it has learned little about
# English: asked for a letter that is not in its input, it is no better than a table of letter pairs. The
# model with the mask is as good as its training loss says. Shannon (1951) estimated 0.6 to 1.3 bits per
# letter from people who guess the next one after 100 letters; a model of 100,000 weights with half a minute
# of training is not there.
#
# ## Generating
# The causal model now writes, letter by letter: p(y_t given y_<t), drawn with temperature ½.

# %%
torch.manual_seed(5)
ids = torch.tensor([ALPHABET.index(letter) for letter in "i would like "])
with torch.no_grad():
    for _ in range(60):
        p = torch.softmax(with_mask(ids[None, -L:])[0, -1] / 0.5, -1)
        ids = torch.cat([ids, torch.multinomial(p, 1)])
print("".join(ALPHABET[i] for i in ids.tolist()))

# %% [markdown]
# ## Two more masks
# *Padding* hides the empty places of shorter sentences in a batch. *Documents* packs several sentences into
# one row without padding: a token sees its own document alone. Both combine with the causal mask by `&`, and
# packing changes no output.

# %%
layer = regard.MultiHead(16, heads=2)
first, second = torch.randn(1, 3, 16), torch.randn(1, 2, 16)
mask = regard.Causal() & Documents.of_lengths([3, 2])
packed = layer(torch.cat([first, second], 1), mask=mask)
alone = torch.cat([layer(first, mask=regard.Causal()), layer(second, mask=regard.Causal())], 1)
labels = ["a1", "a2", "a3", "b1", "b2"]
show(MatrixPicture(mask.dense(5, 5).float().reshape(5, 5), labels, labels, title="Causal & two documents"))
expect(
    "packed minus alone",
    (packed - alone).abs().max().item(),
    0.0,
    within=1e-5,
    source="masked keys have weight 0",
)

# %% [markdown]
# ## Exercises
# 1. Write `causal_attention(Q, K, V)` for tensors (T, d): softmax(QKᵀ/√d)V where no position sees a later
#    one, without `regard`.
# 2. Write `packing_mask(lengths)`: the boolean matrix (T, T), T = sum of lengths, that is True where a query
#    may see a key in causal attention over packed documents.
#
# Put both into a file and run `regard lessons check 7 answer.py`.
