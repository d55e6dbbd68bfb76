"""BLEU, significance and cost of the trained systems: the log and the table."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import regard
from benchmarks.europarl import marian
from benchmarks.europarl.experiment import Experiment
from benchmarks.peers.tables import grouped, markdown_table
from regard.attention.devices import pick_device
from regard.evaluation import compare_translations
from regard.evaluation.bleu import bleu_metric
from regard.evaluation.training_cost import TrainingCost, compare_to_wmt14, rate_of_device, table
from regard.files.atomic import write_file

SYSTEMS = ("marian", "regard", "regard-single")  # regard-single: one checkpoint, not the mean of several
LARGEST = 1_000_000  # bytes of translations that are kept beside the log
COUNTED = {
    "regard": "from the first batch to the last checkpoint: CUDA graph capture, kernel compilation, steps, "
    "validations, checkpoints; not: tokenizing, building the model",
    "marian": "from the call of Trainer.train to the end of the last step: start of the workers, "
    "torch.compile, steps, checkpoints; no validations; not: tokenizing, building the model",
}


def single_checkpoint(experiment: Experiment) -> Path | None:
    """The newest of regard's best checkpoints; the final model is the mean of all of them."""
    return max((experiment.folder / "regard" / "best").glob("step-*/"), default=None)


def translations(experiment: Experiment, system: str, name: str, sources: list[str]) -> list[str]:
    """The translations of a test set; those of an earlier call are read."""
    path = experiment.folder / "translations" / f"{system}.{name}.{len(sources)}.txt"
    if path.is_file():
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    decoding = experiment.recipe.decoding
    if system == "marian":
        texts = marian.translate(experiment, sources, decoding.beam, decoding.length_penalty)
    else:
        folder = single_checkpoint(experiment) if system == "regard-single" else experiment.folder / "regard"
        assert folder is not None
        model = regard.load(folder, pick_device(experiment.recipe.training.device))
        strategy = regard.Beam(decoding.beam, length_penalty=decoding.length_penalty)
        texts = [str(text) for text in regard.translate(sources, model, strategy=strategy)]
    texts = [" ".join(text.split("\n")) for text in texts]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, "".join(f"{text}\n" for text in texts))
    return texts


def score(experiment: Experiment, device: str) -> dict[str, Any]:
    """Translate and score what is trained: records of the systems, comparisons, cost rows."""
    records: dict[str, dict[str, Any]] = {}
    for system in SYSTEMS:
        record = experiment.read(system.removesuffix("-single"))
        if record is not None and (system != "regard-single" or single_checkpoint(experiment)):
            records[system] = dict(record)
    sets, bleu, outputs = experiment.test_sets(), bleu_metric(), {}
    comparisons: dict[str, dict[str, Any]] = {}
    for system, record in records.items():
        record["bleu"] = {}
        for name, (sources, references) in sets.items():
            texts = outputs[system, name] = translations(experiment, system, name, sources)
            record["bleu"][name] = round(bleu.corpus_score(texts, [references]).score, 4)
            print(f"{system} {name}: BLEU {record['bleu'][name]:.2f}, {len(texts)} lines", flush=True)
    for system in [system for system in records if system != "marian" and "marian" in records]:
        for name, (_, references) in sets.items():
            compared = compare_translations(
                outputs[system, name], outputs["marian", name], references, metrics=("BLEU",), name="marian"
            )
            comparisons.setdefault(system, {})[name] = compared.as_dict()["metrics"][0]
    if "regard-single" in records:
        records["regard-single"]["name"] += ", one checkpoint"
    rate, scored = rate_of_device(device), list(sets)[-1]
    costs = [
        TrainingCost(
            record["name"], scored, record["flops"], record["seconds"] / 3600, 1, rate, record["bleu"][scored]
        )
        for record in records.values()
    ]  # fmt: skip
    print("\n" + table(*costs))
    return {
        "lines": {name: len(sources) for name, (sources, _) in sets.items()},
        "signature": str(bleu.get_signature()),
        "decoding": {key: getattr(experiment.recipe.decoding, key) for key in ("beam", "length_penalty")},
        "training_pairs": experiment.corpus.train.rows,
        "vocabulary": experiment.vocabulary,
        "counted": COUNTED,
        "systems": records,
        "compared_with_marian": comparisons,
        "wmt2014": compare_to_wmt14(*costs)[-len(costs) :],
    }


def markdown(log: dict[str, Any]) -> str:
    """The table of the log: a row per system, and the significance of the differences."""
    sets = list(log["lines"])
    header = ["system", "steps", "target tokens", "training FLOPs", "minutes", "target tokens/s"]
    rows = [
        [
            record["name"], grouped(record["steps"]), grouped(record["tokens"]), f"{record['flops']:.2e}",
            f"{record['seconds'] / 60:.1f}", grouped(record["tokens_per_second"]),
            *(f"{record['bleu'][name]:.2f}" for name in sets),
        ]
        for record in log["systems"].values()
    ]  # fmt: skip
    lines = markdown_table([*header, *(f"BLEU {name}" for name in sets)], rows)
    for system, comparison in log["compared_with_marian"].items():
        cells = [
            f"{name} {m['difference']:+.2f} [{m['low']:+.2f}, {m['high']:+.2f}], p = {m['p_bootstrap']:.3f}"
            for name, m in comparison.items()
        ]
        lines.append(f"\n{log['systems'][system]['name']} − Marian, BLEU: {'; '.join(cells)}")
    lines.append(f"\n{log['signature']}, beam {log['decoding']['beam']}, {log['device']}, {log['date']}")
    return "\n".join(lines)


def keep_translations(experiment: Experiment, log: dict[str, Any], path: Path) -> None:
    """Write all translations as one table, unless it is large: a column per system, a row per line."""
    systems, rows = list(log["systems"]), []
    for name, (sources, _) in experiment.test_sets().items():
        columns = [translations(experiment, system, name, sources) for system in systems]
        rows += [[name, *(text.replace("\t", " ") for text in row)] for row in zip(*columns, strict=True)]
    text = "".join("\t".join(row) + "\n" for row in [["set", *systems], *rows])
    data = lzma.compress(text.encode(), preset=9)
    kept = len(data) <= LARGEST
    if kept:
        write_file(path, data)
    print(f"translations: {len(data) / 1e6:.2f} MB, {path if kept else 'not kept'}", flush=True)
