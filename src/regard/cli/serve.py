"""`regard serve`: serve a model or a search index over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import option_groups as shared
from regard.cli.option_groups import JOB, OptionGroup, grouped, option

if TYPE_CHECKING:
    from regard.serving.request_limits import RequestLimits
    from regard.serving.service import Service

LIMITS, CONNECTION = "Limits", "Connection"  # panels of the help


@dataclass(frozen=True)
class ConnectionOptions(OptionGroup):
    """Address and access."""

    host: Annotated[
        str,
        option(
            help="Address to listen on; other machines are admitted with a token only.",
            rich_help_panel=CONNECTION,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, option(min=0, max=65535, help="Port; 0: any free one.", rich_help_panel=CONNECTION)
    ] = 8000
    token_file: Annotated[
        Path | None,
        option(metavar="FILE", help="File with the token; or set REGARD_TOKEN.", rich_help_panel=CONNECTION),
    ] = None
    access_log: Annotated[
        bool,
        option("--access-log", help="Log each request to standard error.", rich_help_panel=CONNECTION),
    ] = False


def _limit(help: str, minimum: float = 1) -> Any:
    return option(min=minimum, help=help, rich_help_panel=LIMITS)


@dataclass(frozen=True)
class LimitOptions(OptionGroup):
    """Limits of requests."""

    max_body: Annotated[int, _limit("Maximum bytes of a request.")] = 1 << 20
    max_texts: Annotated[int, _limit("Maximum texts per request.")] = 1000
    max_characters: Annotated[int, _limit("Maximum characters per text.")] = 10_000
    max_tokens: Annotated[int, _limit("Maximum tokens of one input and of one output.")] = 2048
    max_work: Annotated[int, _limit("Maximum rows × steps of one request's search.")] = 2_000_000
    queue: Annotated[int, _limit("Maximum texts waiting in the queue.")] = 4000
    max_connections: Annotated[int, _limit("Maximum open connections.")] = 1000
    timeout: Annotated[float, _limit("Timeout of a request in seconds.", 0.001)] = 60.0
    idle: Annotated[float, _limit("Seconds after which an idle connection is closed.", 0.001)] = 15.0
    grace: Annotated[float, _limit("Seconds for accepted requests to finish after SIGTERM.", 0.001)] = 20.0

    def limits(self, batch_tokens: int) -> RequestLimits:
        from regard.serving.request_limits import RequestLimits

        return RequestLimits(
            body=self.max_body,
            texts=self.max_texts,
            characters=self.max_characters,
            tokens=self.max_tokens,
            work=self.max_work,
            queue=self.queue,
            seconds=self.timeout,
            batch_tokens=batch_tokens,
            connections=self.max_connections,
            idle=self.idle,
            grace=self.grace,
        )


@dataclass(frozen=True)
class ServiceOptions(OptionGroup):
    """How the model runs."""

    precision: shared.Precision = "auto"
    shortlist: shared.Shortlist = False
    device: shared.Device = "auto"
    workers: Annotated[
        int | None,
        option(
            min=1, max=256, help="Batches computed in parallel; default: one per core.", rich_help_panel=JOB
        ),
    ] = None
    batch_tokens: Annotated[int, option(min=1, help="Tokens per batch.", rich_help_panel=JOB)] = 2048
    explorer: Annotated[
        bool, option("--explorer", help="Also serve the explorer's page, at /explore/.", rich_help_panel=JOB)
    ] = False


@grouped
def command(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="A model folder, a run, or a search index."),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="FOLDER",
            help="The model folder; for an index, its model if it has moved.",
        ),
    ] = None,
    connection: ConnectionOptions,
    limits: LimitOptions,
    service: ServiceOptions,
) -> None:
    """Serve a model or a search index over HTTP; GET / lists the routes.

    After Ctrl-C or SIGTERM the server refuses new requests and ends within --grace seconds; requests that are
    not finished by then are cancelled.

    Examples:

        regard serve                    # the bundled translator

        regard serve runs/small

        regard serve papers.index --port 8001
    """
    from regard.cli.jobs import report
    from regard.serving import auth, server

    request_limits = limits.limits(service.batch_tokens)
    token = auth.read_token(connection.token_file)
    auth.check_binding(connection.host, token)
    sock = server.bind(connection.host, connection.port)  # before loading: a taken port is reported at once
    served = _service(folder, model, request_limits, service)
    if service.explorer:
        _add_explorer(served)
    served.warm_up()
    welcome = _welcome(served, server.address(sock), token)
    authentication = auth.Authentication(token, connection.host)
    complete = server.serve(
        served,
        sock,
        authentication,
        log=connection.access_log,
        started=lambda: print(welcome, flush=True),
    )
    report("stopped" if complete else "stopped before all requests were answered")
    if not complete:
        raise typer.Exit(1)


def _add_explorer(service: Service) -> None:
    """Add the explorer's routes. Its page asks for the token, which browsers do not send by themselves."""
    from regard.errors import OptionError
    from regard.explorer.explorer_routes import Explorer
    from regard.serving.search_service import SearchService

    if isinstance(service, SearchService):
        raise OptionError("--explorer shows a model, and this is a search index; leave it out")
    service.extensions.append(Explorer(service).add_routes)


def _service(
    folder: Path | None, model: str | None, limits: RequestLimits, options: ServiceOptions
) -> Service:
    """Return the service for the model or index in the folder."""
    from regard.errors import OptionError
    from regard.models.default import default_model
    from regard.models.folder import is_file

    if folder is not None and is_file(folder / "index.json"):
        return _index_service(folder, model, limits, options)
    if folder is not None and model is not None:
        raise OptionError(f"a server has one model; leave out {folder} or --model {model}")
    return _model_service(Path(model) if model else folder or default_model("serve"), limits, options)


def _index_service(
    folder: Path, model: str | None, limits: RequestLimits, options: ServiceOptions
) -> Service:
    from regard.attention.devices import pick_device
    from regard.errors import OptionError
    from regard.models.embedder import Embedder
    from regard.search.index import Index
    from regard.serving.search_service import SearchService

    if options.shortlist:
        raise OptionError(
            f"--shortlist is for translators and language models, and {folder} is a search index; leave it "
            "out"
        )
    index = Index(folder)
    embedder = Embedder.load(model or index.info.model, str(pick_device(options.device)))
    return SearchService(index, embedder, folder.resolve().name, limits, workers=options.workers)


def _model_service(folder: Path, limits: RequestLimits, options: ServiceOptions) -> Service:
    from regard.attention.devices import pick_device
    from regard.decoding.engine import fast
    from regard.decoding.engine.shortlist import load as load_shortlist
    from regard.errors import OptionError
    from regard.models.autoregressive import AutoregressiveModel
    from regard.models.folder import load
    from regard.serving.text_services import make_service

    model: Any = load(folder, pick_device(options.device))
    generates = isinstance(model, AutoregressiveModel)
    if options.shortlist and not generates:
        raise OptionError(
            f"--shortlist is for translators and language models, and this is {model.what}; leave it out"
        )
    shortlist = load_shortlist(folder) if options.shortlist else None
    engine = fast(model, options.precision, shortlist) if generates else None
    name = model.card.get("name") or folder.resolve().name
    return make_service(model, name, limits, engine=engine, workers=options.workers)


def _welcome(service: Service, address: str, token: str | None) -> str:
    """Return the address and a command to try."""
    route, body = service.example
    header = ' -H "Authorization: Bearer $REGARD_TOKEN"' if token else ""
    return (
        f"regard: the {service.kind} {service.name} answers at {address} (Ctrl-C ends)\n"
        f"curl {address}/{route} -H 'Content-Type: application/json'{header} -d '{body}'"
    )
