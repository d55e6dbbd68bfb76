"""The tables, as Markdown and as JSON."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from typing import Any

from benchmarks.decode_peers.measure import Latency, Name, Row
from benchmarks.decode_peers.systems import CT2, HF, JOEY, OURS
from benchmarks.decode_peers.texts import Text
from benchmarks.peers import machine
from benchmarks.peers.tables import NONE, footnote, grouped, markdown_table, mebibytes, setting_text
from regard.data.tokenizer import EOS

SHAPE = ("layers", "heads", "inner", "norm")
HEADER = [
    "beam",
    "system",
    "precision",
    "tokens/s",
    f"× {CT2}",
    "× HF",
    "× Joey",
    "BLEU",
    "peak MiB",
    "rounds",
    "setting",
]
LATENCY_HEADER = [
    "system",
    "precision",
    "first token, ms",
    f"× {CT2}",
    "whole sentence, ms",
    f"× {CT2}",
    "settings",
]


def facts(model: Any, texts: list[Text], command: str, load: float | None) -> dict[str, Any]:
    """Command, model, texts, machine and versions of a run."""
    config = model.config
    return {
        "command": command,
        "model": {
            "name": model.card.get("name", "a model"),
            "parameters": sum(p.numel() for p in model.parameters()),
            "vocabulary": len(model.target_tokenizer),
            "dim": config["dim"],
            **{side: {key: config[side].get(key) for key in SHAPE} for side in ("encoder", "decoder")},
        },
        "texts": [
            {
                "name": t.name,
                "sentences": len(t.sources),
                "tokens": sum(map(len, t.sources)),
                "unknown": t.unknown(),
            }
            for t in texts
        ],
        **machine.cpu_facts(load),
    }


def markdown(rows: list[Row], latencies: dict[Name, Latency], facts: dict[str, Any]) -> str:
    """The page: a table for each text, the latencies, and what the columns mean."""
    lines = ["# Decoding speed", "", f"`{facts['command']}`", "", _described(rows, facts)]
    notes: list[str] = []
    for text in facts["texts"]:
        of_text = [row for row in rows if row.text == text["name"]]
        if of_text:
            cells = [_cells(row, of_text, notes) for row in of_text]
            lines += ["", _title(text), "", *markdown_table(HEADER, cells)]
    if latencies:
        cells = [_latency_cells(name, latencies) for name in latencies]
        lines += ["", "## One sentence, greedy", "", *markdown_table(LATENCY_HEADER, cells)]
    numbered = [f"[{i}] {note}." for i, note in enumerate(notes, 1)]
    lines += ["", *(f"- {line}" for line in [*_legend(), *compare_outputs(rows), *numbered])]
    return "\n".join(lines) + "\n"


def as_json(rows: list[Row], latencies: dict[Name, Latency], facts: dict[str, Any]) -> str:
    """All measurements as JSON, without the outputs."""
    measured = [
        {key: value for key, value in asdict(row).items() if key != "outputs"} | {"rate": row.rate}
        for row in rows
    ]
    single = [
        {"system": system, "precision": precision, **asdict(latency)}
        for (system, precision), latency in latencies.items()
    ]
    content = {"facts": facts, "rows": measured, "latency": single, "equal": compare_outputs(rows)}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


# -------------------------------------------------------------------------------------------------- the parts
def _described(rows: list[Row], facts: dict[str, Any]) -> str:
    model = facts["model"]
    sides = (model["encoder"], model["decoder"])
    shape = (
        f"{'+'.join(str(s['layers']) for s in sides)} layers, {sides[1]['norm']}-norm, width {model['dim']}, "
    )
    shape += f"{sides[1]['heads']} heads, inner {sides[1]['inner']}, {model['vocabulary']} tokens, "
    shape += f"{model['parameters'] / 1e6:.1f} M weights"
    versions = ", ".join(dict.fromkeys(f"{row.system} {row.version}" for row in rows if row.version))
    versions += f", torch {facts['torch']}, Python {facts['python']}; {facts['date']}"
    return f"{model['name']}: {shape}. {machine.cpu_text(facts)}; {versions}."


def _title(text: dict[str, Any]) -> str:
    unknown = f", {text['unknown']:.1%} of them unknown" if text["unknown"] else ""
    length = f"{text['tokens'] / text['sentences']:.1f} source tokens each"
    return f"## {text['name']}: {text['sentences']} sentences, {length}{unknown}"


def _cells(row: Row, of_text: list[Row], notes: list[str]) -> list[str]:
    """One row of the table of a text, in the order of HEADER."""
    mark = ""
    if row.failure or row.note:
        mark = " " + footnote(notes, f"{row.system}: {row.failure or row.note}")
    return [
        str(row.beam),
        row.system + mark,
        row.precision,
        grouped(row.rate),
        *_ratios(row, of_text),
        NONE if row.bleu is None else f"{row.bleu:.2f}",
        mebibytes(row.peak),
        _rounds(row),
        setting_text(row.setting) or NONE,
    ]


def _ratios(row: Row, of_text: list[Row]) -> list[str]:
    """regard's speed over CTranslate2's in the same precision, and over the others' in their fastest."""
    if row.system != OURS or row.rate is None:
        return [NONE] * 3
    ratios = []
    for peer in (CT2, HF, JOEY):
        rates = [
            other.rate
            for other in of_text
            if other.rate
            and (other.system, other.beam) == (peer, row.beam)
            and (peer != CT2 or other.precision == row.precision)
        ]
        ratios.append(f"{row.rate / max(rates):.2f}" if rates else NONE)
    return ratios


def _rounds(row: Row) -> str:
    """The number of rounds, and half of their range."""
    if len(row.seconds) < 2:
        return str(len(row.seconds))
    half_range = (max(row.seconds) - min(row.seconds)) / 2
    return f"{len(row.seconds)} (±{half_range / statistics.median(row.seconds):.0%})"


def _latency_cells(name: Name, latencies: dict[Name, Latency]) -> list[str]:
    """One row of the table of latencies; ratios to CTranslate2's are in regard's rows only."""
    latency, (system, precision) = latencies[name], name
    peer = latencies.get((CT2, precision)) if system == OURS else None
    ratios = [NONE, NONE]
    if peer is not None:
        ratios = [
            f"{latency.first_token / peer.first_token:.2f}",
            f"{latency.last_token / peer.last_token:.2f}",
        ]
    first, last = f"{1000 * latency.first_token:.1f}", f"{1000 * latency.last_token:.1f}"
    settings = dict.fromkeys(map(setting_text, (latency.first_setting, latency.last_setting)))
    return [system, precision, first, ratios[0], last, ratios[1], " / ".join(settings)]


def compare_outputs(rows: list[Row]) -> list[str]:
    """Sentences on how many greedy float32 outputs of each peer differ from ours: all run one model."""
    sentences = []
    exact = {
        (row.system, row.text): row
        for row in rows
        if row.precision == "float32" and row.beam == 1 and row.outputs
    }
    for (system, text), row in exact.items():
        ours = exact.get((OURS, text))
        if system == OURS or ours is None:
            continue
        different = sum(not _same_output(a, b) for a, b in zip(ours.outputs, row.outputs, strict=True))
        sentences.append(
            f"greedy float32 outputs of {system} on {text} differ from ours in {different} of "
            f"{len(row.outputs)} sentences"
        )
    return sentences


def _same_output(output: list[int], reference: list[int]) -> bool:
    """True if two outputs are equal; one that the limit cut off before EOS may be a prefix of the other."""
    short, long = sorted((output, reference), key=len)
    return short == long or (EOS not in short and short == long[: len(short)])


def _legend() -> list[str]:
    return [
        "tokens/s: target tokens of a system's own translations, EOS included, at the median of the "
        "rounds (±: half of their range); token ids in, token ids out, so tokenisation is excluded. All "
        "systems take turns, each in its own process with the setting that was its fastest on sentences of "
        "about the median length.",
        f"× {CT2}: of the same precision and beam; it has no bfloat16 on a CPU. × HF, × Joey: against their "
        "fastest precision. All rank by log p / length where they can, and write at most 3/2 of the longest "
        "source + 20 tokens.",
        "peak MiB: the most the whole process held, interpreter and libraries included, in a fresh process "
        "with the one setting.",
        "One sentence: sentences of median length, one at a time, each system with the better number of "
        "threads for it; the first token is a translation limited to one token.",
    ]
