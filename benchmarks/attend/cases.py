"""The cases as data: one call of attention each, forward or training, on one device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

FORWARD, TRAINING = (False,), (True,)
BOTH = (False, True)


@dataclass(frozen=True)
class Case:
    """One row of the table. Its mask, bias, energy and normaliser are names here; problem.py builds them."""

    energy: str = "scaled dot"
    mask: str = "none"  # none, causal, window 256, causal & window 256, padding, documents
    bias: str = "none"  # none, ALiBi, dense, T5
    normalize: str = "softmax"
    softcap: float | None = None
    T: int = 512
    train: bool = False
    B: int = 4
    H: int = 8
    Hk: int | None = None  # heads of keys and values, when fewer
    D: int = 64
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    kernel: str | None = None  # the kernel that regard must use
    quick: bool = False

    @property
    def heads_of_keys(self) -> int:
        return self.H if self.Hk is None else self.Hk

    @property
    def description(self) -> str:
        """A description of the case, without its length and mode."""
        parts = [self.energy]
        parts += [self.normalize] if self.normalize != "softmax" else []
        parts += [self.mask] if self.mask != "none" else []
        parts += (
            [self.bias + (" learned" if self.bias != "ALiBi" and self.train else "")]
            if self.bias != "none"
            else []
        )
        parts += [f"softcap {self.softcap:g}"] if self.softcap is not None else []
        parts += [f"{self.H} heads on {self.Hk}"] if self.Hk is not None else []
        parts += [f"no compiler: {self.kernel}"] if self.kernel is not None else []
        return ", ".join(parts)

    @property
    def mode(self) -> str:
        return "training" if self.train else "forward"

    @property
    def name(self) -> str:
        return f"{self.description}, T={self.T}, {self.mode}"


def _cases(
    *lengths: int, modes: tuple[bool, ...] = BOTH, quick: tuple[tuple[int, bool], ...] = (), **options
) -> list[Case]:
    """One case per length and mode; `quick` names the (length, training) that --quick keeps."""
    return [Case(T=T, train=train, quick=(T, train) in quick, **options) for T in lengths for train in modes]


WINDOW = "window 256"
ADDITIVE = {"energy": "additive", "B": 8, "H": 1, "D": 128}

CPU = [
    # masks, with scaled dot-product attention
    *_cases(128, 512, 2048, quick=((128, False), (512, True))),
    *_cases(512, 2048, mask="causal", quick=((512, False),)),
    *_cases(4096, mask="causal", modes=FORWARD),
    *_cases(2048, 4096, mask=WINDOW, quick=((2048, False),)),
    *_cases(2048, mask=f"causal & {WINDOW}"),
    *_cases(512, mask="padding"),
    *_cases(2048, mask="documents", modes=TRAINING),
    # biases and the soft cap
    *_cases(512, mask="causal", bias="ALiBi", modes=FORWARD, quick=((512, False),)),
    *_cases(2048, mask="causal", bias="ALiBi"),
    *_cases(512, bias="dense", modes=TRAINING),
    *_cases(512, bias="T5"),
    *_cases(512, mask="causal", softcap=20.0),
    # fewer heads of keys and values
    *_cases(2048, mask="causal", Hk=2),
    # energies
    *_cases(512, energy="cosine", modes=FORWARD),
    *_cases(512, energy="bilinear", quick=((512, False),)),
    *_cases(512, energy="distance"),
    *_cases(512, energy="dot, one head", B=8, H=1, D=128, modes=FORWARD),
    *_cases(128, 512, quick=((128, True),), **ADDITIVE),
    # normalisers
    *_cases(512, normalize="sparsemax"),
    *_cases(512, normalize="entmax 1.5"),
    *_cases(512, normalize="sigmoid", mask="causal"),
    # the paths that need no C++ compiler
    *_cases(2048, mask=f"causal & {WINDOW}", modes=TRAINING, kernel="tiled"),
    *_cases(128, kernel="additive", quick=((128, True),), **ADDITIVE),
]


def _gpu(*lengths: int, **options) -> list[Case]:
    defaults = {"dtype": torch.bfloat16, "quick": ((2048, False), (2048, True))}
    return _cases(*lengths, B=4, H=16, D=128, device="cuda", **(defaults | options))


CUDA = [
    *_gpu(512, 1024, 2048, 8192),
    *_gpu(512, 1024, 2048, 8192, mask="causal"),
    *_gpu(2048, 8192, mask="causal", bias="ALiBi"),
    *_gpu(2048, 8192, mask=WINDOW),
    *_cases(512, energy="additive", B=64, H=1, D=256, device="cuda"),
    # normalisers. Sparse ones in float32: the formula on energies in bfloat16 finds a wrong support (its
    # gradients are wrong by half), and regard computes energies in float32 anyway.
    *_gpu(512, 2048, normalize="sigmoid", mask="causal", quick=()),
    *_gpu(512, 2048, normalize="sparsemax", dtype=torch.float32, quick=()),
    *_gpu(512, 2048, normalize="entmax 1.5", dtype=torch.float32, quick=()),
]


def choose(device: str, quick: bool, only: str | None) -> list[Case]:
    """The cases of a run. `only` searches all cases, so that with it --quick shortens the timing alone."""
    cases = CUDA if device == "cuda" else CPU
    if only is not None:
        return [case for case in cases if only.lower() in case.name.lower()]
    return [case for case in cases if case.quick] if quick else cases
