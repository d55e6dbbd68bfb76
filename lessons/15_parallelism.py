# %% [markdown]
# # Lesson 15: Why attention runs in parallel
#
# A recurrent layer needs the state of step t − 1 before it can start step t: T steps, one after the other.
# Attention computes all positions at once. It does more arithmetic, and is still faster where the hardware is
# wide.
#
# Source: Poerner's lecture: LSTM and GRU are "sequential processing, not parallelizable", attention is
# "extremely parallelizable (every query in every head)". Schmidt-Thieme's table and table 1 of Vaswani et al.
# (2017) give the counts.

# %%
import torch

from regard.evaluation import cost
from regard.evaluation.layer_time import milliseconds
from regard.layers import MultiHead, Recurrence
from regard.lessons import by_size, expect, read_log, show
from regard.pictures import LineChart

torch.manual_seed(0)
DIM = 64
LAYERS = ("recurrence", "attention")
LENGTHS = by_size(full=(16, 32, 64, 128, 256, 512, 1024, 2048), small=(16, 64, 256))
recurrence, attention = Recurrence(DIM, cell="lstm"), MultiHead(DIM, heads=1, project=False)

# %% [markdown]
# ## The loop that cannot be removed
# Written out, a recurrence is a loop. Its input products W x_t can be done for all t at once; U h_(t−1)
# cannot, and here a counter counts these dependent products.

# %%
T = 32
plain = Recurrence(DIM, cell="rnn")
x = torch.randn(1, T, DIM)
w = plain.weight
with torch.no_grad():
    inputs = x @ w.weight_ih_l0.T + w.bias_ih_l0 + w.bias_hh_l0  # (1, T, dim): all steps in one product
    h, states, dependent = torch.zeros(1, DIM), [], 0
    for t in range(T):
        h = torch.tanh(inputs[:, t] + h @ w.weight_hh_l0.T)  # needs the h of the step before
        dependent += 1
        states.append(h)
    assert torch.allclose(torch.stack(states, 1), plain(x), atol=1e-5)
expect("dependent products of the loop", dependent, T, within=0, source="Vaswani et al., table 1: O(n)")

# %% [markdown]
# Attention has three products that follow one another, for any T: projections, QKᵀ, AV.

# %%
with torch.no_grad():
    q, k, v = attention.Wq(x), attention.Wk(x), attention.Wv(x)  # 1: these three can run side by side
    weights = (q @ k.mT / DIM**0.5).softmax(-1)  # 2
    assert torch.allclose(weights @ v, attention(x), atol=1e-5)  # 3

# %% [markdown]
# ## The counts
# `cost` counts steps that depend on one another, layers counted as one, and multiply-adds.

# %%
print("     T   steps: LSTM  attention   multiply-adds: LSTM  attention")
for T in LENGTHS:
    a, b = cost(recurrence, T), cost(attention, T)
    print(f"{T:6} {a.steps:13} {b.steps:10} {a.operations:21,} {b.operations:10,}")
    assert (a.steps, b.steps) == (T, 1)
    assert a.operations == 8 * T * DIM**2  # 4 gates, each W x and U h
    assert b.operations == 3 * T * DIM**2 + 2 * T**2 * DIM  # Q, K, V; then QKᵀ and AV
last = LENGTHS[-1]
ratio = cost(attention, last).operations / cost(recurrence, last).operations
by_formula = (3 * DIM + 2 * last) / (8 * DIM)
expect(
    f"attention / LSTM, multiply-adds at T = {last}", ratio, by_formula, within=1e-6, source="(3M + 2T)/8M"
)
steps = {"LSTM": [(T, T) for T in LENGTHS], "attention": [(T, 1) for T in LENGTHS]}
show(LineChart(steps, "Sequential steps of one layer", "length T", "steps", log_x=True, log_y=True))

# %% [markdown]
# Attention is quadratic in T: above T = 2.5 M it does more arithmetic than the LSTM. Schmidt-Thieme's table
# has T²M for attention, the part that grows; the projections 3TM² come on top.

# %% [markdown]
# ## The time
# Measured here, for one sequence, as the median of some runs. Seconds depend on the machine, so nothing is
# asserted about them.


# %%
def measure(device: str) -> None:
    layers = {"LSTM": recurrence, "attention": attention}
    runs = by_size(full=15, small=3)
    series = {
        name: [(T, milliseconds(layer.to(device), T, DIM, runs)) for T in LENGTHS]
        for name, layer in layers.items()
    }
    for (T, slow), (_, fast) in zip(*series.values(), strict=True):
        print(
            f"{device}  T = {T:5}   LSTM {slow:8.3f} ms   attention {fast:8.3f} ms   ratio {slow / fast:6.1f}"
        )
    title = f"Time of one layer, M = {DIM}, {device}"
    show(LineChart(series, title, "length T", "milliseconds", log_x=True, log_y=True))


for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
    measure(device)

# %% [markdown]
# `python -m benchmarks.layer_time` measures a plain recurrence beside attention at two widths, on a CPU and
# on an H200. In its log, this is how many times as long the recurrence takes:

# %%
log = read_log("layer-time", "python -m benchmarks.layer_time")
for row in log["rows"] if log else ():
    ratios = (f"T = {T}: {ratio:.1f}" for T, ratio in zip(row["lengths"], row["ratio"], strict=True))
    print(f"{row['name']}, M = {row['dim']}", *ratios, sep="   ")
    series = {name: list(zip(row["lengths"], row["milliseconds"][name], strict=True)) for name in LAYERS}
    title = f"Time of one layer, M = {row['dim']}, {row['name']}"
    show(LineChart(series, title, "length T", "milliseconds", log_x=True, log_y=True))
if log:
    (gpu,) = (row["ratio"] for row in log["rows"] if row["device"] == "cuda" and row["dim"] == 512)
    assert gpu[-1] > 10 > gpu[0], "on a GPU, the recurrence did not fall behind as T grew"

# %% [markdown]
# ## What to see in it
# On one CPU thread nothing runs side by side, and attention can still be faster: T small products become
# three large ones, which a core computes at a better rate. From T = 2.5 M = 160 on it does more arithmetic;
# the T² part takes over, and for long inputs the LSTM wins.
#
# A GPU has thousands of units, which a loop of small products leaves idle. On the H200, at M = 512, the
# recurrence takes twice as long as attention at T = 16 and 32 times as long at T = 4096, although it does
# less arithmetic there. At M = 64 even attention leaves most of the GPU idle, and the ratio is 3. If this
# machine has a GPU, the first cell has measured it too. `regard cost --lengths 64,256,1024 --device cuda`
# measures other layers and sizes.

# %% [markdown]
# ## What this does not say
# In *generation* the Transformer is sequential too: token t + 1 needs token t. What runs in parallel is
# training, and reading the source. And a recurrence without a nonlinearity between steps can be computed in
# log₂ T rounds (exercise 2): recent state-space models use that.

# %% [markdown]
# ## Exercises
# 1. Write `crossover(dim)`: the length T at which an attention layer (Q, K, V projections without bias and
#    output) and an LSTM layer of the same width have the same number of multiply-adds.
# 2. Write `scan(a, b)`: h_t = a_t · h_(t−1) + b_t with h_0 = 0, for tensors a and b of shape (T,), in about
#    log₂ T rounds of tensor operations. The check counts operations: a loop over T fails.
#
# Put both into a file and run `regard lessons check 15 answer.py`.
