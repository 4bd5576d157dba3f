"""The API's operations: one table, which the server and the command line share."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import spotd
from spotd.api.http.route_table import ROUTES
from spotd.api_routes import routes
from spotd.api_routes.operation import Operation

PACKAGE = Path(spotd.__file__).parent
TABLE = Path(routes.__file__)


def test_no_path_of_the_api_stands_outside_of_the_table() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path != TABLE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "/v1/" in node.value
    ]
    assert found == []


def test_the_server_answers_each_operation_once() -> None:
    operations = [value for value in vars(routes).values() if isinstance(value, Operation)]
    assert sorted(map(str, operations)) == sorted(str(route.operation) for route in ROUTES)


def test_a_name_in_a_path_may_have_any_characters() -> None:
    endpoint = routes.SHOW_JOB(job="a b/c?d")
    assert endpoint.path == "/v1/jobs/a%20b%2Fc%3Fd"


def test_empty_query_parameters_are_left_out() -> None:
    endpoint = routes.PULL_CHECKPOINT(job="gpt")
    target = endpoint.target({"name": "", "first": 0, "unit": None})
    assert target == "/v1/jobs/gpt/checkpoints/data?first=0"


def test_a_field_that_the_operation_does_not_take_is_an_error() -> None:
    with pytest.raises(ValueError, match="GET /v1/jobs takes no nonsense"):
        routes.LIST_JOBS().target({"nonsense": 1})
    with pytest.raises(ValueError, match="takes no nonsense"):
        routes.SUBMIT_JOB().check_body({"nonsense": 1})
