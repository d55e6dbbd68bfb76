"""The tables, as Markdown and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from benchmarks.decode_peers.measure import Latency, Name, Row
from benchmarks.decode_peers.systems import CT2, HF, JOEY, OURS
from benchmarks.decode_peers.texts import Text
from benchmarks.peers import machine
from regard.data.tokenizer import EOS

NONE = "–"
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
ALONE = ["system", "precision", "first word, ms", f"× {CT2}", "whole sentence, ms", f"× {CT2}", "settings"]


def facts(model: Any, texts: list[Text], command: str, load: float | None) -> dict[str, Any]:
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
        "cpu": machine.cpu_name(),
        "cores": os.cpu_count(),
        "load": load,
        "torch": version("torch"),
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def markdown(rows: list[Row], alone: dict[Name, Latency], facts: dict[str, Any]) -> str:
    lines = ["# Decoding speed", "", f"`{facts['command']}`", "", _described(rows, facts)]
    notes: list[str] = []
    for text in facts["texts"]:
        here = [row for row in rows if row.text == text["name"]]
        if here:
            lines += ["", _title(text), "", *_table(HEADER, [_cells(row, here, notes) for row in here])]
    if alone:
        lines += [
            "",
            "## One sentence, greedy",
            "",
            *_table(ALONE, [_alone(name, one, alone) for name, one in alone.items()]),
        ]
    lines += [
        "",
        *(
            f"- {line}"
            for line in [*_legend(), *equal(rows), *(f"[{i}] {note}." for i, note in enumerate(notes, 1))]
        ),
    ]
    return "\n".join(lines) + "\n"


def as_json(rows: list[Row], alone: dict[Name, Latency], facts: dict[str, Any]) -> str:
    kept = [
        {key: value for key, value in asdict(row).items() if key != "outputs"} | {"rate": row.rate}
        for row in rows
    ]
    single = [{"system": name[0], "precision": name[1], **asdict(one)} for name, one in alone.items()]
    found = {"facts": facts, "rows": kept, "latency": single, "equal": equal(rows)}
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


# -------------------------------------------------------------------------------------------------- the parts
def _described(rows: list[Row], facts: dict[str, Any]) -> str:
    model, load = facts["model"], facts["load"]
    sides = (model["encoder"], model["decoder"])
    shape = (
        f"{'+'.join(str(s['layers']) for s in sides)} layers, {sides[1]['norm']}-norm, width {model['dim']}, "
    )
    shape += f"{sides[1]['heads']} heads, inner {sides[1]['inner']}, {model['vocabulary']} tokens, "
    shape += f"{model['parameters'] / 1e6:.1f} M weights"
    versions = ", ".join(dict.fromkeys(f"{row.system} {row.version}" for row in rows if row.version))
    busy = "" if load is None else f", load {load:.1f} at the start"
    around = f"torch {facts['torch']}, Python {facts['python']}; {facts['date']}"
    return f"{model['name']}: {shape}. {facts['cpu']}, {facts['cores']} cores{busy}; {versions}, {around}."


def _title(text: dict[str, Any]) -> str:
    unknown = f", {text['unknown']:.1%} of them unknown" if text["unknown"] else ""
    length = f"{text['tokens'] / text['sentences']:.1f} source tokens each"
    return f"## {text['name']}: {text['sentences']} sentences, {length}{unknown}"


def _cells(row: Row, here: list[Row], notes: list[str]) -> list[str]:
    note, mark = f"{row.system}: {row.trouble or row.note}", ""
    if row.trouble or row.note:
        notes += [] if note in notes else [note]
        mark = f" [{notes.index(note) + 1}]"
    peak = NONE if row.peak is None else f"{row.peak / 2**20:.0f}"
    bleu, rounds = NONE if row.bleu is None else f"{row.bleu:.2f}", _rounds(row)
    setting = " ".join(f"{key}={value}" for key, value in row.setting.items()) or NONE
    return [
        str(row.beam),
        row.system + mark,
        row.precision,
        _number(row.rate),
        *_ratios(row, here),
        bleu,
        peak,
        rounds,
        setting,
    ]


def _ratios(row: Row, here: list[Row]) -> list[str]:
    """Against CTranslate2 of the same precision, against the others in their fastest one."""
    if row.system != OURS or row.rate is None:
        return [NONE] * 3
    found = []
    for peer in (CT2, HF, JOEY):
        rates = [
            other.rate
            for other in here
            if other.system == peer
            and other.beam == row.beam
            and other.rate
            and _comparable(peer, row, other)
        ]
        found.append(f"{row.rate / max(rates):.2f}" if rates else NONE)
    return found


def _comparable(peer: str, row: Row, other: Row) -> bool:
    return peer != CT2 or other.precision == row.precision


def _rounds(row: Row) -> str:
    """The number of rounds, and half of their range."""
    if len(row.seconds) < 2:
        return str(len(row.seconds))
    half_range = (max(row.seconds) - min(row.seconds)) / 2
    return f"{len(row.seconds)} (±{half_range / statistics.median(row.seconds):.0%})"


def _alone(name: Name, one: Latency, alone: dict[Name, Latency]) -> list[str]:
    peer = alone.get((CT2, name[1])) if name[0] == OURS else None
    first, whole = (
        (NONE, NONE) if peer is None else (f"{one.first / peer.first:.2f}", f"{one.whole / peer.whole:.2f}")
    )
    settings = " / ".join(
        dict.fromkeys(
            " ".join(f"{k}={v}" for k, v in s.items()) for s in (one.first_setting, one.whole_setting)
        )
    )
    return [*name, f"{1000 * one.first:.1f}", first, f"{1000 * one.whole:.1f}", whole, settings]


def equal(rows: list[Row]) -> list[str]:
    """Check that all compute the same model: greedy float32 outputs compared with ours."""
    found = []
    exact = {
        (row.system, row.text): row
        for row in rows
        if row.precision == "float32" and row.beam == 1 and row.outputs
    }
    for (system, text), row in exact.items():
        ours = exact.get((OURS, text))
        if system == OURS or ours is None:
            continue
        other = sum(not _alike(a, b) for a, b in zip(ours.outputs, row.outputs, strict=True))
        found.append(
            f"greedy float32 outputs of {system} on {text} differ from ours in {other} of "
            f"{len(row.outputs)} sentences"
        )
    return found


def _alike(one: list[int], other: list[int]) -> bool:
    """Equal; or, where a limit cut one off before its end mark, equal as far as it goes."""
    short, long = sorted((one, other), key=len)
    return short == long or (EOS not in short and short == long[: len(short)])


def _legend() -> list[str]:
    return [
        "tokens/s: target tokens of a system's own translations, end marks counted, at the median of the "
        "rounds (±: half of their range); token ids in, token ids out, so tokenisation is excluded. All "
        "systems take turns, each in its own process with the setting that was its fastest on sentences of "
        "about the median length.",
        f"× {CT2}: of the same precision and beam; it has no bfloat16 on a CPU. × HF, × Joey: against their "
        "fastest precision. All rank by log p / length where they can, and write at most 3/2 of the longest "
        "source + 20 tokens.",
        "peak MiB: the most the whole process held, interpreter and libraries included, in a fresh process "
        "with the one setting.",
        "One sentence: sentences of median length, one at a time, each system with the better number of "
        "threads for it; the first word is a translation limited to one token.",
    ]


def _table(header: list[str], cells: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells)]


def _number(x: float | None) -> str:
    return NONE if x is None else f"{x:,.0f}".replace(",", " ")
