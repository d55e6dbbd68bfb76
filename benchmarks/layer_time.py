"""Time of one layer by length, recurrence beside attention: python -m benchmarks.layer_time

Times a forward pass of one sequence through a convolution, a recurrence, attention and restricted attention
(`regard.evaluation.time_by_length`) at two widths, on the CPU with one thread and on a GPU if there is one.
Prints a table and writes benchmarks/results/layer-time.json, which lesson 15 reads. `--tiny` takes a second.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import machine
from regard.evaluation.layer_time import TimesByLength, time_by_length
from regard.files.atomic import write_file
from regard.version import __version__

RESULTS = Path(__file__).parent / "results"
LENGTHS = (16, 64, 256, 1024, 4096)
DIMS = (64, 512)


def measured(times: TimesByLength, device: str, name: str) -> dict[str, Any]:
    """The milliseconds of a device and width by layer and length, and recurrence / attention."""
    lengths = list(dict.fromkeys(time.length for time in times.times))
    return {
        "device": device,
        "name": name,
        "dim": times.dim,
        "lengths": lengths,
        "milliseconds": {
            layer: [round(times.at(layer, T).milliseconds, 4) for T in lengths] for layer in times.layers
        },
        "ratio": [round(times.ratio(T), 2) for T in lengths],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds by device, width and length."""
    layers = list(rows[0]["milliseconds"])
    text = [
        f"| device | M | T | {' | '.join(layers)} | recurrence / attention |",
        "|" + "---|" * (len(layers) + 4),
    ]
    for row in rows:
        for i, T in enumerate(row["lengths"]):
            times = " | ".join(f"{row['milliseconds'][layer][i]:.3f}" for layer in layers)
            text.append(f"| {row['name']} | {row['dim']} | {T} | {times} | {row['ratio'][i]:.1f} |")
    return "\n".join(text)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.layer_time", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="two lengths, one width, one run of each")
    parser.add_argument("--repeat", type=int, default=21, help="timed runs; the median is taken")
    parser.add_argument("--out", type=Path, default=RESULTS / "layer-time.json")
    arguments = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(arguments)
    lengths, dims, repeat = ((4, 8), (8,), 1) if options.tiny else (LENGTHS, DIMS, options.repeat)
    names = {"cpu": f"{machine.cpu_name()}, one thread"}
    if torch.cuda.is_available():
        names["cuda"] = torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [
            measured(time_by_length(lengths, dim, min(16, dim), repeat=repeat, device=device), device, name)
            for device, name in names.items()
            for dim in dims
        ]
    finally:
        torch.set_num_threads(threads)
    log = {
        "command": f"python -m benchmarks.layer_time {' '.join(arguments)}".strip(), "regard": __version__,
        "date": machine.today(), "device": " and ".join(names.values()), "seed": 0,
        "torch": torch.__version__, "rows": rows,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_file(options.out, json.dumps(log, indent=1, ensure_ascii=False) + "\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
