# %% [markdown]
# # Lesson 3: From factorisation machines to attention
#
# The score of attention is the pairwise interaction of a factorisation machine, computed for all pairs of
# positions instead of one vector with itself.
#
# Source: Lars Schmidt-Thieme, *Deep Learning: Attention Layers*, University of Hildesheim; Rendle 2010,
# *Factorization Machines*.

# %%
import torch

import regard
from regard.lessons import by_size, expect, show
from regard.pictures import MatrixPicture

torch.manual_seed(0)
M, K = 12, 2  # predictors, rank

# %% [markdown]
# ## A linear model cannot see pairs
# y = wᵀx adds up what each predictor contributes. Here the target is an interaction: x₀ counts only together
# with x₁, and x₂ with x₃. Every predictor has no effect of its own, so the best linear model explains nothing
# (R² = 0).

# %%
ROWS = by_size(full=4_000, small=2_000)
x = torch.randn(ROWS, M)
y = x[:, 0] * x[:, 1] - x[:, 2] * x[:, 3]


def r2(predicted: torch.Tensor, target: torch.Tensor) -> float:
    return 1 - ((predicted - target).square().sum() / (target - target.mean()).square().sum()).item()


half = ROWS // 2  # the first half to fit, the second to test
w = torch.linalg.lstsq(x[:half], y[:half, None]).solution[:, 0]
expect(
    "R² of the linear model",
    r2(x[half:] @ w, y[half:]),
    0.0,
    within=0.08,
    source="no effect without its partner",
)

# %% [markdown]
# ## A matrix of interactions
# y = xᵀWx has a weight for each pair of predictors: M² of them, 144 here. It is linear in W, so least squares
# finds it.

# %%
pairs = (x[:, :, None] * x[:, None, :]).flatten(1)  # (rows, M·M)
W = torch.linalg.lstsq(pairs[:half], y[:half, None], driver="gelsd").solution.view(M, M)
expect(
    "R² of the polynomial model",
    r2(pairs[half:] @ W.flatten(), y[half:]),
    1.0,
    within=0.01,
    source="y is of this form",
)
names = [f"x{m}" for m in range(M)]
show(
    MatrixPicture(
        (W + W.T).abs() / 2,
        names,
        names,
        title="Size of the interactions found by least squares",
        row_title="m",
        column_title="m′",
    )
)

# %% [markdown]
# ## Low rank
# With many predictors M² is too much: a recommender with 10,000 users and items would have 10⁸ weights, most
# of them for pairs that were never seen. A factorisation machine has a vector of K numbers per predictor: y =
# xᵀWᵀVx with W, V of shape (K, M). The interaction matrix WᵀV has rank K at most, and (Wx)·(Vx) takes O(KM)
# operations instead of M². The target above has rank 4 as a symmetric matrix, but xᵀAx needs only one
# triangle of it: rank 2 is enough.

# %%
left, right = torch.nn.Parameter(torch.randn(K, M) * 0.3), torch.nn.Parameter(torch.randn(K, M) * 0.3)
optimizer = torch.optim.Adam([left, right], lr=0.03)
for _step in range(by_size(full=600, small=300)):
    predicted = ((x[:half] @ left.T) * (x[:half] @ right.T)).sum(1)
    loss = (predicted - y[:half]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    fitted = ((x[half:] @ left.T) * (x[half:] @ right.T)).sum(1)
expect(
    "R² of the factorisation machine, K = 2",
    r2(fitted, y[half:]),
    1.0,
    within=0.02,
    source="rank 2 is enough",
)
rank = int(torch.linalg.matrix_rank(left.T @ right, rtol=1e-4))
print(f"rank of WᵀV: {rank}; parameters: {2 * K * M} instead of {M * M}")
assert rank == K

# %% [markdown]
# ## Matrix factorisation is a special case
# Users and items as one-hot vectors, y = (Wx₁)·(Vx₂): a factorisation machine on the concatenation x = (x₁,
# x₂) with W′ = [W 0] and V′ = [0 V]. The lecture writes it with the symmetric block matrix of ½WᵀV and ½VᵀW
# instead, which has rank 2K: the same function of x.

# %%
users, items = 5, 7
W, V = torch.randn(K, users), torch.randn(K, items)
wide_W, wide_V = torch.cat([W, torch.zeros(K, items)], 1), torch.cat([torch.zeros(K, users), V], 1)
off = torch.zeros(users + items, users + items)
off[:users, users:] = W.T @ V / 2
blocks = off + off.T
worst = 0.0
for user in range(users):
    for item in range(items):
        one_hot = torch.zeros(users + items)
        one_hot[user] = one_hot[users + item] = 1
        rating = W[:, user] @ V[:, item]
        machine, quadratic = (wide_W @ one_hot) @ (wide_V @ one_hot), one_hot @ blocks @ one_hot
        worst = max(worst, abs(rating - machine).item(), abs(rating - quadratic).item())
expect("largest difference of the three forms", worst, 0.0, within=1e-4, source="Schmidt-Thieme")
expect(
    "rank of the block form", int(torch.linalg.matrix_rank(blocks, rtol=1e-4)), 2 * K, within=0, source="2K"
)

# %% [markdown]
# ## All pairs of positions
# So far one vector interacts with itself and gives one number. A sequence X of T vectors has T² pairs (x_t,
# x_s): XWᵀVXᵀ is a T × T matrix of interactions, with the same low-rank matrix for every pair. Its diagonal
# is the factorisation machine of each position. Normalise each row, multiply with values XUᵀ, and this is
# attention: Wx is called the query, Vx the key, Ux the value.

# %%
T, L = 6, 4
X = torch.randn(T, M)
W, V, U = torch.randn(3, L, M) / M**0.5
interactions = X @ W.T @ V @ X.T  # (T, T)
machines = torch.stack([(W @ row) @ (V @ row) for row in X])
expect(
    "diagonal minus factorisation machines",
    (interactions.diagonal() - machines).abs().max().item(),
    0.0,
    within=1e-4,
    source="the definition",
)
by_hand = torch.softmax(interactions / L**0.5, -1) @ (X @ U.T)
attention = regard.attend(X @ W.T, X @ V.T, X @ U.T)
expect(
    "attend minus the formula by hand",
    (attention - by_hand).abs().max().item(),
    0.0,
    within=1e-4,
    source="Schmidt-Thieme",
)
positions = [f"x{t}" for t in range(T)]
show(
    MatrixPicture(
        regard.weights(X @ W.T, X @ V.T), positions, positions, title="The interactions after the softmax"
    )
)

# %% [markdown]
# ## What changed, what stayed
# A matrix of pairwise interactions would need M² weights, attention has 2LM for the scores and KM for the
# values: 3M² for L = K = M, whatever the length. The cost moved to the pairs: T²M operations. Lesson 8 is
# about this.

# %%
layer = regard.MultiHead(M, heads=1, project=False, linear_bias=False)
expect(
    "parameters of an attention layer",
    sum(p.numel() for p in layer.parameters()),
    3 * M**2,
    within=0,
    source="Schmidt-Thieme, 3M²",
)

# %% [markdown]
# ## Exercises
# 1. Write `factorization_machine(x, W, V)`: y = xᵀWᵀVx for x (M,), W and V (K, M), in O(KM). The check calls
#    it with M = 200,000, where a matrix of M² numbers does not fit into memory.
# 2. Write `attention_scores(X, W, V)`: the T × T matrix of scaled interactions before the softmax, for X (T,
#    M) and W, V (L, M).
#
# Put both into a file and run `regard lessons check 3 answer.py`. [Interactions](../interactions.md) fits
# these models to ratings.
