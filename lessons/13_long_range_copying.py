# %% [markdown]
# # Lesson 13: Copying over a distance
#
# Remember one symbol, read n tokens of noise, repeat the symbol. A convolution cannot beyond its reach, a
# recurrent layer finds it harder with every step, and attention does not notice the distance.
#
# Source: Poerner's lecture, *Why attention?*: CNNs "can only capture local dependencies"; LSTM and GRU "can
# capture long-range dependencies, but may find them difficult to learn".

# %%
import torch
from torch import nn

from regard.layers import Convolution, MultiHead, Recurrence
from regard.lessons import by_size, expect, show
from regard.pictures import LineChart, MatrixPicture

SYMBOLS, DIM = 8, 32
STEPS = by_size(full=400, small=60)
DISTANCES = by_size(full=(3, 6, 12, 25, 50), small=(3, 25))


# %% [markdown]
# ## The task
# Tokens 0–7 are symbols, 8–15 are noise. The first token is a symbol, the other n are noise. After the last
# token the model names the symbol. Guessing gives 1/8.


# %%
def examples(distance: int, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    symbol = torch.randint(0, SYMBOLS, (count, 1), generator=generator)
    noise = torch.randint(SYMBOLS, 2 * SYMBOLS, (count, distance), generator=generator)
    return torch.cat([symbol, noise], 1), symbol[:, 0]  # (count, distance + 1), (count,)


print(examples(6, 3, torch.Generator().manual_seed(0)))

# %% [markdown]
# ## Four readers
# All have the same embedding and the same output; between them is a residual layer of width 32. The
# convolution has two layers of kernel 5: two tokens to each side and layer, so the last position sees four
# tokens back.


# %%
class Reader(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(2 * SYMBOLS, DIM), nn.ModuleList(layers)
        self.output = nn.Linear(DIM, SYMBOLS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)  # (batch, T, dim)
        for layer in self.layers:
            x = x + layer(x)
        return self.output(x[:, -1])  # from the last position alone


def reader(kind: str) -> Reader:
    torch.manual_seed(0)
    if kind == "convolution":
        return Reader(*(nn.Sequential(Convolution(DIM, kernel=5), nn.ReLU()) for _ in range(2)))
    return Reader(MultiHead(DIM, heads=2) if kind == "attention" else Recurrence(DIM, cell=kind))


def train(model: Reader, distance: int) -> float:
    """Train for STEPS batches of 32; return the accuracy on 500 new sequences."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        tokens, symbol = examples(distance, 32, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), symbol).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    tokens, symbol = examples(distance, 500, generator)
    with torch.no_grad():
        return float((model(tokens).argmax(-1) == symbol).float().mean())


# %%
KINDS = ("convolution", "rnn", "lstm", "attention")
models = {(kind, distance): reader(kind) for kind in KINDS for distance in DISTANCES}
accuracy = {key: train(model, key[1]) for key, model in models.items()}
print("distance     ", *(f"{distance:6}" for distance in DISTANCES))
for kind in KINDS:
    print(f"{kind:13}", *(f"{accuracy[kind, distance]:6.2f}" for distance in DISTANCES))
series = {kind: [(distance, accuracy[kind, distance]) for distance in DISTANCES] for kind in KINDS}
title = f"Copying a symbol over n tokens, {STEPS} steps of training"
show(LineChart(series, title, "distance", "accuracy (chance: 0.125)", log_x=True))

# %% [markdown]
# ## Near: everyone. Far: attention
# The lecture has no figures, so we assert its order.

# %%
near, far = DISTANCES[0], DISTANCES[-1]
source = "every answer right"
for kind in KINDS:
    expect(f"{kind} over {near} tokens", accuracy[kind, near], 1.0, within=0.05, source=source)
expect(f"convolution over {far}", accuracy["convolution", far], 1 / 8, within=0.06, source="guessing, 1/8")
expect(f"attention over {far}", accuracy["attention", far], 1.0, within=0.05, source=source)
for kind in ("rnn", "lstm"):
    assert accuracy[kind, far] < 0.7, f"{kind} learned it; the lecture expects it to find this difficult"

# %% [markdown]
# ## Cannot, and finds it difficult
# The convolution and the recurrence fail for different reasons. Change the symbol 25 tokens back: the output
# of the convolution stays the same to the last bit, and no training can change that. The output of the
# recurrent layer does change, by very little: it could learn, but its gradient is that of lesson 12.

# %%
tokens, _ = examples(25, 1, torch.Generator().manual_seed(2))
other = tokens.clone()
other[0, 0] = (tokens[0, 0] + 1) % SYMBOLS
with torch.no_grad():
    effect = {k: float((reader(k).double()(tokens) - reader(k).double()(other)).abs().max()) for k in KINDS}
for kind in KINDS:
    print(f"{kind:13} untrained output changes by {effect[kind]:.1e}")
assert effect["convolution"] == 0 and 0 < effect["rnn"] < 1e-3 * effect["attention"]

# %% [markdown]
# ## Where the attention model looks
# The last position reads the first token, wherever it is: it was trained on one distance, and the same
# weights work on others. (It has no positions: it finds the symbol by its content. The order of the noise
# does not matter.)

# %%
model = models["attention", far]
tokens, symbol = examples(12, 6, torch.Generator().manual_seed(3))
layer = model.layers[0]
with torch.no_grad():
    x = model.embedding(tokens)
    q, k, _ = layer.project(x, x, x)  # (6, heads, 13, dim per head)
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)[:, :, -1].mean(1)  # of the last position, (6, 13)
rows = [f"symbol {int(s)}" for s in symbol]
columns = [f"x{i}" for i in range(13)]
show(MatrixPicture(weights, rows, columns, title="The last position attends to the symbol, six sequences"))
with torch.no_grad():
    tokens, symbol = examples(4 * far, 200, torch.Generator().manual_seed(4))
    longer = float((model(tokens).argmax(-1) == symbol).float().mean())
print(f"trained on distance {far}, read at {4 * far}: accuracy {longer:.2f}")
print(f"weight of the symbol: {float(weights[:, 0].mean()):.2f}; uniform attention would have 1/13 = 0.08")
assert float(weights[:, 0].mean()) > 2 / 13

# %% [markdown]
# ## What small data does not show
# With more training an LSTM learns far longer lags: Hochreiter and Schmidhuber (1997) report lags over 1000
# steps. Here it sees 400 steps of 32 sequences, 12 800 in all. The claim is about difficulty: how much
# training it takes. And a deeper or dilated convolution reaches further, at a price in layers.

# %% [markdown]
# ## Exercises
# 1. Write `layers_needed(distance, kernel)`: the smallest number of centered convolutions (odd kernel) after
#    which the last position sees the token `distance` before it.
# 2. Write `copy(tokens)` for tokens (batch, T) in which exactly one token is a symbol (0–7), at any place,
#    and the others are noise (8–15). Return the one-hot vector of the symbol, (batch, 8), within 0.01, by
#    attention without training: one-hot values, keys that tell symbols from noise, one query.
#
# Put both into a file and run `regard lessons check 13 answer.py`.
