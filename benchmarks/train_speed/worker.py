"""The worker process in which one system trains."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.peers.memory import peak_memory
from benchmarks.peers.worker_loop import serve_commands
from benchmarks.train_speed import systems
from benchmarks.train_speed.task import Pairs, Sizes, Task


def create_regard(sizes: Sizes) -> systems.System:
    from benchmarks.train_speed.ours import Regard  # only where regard is installed

    return Regard(sizes)


SYSTEMS: dict[str, Callable[[Sizes], systems.System]] = {
    "regard": create_regard,
    "Joey NMT": systems.JoeyNMT,
    "HF Marian": systems.Marian,
    "x-transformers": systems.XTransformers,
}


class Worker:
    """One system and the batches. The parent calls `train`, `time`, `describe` and `profile` by name."""

    def __init__(self, name: str, precision: str, folder: Path) -> None:
        self.task = Task.load(folder)
        torch.manual_seed(self.task.sizes.seed)
        self.system = SYSTEMS[name](self.task.sizes)
        self.half = precision == "bfloat16"
        self.steps = 0

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half)

    def step(self, pairs: Pairs) -> float:
        """One training step: loss, gradients, clipping, update. Returns the smoothed loss."""
        source, target = torch.from_numpy(pairs.source), torch.from_numpy(pairs.target)
        for group in self.system.optimizer.param_groups:
            group["lr"] = self.task.sizes.rate(self.steps)
        with self.autocast():
            loss = self.system.loss(source, target)
        loss.backward()
        self.system.clip()
        self.system.optimizer.step()
        self.system.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return loss.item()

    def held_out(self) -> float:
        """−log p per target token on sentences that are not trained on."""
        self.system.model.eval()
        total, count = torch.zeros((), dtype=torch.float64), 0
        with torch.no_grad(), self.autocast():
            for pairs in self.task.held_out:
                total += self._nll(pairs)
                count += pairs.labels
        self.system.model.train()
        return float(total / count)

    def _nll(self, pairs: Pairs) -> Tensor:
        return self.system.nll(torch.from_numpy(pairs.source), torch.from_numpy(pairs.target)).double()

    # ------------------------------------------------------------------------------------------- commands
    def train(self, threads: int) -> dict:
        """One step on each training batch; return the held-out loss before and after."""
        torch.set_num_threads(threads)
        before = self.held_out()
        losses = [self.step(pairs) for pairs in self.task.training]
        return {"before": before, "after": self.held_out(), "losses": losses}

    def time(self, threads: int, batch: int) -> dict:
        """One step on one batch; the seconds it took."""
        torch.set_num_threads(threads)
        pairs = self.task.timed[batch]
        start = time.perf_counter()
        self.step(pairs)
        return {"seconds": time.perf_counter() - start}

    def describe(self) -> dict:
        parameters = sum(p.numel() for p in self.system.model.parameters() if p.requires_grad)
        return {
            "parameters": parameters,
            "peak": peak_memory(),
            "note": self.system.note,
            "torch": torch.__version__,
        }

    def profile(self, threads: int, rows: int) -> dict:
        """Where the time of one step goes, as torch's profiler sees it."""
        torch.set_num_threads(threads)
        pairs = self.task.timed[len(self.task.timed) // 2]
        self.step(pairs)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            self.step(pairs)
        return {
            "table": profiler.key_averages().table(
                sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=48
            )
        }


def main() -> None:
    name, precision, folder = sys.argv[1:]
    serve_commands(lambda: Worker(name, precision, Path(folder)))


if __name__ == "__main__":
    main()
