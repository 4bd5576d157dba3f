"""The HTTP API: a table of routes over plain functions, with JSON requests, replies and errors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from providers.stores.base import StoreError as ObjectsError
from providers.stores.base import StoreUnavailableError as ObjectsUnavailableError
from spotd.api.http.auth_middleware import AuthMiddleware
from spotd.api.http.openapi import describe
from spotd.api.http.permissions import Permissions
from spotd.api.http.route import ApiRoute, Kind
from spotd.api.http.route_table import ROUTES
from spotd.api.metrics.exposition import CONTENT_TYPE, Metrics
from spotd.api.request.context import ApiContext
from spotd.api.request.request import (
    API_VERSION,
    ApiError,
    ApiRequest,
    bad_input,
    not_found,
    storable,
)
from spotd.api.routes import backup, checkpoint_imports, packages
from spotd.api_routes import routes
from spotd.api_routes.operation import Operation
from spotd.base.errors import ExitCode, UserError
from spotd.store.errors import StoreError, StoreUnavailableError

MAX_BODY_BYTES = 4 << 20
MAX_WAIT_S = 30
_POLL_S = 0.2
# HTTP status and code of a UserError that a route does not translate itself.
_REFUSED = {
    ExitCode.USAGE: (400, "bad_input"),
    ExitCode.AUTH: (403, "auth"),
    ExitCode.NOT_FOUND: (404, "not_found"),
    ExitCode.REFUSED: (409, "refused"),
}


def make_app(
    context: ApiContext, permissions: Permissions, metrics: Metrics | None = None
) -> Starlette:
    """Build the API application of the routes in `route_table`."""
    served = [
        Route(
            route.operation.path,
            _endpoint(route, context, metrics),
            methods=[route.operation.method],
        )
        for route in ROUTES
    ]
    auth = Middleware(AuthMiddleware, context, permissions, served, _failed)
    error_types = (ApiError, HTTPException, UserError, StoreError, ObjectsError, Exception)
    handlers = dict.fromkeys(error_types, _failed)
    app = Starlette(routes=served, middleware=[auth], exception_handlers=handlers)
    app.router.redirect_slashes = False  # a path that is not there is refused like any other
    return app


def _endpoint(
    route: ApiRoute, context: ApiContext, metrics: Metrics | None
) -> Callable[[Request], Awaitable[Response]]:
    match route.kind:
        case Kind.PLAIN:
            return _plain(context, route)
        case Kind.LONG_POLL:
            return _long_poll(context, route)
        case Kind.OPENAPI:
            return _openapi
        case _:
            if route.operation is routes.METRICS:
                return _metrics((metrics or Metrics(context)).text)
            return _STREAMS[route.operation](context, route)


async def _openapi(_request: Request) -> Response:
    """Return the OpenAPI document of the API."""
    return JSONResponse(describe(ROUTES))


def _metrics(text: Callable[[], bytes]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(_request: Request) -> Response:
        return Response(await run_in_threadpool(text), media_type=CONTENT_TYPE)

    return endpoint


def _plain(context: ApiContext, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        call = await _read_request(context, route, request)
        return _answer(await run_in_threadpool(route.handler, call))

    return endpoint


def _long_poll(context: ApiContext, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        call = await _read_request(context, route, request)
        wait_s = call.number("wait_s", 0, 0, MAX_WAIT_S)
        deadline = anyio.current_time() + wait_s
        while True:
            data, ready = await run_in_threadpool(route.handler, call)
            # After each poll: a user who is disabled while waiting gets no later news.
            await run_in_threadpool(request.state.still_in)
            remaining_s = deadline - anyio.current_time()
            finished = ready or remaining_s <= 0 or _stopping(request)
            if finished or await request.is_disconnected():
                return _answer(data)
            await anyio.sleep(min(_POLL_S, remaining_s))

    return endpoint


def _stopping(request: Request) -> bool:
    """Return whether the daemon is stopping: then long polls are answered at once."""
    stopping = getattr(request.app.state, "stopping", None)
    return stopping is not None and stopping()


def _package(context: ApiContext, _route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        digest = request.path_params["digest"]
        if request.method == "PUT":
            length = request.headers.get("content-length", "")
            size = int(length) if length.isdecimal() and len(length) < 20 else None
            try:
                is_new = await packages.receive_package(context, digest, size, request.stream())
            except ClientDisconnect:
                raise bad_input("the upload was cut off", "run it again") from None
            return _answer({"kind": "Package", "digest": digest, "new": is_new})
        packages.check_digest(digest)
        if not await run_in_threadpool(packages.has_package, context.storage.objects, digest):
            raise not_found(f"package {digest[:12]} was not uploaded", "PUT it")
        return _answer({"kind": "Package", "digest": digest, "new": False})

    return endpoint


def _shard(context: ApiContext, _route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        name, query = request.path_params["name"], dict(request.query_params)
        try:
            shard = await checkpoint_imports.receive_shard(context, name, query, request.stream())
        except ClientDisconnect:
            raise bad_input("the upload was cut off", "run it again") from None
        return _answer({"kind": "Shard", "key": shard.key, "size": shard.size})

    return endpoint


def _backup(context: ApiContext, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        call = await _read_request(context, route, request)
        backup_file = await run_in_threadpool(route.handler, call)
        return _BackupResponse(backup_file)

    return endpoint


def _pull(context: ApiContext, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        call = await _read_request(context, route, request)
        chunks = await run_in_threadpool(route.handler, call)
        return StreamingResponse(chunks, media_type="application/octet-stream")

    return endpoint


_STREAMS: dict[
    Operation[...], Callable[[ApiContext, ApiRoute], Callable[[Request], Awaitable[Response]]]
] = {
    routes.BACK_UP_DATABASE: _backup,
    routes.PULL_CHECKPOINT: _pull,
    routes.PULL_OUTPUTS: _pull,
    routes.HAS_PACKAGE: _package,
    routes.GET_PACKAGE: _package,
    routes.PUT_PACKAGE: _package,
    routes.IMPORT_SHARD: _shard,
}


class _BackupResponse(StreamingResponse):
    """A copy of the database, which is closed even if the client disconnects early."""

    def __init__(self, copy: backup.BackupFile) -> None:
        media = "application/octet-stream"
        super().__init__(copy.chunks(), headers=copy.headers, media_type=media)
        self._copy = copy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._copy.file:
            await super().__call__(scope, receive, send)


async def _read_request(context: ApiContext, route: ApiRoute, request: Request) -> ApiRequest:
    path, query = request.path_params, dict(request.query_params)
    if not all(storable(message) for message in (*path.values(), *query.values())):
        raise bad_input("the address has characters that no name has", "spotctl ps --all")
    body = await _read_body(request)
    for name in body:
        if name not in route.operation.body:
            # An ignored field could be the one that was meant to limit the request.
            known_fields = ", ".join(route.operation.body) or "nothing"
            message = f"the request has a field {name[:50]!r}, which this daemon does not know"
            raise bad_input(message, f"use the daemon's own spotctl; it takes {known_fields}")
    return ApiRequest(
        context=context,
        path=path,
        query=query,
        body=body,
        actor=request.state.peer.name,
        token_id=request.state.peer.token_id,
        allowed=request.state.allowed,
    )


async def _read_body(request: Request) -> dict[str, Any]:
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_BODY_BYTES:
                raise ApiError(
                    413,
                    "too_large",
                    f"a request may have {MAX_BODY_BYTES >> 20} MiB",
                    "put large data into the workdir or a bucket, not into the job file",
                )
    except ClientDisconnect:
        raise bad_input("the request was cut off", "run it again") from None
    if not data:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise bad_input("the request body is not JSON", "use the daemon's own spotctl") from None
    if not isinstance(value, dict):
        raise bad_input("the request body is not a JSON object", "use the daemon's own spotctl")
    return value


def _answer(data: dict[str, Any], status: int = 200) -> Response:
    return JSONResponse({"apiVersion": API_VERSION, **data}, status_code=status)


def _failed(request: Request, error: Exception) -> Response:
    """Turn every exception that leaves a route into a refusal.

    Unexpected exceptions are logged by uvicorn as well.
    """
    api_error = _refusal(request, error)
    return _answer(api_error.to_data(), api_error.status)


def _refusal(request: Request, error: Exception) -> ApiError:
    path = request.scope["path"]  # `request.url` cannot be built for every query
    match error:
        case ApiError():
            return error
        case HTTPException():
            message = f"{request.method} {path}: {error.detail}"
            return ApiError(error.status_code, "no_route", message, "a spotctl of the same version")
        case UserError():
            # Somebody can fix it, if not always the caller: no bug, so report it as it is.
            status, code = _REFUSED.get(error.exit_code, (409, "conflict"))
            return ApiError(status, code, error.text, error.try_)
        case StoreUnavailableError() | ObjectsUnavailableError():
            return ApiError(503, "unavailable", str(error), "the same again in a moment")
        case StoreError() | ObjectsError():
            return ApiError(500, "unavailable", str(error), "spotctl doctor")
        case _:
            message = f"the daemon failed on {request.method} {path}"
            return ApiError(500, "internal", message, "the daemon's log: journalctl -u spotd")
