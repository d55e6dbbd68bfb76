"""From no attention to the Transformer on one corpus: python -m benchmarks.progression [--corpus NAME] …

Trains the six models of *Deep Learning IX* and Vaswani et al. by the recipes multi30k-de-en-*, each with one
change to the one before, with the same data, batches and steps. Then scores BLEU, BLEU by sentence length,
alignment error, faithfulness of attention and training FLOPs, tests whether the BLEU of each differs from
that of the one before, and writes benchmarks/results/progression-CORPUS.json, which lessons 9, 10 and 11
read. Run the same command again after an interruption: finished models are kept, and a model in training
resumes at its last checkpoint. `--jobs 6` trains the models side by side: a recurrent model leaves most of a
GPU idle. `--minutes` limits the training of each model; the log has the steps that it took. `--tiny` checks
every part in some seconds per model.

English-French text is lower-cased and spelled as the gold alignments of the Hansards (see
benchmarks.align), so its BLEU is that of the tokens as they are and is comparable only within the
table. Needs the corpora in the folder REGARD_DATA.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.align import TASKS as GOLD
from benchmarks.align import all_as_in_gold
from benchmarks.peers import machine
from regard.attention.devices import pick_device
from regard.data import corpora
from regard.data.text_files import lines
from regard.errors import RegardError
from regard.evaluation import bleu_by_length, compare_translations, corpus_bleu, faithfulness
from regard.evaluation.alignment import Gold, score
from regard.files.atomic import write_file
from regard.pipelines.align import View, align_words, clearest_view
from regard.pipelines.word_links import Links, mutual
from regard.training.trainer import Result, resume, train
from regard.version import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
EXPLAINED = 50  # test sentences for faithfulness
VALIDATION_LINES = 500
TINY_LINES = {"train": 300, "test": 12, "validation": 12}
EXAMPLES = (  # Enevoldsen's and Deep Learning IX's sentences, in the spelling of the gold text
    ("he hit me with a pie .", "il me a entarté ."),
    ("cats do not like dogs .", "les chats ne aiment pas les chiens ."),
)


@dataclass(frozen=True)
class Step:
    """A model of the progression: the recipe, and what is changed in it."""

    title: str
    recipe: str
    overrides: tuple[str, ...] = ()

    @property
    def is_transformer(self) -> bool:
        return self.recipe == "transformer"

    @property
    def attends(self) -> bool:
        return self.recipe != "no-attention"


STEPS = {
    "none": Step("no attention", "no-attention"),
    "raw": Step("raw scores", "dot", ("model.decoder.normalize=none",)),
    "softmax": Step("softmax", "dot"),
    "projected": Step("parameterised", "projected"),
    "bahdanau": Step("Bahdanau", "bahdanau"),
    "transformer": Step("Transformer", "transformer"),
}


@dataclass(frozen=True)
class Task:
    """A corpus: its languages, the edges of the length buckets, and the longest gold sentence to align."""

    corpus: str
    source: str
    target: str
    edges: tuple[int, ...]
    longest_gold: int | None = None
    overrides: tuple[str, ...] = ()
    common: tuple[int, int] | None = None  # at the small size: only pairs of the most frequent words

    @property
    def in_gold_spelling(self) -> bool:
        return self.longest_gold is not None

    @property
    def bleu_tokens(self) -> str:
        return "none" if self.in_gold_spelling else "13a"


TASKS = {
    "tatoeba": Task("tatoeba-en-fr", "en", "fr", (5, 7, 9), 12, common=(1000, 1500)),
    "multi30k": Task("multi30k", "de", "en", (9, 12)),
    "europarl": Task(
        "europarl-en-fr", "en", "fr", (10, 20, 30, 40), 40,
        ("batch.tokens=16384", "tokenizer.size=16000", "model.dropout=0.1"),
    ),
}  # fmt: skip
# A quarter of the width, two layers, small batches: less than a minute per model on one core.
SMALL = (
    "model.dim=64", "tokenizer.size=2000", "batch.tokens=1024", "model.dropout=0.1", "decoding.beam=1",
)  # fmt: skip
SMALL_RECURRENT = ("model.encoder.width=128", "model.decoder.width=128", "optimizer.lr=0.004")
SMALL_TRANSFORMER = (
    *(f"model.{part}.{key}" for part in ("encoder", "decoder") for key in ("layers=2", "inner=128")),
    "optimizer.lr=0.003",
)  # fmt: skip
SMALL_WIDTHS = {"projected": 32, "bahdanau": 64}  # of the attention


def overrides(
    step: Step, task: Task, size: str, steps: int, seed: int, text: Path, minutes: float | None = None
) -> list[str]:
    """What changes in the recipe: the data, the size of the run, and the step's own keys."""
    every = max(1, steps // 2)
    changed = [
        *step.overrides, *task.overrides, f"seed={seed}", "data.corpus=null",
        f"data.source={task.source}", f"data.target={task.target}",
        f"data.train=[[{text}/train.source, {text}/train.target]]",
        f"data.validation=[[{text}/validation.source, {text}/validation.target]]",
        f"training.steps={steps}", f"training.validate_every={every}", "training.average=1",
        f"training.save_every={max(1, steps // 10)}", "training.patience=null",
    ]  # fmt: skip
    if minutes is not None:
        changed.append(f"training.minutes={minutes}")
    if size == "small":
        changed += [*SMALL, *(SMALL_TRANSFORMER if step.is_transformer else SMALL_RECURRENT)]
        changed.append(f"schedule.warmup={max(1, steps // 4)}")
        width = SMALL_WIDTHS.get(step.recipe)
        changed += [] if width is None else [f"model.decoder.attention_width={width}"]
    return changed


def write_text(task: Task, folder: Path, size: str, tiny: bool = False) -> None:
    """Write the splits of the corpus as pairs of files, once."""
    if (folder / "validation.target").is_file():  # the last one
        return
    folder.mkdir(parents=True, exist_ok=True)
    corpus = corpora.find(task.corpus)
    common: list[set[str]] | None = None
    for role, limit in (("train", None), ("test", None), ("validation", VALIDATION_LINES)):
        print(f"writing {folder / role}", file=sys.stderr, flush=True)
        rows = corpus.rows(corpus.roles.get(role, role), task.source, task.target)
        columns = zip(*(islice(rows, TINY_LINES[role]) if tiny else rows), strict=True)
        languages = (task.source, task.target)
        pairs = list(zip(*(map(spelled, columns, languages, (task, task))), strict=True))
        if task.common is not None and size == "small" and not tiny:
            common = common or common_words(pairs, task.common)
            pairs = [
                pair
                for pair in pairs
                if all(w.issuperset(p.split()) for w, p in zip(common, pair, strict=True))
            ]
        for side, column in zip(("source", "target"), zip(*pairs[:limit], strict=True), strict=True):
            write_file(folder / f"{role}.{side}", "".join(f"{line}\n" for line in column))


def spelled(column: tuple[str, ...], language: str, task: Task) -> list[str]:
    """The sentences of a language as the models read them."""
    return all_as_in_gold(column, language, "fr") if task.in_gold_spelling else list(column)


def common_words(pairs: list[tuple[str, str]], counts: tuple[int, int]) -> list[set[str]]:
    """The most frequent words of each side."""
    common = []
    for side, most in enumerate(counts):
        counted = Counter(word for pair in pairs for word in pair[side].split())
        common.append({word for word, _ in counted.most_common(most)})
    return common


def read_lines(path: Path) -> list[str]:
    return [line for block in lines(path) for line in block]


def read_pairs(folder: Path, split: str) -> tuple[list[str], list[str]]:
    source, target = (read_lines(folder / f"{split}.{side}") for side in ("source", "target"))
    return source, target


def train_or_resume(step: Step, folder: Path, changed: list[str]) -> Result:
    """Train the model, or resume its run."""
    if (folder / "recipe.yaml").is_file():
        return resume(folder)
    return train(f"multi30k-de-en-{step.recipe}", folder=folder, overrides=changed)


def measure(step: Step, task: Task, text: Path, model: Any, translations: list[str]) -> dict[str, Any]:
    """All scores of a trained model on the test set."""
    sources, references = read_pairs(text, "test")
    scores: dict[str, Any] = {
        "bleu": corpus_bleu(translations, references, tokenize=task.bleu_tokens),
        "by_length": bleu_by_length(
            translations, references, sources, edges=task.edges, tokenize=task.bleu_tokens
        ).as_dict()["buckets"],
    }
    if step.attends:
        result = faithfulness(model, sources[:EXPLAINED], measures=["correlation", "permuted", "uniform"])
        scores["faithfulness"] = {name: mean.as_dict() for name, mean in result.means.items()}
    if task.in_gold_spelling:
        scores["examples"] = examples(step, model)
        if step.attends:
            source, target = read_pairs(text, "validation")
            view = clearest_view(source, target, model)
            scores["alignment"] = {
                "layer": view.layer, "reads": view.shift, **alignment(model, view, task).as_dict(),
            }  # fmt: skip
    return scores


def gold_text(longest: int | None) -> tuple[list[str], list[str], list[Gold]]:
    """The test set of the Hansards up to a number of English words: English, French, links."""
    english, french, gold = GOLD["fr"].read("test")
    rows = [i for i, line in enumerate(english) if longest is None or len(line.split()) <= longest]
    return [english[i].lower() for i in rows], [french[i].lower() for i in rows], [gold[i] for i in rows]


def alignment(model: Any, view: View, task: Task) -> Any:
    """Alignment error of mutual links. Raw scores may be negative: their size counts."""
    english, french, gold = gold_text(task.longest_gold)
    words = dict(align_words(english, french, model, view))
    return score([mutual(words[i].weights.abs()) for i in range(len(gold))], gold)


def diagonal(task: Task) -> dict[str, Any]:
    """The alignment error of the diagonal, as a baseline."""
    english, french, gold = gold_text(task.longest_gold)
    links: list[Links] = []
    for source, target in zip(english, french, strict=True):
        count, last = len(target.split()), len(source.split()) - 1
        links.append(frozenset((round(t * last / max(1, count - 1)), t) for t in range(count)))
    return score(links, gold).as_dict()


def examples(step: Step, model: Any) -> list[dict[str, Any]]:
    """The model's translation of each example, and its attention while it reads ours."""
    records = []
    for source, target in EXAMPLES:
        record: dict[str, Any] = {"source": source, "translation": str(regard.translate(source, model))}
        if step.attends:
            ((_, words),) = align_words([source], [target], model)
            weights = [[round(weight, 4) for weight in row] for row in words.weights.tolist()]
            record |= {"target": target, "weights": weights}
        records.append(record)
    return records


def compared(
    models: dict[str, dict[str, Any]], folder: Path, references: list[str], task: Task
) -> dict[str, dict[str, Any]]:
    """The records of the models; each but the first with the significance of its step in BLEU."""
    records, before = {}, None
    for name, record in models.items():
        translations = read_lines(folder / f"{name}.txt")
        records[name] = record
        if before is not None:
            other, others = before
            comparison = compare_translations(
                translations, others, references, tokenize=task.bleu_tokens, metrics=["BLEU"], name=other
            )
            (bleu,) = comparison.as_dict()["metrics"]
            records[name] = record | {"before": {"model": other, **bleu}}
        before = name, translations
    return records


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else machine.cpu_name()


def side_by_side(options: argparse.Namespace, folder: Path) -> None:
    """Train and measure the models that are not done in processes of their own; their logs are in the folder.

    A process that fails is reported; the model is then tried again by this process.
    """
    same = ["--corpus", options.corpus, "--size", options.size, "--steps", str(options.steps)]
    same += ["--seed", str(options.seed), "--runs", str(options.runs), "--part"]  # the text is there
    same += [] if options.minutes is None else ["--minutes", str(options.minutes)]

    def one(name: str) -> tuple[str, int]:
        command = [sys.executable, "-m", "benchmarks.progression", "--models", name, *same]
        with (folder / f"{name}.log").open("ab") as log:
            return name, subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode

    waiting = [name for name in options.models if not (folder / f"{name}.json").is_file()]
    print(f"training {', '.join(waiting)}: {options.jobs} at a time, logs in {folder}", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, code in pool.map(one, waiting):
            if code:
                print(f"{name} ended with code {code}; see {folder / name}.log", flush=True)


def finish_model(name: str, task: Task, folder: Path, text: Path, options: argparse.Namespace) -> bool:
    """Train a model, or resume its run, and measure it; False if training was interrupted."""
    step = STEPS[name]
    print(f"{name}: training in {folder / name}", flush=True)
    changed = overrides(step, task, options.size, options.steps, options.seed, text, options.minutes)
    result = train_or_resume(step, folder / name, changed)
    if not result.finished:
        print(f"{name}: interrupted at step {result.steps}; run the command again to resume")
        return False
    model: Any = regard.load(result.folder, pick_device("auto"))
    sources, _ = read_pairs(text, "test")
    translated = regard.translate(sources, model, beam=1 if options.size == "small" else 5)
    translations = [str(line) for line in translated]
    write_file(folder / f"{name}.txt", "".join(f"{line}\n" for line in translations))
    record = {
        "title": step.title, "recipe": f"multi30k-de-en-{step.recipe}",
        "changed": list(step.overrides),
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops": result.flops, "minutes": round(result.seconds / 60, 2), "steps": result.steps,
        "validation_bleu": result.scores["validation"]["bleu"],
        **measure(step, task, text, model, translations),
    }  # fmt: skip
    write_file(folder / f"{name}.json", json.dumps(record, ensure_ascii=False) + "\n")
    return True


def run(options: argparse.Namespace) -> int:
    """Train and measure the models that are not done; write the log after each."""
    task = TASKS[options.corpus]
    folder = options.runs / f"{options.corpus}-{options.size}-{options.steps}-{options.seed}"
    text = folder.absolute() / "text"
    write_text(task, text, options.size, options.tiny)
    log: dict[str, Any] = {
        "command": f"python -m benchmarks.progression {' '.join(options.arguments)}".strip(),
        "regard": __version__, "date": machine.today(), "device": device_name(), "seed": options.seed,
        "corpus": task.corpus, "source": task.source, "target": task.target, "size": options.size,
        "steps": options.steps, "bleu_tokens": task.bleu_tokens,
        "train_lines": len(read_lines(text / "train.source")),
        "test_lines": len(read_lines(text / "test.source")),
        "diagonal": diagonal(task) if task.in_gold_spelling else None, "models": {},
    }  # fmt: skip
    if options.jobs > 1 and not options.part:
        side_by_side(options, folder)
    for name in options.models:
        if not (folder / f"{name}.json").is_file() and not finish_model(name, task, folder, text, options):
            return 1
        if options.part:
            continue
        finished = {
            other: json.loads((folder / f"{other}.json").read_text(encoding="utf-8"))
            for other in STEPS
            if (folder / f"{other}.json").is_file()
        }
        log["models"] = compared(finished, folder, read_pairs(text, "test")[1], task)
        write_file(options.out, json.dumps(log, indent=1, ensure_ascii=False) + "\n")
        print(line(name, log["models"][name]), flush=True)
    return 0


def line(name: str, record: dict[str, Any]) -> str:
    """The scores of a model in one line."""
    parts = [f"{name:12} BLEU {record['bleu']:5.2f} (validation {record['validation_bleu']:.2f})"]
    if "before" in record:
        step = record["before"]
        parts.append(f"{step['difference']:+.2f} to {step['model']}, p = {step['p_bootstrap']:.3f}")
    parts.append("by length " + " ".join(f"{b['bleu']:.1f}" for b in record["by_length"] if b["lines"]))
    if "alignment" in record:
        parts.append(f"AER {record['alignment']['aer']:.3f}")
    if "faithfulness" in record:
        parts.append(f"τ {record['faithfulness']['tau_leave_one_out']['value']:.2f}")
    return "; ".join([*parts, f"{record['flops']:.1e} FLOPs in {record['minutes']:.1f} min"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.progression", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--corpus", choices=TASKS, default="tatoeba")
    parser.add_argument("--size", choices=("small", "full"), default="small", help="full: the recipes' own")
    parser.add_argument("--steps", type=int, default=500, help="training steps of each model")
    parser.add_argument("--models", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--minutes", type=float, help="at most these minutes of training for each model")
    parser.add_argument("--jobs", type=int, default=1, help="models that are trained at the same time")
    parser.add_argument("--tiny", action="store_true", help="three steps on 300 pairs; the log is in --runs")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)  # a process of --jobs: no log
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--runs", type=Path, default=ROOT / ".cache" / "progression", help="folder of the runs"
    )
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/progression-CORPUS.json")
    arguments = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(arguments, argparse.Namespace(arguments=arguments))
    if options.tiny:
        options.size, options.steps, options.runs = "small", 3, options.runs / "tiny"
    name = f"progression-{options.corpus}.json"
    options.out = options.out or (options.runs if options.tiny else RESULTS) / name
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        return run(options)
    except RegardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
