"""Classify sequences of numbers: write scikit-learn's digits as a dataset, and score a linear baseline.

    python -m benchmarks.sequences digits FOLDER      write 1,797 images of 8 × 8 as 8 frames of 8 channels
    regard train FOLDER/classify.yaml                 train a Transformer on them
    python -m benchmarks.sequences baseline FOLDER    logistic regression on the flattened frames

`baseline` also takes the folder that `regard.data.keyword_signals` writes.

Needs scikit-learn: pip install "regard[interactions]".
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.text_files import lines
from regard.errors import RegardError
from regard.files.atomic import write_file

RECIPE = """\
# A handwritten digit as a sequence: 8 rows of 8 pixels. The first half of scikit-learn's digits is for
# training (its last 100 images for validation), the second half for testing, as in scikit-learn's example.
name: digits
task: classify
seed: 1
data:
  train: [[train.npy, train.labels]]
  validation: [[validation.npy, validation.labels]]
  test: [[test.npy, test.labels]]
model:
  input: frames
  dim: 64
  dropout: 0.1
  encoder: { kind: transformer, layers: 2, heads: 4, inner: 128, norm: pre }
  pooling: { kind: attention, queries: 1 }
batch: { tokens: 512 } # 64 images
optimizer: { lr: 0.003 }
schedule: { kind: cosine, warmup: 20 }
training: { steps: null, epochs: 40, smoothing: 0.0, validate_every: 65, save_every: 520 }
"""


def write_digits(folder: Path) -> None:
    """Write a recipe and scikit-learn's digits: 798 for training, 100 for validation, 899 for testing."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    half = len(digits.images) // 2
    parts = {"train": slice(0, half - 100), "validation": slice(half - 100, half), "test": slice(half, None)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        np.save(folder / f"{name}.npy", digits.images[part].astype(np.float32))
        write_file(folder / f"{name}.labels", "".join(f"{label}\n" for label in digits.target[part]))
    write_file(folder / "classify.yaml", RECIPE)
    print(f"{folder}: {half - 100} training, 100 validation and {len(digits.images) - half} test images")


def baseline(folder: Path) -> float:
    """The test accuracy of logistic regression on standardized, flattened frames."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = {split: np.load(folder / f"{split}.npy") for split in ("train", "test")}
    y = {split: [line for block in lines(folder / f"{split}.labels") for line in block] for split in x}
    x = {split: values.reshape(len(y[split]), -1) for split, values in x.items()}
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    return float(model.fit(x["train"], y["train"]).score(x["test"], y["test"]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.sequences", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("command", choices=["digits", "baseline"])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    try:
        if options.command == "digits":
            write_digits(options.folder)
        else:
            print(f"logistic regression: test accuracy {baseline(options.folder):.4f}")
    except (RegardError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
