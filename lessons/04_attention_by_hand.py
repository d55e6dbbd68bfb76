# %% [markdown]
# # Lesson 4: An attention layer by hand
#
# Weighted means of the inputs, then queries, keys and values, then several heads, and what a token loses if
# it may not attend to itself.
#
# Sources: Kenneth Enevoldsen, *Natural Language Processing, lecture 5: Attention* (2024); Lars
# Schmidt-Thieme, *Deep Learning: Attention Layers*; Vaswani et al. 2017, section 3.2.2.

# %%
import torch
from torch import nn

import regard
from regard.lessons import by_size, expect, show
from regard.pictures import HeadGrid, MatrixPicture

torch.manual_seed(0)
words = ["the", "cat", "sat", "on", "the", "mat"]
T, M = len(words), 8
vocabulary = {word: torch.randn(M) for word in dict.fromkeys(words)}
E = torch.stack([vocabulary[word] for word in words])  # (T, M)

# %% [markdown]
# ## Values without projection
# Enevoldsen's first form is a weighted mean of the embeddings themselves, softmax(EEᵀ)E. The dot product is
# large for similar vectors, so words attend mostly to themselves and to their copies: both "the" have the
# same row. But similar words are not the only ones that matter.

# %%
similar = torch.softmax(E @ E.T, -1)
show(MatrixPicture(similar, words, words, title="softmax(EEᵀ): words attend to themselves"))
own = torch.stack([similar[t, [s for s in range(T) if words[s] == words[t]]].sum() for t in range(T)])
print("weight on the word itself and its copies:", [round(value, 2) for value in own.tolist()])
assert own.mean() > 0.6 and torch.allclose(similar[0], similar[4])

# %% [markdown]
# ## Queries and keys
# Two linear maps give each word a query (what it looks for) and a key (what it offers). The values are still
# the embeddings: softmax(QKᵀ/√d)E. Each output is a mixture of the inputs with weights that sum to 1, so no
# component can leave the range of the inputs.

# %%
d = 4
Wq, Wk = torch.randn(M, d) / M**0.5, torch.randn(M, d) / M**0.5
Q, K = E @ Wq, E @ Wk  # (T, d)
weights = torch.softmax(Q @ K.T / d**0.5, -1)
out = weights @ E
show(MatrixPicture(weights, words, words, title="softmax(QKᵀ/√d): random maps, other partners"))
same = (regard.attend(Q, K, E) - out).abs().max().item()
expect("attend minus the formula by hand", same, 0.0, within=1e-5, source="Enevoldsen, softmax(QKᵀ/√d)E")
expect("sum of each row", weights.sum(1).mean().item(), 1.0, within=1e-5, source="softmax")
assert bool((out <= E.max(0).values + 1e-6).all() and (out >= E.min(0).values - 1e-6).all())

# %% [markdown]
# ## Values with projection, several heads
# A third map gives the values, and the layer can now write something else than what it reads. One softmax
# gives one pattern per word; H heads give H of them. In Vaswani's form every head has its own maps from all M
# features to M/H; the results are concatenated and projected. That is 4M² parameters for any H.

# %%
H = 2
full = regard.MultiHead(M, heads=H, linear_bias=False)
parts = []
for h in range(H):
    rows = slice(h * M // H, (h + 1) * M // H)
    q, k, v = (E @ linear.weight[rows].T for linear in (full.Wq, full.Wk, full.Wv))  # (T, M/H) each
    parts.append(torch.softmax(q @ k.T / (M // H) ** 0.5, -1) @ v)
by_hand = torch.cat(parts, -1) @ full.Wo.weight.T  # (T, M)
source = "Vaswani et al., section 3.2.2"
expect(
    "MultiHead minus the formula by hand",
    (full(E[None])[0] - by_hand).abs().max().item(),
    0.0,
    within=1e-5,
    source=source,
)
expect("parameters, M = 8", sum(p.numel() for p in full.parameters()), 4 * M**2, within=0, source="4M²")
with regard.watch(full) as seen:
    full(E[None])
show(HeadGrid({"full": seen["self"].weights()[0].detach()}, title="Two heads, two patterns"))

# %% [markdown]
# ## Heads that see a slice
# Schmidt-Thieme's lecture cuts the input: head h sees only features hM/H … (h+1)M/H. The matrix of
# interactions between features is then block-diagonal, and the maps have M²/H parameters each instead of M².
# The two forms are not the same layer: here a feature of the first slice never meets one of the second.

# %%
sliced = regard.layers.SlicedMultiHead(M, heads=H)
blocks = sliced.interaction().detach()
features = [str(m) for m in range(M)]
show(
    MatrixPicture(
        blocks.abs(),
        features,
        features,
        title="Interactions of a sliced layer",
        row_title="feature",
        column_title="feature",
    )
)
expect(
    "largest interaction between slices",
    blocks[: M // H, M // H :].abs().max().item(),
    0.0,
    within=0,
    source="Schmidt-Thieme, block-diagonal",
)
expect(
    "parameters, M = 8, H = 2",
    sum(p.numel() for p in sliced.parameters()),
    3 * M**2 // H + M**2,
    within=0,
    source="3M²/H + M²",
)

# %% [markdown]
# ## Heads as filters
# Enevoldsen compares heads with the filters of a convolution. Taken literally: let head h attend to one place
# only, the word h − 1 steps away. Its weight there is 1, and three heads, each with its own map of the
# values, add up to a convolution with kernel 3. Where no word stands a head has nothing to attend to and
# gives zeros: the padding. A head is the more general filter: it finds its places by content, at any
# distance.

# %%
kernel = torch.randn(M, M, 3, generator=torch.Generator().manual_seed(1))  # (out, in, tap)
place = torch.arange(T)
taps = torch.stack([place[None, :] - place[:, None] == step for step in (-1, 0, 1)])  # (head, t, s)
values = torch.einsum("oih,ti->hto", kernel, E)  # (head, T, M): each head maps all words
nothing = torch.zeros(3, T, 1)  # equal scores: only the mask decides
filtered = regard.attend(nothing, nothing, values, mask=taps).sum(0)  # (T, M)
convolution = nn.functional.conv1d(E.T[None], kernel, padding=1)[0].T
error = (filtered - convolution).abs().max().item()
expect("three heads minus a convolution", error, 0.0, within=1e-4, source="torch's conv1d, zeros as padding")
show(
    HeadGrid({"filter": taps.float()}, title="A convolution of kernel 3 as heads", columns=["−1", "0", "+1"])
)

# %% [markdown]
# ## Why attend to oneself?
# Enevoldsen asks this and answers: by attending to itself a token can turn the others down. The test:
# reproduce your own token. With itself among the keys a layer learns it at once. With the diagonal masked,
# the output of position t is a mixture of the other tokens. It still depends on the token through the query,
# which chooses among the others, so the layer does better than a guess (1/16), but it never gets there. A
# residual connection, x + attention(x), brings the token back; this is one reason why Transformers have it.

# %%
TOKENS, LENGTH = 16, 6


def accuracy(mask: regard.attention.Mask | None, residual: bool) -> float:
    """Train one attention layer to reproduce its input tokens; return the accuracy on new sequences."""
    torch.manual_seed(1)
    embed, attend, read = (
        nn.Embedding(TOKENS, 32),
        regard.MultiHead(32, heads=1, mask=mask),
        nn.Linear(32, TOKENS),
    )
    model = nn.ModuleList([embed, attend, read])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(by_size(full=300, small=120) + 1):
        tokens = torch.randint(TOKENS, (64, LENGTH))
        x = embed(tokens)
        logits = read(x * residual + attend(x))
        if step == by_size(full=300, small=120):
            return (logits.argmax(-1) == tokens).float().mean().item()
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    raise AssertionError


others = ~regard.attention.Diagonal()
expect(
    "accuracy, attending to itself",
    accuracy(None, False),
    1.0,
    within=0.05,
    source="the token is among the values",
)
masked = accuracy(others, False)
print(f"accuracy, diagonal masked: {masked:.2f}")
assert 1 / TOKENS < masked < 0.85
expect("diagonal masked, with residual", accuracy(others, True), 1.0, within=0.05, source="x + attention(x)")

# %% [markdown]
# ## Exercises
# 1. Write `self_attention(X, Wq, Wk, Wv)` for X (T, M) and maps of shape (M, d): softmax(QKᵀ/√d)V, without
#    `regard`.
# 2. Write `sliced_heads(X, Wq, Wk, Wv)` for maps of shape (H, M/H, L): head h gets slice h of the features;
#    concatenate the outputs to (T, H·L), without an output projection.
#
# Put both into a file and run `regard lessons check 4 answer.py`.
