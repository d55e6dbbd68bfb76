"""`regard serve`: a model over HTTP."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.serving.request_limits import RequestLimits
    from regard.serving.service_base import BaseService


def command(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="A model folder, the run it is in, or a search index."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="FOLDER",
            help="The model folder; of an index, where its model is if it has moved.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than this machine's own it needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token; or set REGARD_TOKEN.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Batches computed in parallel; one per core unless given."),
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens per batch.")] = 2048,
    max_body: Annotated[int, typer.Option(min=1, help="Maximum bytes of a request.")] = 1 << 20,
    max_texts: Annotated[int, typer.Option(min=1, help="Maximum texts per request.")] = 1000,
    max_characters: Annotated[int, typer.Option(min=1, help="Maximum characters per text.")] = 10_000,
    queue: Annotated[int, typer.Option(min=1, help="Maximum texts waiting in the queue.")] = 4000,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum tokens of one input and of one output.")
    ] = 2048,
    max_work: Annotated[
        int, typer.Option(min=1, help="Maximum rows × steps of one request's search.")
    ] = 2_000_000,
    max_connections: Annotated[int, typer.Option(min=1, help="Maximum open connections.")] = 1000,
    timeout: Annotated[float, typer.Option(min=0.001, help="Timeout of a request in seconds.")] = 60.0,
    idle: Annotated[
        float, typer.Option(min=0.001, help="Seconds after which an idle connection is closed.")
    ] = 15.0,
    grace: Annotated[
        float, typer.Option(min=0.001, help="Seconds for accepted requests to finish after SIGTERM.")
    ] = 20.0,
    precision: Annotated[str, typer.Option(help="auto, float32, int8 or bfloat16.")] = "auto",
    shortlist: Annotated[
        bool,
        typer.Option("--shortlist", help="Score likely tokens only; `regard shortlist MODEL` learns which."),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log each request to standard error.")
    ] = False,
) -> None:
    """Serve a model over HTTP: translate, generate, classify, tag or embed; or a search index. GET /docs lists the routes.

    Examples:

        regard serve runs/small

        regard serve papers.index --port 8001

    Ctrl-C or SIGTERM refuses new requests, finishes what it can within --grace seconds, cancels the rest, and ends.
    """
    from regard.serving import auth, server
    from regard.serving.request_limits import RequestLimits

    limits = RequestLimits(
        body=max_body, texts=max_texts, characters=max_characters, tokens=max_tokens, work=max_work, queue=queue, seconds=timeout,
        batch_tokens=batch_tokens, connections=max_connections, idle=idle, grace=grace,
    )  # fmt: skip
    token = auth.read_token(token_file)
    auth.check_binding(host, token)
    sock = server.bind(host, port)  # before loading: a port that is taken is told at once
    service = _service(folder, model, limits, _How(workers, precision, shortlist, device))
    service.warm_up()
    where = server.address(sock)
    whole = server.serve(
        service,
        sock,
        auth.Authentication(token, host),
        log=access_log,
        started=lambda: print(_welcome(service, where, token), flush=True),
    )
    print(f"regard: {'stopped' if whole else 'stopped before everything was answered'}", file=sys.stderr)
    if not whole:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _How:
    workers: int | None
    precision: str
    shortlist: bool
    device: str


def _service(folder: Path | None, model: str | None, limits: RequestLimits, how: _How) -> BaseService:
    """What is in the folder, behind a queue and workers."""
    from regard.errors import OptionError
    from regard.models.default import default_model
    from regard.models.folder import is_file

    if folder is not None and is_file(folder / "index.json"):
        return _index_service(folder, model, limits, how)
    if folder is not None and model is not None:
        raise OptionError(f"{folder} and --model {model} are two models, and a server has one; leave one out")
    return _model_service(Path(model) if model else folder or default_model("serve"), limits, how)


def _index_service(folder: Path, model: str | None, limits: RequestLimits, how: _How) -> BaseService:
    from regard.cli.document_options import load_embedder
    from regard.errors import OptionError
    from regard.search.index import Index
    from regard.serving.search_service import SearchService
    from regard.training.distributed import pick_device

    if how.shortlist:
        raise OptionError(
            f"--shortlist is for translators and language models, and {folder} is a search index; leave it out"
        )
    index = Index(folder)
    embedder = load_embedder(model or index.info.model, str(pick_device(how.device)))
    return SearchService(index, embedder, folder.resolve().name, limits, workers=how.workers)


def _model_service(folder: Path, limits: RequestLimits, how: _How) -> BaseService:
    from regard.decoding.engine import fast
    from regard.decoding.engine.shortlist import load as load_shortlist
    from regard.errors import OptionError
    from regard.models.autoregressive import AutoregressiveModel
    from regard.models.folder import load
    from regard.serving.text_service import make_service
    from regard.training.distributed import pick_device

    loaded: Any = load(folder, pick_device(how.device))
    writes = isinstance(loaded, AutoregressiveModel)
    if how.shortlist and not writes:
        raise OptionError(
            f"--shortlist is for translators and language models, and this is {loaded.what}; leave it out"
        )
    writer = (
        fast(loaded, how.precision, load_shortlist(folder) if how.shortlist else None) if writes else None
    )
    return make_service(
        loaded, loaded.card.get("name") or folder.resolve().name, limits, writer=writer, workers=how.workers
    )


def _welcome(service: BaseService, where: str, token: str | None) -> str:
    """Where it is, and a line to try it with."""
    route, body = service.example
    key = ' -H "Authorization: Bearer $REGARD_TOKEN"' if token else ""
    return (
        f"regard: the {service.kind} {service.name} answers at {where} (Ctrl-C ends)\n"
        f"curl {where}/{route} -H 'Content-Type: application/json'{key} -d '{body}'"
    )
