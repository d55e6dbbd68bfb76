# %% [markdown]
# # Lesson 19: Sequences of real numbers
#
# Nothing in attention needs words. A sequence is a matrix X of T vectors: frames of sound, readings of
# sensors, rows of an image. A linear map takes the place of the embedding table, X̃ = XWᵀ + PE, and the rest
# of the model stays as it is.
#
# Source: Schmidt-Thieme's lecture, which defines every layer for X ∈ R^(T×M).

# %%
import importlib.util

import torch
from torch import nn

import regard
from regard.lessons import by_size, expect, show
from regard.pictures import LineChart, MatrixPicture

T, CHANNELS, DIM = 40, 4, 32

# %% [markdown]
# ## Keywords made by a script
# A recording has 40 frames of 4 channels of noise. Somewhere in it is a "word" of 8 frames: a tone that rises
# through the channels, or one that falls. Real keyword spotting has the same form, with about 100 frames of
# 40 frequency bands.


# %%
def recordings(count: int, seed: int, noise: float = 0.4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Recordings (count, T, 4), labels (0: rising, 1: falling), first frames of the words."""
    generator = torch.Generator().manual_seed(seed)
    x = noise * torch.randn(count, T, CHANNELS, generator=generator)
    label = torch.randint(0, 2, (count,), generator=generator)
    start = torch.randint(0, T - 8, (count,), generator=generator)
    for i in range(8):
        channel = torch.where(label == 0, i // 2, CHANNELS - 1 - i // 2)
        x[torch.arange(count), start + i, channel] += 2.0
    return x, label, start


x, label, start = recordings(2, seed=3)
for row in range(2):
    name = ("rising", "falling")[int(label[row])]
    channels = [f"channel {c}" for c in range(CHANNELS)]
    frames = [str(t) for t in range(T)]
    title = f"A {name} tone at frame {int(start[row])}"
    picture = x[row].T.clamp(min=0)  # (channels, T)
    show(MatrixPicture(picture, channels, frames, title=title, row_title="", column_title="frame"))

# %% [markdown]
# ## The model
# `regard.build` makes a classifier for text. Its encoder, pooling and head take vectors; only its embedding
# table takes tokens. We replace the table by a linear map from 4 channels to 32. The encoder adds the
# positions, PE.


# %%
class FrameClassifier(nn.Module):
    def __init__(self, position: str, channels: int = CHANNELS, labels: int = 2) -> None:
        super().__init__()
        encoder = {
            "kind": "transformer",
            "layers": 1,
            "heads": 2,
            "inner": 64,
            "position": position,
            "norm": "pre",
        }
        options = {
            "kind": "classifier",
            "dim": DIM,
            "dropout": 0.0,
            "encoder": encoder,
            "pooling": {"kind": "attention"},
        }
        text = regard.build(options, 8, labels + 4)  # 4 special tokens come before the labels
        self.frames = nn.Linear(channels, DIM)  # XWᵀ
        self.encoder, self.pooling, self.head = text.encoder, text.pooling, text.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pooling(self.encoder(self.frames(x))))  # (batch, T, M) → (batch, labels)


def train(model: nn.Module, x: torch.Tensor, label: torch.Tensor, steps: int) -> list[tuple[float, float]]:
    generator, losses = torch.Generator().manual_seed(0), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step in range(steps):
        rows = torch.randint(0, len(x), (32,), generator=generator)
        loss = nn.functional.cross_entropy(model(x[rows]), label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((step + 1, float(loss.detach())))
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, x: torch.Tensor, label: torch.Tensor) -> float:
    return float((model.eval()(x).argmax(-1) == label).float().mean())


# %% [markdown]
# ## With and without order
# A falling tone is a rising one played backwards: the same frames in another order. Without PE the model
# cannot tell them apart, however long it trains: its accuracy must be that of a coin. We test on every
# recording forwards and, with the other label, backwards.

# %%
STEPS = by_size(full=600, small=200)
train_x, train_y, _ = recordings(2000, seed=1)
test_x, test_y, test_start = recordings(1000, seed=2)
models, curves = {}, {}
for position in ("none", "sinusoidal"):
    torch.manual_seed(0)
    models[position] = FrameClassifier(position)
    losses = train(models[position], train_x, train_y, STEPS)
    curves[f"position: {position}"] = [
        (i, sum(loss for _, loss in losses[i : i + 10]) / 10) for i in range(0, STEPS, 10)
    ]
show(LineChart(curves, "Rising or falling?", "training step", "cross-entropy (coin: 0.69)"))

both_x = torch.cat([test_x, test_x.flip(1)])  # every recording, and the same one backwards
both_y = torch.cat([test_y, 1 - test_y])
blind = accuracy(models["none"], both_x, both_y)
ordered = accuracy(models["sinusoidal"], both_x, both_y)
expect("accuracy without positions", blind, 0.5, within=0.01, source="one of each pair must be wrong")
expect("accuracy with positions", ordered, 1.0, within=0.1, source="the tone is 5 times as loud as the noise")

# %% [markdown]
# The model without positions gives a recording and its reverse the same scores, so exactly one of the two is
# right.

# %%
with torch.no_grad():
    forwards, backwards = (models["none"](x) for x in (test_x[:100], test_x[:100].flip(1)))
print(f"largest difference when played backwards: {float((forwards - backwards).abs().max()):.1e}")
assert torch.allclose(forwards, backwards, atol=1e-4)

# %% [markdown]
# ## Where it listens
# The pooling of the classifier is attention with one learned query. Its weights show which frames decided.

# %%
with torch.no_grad(), regard.watch(models["sinusoidal"]) as seen:
    models["sinusoidal"](test_x[:200])
name = next(name for name in seen if "pooling" in name)
weights = seen[name].weights().flatten(1, -2).mean(1)  # (200, T): mean over heads
inside = torch.stack([w[s : s + 8].sum() for w, s in zip(weights, test_start[:200], strict=True)]).mean()
print(f"weight on the 8 frames of the word: {float(inside):.2f}; uniform attention would have 8/40 = 0.20")
rows = [f"word at {int(s)}" for s in test_start[:6]]
title = "Attention pooling over the frames"
show(MatrixPicture(weights[:6], rows, frames, title=title, row_title="recording", column_title="frame"))
assert inside > 0.4

# %% [markdown]
# ## A small real set
# scikit-learn has 1797 handwritten digits of 8 × 8 pixels. Read a digit as 8 rows: a sequence of T = 8 frames
# with 8 channels. scikit-learn's own example, a support vector machine trained on the first half, has an
# accuracy of 0.97 on the second. Our one layer stays below that.

# %%
if importlib.util.find_spec("sklearn"):
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, names = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    half = len(images) // 2
    torch.manual_seed(0)
    reader = FrameClassifier("sinusoidal", channels=8, labels=10)
    train(reader, images[:half], names[:half], by_size(full=1500, small=100))
    score = accuracy(reader, images[half:], names[half:])
    tolerance = by_size(full=0.1, small=0.4)
    expect(
        "accuracy on the second half", score, 0.97, within=tolerance, source="scikit-learn's example, an SVM"
    )
else:
    print('scikit-learn is not installed: pip install "regard[interactions]"')

# %% [markdown]
# ## What this does not say
# Two tones are not speech. Real keyword spotting (Warden 2018, 35 words) needs features, noise and many
# speakers; convolutions below the attention help there, since neighbouring frames are nearly equal. And 898
# digits are little for a model without any knowledge of images.

# %% [markdown]
# ## Exercises
# 1. Write `embed_frames(x, W)`: X̃ = XWᵀ + PE for x (T, M) and W (K, M), K even, with the sinusoidal
#    encodings of the lecture, positions and components from 0.
# 2. Write `mean_pool(states, lengths)` for states (batch, T, K) of recordings that end at their lengths
#    (batch,): the mean over the real frames only.
#
# Put both into a file and run `regard lessons check 19 answer.py`.
