"""Warm-up, learning rate and normalisation of deep Transformers: python -m benchmarks.trainability …

Poerner's second problem of Transformers, and Xiong et al. 2020: with the norm after the residual sum (post)
training depends on warm-up and the learning rate, with the norm before each sublayer (pre) less so, and
without normalisation deep stacks diverge. A decoder of `--layers` layers and width 32 learns to repeat a
random sequence: tokens, a separator, the same tokens. The table has the cross-entropy of the repeated half in
the last steps, in nats; guessing gives ln 8 = 2.08.

Writes benchmarks/results/trainability.json, which lesson 14 reads. Needs torch and regard; one core, some
minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers import machine
from regard.files.atomic import write_file
from regard.models.build import build
from regard.models.language_model import LanguageModel
from regard.version import __version__

SYMBOLS, SPECIALS, SEPARATOR, LENGTH = 8, 4, 12, 5
GUESSING = math.log(SYMBOLS)
NORMS = ("post", "pre", "none")
OUT = Path(__file__).parent / "results" / "trainability.json"


@dataclass(frozen=True)
class Setting:
    """One training run."""

    norm: str = "post"
    layers: int = 12
    rate: float = 0.001
    warmup: int = 0
    steps: int = 100
    batch: int = 32
    seed: int = 0


def make_model(setting: Setting) -> LanguageModel:
    """A language model of width 32."""
    torch.manual_seed(setting.seed)
    layer = {"kind": "transformer", "layers": setting.layers, "heads": 4, "inner": 64, "norm": setting.norm}
    return build({"dim": 32, "dropout": 0.0, "decoder": layer}, None, SPECIALS + SYMBOLS + 1)


def draw_texts(count: int, generator: torch.Generator) -> Tensor:
    """Token ids (count, 2 · LENGTH + 1): symbols, the separator, the same symbols."""
    symbols = torch.randint(SPECIALS, SPECIALS + SYMBOLS, (count, LENGTH), generator=generator)
    return torch.cat([symbols, torch.full((count, 1), SEPARATOR), symbols], 1)


def repeat_loss(model: nn.Module, texts: Tensor) -> Tensor:
    """Cross-entropy of the symbols after the separator."""
    scores = model(texts[:, :-1])[:, LENGTH:]  # (batch, LENGTH, vocabulary)
    return nn.functional.cross_entropy(scores.flatten(0, 1), texts[:, LENGTH + 1 :].flatten())


def train(setting: Setting) -> list[float]:
    """The loss of every step, with Adam as in Vaswani et al. and a linear warm-up to a constant rate."""
    model, generator = make_model(setting), torch.Generator().manual_seed(setting.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.rate, betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for step in range(1, setting.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = setting.rate * min(1.0, step / max(1, setting.warmup))
        loss = repeat_loss(model, draw_texts(setting.batch, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def last_layer_gradient(setting: Setting) -> float:
    """Norm of the gradient of the last feed-forward matrix before the first step (Xiong et al.,
    theorem 1)."""
    model: Any = make_model(setting)
    repeat_loss(model, draw_texts(256, torch.Generator().manual_seed(1))).backward()
    return float(model.decoder.layers[-1].feed.W2.weight.grad.norm())


def final(losses: list[float]) -> float:
    """Mean of the last ten losses."""
    return sum(losses[-10:]) / len(losses[-10:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0003, 0.001, 0.003])
    parser.add_argument("--warmups", type=int, nargs="+", default=[0, 100])
    parser.add_argument("--out", type=Path, default=OUT, help="the log (default benchmarks/results/…)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs: list[dict[str, Any]] = []
    print("| rate | warm-up | post | pre | none |\n|---|---|---|---|---|")
    for rate in options.rates:
        for warmup in options.warmups:
            losses = [
                final(train(Setting(norm, options.layers, rate, warmup, options.steps))) for norm in NORMS
            ]
            print(f"| {rate:g} | {warmup} | {' | '.join(f'{loss:.3g}' for loss in losses)} |", flush=True)
            runs += [
                {"rate": rate, "warmup": warmup, "norm": norm, "loss": loss if math.isfinite(loss) else None}
                for norm, loss in zip(NORMS, losses, strict=True)
            ]
    depths = [2, 6, options.layers]
    gradients = {norm: [last_layer_gradient(Setting(norm, depth)) for depth in depths] for norm in NORMS}
    for norm, norms in gradients.items():
        print(f"gradient of the last layer, {norm}: " + ", ".join(f"{x:.3g}" for x in norms), flush=True)
    log = {
        "command": " ".join(["python -m benchmarks.trainability", *sys.argv[1:]]),
        "regard": __version__, "date": machine.today(), "device": machine.cpu_name(), "seed": Setting.seed,
        "layers": options.layers, "steps": options.steps, "guessing": GUESSING, "runs": runs,
        "depths": depths, "gradients": gradients,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_file(options.out, json.dumps(log, indent=1) + "\n")


if __name__ == "__main__":
    main()
