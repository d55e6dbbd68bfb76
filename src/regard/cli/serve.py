"""`regard serve`: a model over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.serving.service_base import BaseService


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a model or a run.")],
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
    """Serve a model over HTTP: translate, generate, classify, tag or embed; attention, health, metrics.

    Ctrl-C or SIGTERM refuses new requests, finishes what it can within --grace seconds, cancels the rest, and ends.
    """
    from regard.decoding.engine import fast
    from regard.decoding.engine.shortlist import load as load_shortlist
    from regard.errors import OptionError
    from regard.models.autoregressive import AutoregressiveModel
    from regard.models.folder import load
    from regard.serving import auth, server
    from regard.serving.request_limits import RequestLimits
    from regard.serving.text_service import make_service
    from regard.training.distributed import pick_device

    limits = RequestLimits(
        body=max_body, texts=max_texts, characters=max_characters, tokens=max_tokens, work=max_work, queue=queue, seconds=timeout,
        batch_tokens=batch_tokens, connections=max_connections, idle=idle, grace=grace,
    )  # fmt: skip
    token = auth.read_token(token_file)
    auth.check_binding(host, token)
    sock = server.bind(host, port)  # before loading: a port that is taken is told at once
    loaded: Any = load(model, pick_device(device))
    writes = isinstance(loaded, AutoregressiveModel)
    if shortlist and not writes:
        raise OptionError(
            f"--shortlist is for translators and language models, and this is {loaded.what}; leave it out"
        )
    writer = fast(loaded, precision, load_shortlist(model) if shortlist else None) if writes else None
    service = make_service(
        loaded, loaded.card.get("name") or model.resolve().name, limits, writer=writer, workers=workers
    )
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


def _welcome(service: BaseService, where: str, token: str | None) -> str:
    """Where it is, and a line to try it with."""
    route, body = service.example
    key = ' -H "Authorization: Bearer $REGARD_TOKEN"' if token else ""
    return (
        f"regard: the {service.kind} {service.name} answers at {where} (Ctrl-C ends)\n"
        f"curl {where}/{route} -H 'Content-Type: application/json'{key} -d '{body}'"
    )
