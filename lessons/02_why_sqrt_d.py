# %% [markdown]
# # Lesson 2: Why the scores are divided by √d
#
# The dot product of two random vectors grows with their width d; divided by √d its scale no longer depends on
# d, nor do the softmax and its gradient.
#
# Sources: Vaswani et al. 2017, *Attention Is All You Need*, section 3.2.1 and footnote 4; Kenneth Enevoldsen,
# *Natural Language Processing, lecture 5: Attention*, which measures it at d = 200.

# %%
import math

import torch

from regard.lessons import by_size, expect, show
from regard.pictures import LineChart, MatrixPicture

torch.manual_seed(0)
SAMPLES = by_size(full=10_000, small=4_000)

# %% [markdown]
# ## Variance
# Let q and k have d independent components with mean 0 and variance 1. Each product qᵢkᵢ has mean 0 and
# variance 1, and the variances of independent terms add up: q·k has variance d. The lecture's experiment
# measured a variance of 195.34 and a standard deviation of 13.976 for d = 200 with 10,000 samples; the exact
# values are 200 and 14.14.

# %%
q, k = torch.randn(2, SAMPLES, 200)
scores = (q * k).sum(1)
expect("mean of q·k, d = 200", scores.mean().item(), 0.0, within=1.0, source="Vaswani et al., footnote 4")
expect(
    "standard deviation",
    scores.std().item(),
    14.14,
    within=0.6,
    source="Enevoldsen, √200; measured there 13.976",
)

# %%
WIDTHS = (4, 64, 512)
for d in WIDTHS:
    q, k = torch.randn(2, SAMPLES, d)
    variance = (q * k).sum(1).var().item()
    expect(f"variance of q·k, d = {d}", variance, d, within=0.15 * d, source="Vaswani et al., footnote 4")

# %% [markdown]
# ## Entropy
# 64 keys compete for one query. With large scores the softmax puts nearly all weight on the largest: it
# becomes a hard choice before anything has been learned. Divided by √d the scores are unit normals whatever d
# is. For n such scores the entropy of the softmax is close to log n − 1/2 nats: log Σeˣ is close to log n +
# 1/2, and the mean score under the weights is close to 1.

# %%
KEYS = 64


def softmax_rows(d: int, scale: float) -> torch.Tensor:
    """Weights of 500 random queries over KEYS random keys."""
    queries, keys = torch.randn(500, d), torch.randn(KEYS, d)
    return torch.softmax(queries @ keys.T * scale, -1)


def entropy(p: torch.Tensor) -> float:
    """Mean entropy of the rows, in bits."""
    return torch.special.entr(p).sum(-1).mean().item() / math.log(2)


entropies: dict[str, list[tuple[float, float]]] = {"q·k": [], "q·k / √d": []}
for d in (4, 8, 16, 32, 64, 128, 256, 512):
    entropies["q·k"].append((d, entropy(softmax_rows(d, 1.0))))
    entropies["q·k / √d"].append((d, entropy(softmax_rows(d, d**-0.5))))
show(LineChart(entropies, "Entropy of attention over 64 keys", "width d", "bits (uniform: 6)", log_x=True))

# %%
theory = (math.log(KEYS) - 0.5) / math.log(2)  # 5.28 bits
by_width = dict(entropies["q·k / √d"])
for d in WIDTHS:
    expect(f"entropy with scaling, d = {d}", by_width[d], theory, within=0.25, source="log n − 1/2")
unscaled = dict(entropies["q·k"])
print(
    f"without scaling: {unscaled[4]:.2f}, {unscaled[64]:.2f} and {unscaled[512]:.2f} bits at d = 4, 64, 512"
)
assert unscaled[512] < 0.6 < 2.5 < unscaled[4]

# %% [markdown]
# ## Gradient
# The derivative of the softmax is diag(p) − ppᵀ. Its trace, Σ pⱼ(1 − pⱼ), is 1 − Σ pⱼ²: nearly 1 for spread
# weights, 0 for a hard choice. Without scaling the gradient that reaches queries and keys at d = 512 is a
# small part of what it could be. This is what the paper suspects: large products push the softmax into
# regions with very small gradients.

# %%
gradients: dict[str, list[tuple[float, float]]] = {"q·k": [], "q·k / √d": []}
for d in (4, 16, 64, 256, 512):
    for name, scale in (("q·k", 1.0), ("q·k / √d", d**-0.5)):
        gradients[name].append((d, (1 - softmax_rows(d, scale).square().sum(-1)).mean().item()))
show(
    LineChart(gradients, "Gradient of the softmax, 1 − Σp²", "width d", "trace of its derivative", log_x=True)
)

# %%
# Σp² of n unit normal scores is close to e/n.
expect(
    "gradient with scaling, d = 512",
    dict(gradients["q·k / √d"])[512],
    1 - math.e / KEYS,
    within=0.03,
    source="1 − e/n",
)
assert dict(gradients["q·k"])[512] < 0.35
print(f"without scaling, d = 512: {dict(gradients['q·k'])[512]:.2f}")

# %% [markdown]
# ## Where the argument ends
# It is about independent vectors. A query that equals its key has q·k = ‖q‖², which is close to d, and after
# division still √d: 8 at d = 64. A token that shares query and key map would attend to itself almost only.
# And trained weights may make scores as large as they like: the division decides where training starts, not
# where it ends.

# %%
words = torch.randn(8, 64)
weights = torch.softmax(words @ words.T / 64**0.5, -1)
show(
    MatrixPicture(
        weights,
        [f"x{i}" for i in range(8)],
        [f"x{i}" for i in range(8)],
        title="Queries equal to keys, d = 64",
    )
)
expect("mean q·q/√d, d = 64", (words.square().sum(1) / 8).mean().item(), 8.0, within=1.5, source="E‖q‖² = d")
assert weights.diagonal().min() > 0.9

# %% [markdown]
# ## Exercises
# 1. Write `scale_for(variance_q, variance_k, d)`: the factor that brings q·k to variance 1 if the components
#    of q and k have mean 0 and these variances.
# 2. Write `softmax_jacobian(scores)`: the matrix ∂pᵢ/∂scoreⱼ of shape (n, n) for scores of shape (n,), from
#    the formula above, without autograd.
#
# Put both into a file and run `regard lessons check 2 answer.py`.
