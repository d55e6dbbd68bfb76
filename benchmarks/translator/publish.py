"""Put the trained translator into the package: the folder, its settings, its card.

    python -m benchmarks.translator.publish install MODEL --first FOLDER
    python -m benchmarks.translator.score src/regard/models/bundled/tatoeba-en-de-fr \\
        build/translator/directions --split test --precision int8 \\
        --log benchmarks/results/translator/test.json
    python -m benchmarks.translator.publish card
    python -m benchmarks.translator.publish docs

`install` copies the int8 folder into the package and stores in its card.json what it was trained for: the
directions, the beam, which attention shows the alignment of words (chosen on validation pairs, by the
agreement of both directions), and how the model was trained that training continued (`--first`). It
keeps the logs of a GPU session (`--logs`) and the checksums of the data in benchmarks/results/translator.
`card` writes card.md and prints its tables, `docs` writes the rows of the model in docs/models.md and
docs/results.md; every figure is from those files.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from pathlib import Path
from string import Template
from typing import Any

import yaml

import regard
from benchmarks.align import TASKS
from benchmarks.peers import command
from benchmarks.translator import prepare
from benchmarks.translator.score import CORPORA, DIRECTIONS, WEIGHTS
from regard.errors import DataError, OptionError
from regard.evaluation.alignment import score as score_links
from regard.evaluation.alignment_choice import view_agreement
from regard.files.atomic import write_folder
from regard.files.checksums import CHECKSUMS, file_sha256
from regard.interchange.quantize import FOLDERS
from regard.models.catalog import BUNDLED, CARD
from regard.pipelines.align import View
from regard.recipe.loading import read_yaml, recipe_files

NAME = "tatoeba-en-de-fr"
TEMPLATE = Path(__file__).with_name("card.template.md")
LICENSE = (
    "CC BY 2.0 FR; trained on sentences of tatoeba.org, by way of manythings.org/anki, and of the European "
    "Parliament"
)
RESULTS = Path("benchmarks/results/translator")
DATA = Path("build/translator/data")
BEAM = 4
TRAINING = ("command", "recipe", "steps", "tokens", "flops", "seconds", "device")  # of a card
SPLIT_TOKENS = 16  # chosen on validation sets: docs/commands-translate.md
DECODING = {"beam": BEAM, "split_tokens": SPLIT_TOKENS, "lower_capitals": True}
VIEW_PAIRS = 500  # validation pairs of each language by which the attention of alignments is chosen
SETS = {  # names in tables
    "tatoeba": "Tatoeba test",
    "europarl": "Europarl test",
    "newstest2013": "newstest2013",
    "multi30k": "Multi30k test_2016",
}
EXAMPLES = (
    ("Cats do not like dogs.", "de"),
    ("Cats do not like dogs.", "fr"),
    ("He hit me with a pie.", "de"),
    ("He hit me with a pie.", "fr"),
)
ENTARTER = "The French verb of the lecture's second example, *entarter*, is in {} of the training rows"
PLAN = "`benchmarks/translator`"
RECIPE = "`tatoeba-en-de-fr`, `tatoeba-en-de-fr-continued`, `tatoeba-en-de-fr-sampled`"
PEERS = {"tatoeba": "47.3 / 55.4 / – / –†, OPUS-MT (74 M parameters) on its own Tatoeba split"}
GOALS = {"en-de": 50, "de-en": 56, "en-fr": 54, "fr-en": 57}  # BLEU on Tatoeba test

Scores = dict[tuple[str, str], dict[str, Any]]  # by corpus and direction


# The folder


def install(
    source: Path, folder: Path, results: Path, logs: Path | None, data: Path, first: Path | None = None
) -> None:
    """Copy the model into the package with its settings; keep logs and checksums."""
    model = regard.load(source)
    if model.stored_precision != "int8" or set(model.source_tokenizer.languages) != {"de", "en", "fr"}:
        raise OptionError(
            f"{source} is not an int8 translator of de, en and fr; store it with `regard quantize --publish`"
        )
    results.mkdir(parents=True, exist_ok=True)
    view, record = choose_view(model, data)
    _write_json(results / "alignment.json", record)
    _write_json(results / "data.json", _checksums(data))
    for log in sorted(logs.iterdir()) if logs else ():
        if log.suffix in (".txt", ".jsonl"):
            (results / log.name).write_text(
                FOLDERS.sub("", log.read_text(encoding="utf-8")), encoding="utf-8", newline="\n"
            )
    stored = {name: value for name, value in vars(view).items() if value is not None}
    card = model.card | {
        "recipe": _named(model.card["recipe"]),
        "name": folder.name,
        "directions": list(DIRECTIONS),
        "decoding": DECODING,
        "alignment": stored,
    }
    if first is not None:
        earlier = regard.load(first).card
        card["first"] = {key: earlier[key] for key in (*TRAINING, "first") if key in earlier}
        card["first"]["recipe"] = _named(earlier["recipe"])
    if '"/' in json.dumps(card):
        raise OptionError(f"card.json of {source} names a path of a machine; use `regard quantize --publish`")

    def fill(place: Path) -> None:
        for path in source.iterdir():
            if path.name not in (CHECKSUMS, CARD):
                shutil.copy(path, place / path.name)
        (place / "card.json").write_text(
            json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )

    write_folder(folder, fill)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 2**20:.2f} MiB, beam {BEAM}, alignment by {stored}")


def _named(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe of a run with the description of the included one, which has the same settings."""
    included = recipe_files().get(recipe.get("name", ""))
    return recipe if included is None else recipe | {"about": read_yaml(included)["about"]}


def choose_view(model: Any, data: Path) -> tuple[View, dict[str, Any]]:
    """The view on which both directions agree most, the mean of both languages; and its log."""
    shares: dict[View, list[float]] = {}
    for language in ("de", "fr"):
        pairs = prepare.read_pairs(data / f"tatoeba.en-{language}.validation.tsv.xz", VIEW_PAIRS)
        english, other = ([pair[side] for pair in pairs] for side in (0, 1))
        for view, share in view_agreement(english, other, model, ("en", language)).items():
            shares.setdefault(view, []).append(share)
    best = max(shares, key=lambda view: sum(shares[view]))
    return best, {
        "command": "python -m benchmarks.translator.publish install MODEL",
        "regard": regard.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "pairs": f"the first {VIEW_PAIRS} validation pairs of Tatoeba, en-de and en-fr",
        "chosen": vars(best),
        "agreement": [
            {**vars(view), "de": round(a, 4), "fr": round(b, 4)} for view, (a, b) in shares.items()
        ],
        "gold": _gold_scores(model, best),
        "entarter": _rows_with(re.compile(r"\bentart", re.IGNORECASE), data),
    }


def _gold_scores(model: Any, view: View) -> dict[str, dict[str, float]]:
    """Alignment error against gold links by the chosen view, in one direction, from English; without the
    corpora none. `benchmarks.translator.alignment` has both directions.
    """
    scores = {}
    for language, task in TASKS.items():
        try:
            english, other, gold = task.read("test")
        except DataError as error:
            print(f"alignment error is left out: {error}", file=sys.stderr)
            continue
        for mutual in (False, True):
            links = regard.align(
                english, other, model, to=language, view=view, mutual=mutual, symmetrize="none"
            )
            how = "mutual" if mutual else "strongest"
            scores[f"{task.gold}, {how}"] = score_links(links, gold).as_dict()
    return scores


def _rows_with(word: re.Pattern[str], data: Path) -> int:
    """Training rows whose French side has a word that begins so."""
    files = data.glob("*.en-fr.train.tsv.xz")
    return sum(bool(word.search(french)) for path in files for _, french in prepare.read_pairs(path))


def _checksums(data: Path) -> dict[str, Any]:
    """Pairs and SHA-256 of the files that `prepare` wrote."""
    files = sorted(data.glob("*.tsv.xz"))
    if not files:
        raise DataError(f"{data} has no CORPUS.LANGUAGES.SPLIT.tsv.xz; make it with prepare.py")
    return {
        path.name: {"pairs": len(prepare.read_pairs(path)), "sha256": file_sha256(path)} for path in files
    }


def _read_log(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"there is no {path}; `install` and benchmarks.translator.score --log write the logs")
    return json.loads(path.read_text(encoding="utf-8"))


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# The card


def write_card(folder: Path, results: Path) -> str:
    """Write card.md from the logs; return the tables for docs/results.md."""
    test, data, alignment = (_read_log(results / f"{name}.json") for name in ("test", "data", "alignment"))
    if test["model"]["sha256"] != file_sha256(folder / WEIGHTS) or test["split"] != "test" or test["limit"]:
        raise OptionError(
            f"{results / 'test.json'} is not about this model and whole test sets; run "
            "benchmarks.translator.score"
        )
    model = regard.load(folder)
    by_set = {(row["corpus"], row["direction"]): row for row in test["scores"]}
    tables = {"scores": _score_table(by_set), "curve": _curve(folder, by_set, results)}
    fields = {
        **_model_fields(folder, model, by_set),
        **_alignment_fields(alignment, model),
        "joined": _joined_lines(results),
        **tables,
        "data": "\n".join(_data_rows(data)),
        "beam": test["beam"],
        "version": test["regard"],
        "date": test["date"],
        **test["signatures"],
        "command": test["command"],
        "ways": _ways(results, test["model"]["sha256"]),
        "goals": _goals(by_set),
        "cost": _cost(model.card),
        "verdicts": _verdicts(results),
    }
    text = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(fields)
    (folder / CARD).write_text(text.rstrip() + "\n", encoding="utf-8", newline="\n")
    return "\n\n".join(tables.values())


def _model_fields(folder: Path, model: Any, by_set: Scores) -> dict[str, Any]:
    parts = model.config["encoder"], model.config["decoder"]
    layers = " + ".join(str(part["layers"]) for part in parts)
    header = {
        "about": f"English ↔ German and English ↔ French, Transformer with {layers} layers",
        "task": "translate",
        "languages": ["de", "en", "fr"],
        "into": ["de", "en", "fr"],
        "license": LICENSE,
        "scores": {f"BLEU Tatoeba test {d}": round(by_set["tatoeba", d]["bleu"], 1) for d in DIRECTIONS},
        "default": True,
    }
    return {
        "header": yaml.safe_dump(
            header, allow_unicode=True, sort_keys=False, default_flow_style=None, width=1000
        ).rstrip(),
        "name": folder.name,
        "layers": layers,
        "dim": model.config["dim"],
        "tokens": f"{len(model.source_tokenizer):,}",
        "parameters": f"{sum(p.numel() for p in model.parameters()):,}",
        "size": f"{_mebibytes(folder):.1f}",
    }


def _mebibytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir() if path.name != CARD) / 2**20


def _goals(by_set: Scores) -> str:
    """A line for each goal that is not met."""
    reached = {direction: by_set["tatoeba", direction]["bleu"] for direction in DIRECTIONS}
    missed = [
        f"{direction}: the goal is {goal} BLEU on Tatoeba; {goal - reached[direction]:.2f} are missing.\n"
        for direction, goal in GOALS.items()
        if reached[direction] < goal
    ]
    return "".join([*missed, f"{PLAN} says what was tried.\n\n"]) if missed else ""


def _data_rows(data: dict[str, Any]) -> list[str]:
    return [
        f"| `{name}` | {entry['pairs']:,} | `{entry['sha256']}` |"
        for name, entry in data.items()
        if name.split(".")[0] in ("tatoeba", "europarl")
    ]


def _score_table(by_set: Scores) -> str:
    """A row per test set: BLEU / chrF of each direction."""
    lines = ["| test set | lines | " + " | ".join(DIRECTIONS) + " |", "|---" * (2 + len(DIRECTIONS)) + "|"]
    for corpus in CORPORA:
        rows = [by_set.get((corpus, direction)) for direction in DIRECTIONS]
        if any(rows):
            sizes = sorted({row["lines"] for row in rows if row})
            cells = [f"{row['bleu']:.1f} / {row['chrf']:.1f}" if row else "–" for row in rows]
            lines.append(f"| {SETS[corpus]} | {' and '.join(map(str, sizes))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _curve(folder: Path, by_set: Scores, results: Path) -> str:
    """BLEU on Tatoeba by size: this model, and those whose logs are there: N-mib.test.json."""
    own = _mebibytes(folder)
    models = [
        (own, f"{own:.1f} MiB, int8 (this model)", {d: by_set["tatoeba", d]["bleu"] for d in DIRECTIONS})
    ]
    for log in results.glob("*-mib.test.json"):
        record, size = json.loads(log.read_text(encoding="utf-8")), float(log.name.split("-mib")[0])
        scores = {row["direction"]: row["bleu"] for row in record["scores"] if row["corpus"] == "tatoeba"}
        models.append((size, f"{size:g} MiB, int8", scores))
    lines = [
        "| BLEU on Tatoeba test | " + " | ".join(DIRECTIONS) + " |",
        "|---" * (1 + len(DIRECTIONS)) + "|",
    ]
    for _, name, scores in sorted(models, key=lambda entry: entry[0]):
        cells = (f"{scores[d]:.1f}" if d in scores else "–" for d in DIRECTIONS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _joined_lines(results: Path) -> str:
    """Alignment errors of both directions joined, if benchmarks.translator.alignment has measured them."""
    log = results / "symmetrization.json"
    scores = _read_log(log)["test"] if log.is_file() else {}
    return "".join(
        f"Both directions joined, {name}: {scored['aer']:.1f} (precision {scored['precision']:.1f}, recall "
        f"{scored['recall']:.1f}).\n"
        for name, scored in scores.items()
    )


def _alignment_fields(alignment: dict[str, Any], model: Any) -> dict[str, str]:
    chosen = alignment["chosen"]
    (row,) = [r for r in alignment["agreement"] if all(r[k] == chosen[k] for k in ("layer", "head", "shift"))]
    layer = "the mean of all layers and heads" if chosen["layer"] is None else f"layer {chosen['layer']}"
    head = "" if chosen["head"] is None else f", head {chosen['head']}"
    step = "reads" if chosen["shift"] else "generates"
    gold = [
        f"Alignment error rate of one direction on {name} links: {100 * scored['aer']:.1f} "
        f"(precision {100 * scored['precision']:.1f}, recall {100 * scored['recall']:.1f}).\n"
        for name, scored in alignment["gold"].items()
    ]
    engine = regard.fast(model)
    examples = [f"- {text} → {regard.translate(text, engine, to)}" for text, to in EXAMPLES]
    return {
        "view": f"{layer}{head}, at the step that {step} a token",
        "agreement": f"{row['de']:.1%} of the links with German, {row['fr']:.1%} with French",
        "pairs": alignment["pairs"],
        "gold": "".join(gold),
        "entarter": ENTARTER.format(alignment["entarter"])
        + (".", "; it cannot know it.")[not alignment["entarter"]],
        "examples": "\n".join(examples),
    }


def _cost(card: dict[str, Any]) -> str:
    """What training took, from the card of the run, and of the run that it started from."""
    if "first" in card:
        return f"{_cost(card['first'])}; then {_cost({k: v for k, v in card.items() if k != 'first'})}"
    return (
        f"{card['steps']:,} steps, {card['tokens'] / 1e6:.0f} M target tokens, {card['flops']:.1e} FLOPs, "
        f"{card['seconds'] / 60:.1f} minutes on one {card['device']}, seed {card['recipe']['seed']}"
    )


def _ways(results: Path, sha256: str) -> str:
    """BLEU of sentences as people type them, if benchmarks.translator.everyday has measured this model."""
    log = results / "everyday.json"
    record = _read_log(log) if log.is_file() else None
    if record is None or record["model"]["sha256"] != sha256:
        return ""
    rows = record["scores"]
    lines = ["| " + " | ".join(["BLEU, typed", *rows]) + " |", "|---" * (1 + len(rows)) + "|"]
    for way in next(iter(rows.values())):
        cells = [f"{scores[way]:.1f}" for scores in rows.values()]
        lines.append("| " + " | ".join([way, *cells]) + " |")
    return (
        f"Sentences typed in other ways, {record['rows']} (`{record['command']}`):\n\n"
        + "\n".join(lines)
        + "\n\n"
    )


def _verdicts(results: Path) -> str:
    from benchmarks.translator import review

    table = results / review.TABLE
    rows = review.read(table) if table.is_file() else []
    if not rows or not all(row["verdict"] for row in rows):
        return ""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in review.counts(rows).items())
    return f"Of {len(rows)} test sentences, read one by one, {counts} (docs/translations.md)."


# The pages


def write_rows(folder: Path, results: Path, docs: Path) -> None:
    """Write the rows of the model into the tables of docs/models.md and docs/results.md, or replace them."""
    test = _read_log(results / "test.json")
    bleu: dict[str, list[str]] = {}
    for row in test["scores"]:
        bleu.setdefault(row["corpus"], []).append(f"{row['bleu']:.1f}")
    task, trained = "translate: English ↔ German, English ↔ French", "Tatoeba (CC BY 2.0 FR), Europarl"
    score = f"BLEU {' / '.join(bleu['tatoeba'])} ({', '.join(DIRECTIONS)})"
    own = f"| `{folder.name}` | {task} | {_mebibytes(folder):.1f} MiB | {trained} | {score} | {RECIPE} |"
    _put_rows(docs / "models.md", [own], before="| `film-reviews` |", mark=f"| `{folder.name}` |")
    mark, command_text = f"the bundled `{folder.name}` in int8", f"`{test['command']}`"
    rows = [
        f"| {SETS[corpus]}, {' / '.join(DIRECTIONS)}: {mark} | {'' if i else command_text} | "
        f"{' / '.join(scores)} (one seed) | {PEERS.get(corpus, '–')} | {test['regard']} | {test['date']} |"
        for i, (corpus, scores) in enumerate(bleu.items())
    ]
    _put_rows(docs / "results.md", rows, before="| Tatoeba sample en-de, test |", mark=mark)


def _put_rows(page: Path, rows: list[str], *, before: str, mark: str) -> None:
    """Put rows before the row that begins with `before`; earlier ones, with `mark` in them, go."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if mark not in line]
    (at,) = [i for i, line in enumerate(lines) if line.startswith(before)]
    page.write_text("\n".join([*lines[:at], *rows, *lines[at:]]) + "\n", encoding="utf-8", newline="\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.publish",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("install", "card", "docs"))
    parser.add_argument("model", type=Path, nargs="?", help="install: the int8 folder that came back")
    parser.add_argument("--logs", type=Path, help="install: folder of the files that came back")
    parser.add_argument("--first", type=Path, help="install: the model that training.start continued")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of prepare.py")
    parser.add_argument("--folder", type=Path, default=BUNDLED / NAME, help="model folder in the package")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the logs")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="docs: folder of the pages")
    options = parser.parse_args(argv)
    if options.action == "card":
        print(write_card(options.folder, options.results))
    elif options.action == "docs":
        write_rows(options.folder, options.results, options.docs)
    elif options.model is None:
        parser.error("install takes the model folder")
    else:
        install(options.model, options.folder, options.results, options.logs, options.data, options.first)
    return 0


if __name__ == "__main__":
    command.run(main)
