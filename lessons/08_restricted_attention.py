# %% [markdown]
# # Lesson 8: Restricted attention
#
# A window makes attention cheaper and paths longer: information from beyond layers × window cannot reach a
# token.
#
# Source: Lars Schmidt-Thieme, *Deep Learning: Attention Layers* (the table of convolution, attention and
# restricted attention). The lecture's table does not count everything; both numbers are below.

# %%
import torch
from torch import nn

import regard
from regard.evaluation import cost
from regard.lessons import by_size, expect, show
from regard.pictures import LineChart, MatrixPicture

torch.manual_seed(0)

# %% [markdown]
# ## A band of the matrix
# Position t sees s only if |t − s| ≤ K/2: K + 1 keys for even K. Masked before the softmax, the remaining
# weights sum to 1. The lecture's formula multiplies the finished attention with the band instead: then the
# rows sum to less than 1, because what was outside is lost.

# %%
T, K = 12, 4
x = torch.randn(T, 8)
labels = [str(t) for t in range(T)]
before = regard.weights(x, x, mask=regard.Window.centered(K))
after = regard.weights(x, x, gate=regard.Window.centered(K))
show(MatrixPicture(before, labels, labels, title="A window of K = 4, masked before the softmax"))
expect("keys of a middle row", int((before[6] > 0).sum()), K + 1, within=0, source="|t − s| ≤ K/2")
expect(
    "row sum, masked before", before.sum(1).mean().item(), 1.0, within=1e-5, source="softmax over the band"
)
print(f"row sums, multiplied after: {after.sum(1).min():.2f} to {after.sum(1).max():.2f}")
assert after.sum(1).max() <= 1 + 1e-6 and after.sum(1).min() < 0.99

# %% [markdown]
# ## Cost
# The lecture's table: attention has 3M² parameters and T²M operations, restricted attention TKM operations, a
# convolution of kernel K has KM² and TKM². Counted exactly, attention also projects its inputs, 3TM², and
# computes both scores and values, 2T²M. For long sequences the square dominates; for short ones the
# projections do.

# %%
M, K = 64, 32
N = by_size(full=1024, small=256)  # the longest sequence
full = regard.MultiHead(M, heads=1, project=False, linear_bias=False)
band = regard.MultiHead(M, heads=1, project=False, linear_bias=False, mask=regard.Window.centered(K))
convolution = regard.layers.Convolution(M, kernel=K, bias=False)
expect(
    "parameters of attention", cost(full, 100).parameters, 3 * M**2, within=0, source="Schmidt-Thieme, 3M²"
)
expect(
    "parameters of the convolution",
    cost(convolution, 100).parameters,
    K * M**2,
    within=0,
    source="Schmidt-Thieme, KM²",
)
pairs = {name: cost(layer, N).parts for name, layer in (("full", full), ("band", band))}
scores = pairs["full"]["energies"]
expect(f"operations of the scores, T = {N}", scores, N**2 * M, within=0, source="Schmidt-Thieme, T²M")
share = pairs["band"]["energies"] / (N * K * M)
expect(
    "scores of the band / TKM",
    share,
    33 / 32,
    within=0.08,
    source="Schmidt-Thieme, TKM; exactly K + 1 keys, fewer at the ends",
)

# %%
lengths = [N // 16, N // 8, N // 4, N // 2, N]
curves = {
    "attention": [(n, cost(full, n).operations / 1e6) for n in lengths],
    "restricted, K = 32": [(n, cost(band, n).operations / 1e6) for n in lengths],
    "convolution, K = 32": [(n, cost(convolution, n).operations / 1e6) for n in lengths],
}
show(
    LineChart(
        curves, "Operations of a layer, M = 64", "length T", "million multiply-adds", log_x=True, log_y=True
    )
)
ratio = cost(full, N).operations / cost(full, N // 2).operations
expect(
    "attention: twice the length, times the operations",
    ratio,
    4.0,
    within=by_size(full=0.5, small=1.2),
    source="T²M",
)
ratio = cost(band, N).operations / cost(band, N // 2).operations
expect("restricted: twice the length", ratio, 2.0, within=0.1, source="TKM")

# %% [markdown]
# ## Path length
# How many layers does it take until every position has heard of every other? One with full attention. A band
# reaches K/2 to each side, so it takes about 2T/K layers; the lecture's table says T/K, the order of
# magnitude.

# %%
for n in (N // 16, N // 4, N):
    path = cost(band, n).path_length
    expect(
        f"layers of the band, T = {n}",
        path,
        2 * n / K,
        within=1,
        source=f"2T/K; Schmidt-Thieme's table has T/K = {n // K}",
    )
assert cost(full, N).path_length == 1

# %% [markdown]
# ## Quality
# Does it matter? The task: somewhere in the sequence stands a marked token, the rest is noise; the last
# position has to say which token it was. Two causal layers with a window of 4 see 8 steps back: at distance 8
# the token can arrive over one intermediate position, at 9 it cannot, whatever the weights. Full attention
# sees all distances.

# %%
TOKENS, LENGTH = 8, 20


def sequences(rows: int, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise ids TOKENS … 2·TOKENS − 1; one of 0 … TOKENS − 1 at `distance` before the last position."""
    ids = torch.randint(TOKENS, 2 * TOKENS, (rows, LENGTH))
    marked = torch.randint(TOKENS, (rows,))
    ids[:, LENGTH - 1 - distance] = marked
    return ids, marked


class Finder(nn.Module):
    """Two attention layers; the last position answers."""

    def __init__(self, mask: regard.attention.Mask, dim: int = 32) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(2 * TOKENS, dim), nn.Linear(dim, TOKENS)
        self.attends = nn.ModuleList(regard.MultiHead(dim, 2, mask=mask) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)  # (batch, time, dim)
        for attend, norm in zip(self.attends, self.norms, strict=True):
            x = x + attend(norm(x))
        return self.read(x[:, -1])


def accuracy_by_distance(mask: regard.attention.Mask, distances: list[int]) -> list[tuple[float, float]]:
    """Train on random distances 1 … 12, test each distance."""
    torch.manual_seed(6)
    model = Finder(mask)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(by_size(full=500, small=100)):
        parts = [sequences(8, int(distance)) for distance in torch.randint(1, 13, (8,))]
        ids, marked = torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])
        loss = nn.functional.cross_entropy(model(ids), marked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    result = []
    with torch.no_grad():
        for distance in distances:
            ids, marked = sequences(500, distance)
            result.append((distance, (model(ids).argmax(1) == marked).float().mean().item()))
    return result


distances = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
results = {
    "full": accuracy_by_distance(regard.Causal(), distances),
    "window of 4, two layers": accuracy_by_distance(regard.Window(4, 0), distances),
}
show(LineChart(results, "Accuracy by distance of the token", "distance", "accuracy (chance: 1/8)"))
for name, curve in results.items():
    print(f"{name:24}", "  ".join(f"{distance}: {value:.2f}" for distance, value in curve))
by_name = {name: dict(curve) for name, curve in results.items()}
expect(
    "window, distance 12",
    by_name["window of 4, two layers"][12],
    1 / TOKENS,
    within=0.08,
    source="out of reach: chance, 1/8",
)
assert by_name["window of 4, two layers"][4] > 0.9
assert min(by_name["full"].values()) > 0.9

# %% [markdown]
# The accuracy falls from 1 to chance between two neighbouring distances: this limit is not about training. In
# real text most of what matters is near, so a window costs less quality than here: the loss is only large
# where something far away decides. That is why models mix windows with attention that sees everything:
# Longformer (Beltagy et al. 2020) for chosen tokens, Gemma 2 (2024) in every other layer.
#
# ## Exercises
# 1. Write `window_mask(T, K)`: the boolean matrix (T, T) that is True where |t − s| ≤ K/2.
# 2. Write `layers_needed(T, K)`: the smallest number of layers with this window (even K) after which every
#    position depends on every other.
#
# Put both into a file and run `regard lessons check 8 answer.py`. `regard cost` prints the table of this
# lesson for any T, M and K, with times.
