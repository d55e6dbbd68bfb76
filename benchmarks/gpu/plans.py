"""The plans of GPU sessions as data: the steps that `python -m benchmarks.gpu.schedule PLAN` runs."""

from __future__ import annotations

from dataclasses import dataclass

WHEELS = "build/translator/wheels"
WEIGHTS = "model.safetensors"  # of bundled models: 30 MiB that stay here unless a call names them


@dataclass(frozen=True)
class Step:
    """A command, its time and its results.

    In the command and the results, {out} is the folder of what comes back, {work} the folder of runs, and
    {minutes} the minutes of training.
    """

    name: str
    command: str
    seconds: (
        float  # that it takes beside training; it is stopped after twice as many (0, tiny: at the deadline)
    )
    minutes: float = 0.0  # of training
    share: float = 0.0  # of the time that is left for training, instead of minutes
    side_by_side: bool = False  # the next step starts at once
    tiny: str = "--tiny"  # arguments that make it a matter of seconds on a CPU
    results: tuple[str, ...] = ()  # files to copy to {out}


@dataclass(frozen=True)
class Call:
    """What a call sends beside the repository, which goes without the weights of bundled models.

    The last call starts the steps: every call replaces the files of the repository.
    """

    carry: tuple[str, ...]  # ignored folders and files
    weights: tuple[str, ...] = ()  # bundled models whose weights are sent


@dataclass(frozen=True)
class Plan:
    """The steps of a session and what they need: a call each for the parts that do not fit into one."""

    steps: tuple[Step, ...]
    calls: tuple[Call, ...]


# regard beside Hugging Face Marian

EUROPARL_MINUTES = 9  # of training for each system
EUROPARL = "build/data/europarl-en-de"
EUROPARL_TEXTS = tuple(f"{EUROPARL}/{name}.{side}.xz" for name in ("dev", "test") for side in ("en", "de"))
EUROPARL_CALLS = (
    Call((WHEELS, "build/data/wmt-newstest", *EUROPARL_TEXTS, f"{EUROPARL}/train.en.xz")),
    Call((f"{EUROPARL}/train.de.xz",)),
)


def europarl(step: str, seconds: float, minutes: float = 0.0) -> Step:
    command = f"python -m benchmarks.europarl {step} --minutes {EUROPARL_MINUTES}"
    command += " --out {out}/europarl-base.json"
    record = (f"build/europarl/{step}.json",) if minutes else ()  # if there is no time to score
    return Step(f"europarl-{step}", command, seconds, minutes, tiny="--tiny --minutes 0.05", results=record)


# The bundled translator


def curve(step: str, options: str) -> str:
    return f"python -m benchmarks.translator.curve {step} {options}"


def translator(step: str, seconds: float, share: float = 0.0) -> Step:
    minutes = " --minutes {minutes}" if share else ""
    return Step(step, f"python -m benchmarks.translator.session {step}{minutes}", seconds, share=share)


CURVE = "--lr 0.001 --warmup 1500 --out {out}/curve-0.001.json"
TINY_CURVE = "--tiny --jobs 2 --work build/translator/curve-tiny"
TRANSLATIONS = tuple(
    f"build/translator/diversified/{name}.txt.xz" for name in ("translations", "samples-1", "samples-2")
)

PLANS = {
    "europarl": Plan(
        (
            europarl("prepare", 50),
            europarl("regard", 40, EUROPARL_MINUTES),
            europarl("marian", 40, EUROPARL_MINUTES),
            europarl("score", 130),
        ),
        EUROPARL_CALLS,
    ),
    "curve": Plan(
        (
            Step(
                "curve-prepare", f"env REGARD_WORKERS=4 {curve('prepare', '--jobs 4')}", 150, tiny=TINY_CURVE
            ),
            Step(
                "curve", curve("train", f"--jobs 7 --minutes {{minutes}} {CURVE}"), 110, share=1.0,
                tiny=f"{TINY_CURVE} --train-steps 20",
            ),
        ),
        (
            Call((WHEELS, "build/translator/data")),
            Call(TRANSLATIONS[:1], weights=("tatoeba-en-de-fr",)),
        ),
    ),
    "translator": Plan(
        (translator("prepare-student", 250), translator("student", 50, share=1.0), translator("finish", 25)),
        (
            Call((WHEELS, "build/translator/data")),
            Call(TRANSLATIONS, weights=("tatoeba-en-de-fr",)),
        ),
    ),
}  # fmt: skip
