"""Small models with trained tokenizers for export, and a way to run the program in an exported README."""

import re
import subprocess
import sys
from functools import cache
from itertools import islice

import torch

from regard.data import corpora
from regard.data.tokenizer import EOS, PAD, Tokenizer
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import build

LAYER = {"kind": "transformer", "layers": 2, "heads": 4, "inner": 48}
PAIRS = list(islice(corpora.find("tatoeba-sample").rows("train", "en", "de"), 2000))
ENGLISH, GERMAN = ([pair[side] for pair in PAIRS] for side in (0, 1))


@cache
def tokenizer(kind="bpe", size=400):
    return Tokenizer.train(ENGLISH + GERMAN, kind, size)


def make(encoder, decoder, *, source=None, target=None, dim=32, seed=1, **options):
    """Build a model with random weights, biases and norms, so that swapping any two changes the outputs."""
    torch.manual_seed(seed)
    target = tokenizer() if target is None else target
    source = target if source is None else source
    section = AutoregressiveOptions.model_validate(
        {"dim": dim, "encoder": encoder, "decoder": decoder, **options}
    )
    model = build(section.model_dump(), None if encoder is None else len(source), len(target)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += torch.randn_like(p) * 0.1
        for embedding in [model.target] + ([] if encoder is None else [model.source]):
            embedding.table.weight[PAD] = 0
        if model.output.projection.bias is not None:
            model.output.projection.bias[EOS] += 2  # outputs that end
    model.config, model.source_tokenizer, model.target_tokenizer = section.model_dump(), source, target
    return model


def run_readme(folder, lines):
    """Run the program in the README on these lines and return the lines it prints."""
    program = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.S)[1]
    stdin = "".join(f"{line}\n" for line in lines)
    process = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()
