# %% [markdown]
# # Lesson 17: Dynamic weights
#
# A feed-forward layer mixes positions with a matrix that is fixed after training. Attention computes its
# matrix from the input. A task where the input says which position matters shows what that is worth, with an
# error known in advance.
#
# Source: the slide *Self-Attention vs. Feed-Forward* of the *Neural Computation* lecture: "fixed weight
# matrix" beside "dynamic weight matrix, computed from inputs".

# %%
import torch
from torch import nn

import regard
from regard.lessons import by_size, expect, show
from regard.pictures import HeadGrid, LineChart

torch.manual_seed(0)
T, DIM = 8, 16

# %% [markdown]
# ## Two layers, two inputs
# Both layers turn 8 positions into 8 mixtures of them: z = A x. The fixed layer has one A, stored in its
# weights. Attention's A = softmax(QKᵀ/√d) is another one for every input.

# %%
fixed, attention = nn.Linear(T, T, bias=False), regard.MultiHead(DIM, heads=1).eval()
with torch.no_grad():
    attention.Wq.weight *= 3  # sharper than at the start of training, so that the picture shows it
inputs = torch.randn(2, T, DIM)
with torch.no_grad(), regard.watch(attention) as seen:
    attention(inputs)
dynamic = seen["self"].weights(head=0)  # (2, 8, 8): one matrix per input
static = fixed.weight.detach().abs().expand(2, T, T)
show(
    HeadGrid(
        {"fixed": static, "attention": dynamic},
        "The mixing matrix of two inputs, absolute values",
        columns=("input 1", "input 2"),
    )
)
print(f"the two attention matrices differ by up to {float((dynamic[0] - dynamic[1]).abs().max()):.2f}")
assert not torch.allclose(dynamic[0], dynamic[1], atol=0.05)

# %% [markdown]
# ## A fixed layer is linear, attention is not
# With f(x) = A x and a constant A, f(x + y) = f(x) + f(y). If A depends on x, this does not hold.


# %%
def additivity_gap(layer) -> float:
    """How far f(x + y) is from f(x) + f(y), relative to its size."""
    x, y = inputs
    with torch.no_grad():
        of_sum, sum_of_outputs = layer(x + y), layer(x) + layer(y)
    return float((of_sum - sum_of_outputs).norm() / of_sum.norm())


def mix(x: torch.Tensor) -> torch.Tensor:
    return fixed(x.mT).mT  # (T, dim) → (T, dim), along positions


def attend(x: torch.Tensor) -> torch.Tensor:
    return attention(x[None])[0]


print(f"fixed {additivity_gap(mix):.1e}   attention {additivity_gap(attend):.2f}")
assert additivity_gap(mix) < 1e-5 and additivity_gap(attend) > 0.05

# %% [markdown]
# ## A task that needs it
# Each of T positions has a number and a mark; one position is marked. Return the marked number. A fixed layer
# does not know where the mark will be. The best it can do, for numbers of variance 1, is the mean of all: the
# marked number and the mean of all have covariance 1/T, so it explains 1/T of the variance and an error of 1
# − 1/T remains.


# %%
def marked(count: int, length: int = T, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (count, length, 2): number, mark; targets (count,)."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, length, generator=generator)
    place = torch.randint(0, length, (count, 1), generator=generator)
    marks = torch.zeros(count, length).scatter_(1, place, 1.0)
    return torch.stack([numbers, marks], -1), numbers.gather(1, place)[:, 0]


train_x, train_y = marked(20_000)
test_x, test_y = marked(5_000, seed=2)
design, unseen = train_x.flatten(1), test_x.flatten(1)  # every number and every mark has its own weight
best = torch.linalg.lstsq(design, train_y[:, None]).solution
fixed_error = float((unseen @ best - test_y[:, None]).square().mean())
source = "1 − 1/T, worked by hand"
expect("error of the best fixed layer, T = 8", fixed_error, 1 - 1 / T, within=0.06, source=source)
weights = best.reshape(T, 2)[:, 0]
print("its weights of the 8 numbers:", [round(w, 2) for w in weights.tolist()])
expect("mean weight of a number", float(weights.mean()), 1 / T, within=0.02, source="1/T")

# %% [markdown]
# ## Attention learns it
# One query, keys from the mark, values from the number: three learned scalars would do. We train linear maps
# from both inputs.


# %%
class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Parameter(torch.ones(1, 1, 4)), nn.Linear(2, 4), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query.expand(len(x), 1, 4)
        return regard.attend(query, self.key(x), self.value(x))[:, 0, 0]  # (batch, 1, 1) → (batch,)


torch.manual_seed(0)
lookup = Lookup()
optimizer = torch.optim.Adam(lookup.parameters(), lr=0.03)
errors = []
for step in range(by_size(full=1000, small=300)):
    rows = slice(step * 64 % 19_968, step * 64 % 19_968 + 64)
    loss = (lookup(train_x[rows]) - train_y[rows]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    errors.append((step + 1, float(loss.detach())))
series = {"attention": errors[::20], "best fixed layer": [(1, fixed_error), (len(errors), fixed_error)]}
show(LineChart(series, "Return the marked number", "training step", "squared error"))
with torch.no_grad():
    dynamic_error = float((lookup(test_x) - test_y).square().mean())
expect("error of attention, T = 8", dynamic_error, 0.0, within=0.05, source="the lookup of lesson 1")

# %% [markdown]
# ## Longer inputs
# The fixed layer has a weight per position and cannot read another length at all. Attention's weights are
# those of a rule, so the same 19 numbers read 16 positions. The error grows with the length: the softmax
# gives each unmarked position a little, and training has seen seven of them.

# %%
for length in (8, 16, 32):
    x, y = marked(2_000, length)
    with torch.no_grad():
        error = float((lookup(x) - y).square().mean())
    print(f"T = {length:2}: attention {error:.3f}   the best fixed layer of that length {1 - 1 / length:.3f}")
    assert error < 0.5 * (1 - 1 / length)
assert sum(p.numel() for p in lookup.parameters()) == 19

# %% [markdown]
# ## What this does not say
# A feed-forward network with hidden layers is not linear in its input and can learn this task for one length:
# its weights are fixed, its function is not. It needs a unit per position, though, where attention needs one
# rule. And marks in real text are not given; the model learns what to mark.

# %% [markdown]
# ## Exercises
# 1. Write `fixed_weights(x, y)`: the least-squares weights (T,) for numbers x (n, T) and targets y (n,).
# 2. Write `read_marked(x)` for x (batch, T, 2) of numbers and marks: the marked number (batch,), by attention
#    with weights that you choose, for any T up to 100.
#
# Put both into a file and run `regard lessons check 17 answer.py`.
