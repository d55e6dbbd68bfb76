"""The HTTP routes of a service."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from regard.serving import responses
from regard.serving.events import event_response, text_events, token_events
from regard.serving.generation_service import GenerationService
from regard.serving.http_errors import (
    RequestError,
    error_response,
    internal_error,
    json_response,
    routing_error,
)
from regard.serving.index_page import page
from regard.serving.log import Log
from regard.serving.metrics import CONTENT_TYPE
from regard.serving.requests import (
    AttentionRequest,
    Body,
    ClassifyRequest,
    EmbedRequest,
    GenerateRequest,
    SearchIndexRequest,
    SelfAttentionRequest,
    SingleText,
    TagRequest,
    TranslateRequest,
    json_schema,
    parse,
)
from regard.serving.service import Service
from regard.serving.text_services import TextService
from regard.serving.waiting import answer, check_cost, read_body
from regard.version import __version__

Sampled = TypeVar("Sampled", TranslateRequest, GenerateRequest)
RESPONSES = {
    ClassifyRequest: responses.Labels,
    TagRequest: responses.Tags,
    EmbedRequest: responses.Embeddings,
    SearchIndexRequest: responses.Results,
}


def make_app(service: Service, log: Log) -> FastAPI:
    """Return the application with the routes of this service; unexpected errors go to the log."""
    app = FastAPI(
        title=f"regard: {service.name}",
        version=__version__,
        description=f"A {service.kind} over HTTP.",
        docs_url=None,
        redoc_url=None,
    )
    app.exception_handler(RequestError)(lambda _, error: error_response(error))
    app.exception_handler(HTTPException)(
        lambda request, error: error_response(routing_error(service.kind, request, error))
    )
    app.exception_handler(Exception)(lambda _, error: error_response(internal_error(error, log)))
    _add_monitoring(app, service)
    if isinstance(service, TextService):
        _add_texts(app, service)
    elif isinstance(service, GenerationService):
        (_add_translate if service.translates else _add_generate)(app, service, log)
        _add_attention(app, service)
    for add_routes in service.extensions:
        add_routes(app)
    return app


def _add_monitoring(app: FastAPI, service: Service) -> None:
    @app.get("/docs", response_class=HTMLResponse, summary="This page", include_in_schema=False)
    @app.get("/", response_class=HTMLResponse, summary="This page", include_in_schema=False)
    async def home() -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        return HTMLResponse(page(app.openapi()), headers={"content-security-policy": policy})

    @app.get(
        "/health",
        summary="State of the server",
        responses={200: {"model": responses.Health}, 503: {"model": responses.Health}},
    )
    async def health(request: Request) -> Response:
        state: dict[str, Any] = {"status": "draining" if service.draining else "ready"}
        if request.scope["regard.known"]:
            state |= {"model": service.name, "kind": service.kind, "version": __version__}
        return json_response(json.dumps(state), 503 if service.draining else 200)

    @app.get("/metrics", response_class=PlainTextResponse, summary="Metrics for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


def _add_translate(app: FastAPI, service: GenerationService, log: Log) -> None:
    description = _describe(TranslateRequest, responses.Translations, streams=True)

    @app.post("/translate", summary="Translate sentences", **description)
    async def translate(request: Request) -> Response:
        body = _with_seed(parse(TranslateRequest, await read_body(request, service.limits), service.limits))
        texts = body.all_texts()
        # Requests with equal options share a batch.
        options = body.model_copy(update={"text": None, "texts": None, "stream": False})
        if body.stream:
            until = time.monotonic() + service.limits.seconds
            await check_cost(request, service, options, texts, until)
            events = (
                token_events(service, body) if body.by_token else text_events(service, options, texts, until)
            )
            return await event_response(request, service, events, until, log)
        answers = await answer(request, service, options, texts)
        return json_response(f'{{"translations":[{",".join(answers)}]}}')


def _add_generate(app: FastAPI, service: GenerationService, log: Log) -> None:
    description = _describe(GenerateRequest, responses.Generated, streams=True)

    @app.post("/generate", summary="Continue a text", **description)
    async def generate(request: Request) -> Response:
        body = parse(GenerateRequest, await read_body(request, service.limits), service.limits)
        if body.stream:
            until = time.monotonic() + service.limits.seconds
            await check_cost(request, service, body, [body.prompt], until)
            return await event_response(request, service, token_events(service, body), until, log)
        options = _with_seed(body).model_copy(update={"prompt": ""})
        return json_response((await answer(request, service, options, [body.prompt]))[0])


def _add_texts(app: FastAPI, service: TextService) -> None:
    description = _describe(service.body, RESPONSES[service.body])

    @app.post(f"/{service.example[0]}", summary=service.summary, **description)
    async def texts(request: Request) -> Response:
        body = parse(service.body, await read_body(request, service.limits), service.limits)
        options = body.model_copy(update={"text": None, "texts": None})
        answers = await answer(request, service, options, body.all_texts())
        return json_response(f'{{"{service.field}":[{",".join(answers)}]}}')


def _add_attention(app: FastAPI, service: GenerationService) -> None:
    kind: type[SingleText] = AttentionRequest if service.translates else SelfAttentionRequest

    @app.post("/attention", summary="Attention weights", **_describe(kind, responses.TextAttention))
    async def attention(request: Request) -> Response:
        body = parse(kind, await read_body(request, service.limits), service.limits)
        answers = await answer(request, service, body.model_copy(update={"text": ""}), [body.text])
        return json_response(answers[0])


def _describe(body: type[Body], response: type[Any], *, streams: bool = False) -> dict[str, Any]:
    """Return the description of a route in /openapi.json.

    FastAPI does not parse the bodies: the errors of `parse` are clearer.
    """
    events = {"content": {"text/event-stream": {"schema": {"type": "string"}}}} if streams else {}
    problems = {status: {"model": responses.Problem} for status in (401, 413, 415, 422, 429, 500, 503)}
    content = {"application/json": {"schema": json_schema(body)}}
    return {
        "responses": {200: {"model": response, **events}, **problems},
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }


def _with_seed(body: Sampled) -> Sampled:
    """Return the request with a random seed if it samples and has none."""
    if body.sample is None or body.sample.seed is not None:
        return body
    return body.model_copy(update={"sample": body.sample.model_copy(update={"seed": secrets.randbits(53)})})
