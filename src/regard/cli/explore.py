"""`regard explore`: a page in the browser that shows what a model attends to."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.export import Overwrite
from regard.errors import OptionError

if TYPE_CHECKING:
    import threading

    from regard.explorer.bundled_choices import ModelChoice
    from regard.explorer.explored_model import ExploredModel
    from regard.explorer.gold_links import GoldPair
    from regard.serving.service import Service


ModelFolder = Annotated[
    Path | None,
    typer.Argument(metavar="MODEL", help="A model folder, a run, or a name of `regard models`."),
]
OtherFolder = Annotated[
    Path | None, typer.Argument(metavar="OTHER", help="A second model of the same task, to compare with.")
]
HuggingFaceFolder = Annotated[
    Path | None,
    typer.Option(
        "--hf", metavar="FOLDER", help="A Hugging Face folder instead, or minilm for the installed example."
    ),
]
GoldFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Gold links to draw over the alignment: lines with source, translation and links, "
        "separated by tabs.",
    ),
]
SiteFolder = Annotated[
    Path | None,
    typer.Option("--static", metavar="FOLDER", help="Write a site that needs no Python, and exit."),
]


def command(
    model: ModelFolder = None,
    other: OtherFolder = None,
    hf: HuggingFaceFolder = None,
    gold: GoldFile = None,
    static: SiteFolder = None,
    overwrite: Overwrite = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8600,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log each request to standard error.")
    ] = False,
) -> None:
    """Explore a model in the browser: alignment, every head, and what changes when attention is changed.

    Without a model the page offers the bundled ones, or the mechanism of attention, which needs none.

    The page is for this machine only; `regard serve MODEL --explorer` adds it to a server. Ctrl-C ends.

    Examples:

        regard explore                  # the bundled models

        regard explore runs/small

        regard explore runs/sst2 --port 0 --no-browser

        regard explore runs/small runs/small-student

        regard explore --hf minilm

        regard explore --static site runs/small
    """
    if static is not None:
        _write_site(static, model, other, hf, overwrite)
        return
    from regard.cli.jobs import report
    from regard.explorer.explorer_routes import Explorer
    from regard.serving import auth, server

    sock = server.bind("127.0.0.1", port)  # before loading: a taken port is reported at once
    choices = _choices(model, hf)
    service = _service(model, hf, choices)
    explorer = Explorer(service, others=_others(other, service), gold=_gold(gold), choices=choices[1:])
    service.extensions.append(explorer.add_routes)
    name = service.name
    address = f"{server.address(sock)}/explore/"

    def started() -> None:
        print(f"regard: {name} is at {address} (Ctrl-C ends)", flush=True)
        if browser:
            open_browser(address)

    server.serve(service, sock, auth.Authentication(None, "127.0.0.1"), log=access_log, started=started)
    report("stopped")


def _choices(model: Path | None, hf: Path | None) -> list[ModelChoice]:
    """Return the models that the page offers if none is named."""
    from regard.explorer.bundled_choices import bundled_choices
    from regard.models.default import VARIABLE

    return bundled_choices() if model is None and hf is None and not os.environ.get(VARIABLE) else []


def _service(model: Path | None, hf: Path | None, choices: list[ModelChoice]) -> Service:
    """Return the service of the named model, of the first choice, or of the page without a model."""
    from regard.explorer.page_service import NoModel, PageService
    from regard.models.default import VARIABLE
    from regard.models.folder import load
    from regard.serving.request_limits import RequestLimits
    from regard.serving.text_services import make_service

    if hf is not None:
        from regard.explorer.huggingface_model import HuggingFaceModel

        if model is not None:
            raise OptionError(f"the explorer opens one model; leave out {model} or --hf {hf}")
        return PageService(HuggingFaceModel.of_folder(hf))
    if choices:
        return make_service(choices[0].load(), choices[0].name, RequestLimits(), workers=1)
    folder = os.environ.get(VARIABLE) if model is None else model
    if not folder:
        return PageService(NoModel())
    loaded = load(folder)
    return make_service(loaded, _name(loaded, Path(folder)), RequestLimits(), workers=1)


def _name(loaded: Any, folder: Path) -> str:
    return loaded.card.get("name") or folder.resolve().name


def _write_site(
    folder: Path, model: Path | None, other: Path | None, hf: Path | None, overwrite: bool
) -> None:
    """Write the static site of a translator: the named one, or the default."""
    from regard.explorer.static_site import write_site
    from regard.models.default import default_model
    from regard.models.folder import load

    for given in filter(None, (other, hf)):
        raise OptionError(f"--static writes one model of regard; leave out {given}")
    model = default_model("explore") if model is None else model
    loaded = load(model)
    size = write_site(folder, loaded, _name(loaded, model), overwrite=overwrite)
    print(f"{folder} holds the page and its model, {size / 2**20:.1f} MiB; any web server can serve it:")
    print(f"  python -m http.server --bind 127.0.0.1 --directory {shlex.quote(str(folder))}")


def _others(folder: Path | None, service: Service) -> list[ExploredModel]:
    """Return the second model, with a name that differs from the first."""
    if folder is None:
        return []
    from regard.explorer.explored_model import ExploredModel
    from regard.models.folder import load

    loaded = load(folder)
    name = _name(loaded, folder)
    return [ExploredModel(loaded, f"{name} (second)" if name == service.name else name)]


def _gold(file: Path | None) -> list[GoldPair]:
    """Return the sentences of a gold file."""
    if file is None:
        return []
    from regard.explorer.gold_links import read_gold_pairs

    return read_gold_pairs(file)


def open_browser(address: str) -> threading.Thread | None:
    """Open the address in a graphical browser, if there is one: a text browser would take the terminal."""
    import threading
    import webbrowser

    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return None
    if type(browser) is webbrowser.GenericBrowser:
        return None
    thread = threading.Thread(target=browser.open, args=(address,), daemon=True)
    thread.start()
    return thread
