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
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from providers.stores.base import StoreError as ObjectsError
from providers.stores.base import StoreUnavailableError as ObjectsUnavailableError
from spotd.api.doctor import health
from spotd.api.http.auth_middleware import AuthMiddleware
from spotd.api.http.openapi import BODY, describe
from spotd.api.http.permissions import Permissions
from spotd.api.metrics.exposition import CONTENT_TYPE, Metrics
from spotd.api.request.request import (
    API_VERSION,
    ApiContext,
    ApiError,
    ApiRequest,
    bad_input,
    not_found,
    storable,
)
from spotd.api.routes import (
    access,
    advice,
    audit,
    backup,
    bill_comparison,
    budgets,
    checkpoint_imports,
    checkpoints,
    cost_report,
    costs,
    drills,
    events,
    explain,
    images,
    jobs,
    logs,
    machine_usage,
    notice_times,
    offers,
    orphans,
    packages,
    policy,
    quarantine,
    results,
    rightsize,
    rightsize_review,
    secrets,
    stats,
    traces,
    users,
)
from spotd.base.errors import ExitCode, UserError
from spotd.store.interface import StoreError, StoreUnavailableError

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

Plain = Callable[[ApiRequest], dict[str, Any]]
Waiting = Callable[[ApiRequest], tuple[dict[str, Any], bool]]

PLAIN: tuple[tuple[str, str, Plain], ...] = (
    ("GET", "/v1/health", health.health),
    ("GET", "/v1/doctor", health.doctor),
    ("GET", "/v1/policy/{cloud}", policy.read_policy),
    ("GET", "/v1/audit", audit.read_audit),
    ("GET", "/v1/secrets", secrets.list_secrets),
    ("POST", "/v1/secrets/{name}", secrets.set_secret),
    ("DELETE", "/v1/secrets/{name}", secrets.remove_secret),
    ("POST", "/v1/key/rotate", secrets.rotate_key),
    ("GET", "/v1/users", users.list_users),
    ("POST", "/v1/users/{name}/disable", users.disable_user),
    ("POST", "/v1/users/{name}/enable", users.enable_user),
    ("POST", "/v1/alerts/test", health.test_alert),
    ("GET", "/v1/quarantine", quarantine.show_quarantine),
    ("POST", "/v1/quarantine/release", quarantine.release_quarantine),
    ("GET", "/v1/safe-mode", quarantine.show_safe_mode),
    ("POST", "/v1/safe-mode/leave", quarantine.leave_safe_mode),
    ("GET", "/v1/jobs", jobs.list_jobs),
    ("POST", "/v1/jobs", jobs.submit_job),
    ("POST", "/v1/plan", explain.plan),
    ("POST", "/v1/advise", advice.advise),
    ("GET", "/v1/images", images.list_images),
    ("POST", "/v1/images", images.bake_image),
    ("DELETE", "/v1/images/{name}", images.remove_images),
    ("GET", "/v1/nodes", jobs.list_nodes),
    ("GET", "/v1/orphans", orphans.list_orphans),
    ("POST", "/v1/orphans/end", orphans.end_orphans),
    ("GET", "/v1/costs", costs.all_costs),
    ("GET", "/v1/costs/report", cost_report.report),
    ("GET", "/v1/costs/focus", cost_report.focus),
    ("GET", "/v1/budgets", budgets.list_budgets),
    ("POST", "/v1/costs/reconcile", bill_comparison.reconcile_bill),
    ("GET", "/v1/offers", offers.list_offers),
    ("GET", "/v1/prices", offers.price_history),
    ("GET", "/v1/stats", stats.stats),
    ("GET", "/v1/use", machine_usage.machine_use),
    ("GET", "/v1/review", rightsize_review.review),
    ("GET", "/v1/traces", traces.traces),
    ("GET", "/v1/providers", notice_times.providers),
    ("GET", "/v1/jobs/{job}", jobs.show_job),
    ("GET", "/v1/jobs/{job}/file", jobs.job_spec),
    ("GET", "/v1/jobs/{job}/why", explain.why),
    ("GET", "/v1/jobs/{job}/sizing", rightsize.job_sizing),
    ("GET", "/v1/drills", drills.list_drills),
    ("GET", "/v1/jobs/{job}/drills/terms", drills.drill_terms),
    ("POST", "/v1/jobs/{job}/drills", drills.order_drill),
    ("GET", "/v1/jobs/{job}/cost", costs.job_cost),
    ("GET", "/v1/jobs/{job}/cost/report", cost_report.job_report),
    ("POST", "/v1/jobs/{job}/results", results.import_results),
    ("GET", "/v1/jobs/{job}/checkpoints", checkpoints.list_checkpoints),
    ("POST", "/v1/jobs/{job}/checkpoints/verify", checkpoints.verify_checkpoint),
    ("POST", "/v1/jobs/{job}/checkpoints/pin", checkpoints.pin_checkpoint),
    ("POST", "/v1/jobs/{job}/checkpoints/unpin", checkpoints.unpin_checkpoint),
    ("POST", "/v1/jobs/{job}/checkpoints/rm", checkpoints.remove_checkpoint),
    ("POST", "/v1/imports", checkpoint_imports.begin_import),
    ("POST", "/v1/imports/{name}", checkpoint_imports.commit_import),
    ("GET", "/v1/jobs/{job}/ssh", access.ssh_address),
    ("POST", "/v1/jobs/{job}/ssh", access.ssh_access),
    ("POST", "/v1/jobs/{job}/cancel", jobs.cancel_job),
    ("POST", "/v1/jobs/{job}/pause", jobs.pause_job),
    ("POST", "/v1/jobs/{job}/resume", jobs.resume_job),
)
# Long polling: these wait for news for `wait_s` seconds, at most MAX_WAIT_S.
WAITING: tuple[tuple[str, str, Waiting], ...] = (
    ("GET", "/v1/events", events.read_events),
    ("POST", "/v1/jobs/{job}/logs", logs.read_logs),
)
# These send or receive bytes.
BYTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("GET", "/metrics", Metrics.text),
    ("GET", "/v1/db/backup", backup.copy_database),
    ("GET", "/v1/jobs/{job}/checkpoints/data", checkpoints.pull_checkpoint),
    ("HEAD", "/v1/packages/{digest}", packages.has_package),
    ("GET", "/v1/packages/{digest}", packages.has_package),
    ("PUT", "/v1/packages/{digest}", packages.receive_package),
    ("PUT", "/v1/imports/{name}/shard", checkpoint_imports.receive_shard),
)


def make_app(
    context: ApiContext, permissions: Permissions, metrics: Metrics | None = None
) -> Starlette:
    """Build the API application.

    Raises ValueError for a route that has no rule in `permissions.RULES`.
    """
    scrape = (metrics or Metrics(context)).text
    routes: list[BaseRoute] = [
        Route("/metrics", _metrics(scrape), methods=["GET"]),
        *(Route(path, _plain(context, call), methods=[verb]) for verb, path, call in PLAIN),
        *(Route(path, _waiting(context, call), methods=[verb]) for verb, path, call in WAITING),
        Route("/v1/db/backup", _backup(context), methods=["GET"]),
        Route("/v1/jobs/{job}/checkpoints/data", _pull(context), methods=["GET"]),
        Route("/v1/packages/{digest}", _package(context), methods=["HEAD", "GET", "PUT"]),
        Route("/v1/imports/{name}/shard", _shard(context), methods=["PUT"]),
        Route("/v1/openapi.json", _description, methods=["GET"]),
    ]
    auth = Middleware(AuthMiddleware, context, permissions, routes, _failed)
    error_types = (ApiError, HTTPException, UserError, StoreError, ObjectsError, Exception)
    handlers = dict.fromkeys(error_types, _failed)
    app = Starlette(routes=routes, middleware=[auth], exception_handlers=handlers)
    app.router.redirect_slashes = False  # a path that is not there is refused like any other
    return app


async def _description(_request: Request) -> Response:
    """Return the OpenAPI document of the API."""
    return JSONResponse(describe((*PLAIN, *WAITING, *BYTES)))


def _metrics(text: Callable[[], bytes]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(_request: Request) -> Response:
        return Response(await run_in_threadpool(text), media_type=CONTENT_TYPE)

    return endpoint


def _plain(context: ApiContext, function: Plain) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        call = await _read_request(context, request)
        return _answer(await run_in_threadpool(function, call))

    return endpoint


def _waiting(context: ApiContext, function: Waiting) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        call = await _read_request(context, request)
        wait_s = call.number("wait_s", 0, 0, MAX_WAIT_S)
        deadline = anyio.current_time() + wait_s
        while True:
            data, ready = await run_in_threadpool(function, call)
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


def _package(context: ApiContext) -> Callable[[Request], Awaitable[Response]]:
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
        if not await run_in_threadpool(packages.has_package, context.objects, digest):
            raise not_found(f"package {digest[:12]} was not uploaded", "PUT it")
        return _answer({"kind": "Package", "digest": digest, "new": False})

    return endpoint


def _shard(context: ApiContext) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        name, query = request.path_params["name"], dict(request.query_params)
        try:
            shard = await checkpoint_imports.receive_shard(context, name, query, request.stream())
        except ClientDisconnect:
            raise bad_input("the upload was cut off", "run it again") from None
        return _answer({"kind": "Shard", "key": shard.key, "size": shard.size})

    return endpoint


def _backup(context: ApiContext) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        call = await _read_request(context, request)
        backup_file = await run_in_threadpool(backup.copy_database, call)
        return _BackupResponse(backup_file)

    return endpoint


def _pull(context: ApiContext) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        call = await _read_request(context, request)
        chunks = await run_in_threadpool(checkpoints.pull_checkpoint, call)
        return StreamingResponse(chunks, media_type="application/octet-stream")

    return endpoint


class _BackupResponse(StreamingResponse):
    """A copy of the database, which is closed however early the client disconnects."""

    def __init__(self, copy: backup.BackupFile) -> None:
        media = "application/octet-stream"
        super().__init__(copy.chunks(), headers=copy.headers, media_type=media)
        self._copy = copy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._copy.file:
            await super().__call__(scope, receive, send)


async def _read_request(context: ApiContext, request: Request) -> ApiRequest:
    path, query = request.path_params, dict(request.query_params)
    if not all(storable(message) for message in (*path.values(), *query.values())):
        raise bad_input("the address has characters that no name has", "spotctl ps --all")
    body = await _read_body(request)
    fields = BODY.get(f"{request.method} {request.scope['route'].path}", {})
    for name in body:
        if name not in fields:
            # An ignored field could be the one that was meant to limit the request.
            known_fields = ", ".join(fields) or "nothing"
            message = f"the request has a field {name[:50]!r}, which this daemon does not know"
            raise bad_input(message, f"use the daemon's own spotctl; it takes {known_fields}")
    return ApiRequest(
        backing=context,
        path=path,
        query=query,
        body=body,
        actor=request.state.peer.name,
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
