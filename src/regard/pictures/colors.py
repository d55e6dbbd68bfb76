"""Colours of pictures, for light and dark pages; blue and orange differ also for colour-blind readers."""

from __future__ import annotations

from typing import NamedTuple

LEVELS = 24  # steps of the ramp of weights

# Stops of the ramp, from weight 0 to the largest: one hue, lightness monotonic.
_LIGHT = ("#f7f9fc", "#d3e3f6", "#8fb8e8", "#3f7fce", "#174a94", "#0a2550")
_DARK = ("#181d27", "#1d3a66", "#2f66b0", "#68a3ec", "#b6d6ff", "#f4f9ff")


class Style(NamedTuple):
    """Fill and stroke, each as (light, dark) or None."""

    fill: tuple[str, str] | None = None
    stroke: tuple[str, str] | None = None


STYLES = {
    "paper": Style(fill=("#ffffff", "#11151d")),
    "ink": Style(fill=("#1d2939", "#e7ebf2")),
    "mute": Style(fill=("#667085", "#98a2b3")),
    "accent": Style(fill=("#b54708", "#fdb475")),
    "blue": Style(fill=("#1d5fb0", "#8fc0ff")),
    "frame": Style(stroke=("#c9d0da", "#3b4657")),
    "token": Style(("#f5f7fa", "#1b212c"), ("#c9d0da", "#475467")),
    "layer": Style(("#eef1f6", "#222a37"), ("#8a95a8", "#7b879b")),
    "state": Style(("#e3effc", "#16304f"), ("#2f74c5", "#6cabf3")),
    "attention": Style(("#fdebdc", "#43290f"), ("#c4590d", "#f5a04f")),
    "output": Style(("#ece9f8", "#2b2545"), ("#6b59b8", "#a898ec")),
    "band": Style(("#f4f6f9", "#171d27"), None),
    "edge": Style(stroke=("#8a95a8", "#77839a")),
    "flow": Style(stroke=("#2f74c5", "#6cabf3")),
    "attends": Style(stroke=("#d9731f", "#f5a04f")),
    "weight": Style(stroke=("#1f66bd", "#6cabf3")),
    "line-green": Style(stroke=("#12805c", "#4fc79b")),
    "line-purple": Style(stroke=("#6b59b8", "#a898ec")),
    # Text inside a cell of the ramp, on low and on high weights.
    "low": Style(fill=("#344054", "#cfd6e1")),
    "high": Style(fill=("#ffffff", "#0b1424")),
}


def ramp(dark: bool = False) -> list[str]:
    """The LEVELS + 1 colours of the ramp."""
    stops = [tuple(int(stop[i : i + 2], 16) for i in (1, 3, 5)) for stop in (_DARK if dark else _LIGHT)]
    colors = []
    for level in range(LEVELS + 1):
        place = level / LEVELS * (len(stops) - 1)
        low = min(int(place), len(stops) - 2)
        mixed = (a + (b - a) * (place - low) for a, b in zip(stops[low], stops[low + 1], strict=True))
        colors.append("#" + "".join(f"{round(channel):02x}" for channel in mixed))
    return colors


def level(value: float, low: float, high: float) -> int:
    """The step of the ramp for a value between low and high; 0 for a value that is not a number."""
    if not high > low or not value > low:
        return 0
    return min(LEVELS, round((value - low) / (high - low) * LEVELS))


def is_high(step: int) -> bool:
    """Whether text on this step of the ramp takes the style `high`."""
    return step >= LEVELS * 0.46


def stylesheet() -> str:
    """CSS for all pictures. It is the same in each, so that several fit into one notebook or page."""
    return f"{_rules(0)}@media (prefers-color-scheme: dark){{{_rules(1)}}}"


def _rules(theme: int) -> str:
    rules = []
    for name, style in STYLES.items():
        fill = style.fill[theme] if style.fill else "none"
        stroke = f";stroke:{style.stroke[theme]}" if style.stroke else ""
        rules.append(f".regard-picture .{name}{{fill:{fill}{stroke}}}")
    rules += [f".regard-picture .w{i}{{fill:{color}}}" for i, color in enumerate(ramp(dark=theme == 1))]
    return "".join(rules)
