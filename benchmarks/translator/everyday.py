"""Rows as people type them, for the last part of training: see README.md, "As people type".

    python -m benchmarks.translator.everyday rows DIRECTIONS         everyday.DIRECTION.train.tsv
    python -m benchmarks.translator.everyday start MODEL OUT         the model with tokens for more characters
    python -m benchmarks.translator.everyday score MODEL DIRECTIONS  BLEU of validation rows in each way

Corpora have sentences with a capital and a full stop. People also type lower case, capitals, single words,
and names, numbers and addresses that no corpus has. Every row here is made from training pairs: from a pair
by changing how it is written, or names and numbers that both sides share; from words that occur together;
or from the sentence frames below. Rows as they are keep what the model can do.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import regard
from benchmarks.peers import command
from benchmarks.translator.prepare import Pair, comparable, row
from benchmarks.translator.score import DIRECTIONS, WEIGHTS
from regard.files.checksums import file_sha256
from regard.files.progress import track

CHARACTERS = "#<=>@\\^`{|}~§²×•½"  # 16 that the 12,000 tokens lack, and •
KEPT, CHANGED, PARLIAMENT = 20_000, 36_000, 3_000  # rows of each direction
SHORT, SHORTS, REVIEWED = (
    3,
    10_000,
    8_000,
)  # words of a short row; short rows and rows as they are beside them
FEWEST, SURE = 5, 0.25  # of a pair of words: how often it occurs, and both probabilities
NUMBERS = {
    "en": ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"],
    "de": ["zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"],
    "fr": ["deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze", "douze"],
}
MONTHS = {
    "en": "January, February, March, April, May, June, July, August, September, October, November, December",
    "de": "Januar, Februar, März, April, Mai, Juni, Juli, August, September, Oktober, November, Dezember",
    "fr": "janvier, février, mars, avril, mai, juin, juillet, août, septembre, octobre, novembre, décembre",
}
# The same sentence in three languages, with gaps for what is copied.
FRAMES = [
    ("My email is {mail}.", "Meine E-Mail-Adresse ist {mail}.", "Mon adresse e-mail est {mail}."),
    ("You can write to me at {mail}.", "Du kannst mir an {mail} schreiben.", "Tu peux m'écrire à {mail}."),
    (
        "Please send it to {mail}.",
        "Bitte schicken Sie es an {mail}.",
        "Envoyez-le à {mail}, s'il vous plaît.",
    ),
    ("You will find more at {site}.", "Mehr finden Sie unter {site}.", "Vous en trouverez plus sur {site}."),
    ("Have you seen {site}?", "Hast du {site} gesehen?", "As-tu vu {site} ?"),
    (
        "Please call me at {phone}.",
        "Bitte rufen Sie mich unter {phone} an.",
        "Appelez-moi au {phone}, s'il vous plaît.",
    ),
    ("My number is {phone}.", "Meine Nummer ist {phone}.", "Mon numéro est le {phone}."),
    ("It costs {count} euros.", "Es kostet {count} Euro.", "Ça coûte {count} euros."),
    ("My name is {name}.", "Ich heiße {name}.", "Je m'appelle {name}."),
    ("Do you know {name}?", "Kennst du {name}?", "Connais-tu {name} ?"),
    ("{name} lives in {place}.", "{name} wohnt in {place}.", "{name} habite à {place}."),
    (
        "The train leaves at {hour}:{minute}.",
        "Der Zug fährt um {hour}:{minute} Uhr ab.",
        "Le train part à {hour}h{minute}.",
    ),
    (
        "The meeting is on {day} {month} {year}.",
        "Die Besprechung ist am {day}. {month} {year}.",
        "La réunion est le {day} {month} {year}.",
    ),
    (
        "I was born on {month} {day}, {year}.",
        "Ich wurde am {day}. {month} {year} geboren.",
        "Je suis né le {day} {month} {year}.",
    ),
    ("The password is {code}.", "Das Passwort ist {code}.", "Le mot de passe est {code}."),
    ("Open the file {code}.", "Öffne die Datei {code}.", "Ouvre le fichier {code}."),
    ("What does {symbol} mean?", "Was bedeutet {symbol}?", "Que signifie {symbol} ?"),
    ("Press the key {symbol}.", "Drücke die Taste {symbol}.", "Appuie sur la touche {symbol}."),
    ("The flat has {count} m².", "Die Wohnung hat {count} m².", "L'appartement fait {count} m²."),
    ("• {name}", "• {name}", "• {name}"),
    ("{code}", "{code}", "{code}"),
    ("{mail}", "{mail}", "{mail}"),
    ("{site}", "{site}", "{site}"),
    ("{name}", "{name}", "{name}"),
    ("{phone}", "{phone}", "{phone}"),
]
LANGUAGES = ("en", "de", "fr")
WORD = re.compile(r"\w+(?:['’]\w+)?|[^\w\s]")
LAST = re.compile(r"[\s.?!]+$")


# -- One pair, written in another way ------------------------------------------------------------------------


def lower_case(source: str, target: str) -> Pair:
    return source.lower(), target


def without_end(source: str, target: str) -> Pair:
    """Without the full stop, question or exclamation mark; the translation has it."""
    return LAST.sub("", source), target


def bare(source: str, target: str) -> Pair:
    return LAST.sub("", source.lower()), target


def no_apostrophes(source: str, target: str) -> Pair:
    """As on a phone: im hungry, jai faim."""
    return LAST.sub("", re.sub("['’]", "", source.lower())), target


def capitals(source: str, target: str) -> Pair:
    return source.upper(), target.upper()


def other_quotes(source: str, target: str) -> Pair:
    """Typographic apostrophes and quotation marks, or plain ones if they are typographic."""
    if re.search("[’“”„«»]", source):
        return re.sub(r"«\s*|\s*»", '"', re.sub("[“”„]", '"', source.replace("’", "'"))), target
    return re.sub(r'"([^"]*)"', "“\\1”", source.replace("'", "’")), target


WAYS = {
    "lower case": lower_case,
    "no full stop": without_end,
    "both": bare,
    "no apostrophes": no_apostrophes,
    "capitals": capitals,
    "other quotes": other_quotes,
}


# -- Names, numbers and frames -------------------------------------------------------------------------------


def shared_names(pairs: list[Pair]) -> list[str]:
    """Capitalized words that stand unchanged inside both sides."""
    count: Counter[str] = Counter()
    for pair in pairs:
        sides = [set(WORD.findall(text)[1:]) for text in pair]
        count.update(w for w in sides[0] & sides[1] if w[0].isupper() and w[1:].islower() and len(w) > 2)
    return sorted(word for word, times in count.items() if times >= 2)


def with_other_names(source: str, target: str, draw: random.Random, names: list[str]) -> Pair:
    """Another name or number in place of each that both sides share, and figures for number words."""
    words: set[str] = set(WORD.findall(source)) & set(WORD.findall(target))
    shared = {w for w in words if w.isdigit() or (w[0].isupper() and w[1:].islower() and len(w) > 2)}
    for word in sorted(shared):
        other = made_up_number(draw) if word.isdigit() else draw.choice(names)
        source, target = (re.sub(rf"\b{re.escape(word)}\b", other, text) for text in (source, target))
    return source, target


def made_up_number(draw: random.Random) -> str:
    return str(draw.randrange(1, 10 ** draw.randint(1, 6)))


def with_figures(source: str, target: str, languages: Pair) -> Pair:
    """Figures in place of number words that both sides have."""
    for i, words in enumerate(zip(*(NUMBERS[language] for language in languages), strict=True), 2):
        patterns = [re.compile(rf"\b{word}\b") for word in words]
        if all(len(p.findall(text)) == 1 for p, text in zip(patterns, (source, target), strict=True)):
            source, target = patterns[0].sub(str(i), source), patterns[1].sub(str(i), target)
    return source, target


def filled_frame(draw: random.Random, names: list[str], languages: Pair) -> Pair:
    """A sentence about a made-up address, name, number or date, the same in both languages."""
    frame, month, gaps = draw.choice(FRAMES), draw.randrange(12), made_up(draw, names)
    first, second = (
        frame[LANGUAGES.index(language)].format(**gaps, month=MONTHS[language].split(", ")[month])
        for language in languages
    )
    return first, second


def made_up(draw: random.Random, names: list[str]) -> dict[str, str]:
    """What fills the gaps of a frame, except the month."""

    def word() -> str:
        return "".join(draw.choice("aabcdeefghiijklmnooprstuuvwxyz") for _ in range(draw.randint(3, 9)))

    def name() -> str:
        return draw.choice(names)

    def end() -> str:
        return draw.choice(["com", "org", "net", "de", "fr", "eu", "co.uk", "info"])

    number, joined = made_up_number(draw), draw.choice(["", ".", "_", "-"])
    host = f"{draw.choice([name().lower(), word()])}.{end()}"
    path = draw.choice(
        ["", f"/{word()}", f"/{word()}/{word()}.html", f"/{word()}?id={number}", f"/#{word()}"]
    )
    groups = [str(draw.randrange(10, 10 ** draw.randint(2, 4))) for _ in range(draw.randint(2, 4))]
    code = [f"{word()}{number}", f"{word()}_{word()}.txt", f"{word().upper()}-{number}", f"{word()}={number}"]
    code += [
        f"<{word()}>",
        f"{{{word()}}}",
        f"`{word()}`",
        f"C:\\{word()}\\{word()}.txt",
        f"{word()} | {word()}",
    ]
    code += [f"~/{word()}", f"{number}^2", f"{number}×{number}", f"§ {number}", f"#{word()}", f"@{word()}"]
    return {
        "mail": f"{draw.choice([name().lower(), word()])}{joined}{draw.choice([word(), number])}@{host}",
        "site": draw.choice(["https://", "http://", "", "www.", "https://www."]) + host + path,
        "phone": draw.choice(["", "+49 ", "+33 ", "+1 ", "0"])
        + draw.choice(["-", " ", "", "/"]).join(groups),
        "count": number,
        "name": name(),
        "place": name(),
        "hour": str(draw.randint(1, 23)),
        "minute": f"{draw.randrange(60):02}",
        "day": str(draw.randint(1, 31)),
        "year": str(draw.randint(1800, 2040)),
        "code": draw.choice(code),
        "symbol": draw.choice(CHARACTERS),
    }


# -- Single words --------------------------------------------------------------------------------------------


def single_words(pairs: list[Pair]) -> list[Pair]:
    """Words and their most likely translations, by IBM Model 1 in both directions (Brown et al. 1993)."""
    sides: list[list[list[str]]]
    sides = [[WORD.findall(text) for text in texts] for texts in zip(*pairs, strict=True)]
    usual = [_usual_case(texts) for texts in sides]
    words = [
        [[case.get(w.lower(), w) for w in text] for text in texts]
        for case, texts in zip(usual, sides, strict=True)
    ]
    vocabularies = [sorted({w for text in texts for w in text}) for texts in words]
    index = [{w: i for i, w in enumerate(vocabulary)} for vocabulary in vocabularies]
    links = [
        (number, index[0][a], index[1][b])
        for number, (first, second) in enumerate(zip(*words, strict=True))
        for a in first
        for b in second
    ]
    place, x, y = np.array(links, np.int64).T
    forward = _model_1(x, y, place, len(vocabularies[1]))
    backward = _model_1(y, x, place, len(vocabularies[0]))
    keys, where, times = np.unique(x * len(vocabularies[1]) + y, return_index=True, return_counts=True)
    good = (times >= FEWEST) & (forward[where] >= SURE) & (backward[where] >= SURE)
    found = [
        (vocabularies[0][k // len(vocabularies[1])], vocabularies[1][k % len(vocabularies[1])])
        for k in keys[good]
    ]
    return [(a, b) for a, b in found if a.isalpha() and b.isalpha() and len(a) > 2 and len(b) > 2]


def _usual_case(texts: list[list[str]]) -> dict[str, str]:
    """How each word is most often written inside sentences."""
    count: dict[str, Counter[str]] = {}
    for text in texts:
        for word in text[1:]:
            count.setdefault(word.lower(), Counter())[word] += 1
    return {word: forms.most_common(1)[0][0] for word, forms in count.items()}


def _model_1(x: np.ndarray, y: np.ndarray, place: np.ndarray, size: int, rounds: int = 6) -> np.ndarray:
    """p(x | y) of each link by IBM Model 1, for sentences numbered by `place`."""
    cells, cell = np.unique(x * size + y, return_inverse=True)
    given = cells % size
    chance = np.ones(len(cells))
    spot, at = np.unique(place * (int(x.max()) + 1) + x, return_inverse=True)
    for _ in range(rounds):
        share = chance[cell]
        share /= np.bincount(at, share, len(spot))[at]
        count = np.bincount(cell, share, len(cells))
        chance = count / np.bincount(given, count, size)[given]
    return chance[cell]


# -- Files ---------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Pair]:
    """The pairs of a file of one direction, without the token of the target language."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [(source.split("<< ", 1)[1], target) for source, target in rows]


def changed_rows(pairs: list[Pair], languages: Pair, draw: random.Random) -> Iterator[Pair]:
    """Endless rows of all kinds."""
    names, words = shared_names(pairs), single_words(pairs)
    print(
        f"{'-'.join(languages)}: {len(names):,} names, {len(words):,} single words, as {words[:3]}",
        flush=True,
    )
    ways: list[Callable[[str, str], Pair]] = [
        *(lower_case, bare, bare, bare, no_apostrophes, without_end, capitals, capitals, other_quotes),
        *[partial(with_other_names, draw=draw, names=names)] * 2,
        partial(with_figures, languages=languages),
    ]
    while True:
        kind = draw.random()
        if kind < 0.1:
            yield filled_frame(draw, names, languages)
        elif kind < 0.2:
            source, target = draw.choice(words)
            how = draw.choice([str, str, str.lower, str.capitalize, str.upper])
            yield how(source), (how(target) if how is not str.lower else target)
        else:
            pair = draw.choice(pairs)
            way = draw.choice(ways)
            changed = way(*pair)
            if way in ways[-3:] and changed != pair and draw.random() < 0.3:
                changed = draw.choice([bare, capitals, lower_case])(*changed)
            if changed != pair and all(changed):
                yield changed


def short_rows(pairs: list[Pair], draw: random.Random) -> Iterator[Pair]:
    """Endless greetings and other pairs of one, two and three words, as they are and in other ways."""
    short: dict[int, list[Pair]] = {}
    for pair in pairs:
        short.setdefault(len(pair[0].split()), []).append(pair)
    lengths = [n for n in range(1, SHORT + 1) if n in short]
    while True:
        source, target = draw.choice(short[draw.choice(lengths)])
        way = draw.choice([lambda *pair: pair, without_end, bare, bare, lower_case, no_apostrophes])
        yield way(source, target)


def write_rows(folder: Path, seed: int, count: int = CHANGED) -> None:
    """Write the training rows of each direction: as they are, changed, and of Europarl.

    A changed row with a side of a validation or test row, as after a name was replaced, is left out.
    """
    paths = [path for split in ("validation", "test") for path in folder.glob(f"*.*-*.{split}.tsv")]
    held_out = {comparable(side) for path in paths for pair in read_rows(path) for side in pair}

    def allowed(rows: Iterator[Pair], most: int) -> Iterator[Pair]:
        """The first rows without a held-out side; fewer than `most` if nearly all have one."""
        tried = islice(rows, 20 * most)
        return islice((pair for pair in tried if held_out.isdisjoint(map(comparable, pair))), most)

    for direction in DIRECTIONS:
        draw = random.Random(f"{seed} {direction}")
        first, second = direction.split("-")
        pairs = read_rows(folder / f"tatoeba.{direction}.train.tsv")
        changed = changed_rows(pairs, (first, second), draw)
        rows = draw.sample(pairs, min(KEPT, len(pairs)))
        parliament = read_rows(folder / f"europarl.{direction}.train.tsv")
        rows += draw.sample(parliament, min(PARLIAMENT, len(parliament)))
        with track(count, f"{direction}: writing rows in other ways", "rows") as progress:
            for pair in allowed(changed, count):
                rows.append(pair)
                progress.advance(1)
        _write(folder / f"everyday.{direction}.train.tsv", rows, second, draw)
        rows = draw.sample(pairs, min(REVIEWED, len(pairs)))
        rows += allowed(short_rows(pairs, draw), min(SHORTS, count))
        _write(folder / f"short.{direction}.train.tsv", rows, second, draw)


def _write(path: Path, rows: list[Pair], language: str, draw: random.Random) -> None:
    draw.shuffle(rows)
    path.write_text("".join(row(*pair, language) for pair in rows), encoding="utf-8", newline="\n")
    print(f"{path.name}: {len(rows):,} rows", flush=True)


def add_characters(model: Any, out: Path, characters: str = CHARACTERS) -> None:
    """Write the model with a token for each character that it lacks; their vectors are to be learned."""
    import torch

    from regard.data.tokenizer import Tokenizer
    from regard.models import folder as folders
    from regard.models.build import build

    tokenizer = json.loads(model.target_tokenizer.text)
    vocabulary = tokenizer["model"]["vocab"]
    size, missing = len(vocabulary), [c for c in characters if c not in vocabulary]
    vocabulary.update({c: size + i for i, c in enumerate(missing)})
    weights = model.state_dict()
    similar = torch.tensor([vocabulary[c] for c in "&+*/_[]"])
    for name, old in weights.items():
        if old.ndim == 2 and len(old) == size:
            weights[name] = torch.cat([old, old[similar].mean(0, keepdim=True).expand(len(missing), -1)])
    larger = build(model.config, len(vocabulary), len(vocabulary))
    larger.load_state_dict(weights)
    tokens = Tokenizer(json.dumps(tokenizer, ensure_ascii=False))
    folders.save(out, larger, model.config, tokens, tokens, model.card)
    print(f"{out}: {len(vocabulary):,} tokens, {len(missing)} of them new")


def score(folder: Path, directions: Path, limit: int) -> dict[str, Any]:
    """Print and return BLEU of the first validation rows, as they are and in each of the WAYS."""
    import sacrebleu

    translator = regard.fast(regard.load(folder), "int8")
    bleu, scores = sacrebleu.BLEU(), {}
    ways = {"as they are": lambda *pair: pair, **WAYS}
    for direction in DIRECTIONS:
        pairs = read_rows(directions / f"tatoeba.{direction}.validation.tsv")[:limit]
        scores[direction] = {}
        for name, way in ways.items():
            changed = [way(*pair) for pair in pairs]
            outputs = regard.translate([source for source, _ in changed], translator, direction[3:])
            found = bleu.corpus_score([str(x) for x in outputs], [[target for _, target in changed]])
            scores[direction][name] = round(found.score, 2)
        print(direction, ", ".join(f"{n} {x:.1f}" for n, x in scores[direction].items()), flush=True)
    return {
        "regard": regard.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "model": {"name": folder.name, "sha256": file_sha256(folder / WEIGHTS)},
        "rows": f"the first {limit} validation rows of Tatoeba in each direction",
        "signature": str(bleu.get_signature()),
        "scores": scores,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translator.everyday",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("rows", help="write the training rows")
    step.add_argument("directions", type=Path, help="folder of the files per direction, by prepare.py")
    step.add_argument("--seed", type=int, default=1)
    step = steps.add_parser("start", help="write the model with tokens for more characters")
    step.add_argument("model", type=Path)
    step.add_argument("out", type=Path)
    step = steps.add_parser("score", help="BLEU of validation rows in each way of writing")
    step.add_argument("model", type=Path)
    step.add_argument("directions", type=Path)
    step.add_argument("--limit", type=int, default=600, help="first rows of each set (default 600)")
    step.add_argument("--log", type=Path, metavar="FILE", help="write the scores, as JSON")
    options = parser.parse_args(argv)
    if options.step == "rows":
        write_rows(options.directions, options.seed)
    elif options.step == "start":
        add_characters(regard.load(options.model), options.out)
    else:
        record = score(options.model, options.directions, options.limit)
        if options.log:
            arguments = sys.argv[1:] if argv is None else argv
            line = command.command_line("benchmarks.translator.everyday", arguments)
            options.log.write_text(json.dumps({"command": line} | record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
