"""The drawn attention that both systems show: a model that returns it, and BertViz's page of it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.environments import cache_folder
from regard.decoding.attention_weights import AttentionMaps
from regard.explorer.run import Run, Side
from regard.explorer.run_job import Job

BERTVIZ, D3, JQUERY = "1.4.1", "5.16.0", "3.7.1"
PAGE = """<!doctype html><meta charset="utf-8"><script src="jquery.js"></script><script src="d3.js"></script>
<div id="root"><select id="layer"></select><div id="vis"></div></div>
<script>
const require = { config() {} };
const requirejs = (names, ready) => ready(jQuery, d3);
</script>
<script src="head_view.js"></script>
"""


def draw(tokens: int, layers: int, heads: int, seed: int = 1) -> list[Tensor]:
    """Weights (heads, tokens, tokens) of each layer: softmax of drawn energies around a diagonal."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.arange(tokens, dtype=torch.float32)
    near = -(place[:, None] - place).abs() / 8
    return [
        torch.softmax(near + 2 * torch.randn(heads, tokens, tokens, generator=generator), -1)
        for _ in range(layers)
    ]


class DrawnAttention:
    """A model of the explorer that answers every text with the same attention."""

    name, task, model = "drawn", "embed", nn.Module()

    def __init__(self, weights: list[Tensor]) -> None:
        self.tokens = [f"w{i}" for i in range(weights[0].shape[-1])]
        maps = {f"encoder.layers.{i}.attention.self": layer for i, layer in enumerate(weights)}
        self.maps = AttentionMaps(self.tokens, [], [], maps)

    def describe(self) -> dict[str, Any]:
        languages = {"source": None, "target": None, "choices": []}
        described = {"name": self.name, "kind": "encoder", "task": self.task, "parameters": 0}
        more = {"examples": ["drawn"], "limits": {"beam": 1}, "views": ["heads"], "can": ["diversity"]}
        return described | {"languages": languages} | more

    def run(self, job: Job) -> Run:
        return Run(
            "embed", job.text, {"width": 1, "vector": [1.0]}, {"source": Side.of(self.tokens)}, self.maps
        )


def bertviz_scripts() -> Path:
    """The folder with BertViz's head view, d3 and jQuery, fetched with pip and npm on the first call."""
    folder = cache_folder() / f"bertviz-{BERTVIZ}"
    if not (folder / "jquery.js").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*pip, f"bertviz=={BERTVIZ}"], check=True, capture_output=True, text=True)
        npm = ["npm", "pack", "--silent", f"d3@{D3}", f"jquery@{JQUERY}"]
        subprocess.run(npm, cwd=folder, check=True, capture_output=True, text=True)
        with zipfile.ZipFile(next(folder.glob("bertviz-*.whl"))) as wheel:
            (folder / "head_view.js").write_bytes(wheel.read("bertviz/head_view.js"))
        _unpack(folder / f"d3-{D3}.tgz", "package/dist/d3.min.js", folder / "d3.js")
        _unpack(folder / f"jquery-{JQUERY}.tgz", "package/dist/jquery.min.js", folder / "jquery.js")
    return folder


def _unpack(archive: Path, member: str, path: Path) -> None:
    with tarfile.open(archive) as opened:
        content = opened.extractfile(member)
        assert content is not None
        path.write_bytes(content.read())


def write_bertviz(folder: Path, weights: list[Tensor], tokens: list[str]) -> Path:
    """Write BertViz's head view of the weights, rounded to four digits; return its page."""
    scripts = bertviz_scripts()
    for name in ("d3.js", "jquery.js"):
        (folder / name).write_bytes((scripts / name).read_bytes())
    attention = [{"name": "Self", "attn": "ATTENTION", "left_text": tokens, "right_text": tokens}]
    params = {"attention": attention, "default_filter": "0", "root_div_id": "root", "layer": None}
    params |= {"heads": None, "include_layers": list(range(len(weights)))}
    script = (scripts / "head_view.js").read_text(encoding="utf-8")
    before, after = script.replace("PYTHON_PARAMS", json.dumps(params), 1).split('"ATTENTION"')
    with (folder / "head_view.js").open("w", encoding="utf-8") as file:
        file.write(before + "[")
        for at, layer in enumerate(weights):
            file.write("," * (at > 0) + _numbers(layer))
        file.write("]" + after)
    page = folder / "index.html"
    page.write_text(PAGE, encoding="utf-8")
    return page


def _numbers(layer: Tensor) -> str:
    text = io.StringIO()
    text.write("[")
    for h, head in enumerate((layer * 10_000).round().int().tolist()):
        rows = ("[" + ",".join(f"{x}e-4" if x else "0" for x in row) + "]" for row in head)
        text.write("," * (h > 0) + "[" + ",".join(rows) + "]")
    text.write("]")
    return text.getvalue()
