"""The task of all systems: model sizes, and batches of token ids made once from real sentences.

This module needs numpy alone, so that the workers of all environments can read what it wrote.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model and settings of its training; each system follows them as far as it can."""

    vocabulary: int = 8000
    dim: int = 256
    layers: int = 4
    heads: int = 4
    inner: int = 1024
    dropout: float = 0.1
    smoothing: float = 0.1
    lr: float = 7e-4
    warmup: int = 100
    clip: float = 1.0
    longest: int = 256
    seed: int = 1

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0: a linear warm-up, then constant."""
        return self.lr * min(1.0, (step + 1) / self.warmup)


@dataclass(frozen=True)
class Pairs:
    """One batch as numpy arrays: `source` is x1 … xn EOS, `target` BOS y1 … yn EOS, PAD on the right."""

    source: np.ndarray
    target: np.ndarray

    @property
    def labels(self) -> int:
        """The number of predicted tokens: all target tokens but BOS."""
        return int((self.target[:, 1:] != PAD).sum())

    @property
    def tokens(self) -> int:
        return self.labels + int((self.source != PAD).sum())

    @property
    def padded(self) -> int:
        return self.source.size + self.target.size - len(self.target)


@dataclass(frozen=True)
class Task:
    """Batches to train on, to time and to validate on; they share no sentence."""

    sizes: Sizes
    training: list[Pairs]
    timed: list[Pairs]
    held_out: list[Pairs]

    def save(self, folder: Path) -> None:
        arrays = {}
        for name in ("training", "timed", "held_out"):
            for i, pairs in enumerate(getattr(self, name)):
                arrays[f"{name}/{i}/source"], arrays[f"{name}/{i}/target"] = pairs.source, pairs.target
        np.savez(folder / "batches.npz", **arrays)
        counts = {name: len(getattr(self, name)) for name in ("training", "timed", "held_out")}
        (folder / "task.json").write_text(
            json.dumps({"sizes": asdict(self.sizes), **counts}), encoding="utf-8"
        )

    @classmethod
    def load(cls, folder: Path) -> Task:
        content = json.loads((folder / "task.json").read_text(encoding="utf-8"))
        with np.load(folder / "batches.npz", allow_pickle=False) as arrays:
            parts = {
                name: [
                    Pairs(arrays[f"{name}/{i}/source"], arrays[f"{name}/{i}/target"])
                    for i in range(content[name])
                ]
                for name in ("training", "timed", "held_out")
            }
        return cls(Sizes(**content["sizes"]), **parts)


# ------------------------------------------------------------------------------------------------ from text
def make_task(
    train: list[tuple[str, str]],
    held_out: list[tuple[str, str]],
    sizes: Sizes,
    tokens: int,
    training_steps: int,
    timed: int,
) -> Task:
    """Train a joint byte-level BPE and batch both parts, at most `tokens` padded tokens on each side.

    The timed batches are spread evenly over all lengths; those to train on are the first of a shuffled order.
    """
    encode = _tokenizer([line for pair in train for line in pair], sizes.vocabulary)
    batches = _batches(encode(train), tokens, sizes.longest)
    timed_indices = {int((i + 0.5) * len(batches) / timed) for i in range(timed)}
    training_batches = [pairs for i, pairs in enumerate(batches) if i not in timed_indices]
    order = np.random.default_rng(sizes.seed).permutation(len(training_batches))
    return Task(
        sizes,
        training=[training_batches[i] for i in order[:training_steps]],
        timed=[batches[i] for i in sorted(timed_indices)],
        held_out=_batches(encode(held_out), tokens, sizes.longest)[:8],
    )


def _tokenizer(lines: list[str], size: int):
    """A function from pairs of texts to pairs of token ids, without BOS and EOS."""
    # Imported here: the workers read token ids, and their environments may not have it.
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNK]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)

    def encode(pairs: list[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        sides = [
            [encoding.ids for encoding in tokenizer.encode_batch([pair[i] for pair in pairs])] for i in (0, 1)
        ]
        return list(zip(*sides, strict=True))

    return encode


def _batches(pairs: list[tuple[list[int], list[int]]], tokens: int, longest: int) -> list[Pairs]:
    """Batches of similar lengths, short to long, of at most `tokens` padded tokens on each side."""
    kept = [(s, t) for s, t in pairs if s and t and max(len(s), len(t)) + 2 <= min(longest, tokens)]
    kept.sort(key=lambda pair: (max(len(pair[0]) + 1, len(pair[1]) + 2), len(pair[1]), len(pair[0])))
    batches: list[Pairs] = []
    batch: list[tuple[list[int], list[int]]] = []
    for pair in kept:
        width = max(len(pair[0]) + 1, len(pair[1]) + 2)
        if batch and (len(batch) + 1) * width > tokens:
            batches.append(_pad(batch))
            batch = []
        batch.append(pair)
    return batches  # the last one, not full, would be the longest sentences in a batch of odd size


def _pad(batch: list[tuple[list[int], list[int]]]) -> Pairs:
    source = np.full((len(batch), max(len(s) for s, _ in batch) + 1), PAD, dtype=np.int64)
    target = np.full((len(batch), max(len(t) for _, t in batch) + 2), PAD, dtype=np.int64)
    for row, (s, t) in enumerate(batch):
        source[row, : len(s) + 1] = [*s, EOS]
        target[row, : len(t) + 2] = [BOS, *t, EOS]
    return Pairs(source, target)
