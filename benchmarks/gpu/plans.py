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
    """What a call sends beside the repository, which goes without the weights of bundled models."""

    carry: tuple[str, ...]  # ignored folders and files
    weights: tuple[str, ...] = ()  # bundled models whose weights are sent


@dataclass(frozen=True)
class Plan:
    """The steps of a session and what they need: a call each for the parts that do not fit into one."""

    steps: tuple[Step, ...]
    calls: tuple[Call, ...]


# Measurements on a quiet GPU

BAHDANAU = (
    "python -m regard train multi30k-de-en-bahdanau data.version=tok training.device=cuda "
    "training.minutes={minutes} training.log_every=50 decoding.beam=1 decoding.max_length=60 "
    "--overwrite --run {work}/"
)
TINY_TRAINING = (
    *("training.steps=2", "training.graph=false", "training.validate_every=2", "schedule.warmup=1"),
    *("model.dim=32", "batch.tokens=512", "data.limit=200", "tokenizer.size=300", "decoding.max_length=10"),
)
TINY_BAHDANAU = " ".join(("training.device=cpu", *TINY_TRAINING))

MEASUREMENTS = (
    Step("additive", "python -m benchmarks.gpu.additive --out {out}", 40),
    Step("cache", "python -m benchmarks.gpu.cache --only attend", 40),
    Step("entmax", "python -m benchmarks.gpu.entmax", 40),
    Step("tune", 'python -m benchmarks.gpu.band --tune --seconds 8 --cases "ALiBi causal, T=8192"', 30),
    Step("bahdanau", f"{BAHDANAU}bahdanau", 20, minutes=0.5, tiny=TINY_BAHDANAU),
    Step(
        "bahdanau-graph", f"{BAHDANAU}bahdanau-graph training.graph=true", 20, minutes=0.5, tiny=TINY_BAHDANAU
    ),
)

# regard beside Hugging Face Marian

EUROPARL_MINUTES = 8.5  # of training for each system


def europarl(step: str, seconds: float, minutes: float = 0.0, options: str = "") -> Step:
    name = f"europarl-{step}{'-eager' if options else ''}"
    command = f"python -m benchmarks.europarl {step} --minutes {EUROPARL_MINUTES}{options}"
    command += " --out {out}/europarl-base.json"
    record = (f"build/europarl/{step}.json",) if minutes else ()  # if there is no time to score
    return Step(name, command, seconds, minutes, tiny="--tiny --minutes 0.05", results=record)


EUROPARL = (
    europarl("prepare", 90),
    europarl("regard", 40, EUROPARL_MINUTES),
    europarl("marian", 40, EUROPARL_MINUTES),
    europarl("marian", 0, options=" --no-compile"),  # returns at once unless the step before it failed
    europarl("score", 120),
)

# The bundled translator


def translator(step: str, seconds: float, share: float = 0.0, side_by_side: bool = False) -> Step:
    minutes = " --minutes {minutes}" if share else ""
    workers = "env REGARD_WORKERS=8 " if side_by_side else ""
    command = f"{workers}python -m benchmarks.translator.session {step}{minutes}"
    return Step(step, command, seconds, share=share, side_by_side=side_by_side)


MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY=/tmp/regard-mps"  # processes with it share the GPU at the same time
MPS = Step(
    "mps", f"env {MPS_FOLDER} CUDA_MPS_LOG_DIRECTORY=/tmp/regard-mps nvidia-cuda-mps-control -d", 5, tiny=""
)
MULTI30K = Step(
    "multi30k",
    f"env REGARD_WORKERS=2 {MPS_FOLDER} python -m benchmarks.recipes multi30k-en-de multi30k-en-fr --jobs 6 "
    "--out {work}/multi30k --choose decoding.length_penalty=0.6,1,1.5,2,2.5",
    560,
    tiny="--device cpu --jobs 2 " + " ".join(f"--set {value}" for value in TINY_TRAINING),
    results=("{work}/multi30k/results.md", "{work}/multi30k/results.json"),
)
TESTS = Step(
    "tests",
    "env OMP_NUM_THREADS=1 python -m pytest -q -n 4 -p no:cacheprovider tests/attention/test_cuda.py "
    "tests/layers tests/training/test_cuda.py tests/decoding/test_cuda_engine.py",
    200,
    side_by_side=True,
    tiny="--collect-only",
)
CURVE = "env REGARD_WORKERS=4 python -m benchmarks.translator.curve"
TINY_CURVE = "--tiny --jobs 2 --work build/translator/curve-tiny"

PLANS = {
    "kernels": Plan(
        (
            *MEASUREMENTS[:3],
            translator("prepare-student", 250, side_by_side=True),  # on CPU cores
            *MEASUREMENTS[3:],
            TESTS,
            MPS,
            MULTI30K,
            translator("student", 40, share=1.0),
            translator("finish", 25),
        ),
        (
            Call((WHEELS, "build/translator/data", "build/data/multi30k")),
            Call(("build/translator/diversified/translations.txt.xz",), weights=("tatoeba-en-de-fr",)),
        ),
    ),
    "europarl": Plan(
        EUROPARL,
        (
            Call(
                (
                    WHEELS,
                    "build/data/europarl-en-de",
                    "build/data/wmt-newstest",
                    "build/data/multi30k",
                )
            ),
        ),
    ),
    "teacher": Plan(
        (
            translator("prepare-teacher", 45, side_by_side=True),  # on CPU cores
            MULTI30K,
            translator("teacher", 25, share=1.0),
            translator("distill", 110),
            translator("pack-distilled", 15),
            translator("score-teacher", 20),
        ),
        (Call((WHEELS, "build/translator/data", "build/data/multi30k")),),
    ),
    "student": Plan(
        (
            Step("embed", "python -m benchmarks.gpu.embed --sets europarl", 60),
            Step("curve-prepare", f"{CURVE} prepare --jobs 6", 150, tiny=TINY_CURVE),
            Step(
                "curve", f"{CURVE} train --jobs 6 --minutes 6 --out {{out}}/curve.json", 150, 6.0,
                tiny=f"{TINY_CURVE} --minutes 0.05",
            ),
            translator("student", 50, share=1.0),
            translator("finish", 25),
        ),
        (
            Call((WHEELS, "build/translator/data", "build/embed/minilm", "build/embed/europarl.txt.xz")),
            Call(("build/translator/models/distilled",), weights=("tatoeba-en-de-fr",)),
        ),
    ),
    "translator": Plan(  # teacher and student in one session
        (
            translator("prepare-teacher", 45),
            translator("teacher", 25, share=0.42),
            translator("distill", 110),
            # On the GPU, while the cores prepare the student's data.
            translator("score-teacher", 0, side_by_side=True),
            translator("student", 50, share=1.0),
            translator("finish", 25),
        ),
        (Call((WHEELS, "build/translator/data")), Call((), weights=("tatoeba-en-de-fr",))),
    ),
}  # fmt: skip
