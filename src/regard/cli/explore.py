"""`regard explore`: a page in the browser that shows what a model attends to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import threading


def command(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="A model folder, a run, or a name of `regard models`."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8600,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log each request to standard error.")
    ] = False,
) -> None:
    """Explore a model in the browser: alignment, every head, and what changes when attention is changed.

    The page is for this machine only; `regard serve MODEL --explorer` adds it to a server. Ctrl-C ends.

    Examples:

        regard explore runs/small

        regard explore runs/sst2 --port 0 --no-browser
    """
    from regard.cli.jobs import report
    from regard.explorer.routes import Explorer
    from regard.models.default import default_model
    from regard.models.folder import load
    from regard.serving import auth, server
    from regard.serving.request_limits import RequestLimits
    from regard.serving.text_services import make_service

    sock = server.bind("127.0.0.1", port)  # before loading: a taken port is reported at once
    folder = model or default_model("explore")
    loaded = load(folder)
    name = loaded.card.get("name") or folder.resolve().name
    service = make_service(loaded, name, RequestLimits(), workers=1)
    service.extensions.append(Explorer(service).add_routes)
    address = f"{server.address(sock)}/explore/"

    def started() -> None:
        print(f"regard: {name} is at {address} (Ctrl-C ends)", flush=True)
        if browser:
            open_browser(address)

    server.serve(service, sock, auth.Authentication(None, "127.0.0.1"), log=access_log, started=started)
    report("stopped")


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
