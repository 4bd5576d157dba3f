"""The API against its own description: whatever fits it, or just does not, has an answer of a kind
that it names; none is the daemon's failure, and what is refused has left nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from spotd import api
from spotd.api.http.app import make_app
from spotd.api.http.openapi import describe
from spotd.api.http.permissions import Permissions
from spotd.api.http.route_table import ROUTES
from tests.fixtures.examples import examples
from tests.spotd.api.rig import Rig, story

EXAMPLES = examples(5)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
DESCRIBED = {
    f"{verb.upper()} {path}": operation
    for path, verbs in describe(ROUTES)["paths"].items()
    for verb, operation in verbs.items()
}


def as_root(app: ASGIApp) -> ASGIApp:
    """The door, with root at the other end of the socket."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "client": ("uid:0", 1)}, receive, send)

    return asked


def _asked() -> Iterator[Any]:
    """Each operation; and what does not fit it, where anything can be wrong with it."""
    for name, operation in DESCRIBED.items():
        yield pytest.param(name, GenerationMode.POSITIVE, id=name)
        if "requestBody" in operation or any(p["in"] == "query" for p in operation["parameters"]):
            yield pytest.param(name, GenerationMode.NEGATIVE, id=f"{name} (wrong)")


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One for all: what some requests leave behind is what the next ones meet."""
    rig = Rig()
    story(rig)
    yield rig
    rig.close()


def test_every_route_is_described_and_nothing_else(rig: Rig) -> None:
    """As the door itself has them. Of what can be read, the head can."""
    app = make_app(rig.context(), Permissions())
    routes = [route for route in app.routes if isinstance(route, Route)]
    served = {f"{verb} {route.path}" for route in routes for verb in route.methods or ()}
    heads = {name for name in served if name.startswith("HEAD ")} - set(DESCRIBED)
    assert served - heads - {"GET /v1/openapi.json"} == set(DESCRIBED)
    assert [name for name, operation in DESCRIBED.items() if not operation["summary"]] == []


@pytest.mark.parametrize(("name", "mode"), list(_asked()))
def test_every_answer_is_one_that_is_described(rig: Rig, name: str, mode: GenerationMode) -> None:
    verb, path = name.split(" ")
    app = as_root(make_app(rig.context(), Permissions()))
    operation = schemathesis.openapi.from_asgi("/v1/openapi.json", app)[path][verb]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode), st.booleans())
    def ask(case: Any, known: bool) -> None:
        if known and "job" in case.path_parameters:
            case.path_parameters["job"] = "gpt"
        if "wait_s" in (case.query or {}):
            case.query["wait_s"] = 0
        if isinstance(case.body, dict):
            case.body.pop("wait_s", None)
        before = rig.store.jobs.rows(), rig.store.events.rows(None)
        response = case.call()
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400:
            assert (rig.store.jobs.rows(), rig.store.events.rows(None)) == before

    ask()


def test_the_fields_of_the_description_are_those_that_are_read() -> None:
    """Each stands, in quotes, somewhere in the routes."""
    code = "".join(path.read_text() for path in Path(api.__file__).parent.rglob("*.py"))
    fields = {name for route in ROUTES for name in (*route.operation.query, *route.operation.body)}
    assert {name for name in fields if f'"{name}"' not in code} == set()
