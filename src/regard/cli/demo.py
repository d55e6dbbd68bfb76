"""`regard demo`: outputs of the bundled models.

Without bundled models: attention as a dictionary, the choice of a kernel, a trained model and its weights, a
translator.
"""

from __future__ import annotations

from typing import Annotated

import typer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NEXT = "\nregard explore   # see in the browser what these models attend to"


def command(
    word: Annotated[
        str | None,
        typer.Argument(help="With --train, a word of at most 16 letters a-z to reverse; default: attention."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=10000, help="With --train, training steps; default: 400.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    translator: Annotated[
        bool, typer.Option(help="Also train a shortened recipe `small`, for half a minute, and translate.")
    ] = True,
    train: Annotated[
        bool, typer.Option("--train", help="Train small models even if there are bundled ones.")
    ] = False,
) -> None:
    """Run the bundled models: translations with their alignment, a label, tags, the attention operator.

    With --train, and while no translator is bundled: train a one-layer attention model to reverse words and
    show its attention; then train a small translator.

    Example:

        regard demo attention --train --no-translator
    """
    import torch
    from rich.console import Console

    from regard.cli.demo_bundled import bundled, show, show_plan
    from regard.errors import OptionError

    chosen, word = word, (word or "attention").lower()
    if not 1 <= len(word) <= 16 or any(letter not in LETTERS for letter in word):
        raise OptionError(f"the word must be 1 to 16 letters a-z, got {word!r}")
    console = Console()
    torch.manual_seed(seed)
    entries = {} if train else bundled()
    if entries:
        if chosen is not None or steps is not None:
            raise OptionError("a word and --steps are for the model that --train trains; add --train")
        parts = show(entries, console)
        if "translate" not in entries and translator:
            title = "Translate: no translator is bundled yet, so a small one is trained"
            console.print(f"\n[bold]{parts + 1}. {title}[/bold]")
            _translate(console)
        console.print(NEXT, highlight=False)
        return
    console.print("[bold]1. A dictionary over vectors[/bold]")
    _dictionary(console)
    console.print("\n[bold]2. One operator: the chosen kernel, and why[/bold]")
    show_plan(console)
    console.print("\n[bold]3. Learn to reverse words, and show the attention[/bold]")
    model = _train(steps or 400, console)
    _show_attention(model, word, console)
    if translator:
        console.print("\n[bold]4. English to German from 21 000 bundled sentence pairs[/bold]")
        _translate(console)
    console.print(NEXT, highlight=False)


def _translate(console) -> None:  # noqa: ANN001
    """Train a shortened recipe `small` and translate a few sentences."""
    import tempfile

    import regard

    short = ["training.steps=250", "training.validate_every=250", "training.save_every=250"]
    with tempfile.TemporaryDirectory() as folder:
        result = regard.train("small", folder=f"{folder}/run", overrides=short)
        if not result.finished:
            typer.echo(
                f"regard: the demo was stopped at step {result.steps} of its translator; run `regard demo` "
                "again",
                err=True,
            )
            raise typer.Exit(128 + (result.signal or 2))
        model = result.load()
    texts = ["Tom is happy.", "I don't know what to do.", "Where is your mother?", "We have no time."]
    for text, translation in zip(texts, regard.translate(texts, model, beam=4), strict=True):
        console.print(f"{text} → {translation}", highlight=False)
    bleu = result.scores["validation"]["bleu"]
    console.print(
        f"BLEU {bleu:.1f} on held-out sentences; `regard train small` trains twice as long",
        highlight=False,
    )


def _dictionary(console) -> None:  # noqa: ANN001
    """The record of *Neural Computation*, each field name spelled out as numbers."""
    import torch

    import regard

    record = {
        "name": "Jane Doe",
        "address": "37 Coronation Street",
        "date of birth": "May 5th 2000",
        "place of birth": "Hull",
    }
    spell = lambda text: torch.tensor([float(ord(c)) for c in text.ljust(14)])  # noqa: E731
    keys, values = torch.stack([spell(name) for name in record]), torch.eye(len(record))
    result = regard.lookup(spell("date of birth")[None], keys, values)
    console.print(
        f"lookup('date of birth') = {list(record.values())[int(result.argmax())]!r}", highlight=False
    )
    missing = regard.lookup(spell("shoe size")[None], keys, values)
    console.print(f"lookup('shoe size') = {missing.tolist()[0]} (a missing key gives zeros)", highlight=False)


def _model():  # noqa: ANN202
    """Return the model: embed letters, add positions, attend from output positions to the word, predict."""
    import torch
    from torch import nn

    import regard

    class Backwards(nn.Module):
        def __init__(self, dim: int = 64) -> None:
            super().__init__()
            self.letters = nn.Embedding(len(LETTERS) + 1, dim)
            self.places = regard.attention.Learned(16, dim)
            self.attention = regard.MultiHead(dim, heads=1)
            self.out = nn.Linear(dim, len(LETTERS))

        def forward(self, letters, lengths):  # noqa: ANN001, ANN202
            x = self.places(self.letters(letters))  # (batch, T, dim)
            # Output positions count from the end of the word, so that reversing is one step of attention.
            place = (lengths[:, None] - 1 - torch.arange(letters.shape[1])).clamp(min=0)
            return self.out(self.attention(self.places.weight[place], x, mask=regard.Padding(lengths)))

    return Backwards()


def _batch(size: int):  # noqa: ANN202
    import torch

    lengths = torch.randint(1, 17, (size,))
    letters = torch.randint(len(LETTERS), (size, 16))
    real = torch.arange(16) < lengths[:, None]
    place = (lengths[:, None] - 1 - torch.arange(16)).clamp(min=0)
    return letters.masked_fill(~real, len(LETTERS)), lengths, letters.gather(1, place), real


def _train(steps: int, console):  # noqa: ANN001, ANN202
    import torch
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    accuracy = 0.0
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=steps, note="")
        for step in range(steps):
            letters, lengths, answer, real = _batch(64)
            scores = model(letters, lengths)
            loss = torch.nn.functional.cross_entropy(scores[real], answer[real])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            accuracy = float((scores.argmax(-1) == answer)[real].float().mean())
            progress.update(
                task,
                advance=1,
                note=f"step {step + 1}/{steps} · loss {loss.item():.3f} · letters right {accuracy:.0%}",
            )
    console.print(f"{steps} steps, letters right in the last batch: {accuracy:.1%}", highlight=False)
    return model


def _show_attention(model, word: str, console) -> None:  # noqa: ANN001
    import torch

    import regard

    letters = torch.full((1, 16), len(LETTERS))
    letters[0, : len(word)] = torch.tensor([LETTERS.index(c) for c in word])
    with torch.no_grad(), regard.watch(model) as seen:
        scores = model.eval()(letters, torch.tensor([len(word)]))
    answer = "".join(LETTERS[i] for i in scores[0, : len(word)].argmax(-1).tolist())
    weights = seen["attention.cross"].weights(batch=0, head=0, query=slice(0, len(word)))[:, : len(word)]
    console.print(
        f"{word} → {answer}   (rows: letters of the answer; columns: what they attend to)", highlight=False
    )
    shades = " ░▒▓█"
    console.print("   " + " ".join(word), highlight=False)
    for letter, row in zip(answer, weights.tolist(), strict=True):
        console.print(f" {letter} " + " ".join(shades[min(4, int(w * 5))] for w in row), highlight=False)
