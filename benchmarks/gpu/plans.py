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


def translator(
    step: str, seconds: float, options: str = "", share: float = 0.0, side_by_side: bool = False
) -> Step:
    """A step of benchmarks.translator.session; its name ends with the name of the run."""
    minutes = " --minutes {minutes}" if share else ""
    command = f"python -m benchmarks.translator.session {step}{minutes} {options}"
    name = "-".join([step, *options.split("--name ")[1:]]).split(" ")[0]
    return Step(name, command, seconds, share=share, side_by_side=side_by_side)


CURVE = "--lr 0.001 --warmup 1500 --out {out}/curve-0.001.json"
TINY_CURVE = "--tiny --work build/translator/curve-tiny"
DIVERSIFIED = "build/translator/diversified"
TRANSLATIONS = tuple(f"{DIVERSIFIED}/{name}.txt.xz" for name in ("translations", "samples-1", "samples-2"))
PLAIN = "--set tokenizer.dropout=0"  # beside the recipe's BPE-dropout
PREPARE = "python3 -m benchmarks.translator.session prepare-student"
PREPARE_BOTH = f'sh -c \'{PREPARE} "$@" && {PREPARE} {PLAIN} "$@"\' sh'
TINY_TRAINING = (
    "data.limit=300 model.dim=32 schedule.warmup=2 training.steps=3 training.validate_every=3 "
    "training.graph=false"
)
MULTI30K = Step(
    "multi30k",
    # without its table, which has test scores: the choice is made on validation scores
    "env REGARD_WORKERS=2 sh -c 'python3 -m benchmarks.recipes \"$@\" > /dev/null' sh "
    "multi30k-en-de multi30k-en-fr --jobs 6 "
    "--set tokenizer.dropout=0.1 --set tokenizer.variants=32 --out {work}/multi30k",
    600,
    side_by_side=True,
    tiny="--device cpu --jobs 2 " + " ".join(f"--set {value}" for value in TINY_TRAINING.split()),
    results=("{work}/multi30k/results.json",),
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
    "translator": Plan(
        (
            MULTI30K,
            Step(
                "curve-prepare", f"env REGARD_WORKERS=14 {curve('prepare', '--models 23MiB')}", 90,
                tiny=TINY_CURVE,
            ),
            Step("prepare-student", PREPARE_BOTH, 250, side_by_side=True),
            Step(
                "curve", curve("train", f"--models 23MiB --minutes 15 {CURVE}"), 400,
                tiny=f"{TINY_CURVE} --train-steps 20",
            ),
            translator("student", 40, f"--jobs 2 {PLAIN} --name plain", share=0.97, side_by_side=True),
            translator("student", 40, "--jobs 2", share=1.0),
            translator("finish", 20, "--name plain"),
            translator("finish", 20),
        ),
        (
            Call((WHEELS, "build/translator/data", "build/data/multi30k")),
            Call(TRANSLATIONS, weights=("tatoeba-en-de-fr",)),
        ),
    ),
}  # fmt: skip
