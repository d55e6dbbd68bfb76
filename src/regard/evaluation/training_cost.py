"""Training cost in FLOPs, compared with Schmidt-Thieme's WMT-2014 table.

There are two definitions. `flops` counts the operations of the model, three forward passes per step. The
table (Vaswani et al. 2017, table 2) estimates device time × sustained rate: the base Transformer's 3.3·10¹⁸
is 12 hours on 8 P100 at 9.5·10¹². A run is shown with both; their ratio is the utilisation, as accurate as
the rate.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from regard.errors import OptionError

# Sustained single-precision FLOP/s assumed by Vaswani et al. 2017.
RATES = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
# Peak FLOP/s of the vendors' data sheets, matrix products in half precision (bfloat16 where there is) without
# sparsity. No run sustains them: utilisation by these is "model FLOPs utilisation".
PEAK_RATES = {
    "V100": 125e12,
    "T4": 65e12,
    "RTX 3090": 71e12,
    "A100": 312e12,
    "RTX 4090": 165e12,
    "L4": 121e12,
    "L40S": 362e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "MI300X": 1307e12,
}


@dataclass(frozen=True)
class PublishedResult:
    """A row of Schmidt-Thieme's table: BLEU and estimated FLOPs, English-German and English-French; None if
    missing.
    """

    model: str
    bleu_de: float | None
    bleu_fr: float | None
    flops_de: float | None
    flops_fr: float | None


# The WMT-2014 table of Schmidt-Thieme's lecture. The paper prints one cost of the Transformers for both
# language pairs; later versions have 41.8 for the big model on English-French.
WMT_2014 = (
    PublishedResult("ByteNet", 23.75, None, None, None),
    PublishedResult("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    PublishedResult("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    PublishedResult("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    PublishedResult("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    PublishedResult("Deep-Att + PosUnk Ensemble", None, 40.4, None, 8.0e20),
    PublishedResult("GNMT + RL Ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    PublishedResult("ConvS2S Ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    PublishedResult("Transformer (base model)", 27.3, 38.1, 3.3e18, None),
    PublishedResult("Transformer (big)", 28.4, 41.0, 2.3e19, None),
)


def estimated_flops(hours: float, devices: int, rate: float) -> float:
    """Device time × sustained rate (FLOP/s), as in Schmidt-Thieme's table."""
    for name, value in (("hours", hours), ("devices", devices), ("rate", rate)):
        if not 0 < value < math.inf:
            raise OptionError(f"{name} must be a positive number, got {value!r}")
    return hours * 3600 * devices * rate


def rate_of_device(device: str) -> float | None:
    """FLOP/s of a device by its name, such as "NVIDIA H200"; None for devices that the tables do not have."""
    for name, rate in (PEAK_RATES | RATES).items():
        if re.search(rf"\b{name}\b", device, re.IGNORECASE):
            return rate
    return None


def parse_rate(text: str) -> float:
    """FLOP/s from a number ("9.5e12") or the name of a device ("P100", "H200")."""
    try:
        rate = float(text)
    except ValueError:
        rate = rate_of_device(text)
        if rate is None:
            names = ", ".join(RATES | PEAK_RATES)
            raise OptionError(
                f"the rate must be a number of FLOP/s, such as 9.5e12, or a device, got {text!r}; known are "
                f"{names}"
            ) from None
    if not 0 < rate < math.inf:
        raise OptionError(f"the rate must be a positive number of FLOP/s, got {text!r}")
    return rate


@dataclass(frozen=True)
class TrainingCost:
    """Our own training run: counted FLOPs and device time. `rate`: sustained FLOP/s of the device, if
    known.
    """

    model: str
    task: str
    flops: float
    hours: float
    devices: int
    rate: float | None = None
    bleu: float | None = None

    @property
    def estimated_flops(self) -> float | None:
        """Device time × rate."""
        return None if self.rate is None else estimated_flops(self.hours, self.devices, self.rate)

    @property
    def utilization(self) -> float | None:
        """Counted / estimated FLOPs (model FLOPs utilisation)."""
        return None if self.estimated_flops is None else self.flops / self.estimated_flops


def compare_to_wmt14(*runs: TrainingCost) -> list[dict[str, Any]]:
    """Schmidt-Thieme's table followed by the runs, one dict per row.

    Costs are comparable between tasks, scores are not.
    """
    rows = []
    for row in WMT_2014:
        for task, bleu, flops in (
            ("WMT-2014 en-de", row.bleu_de, row.flops_de),
            ("WMT-2014 en-fr", row.bleu_fr, row.flops_fr),
        ):
            if bleu is not None:
                rows.append(_row(row.model, task, bleu, None, flops, None))
    rows.sort(key=lambda r: r["task"])  # stable: the table's order within each pair
    return rows + [
        _row(run.model, run.task, run.bleu, run.flops, run.estimated_flops, run.utilization) for run in runs
    ]


def table(*runs: TrainingCost) -> str:
    """`compare_to_wmt14` as text."""
    lines = [("model", "task", "BLEU", "FLOPs", "time × rate", "utilization")]
    for row in compare_to_wmt14(*runs):
        numbers = (
            _number(row["bleu"], ".2f"),
            _number(row["flops"], ".1e"),
            _number(row["estimated_flops"], ".1e"),
        )
        lines.append((row["model"], row["task"], *numbers, _number(row["utilization"], ".1%")))
    widths = [max(len(line[c]) for line in lines) for c in range(6)]
    texts = []
    for line in lines:
        cells = [
            cell.ljust(w) if c < 2 else cell.rjust(w)
            for c, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def _row(
    model: str,
    task: str,
    bleu: float | None,
    flops: float | None,
    estimated_flops: float | None,
    utilization: float | None,
) -> dict[str, Any]:
    return {
        "model": model,
        "task": task,
        "bleu": bleu,
        "flops": flops,
        "estimated_flops": estimated_flops,
        "utilization": utilization,
    }


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"
