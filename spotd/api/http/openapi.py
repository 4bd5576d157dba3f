"""The OpenAPI 3.1 document of the API, built from the route table and the fields each route takes.

A route answers with an object that has `apiVersion` and `kind`, or with the common error form.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from spotd.api.http.route import ApiRoute, Content, Kind
from spotd.api_routes.operation import Schema

_TEXT: Schema = {"type": "string"}
_DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_RAW: dict[Content, Schema] = {
    Content.BYTES: {Content.BYTES.value: {"schema": {"type": "string", "format": "binary"}}},
    Content.TEXT: {Content.TEXT.value: {"schema": _TEXT}},
}
_REFUSAL: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "text", "try"],
            "properties": {"code": _TEXT, "text": _TEXT, "try": _TEXT},
        }
    },
}
_ANSWER: Schema = {
    "type": "object",
    "required": ["apiVersion", "kind"],
    "properties": {"apiVersion": {"const": "spotd/v1"}, "kind": _TEXT},
}


def describe(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    """Return the document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.kind is not Kind.OPENAPI:
            operation = route.operation
            paths.setdefault(operation.path, {})[operation.method.lower()] = _describe_route(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "spotd", "version": version("spotd")},
        "paths": paths,
        "components": {"schemas": {"Answer": _ANSWER, "Refusal": _REFUSAL}},
    }


def _describe_route(route: ApiRoute) -> dict[str, Any]:
    operation, doc = route.operation, inspect.getdoc(route.handler) or ""
    path_parameters = [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    query_parameters = [
        {"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()
    ]
    described: dict[str, Any] = {
        "summary": doc.split("\n\n", maxsplit=1)[0].replace("\n", " "),
        "operationId": re.sub(r"\W+", "_", str(operation).lower()),
        "parameters": path_parameters + query_parameters,
        "responses": {
            "200": _content("done", "Answer"),
            "default": _content("refused: what happened, and what to try", "Refusal"),
        },
    }
    if operation.body:
        schema = {
            "type": "object",
            "properties": dict(operation.body),
            "additionalProperties": False,
        }
        described["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if route.sends is not Content.JSON:
        described["responses"]["200"] = {"description": "done", "content": _RAW[route.sends]}
    if route.receives is not Content.JSON:
        described["requestBody"] = {"content": _RAW[route.receives]}
    if operation.method == "HEAD":
        for response in described["responses"].values():
            del response["content"]
    return described


def _path_schema(name: str) -> Schema:
    return _DIGEST if name == "digest" else {"type": "string", "minLength": 1}


def _content(description: str, name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
