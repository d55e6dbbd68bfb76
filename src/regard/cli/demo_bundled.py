"""The demo with bundled models: translations with their alignment, a label, tags, a text, the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from regard.models.catalog import CatalogEntry

# Everyday sentences with their language and the target language; those of DRAWN are the lectures' examples.
SENTENCES = (
    ("Where is the station?", "en", "de"),
    ("How old are you?", "en", "de"),
    ("She is reading a book.", "en", "de"),
    ("I don't know what to do.", "en", "fr"),
    ("Wir haben keine Zeit.", "de", "en"),
    ("Je ne sais pas.", "fr", "en"),
)
DRAWN = (("Cats do not like dogs.", "en", "de"), ("He hit me with a pie.", "en", "fr"))
REVIEW = "A gripping story, wonderfully acted."
NEWS = "Ada Lovelace met Charles Babbage in London."
PROMPT = "The king"
OWN_FILES = """regard train translator pairs.tsv     # columns: text and translation
regard train classifier reviews.csv   # columns: text and label
regard train tagger words.conll       # a word and its tag per line
regard train language-model book.txt
regard models                         # the models of this demo, with scores"""


def bundled() -> dict[str, CatalogEntry]:
    """The default models by task: those that commands use if no model is named."""
    from regard.models.catalog import known_models

    entries = sorted(known_models().values(), key=lambda entry: not entry.default)  # stable
    return {entry.task: entry for entry in reversed(entries)}


def show(entries: dict[str, CatalogEntry], console: Console) -> int:
    """Run each part for which there is a model; return the number of parts."""
    parts: dict[str, tuple[str, Callable[[Any, Console], None]]] = {
        "translate": ("Translate, and show what each word attends to", _translate),
        "classify": ("Classify", _classify),
        "tag": ("Tag names", _tag),
        "generate": ("Continue a text", _generate),
    }
    number = 0
    for task, (title, run) in parts.items():
        if task in entries:
            number += 1
            console.print(f"[bold]{number}. {title}[/bold] ({entries[task].name})", highlight=False)
            run(entries[task], console)
            console.print()
    console.print(f"[bold]{number + 1}. One operator: the chosen kernel, and why[/bold]")
    show_plan(console)
    console.print(f"\n[bold]{number + 2}. Train on your own files[/bold]")
    console.print(OWN_FILES, highlight=False)
    return number + 2


def show_plan(console: Console) -> None:
    """Print what `explain` says about a call, and the shape of its output."""
    import torch

    import regard

    query, key, value = (torch.randn(4, 8, 512, 64) for _ in range(3))
    mask, bias = regard.Causal() & regard.Window(left=64), regard.ALiBi(heads=8)
    console.print(str(regard.explain(query, key, value, mask=mask, bias=bias)), highlight=False)
    shape = tuple(regard.attend(query, key, value, mask=mask, bias=bias).shape)
    console.print(f"output {shape}", highlight=False)


def _translate(entry: CatalogEntry, console: Console) -> None:
    import regard
    from regard.cli.weight_matrix import render
    from regard.models.target_language import add_target
    from regard.pipelines.align import align_words, clearest_view

    model = regard.load(entry.folder)
    for text, language, to in SENTENCES:
        if _translates(entry, language, to):
            console.print(f"{text} → {_translation(text, model, to)}", highlight=False)
    for text, language, to in DRAWN:
        if not _translates(entry, language, to):
            continue
        translation = _translation(text, model, to)
        source = add_target([text], model, to)
        # Without a choice in the model's card, the layer is chosen by this pair alone.
        view = None if "alignment" in model.card else clearest_view(source, [translation], model)
        ((_, alignment),) = align_words(source, [translation], model, view)
        console.print(f"\n{text} → {translation}", highlight=False)
        print(render(alignment.weights, alignment.source_words, alignment.target_words))


def _translates(entry: CatalogEntry, source: str, target: str) -> bool:
    return source in entry.languages and target in entry.into


def _translation(text: str, model: Any, to: str) -> str:
    import regard
    from regard.models.target_language import target_languages

    return str(regard.translate(text, model, to if target_languages(model) else None, beam=4))


def _classify(entry: CatalogEntry, console: Console) -> None:
    import regard

    label = regard.classify(REVIEW, entry.folder)
    console.print(f"{REVIEW} → {label} ({label.probabilities[str(label)]:.0%})", highlight=False)


def _tag(entry: CatalogEntry, console: Console) -> None:
    import regard

    spans = ", ".join(f"{span.text} ({span.label})" for span in regard.tag(NEWS, entry.folder))
    console.print(f"{NEWS} → {spans or 'nothing found'}", highlight=False)


def _generate(entry: CatalogEntry, console: Console) -> None:
    import regard

    sample = regard.Sample(temperature=0.8, seed=1)
    text = regard.generate(PROMPT, entry.folder, strategy=sample, limits=regard.Limits(max_length=60))
    console.print(f"{PROMPT}{text}" if not str(text).startswith(PROMPT) else str(text), highlight=False)
