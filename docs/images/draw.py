"""Draw the figures of the documentation from real calls to regard.

regard train small
regard train small model.encoder='{kind: recurrent, cell: gru}' model.decoder='{kind: bahdanau}' \
        name=bahdanau training.steps=2500
regard train sst2-attention
python docs/images/draw.py                        # all figures; reads these three runs
python docs/images/draw.py masks normalizers      # some of them; these two need no model
"""

from __future__ import annotations

import argparse
from pathlib import Path

import operator_figures
import page_figures
import picture_figures
import result_figures
import translator_figures

import regard

HERE = Path(__file__).parent
FIGURES = {  # name: (function, name of the run whose model it takes)
    "attention": (translator_figures.attention, None),
    "alignment": (translator_figures.alignment, "bahdanau"),
    "heads": (translator_figures.heads, "small"),
    "beam": (translator_figures.beam, "small"),
    "picture-heatmap": (picture_figures.heat_map, "small"),
    "picture-lines": (picture_figures.lines, "small"),
    "picture-grid": (picture_figures.grid, "small"),
    "review": (picture_figures.review, "sst2-attention"),
    "minilm": (picture_figures.minilm, None),
    "probe": (picture_figures.probe, None),
    "recording": (page_figures.recording, None),
    "draw-transformer": (picture_figures.transformer, None),
    "draw-bahdanau": (picture_figures.bahdanau, None),
    "draw-no-attention": (picture_figures.no_attention, None),
    "dynamic-weights": (picture_figures.dynamic_weights, None),
    "position-schemes": (picture_figures.position_schemes, None),
    "masks": (operator_figures.masks, None),
    "normalizers": (operator_figures.normalizers, None),
    "positions": (operator_figures.positions, None),
    "stages": (operator_figures.stages, None),
    "edits": (operator_figures.edits, None),
    "blocks": (operator_figures.blocks, None),
    "caches": (operator_figures.caches, None),
    "interactions": (page_figures.interactions, None),
    "schedules": (page_figures.schedules, None),
    "tag-schemes": (page_figures.tag_schemes, None),
    "lengths": (page_figures.lengths, None),
    "search-speed": (page_figures.search_speed, None),
    "faithfulness": (page_figures.faithfulness, None),
    "folders": (page_figures.folders, None),
    "padding": (page_figures.padding, None),
    "requests": (page_figures.requests, None),
    "copied-word": (translator_figures.copied_word, None),
    "terminal": (translator_figures.terminal, None),
    "onnx-offsets": (operator_figures.onnx_offsets, None),
    "attacks": (result_figures.attacks, None),
    "bench": (result_figures.bench, None),
    "conformance": (result_figures.conformance, None),
    "distillation": (result_figures.distillation, None),
    "fine-tuning": (result_figures.fine_tuning, None),
    "formats": (result_figures.formats, None),
    "shortlist": (result_figures.shortlist, None),
    "tasks": (result_figures.tasks, None),
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="one of " + ", ".join(FIGURES))
    names = parser.parse_args().figures
    if unknown := [name for name in names if name not in FIGURES]:
        parser.error(f"there is no figure {unknown[0]}; the figures are {', '.join(FIGURES)}")
    for name in names or FIGURES:
        draw, model = FIGURES[name]
        drawing = draw(regard.load(Path("runs") / model)) if model else draw()  # type: ignore[operator]
        drawing.save(HERE / f"{name}.svg")
        print(HERE / f"{name}.svg", f"{(HERE / f'{name}.svg').stat().st_size / 1024:.0f} KiB")
