"""The OpenAPI 3.1 document of the API, built from the route table and the fields each route takes.

A route answers with an object that has `apiVersion` and `kind`, or with the common error form.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from providers.base import CapacityType
from spotd.domain.fault_drill import DrillKind
from spotd.money.report import SUMS

Schema = dict[str, Any]
Row = tuple[str, str, Callable[..., Any]]

_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_NUMBER: Schema = {"type": "integer"}
_REAL: Schema = {"type": "number"}
_WAIT: Schema = {"type": "integer", "minimum": 0, "maximum": 30}
_DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_PACKAGE: Schema = {
    "type": "object",
    "properties": {"target": _TEXT, "digest": _DIGEST, "is_file": {"type": "boolean"}},
    "required": ["digest"],
}
_JOB_FILE: dict[str, Schema] = {
    "yaml": {**_TEXT, "description": "The job file; the values of its secrets are null"},
    "env": _TEXTS,
    "name": _TEXT,
    "fallback_name": {**_TEXT, "description": "For a file that names no job"},
}

_OFFERS: dict[str, Schema] = {
    "gpus": {**_TEXT, "description": "Like H100:8"},
    "cloud": _TEXT,
    "region": _TEXT,
    "zone": _TEXT,
    "type": {**_TEXT, "description": "The machine's"},
    "capacity": {"enum": [kind.value for kind in CapacityType]},
}

_DRILL: Schema = {"enum": [kind.value for kind in DrillKind]}
_OVERRIDE: Schema = {"type": "boolean", "description": "Beyond a budget, on record as yours"}
_TIMES: dict[str, Schema] = {
    name: {**_NUMBER, "description": "Microseconds since the epoch"}
    for name in ("since_us", "until_us")
}

# The fields of each route besides its path: in the query, and in a JSON body.
QUERY: dict[str, dict[str, Schema]] = {
    "GET /v1/jobs": {
        "all": {"enum": ["0", "1"]},
        "ended": {"enum": ["0", "1"]},
        "limit": _NUMBER,
    },
    "GET /v1/nodes": {"job": _TEXT},
    "GET /v1/costs": {"limit": _NUMBER},
    "GET /v1/costs/report": {**_TIMES, "by": {"enum": list(SUMS)}},
    "GET /v1/costs/focus": _TIMES,
    "GET /v1/jobs/{job}/cost/report": _TIMES,
    "GET /v1/offers": {
        **_OFFERS,
        "sort": {"enum": ["price", "gpu", "discount"]},
        "limit": _NUMBER,
    },
    "GET /v1/prices": {**_OFFERS, "since_s": _NUMBER},
    "GET /v1/stats": {
        "since_s": _NUMBER,
        "by": {"enum": ["cloud", "region", "zone", "pool", "hour", "weekday"]},
        "capacity": _OFFERS["capacity"],
    },
    "GET /v1/use": {"since_s": _NUMBER},
    "GET /v1/review": {"since_s": _NUMBER},
    "GET /v1/traces": {"since_s": _NUMBER, "gpus": _TEXT},
    "GET /v1/events": {
        "job": _TEXT,
        "after": _NUMBER,
        "limit": _NUMBER,
        "last": _NUMBER,
        "wait_s": _WAIT,
        "phase": {**_TEXT, "description": "Answer at once when the job has another one"},
    },
    "DELETE /v1/images/{name}": {"cloud": _TEXT, "region": _TEXT, "force": {"enum": ["0", "1"]}},
    "GET /v1/jobs/{job}/checkpoints/data": {
        "name": {**_TEXT, "description": "A step or a pin; the newest where it is empty"},
        "first": {**_NUMBER, "description": "The first shard that is wanted"},
    },
    "PUT /v1/imports/{name}/shard": {
        "store": _TEXT,
        **dict.fromkeys(("step", "stream", "number", "size"), _NUMBER),
        "digests": {**_TEXT, "description": "XXH3 (128 bits, hex) of each 16 MiB, by commas"},
    },
    "GET /v1/jobs/{job}/ssh": {"rank": _NUMBER},
    "GET /v1/policy/{cloud}": {
        "types": {**_TEXT, "description": "Types of instances, with commas between (AWS)"},
        "spot": {"enum": ["0", "1"]},
    },
    "GET /v1/drills": {"job": _TEXT},
    "GET /v1/jobs/{job}/drills/terms": {"kind": _DRILL, "within_s": _REAL},
    "GET /v1/audit": {"since_s": _NUMBER, "after": _NUMBER},
}
BODY: dict[str, dict[str, Schema]] = {
    "POST /v1/jobs": {
        **_JOB_FILE,
        "secrets": _TEXTS,
        "packages": {"type": "array", "items": _PACKAGE},
        "request_id": {**_TEXT, "description": "The same again is the same job"},
        "override_budget": _OVERRIDE,
        "late": {"type": "boolean", "description": "Though its deadline cannot be promised"},
        "after": {**_TEXT, "description": "The job that is to succeed before, by name or id"},
        "continue": {**_TEXT, "description": "The id of a lost database's job: its HEAD goes on"},
    },
    "POST /v1/images": {
        **{name: taken for name, taken in _JOB_FILE.items() if name != "name"},
        "secrets": _TEXTS,
        "packages": {"type": "array", "items": _PACKAGE},
        "request_id": {**_TEXT, "description": "The same again is the same bake"},
        "image": {**_TEXT, "description": "Its name; the job's, where none is said"},
        "cloud": _TEXT,
        "region": _TEXT,
        "instance_type": {**_TEXT, "description": "Instead of the machine that the file asks for"},
    },
    "POST /v1/jobs/{job}/results": {
        "suite": {**_TEXT, "description": "Which tests"},
        **dict.fromkeys(("cases", "passed"), _NUMBER),
        "failed": {"type": "array", "items": _TEXT, "description": "Names of cases"},
        **dict.fromkeys(("tokens_per_s", "ttft_s", "ttft_p95_s"), _REAL),
    },
    "POST /v1/jobs/{job}/drills": {
        "kind": _DRILL,
        "within_s": {**_REAL, "description": "Seconds that it may take to train again"},
        "id": {**_TEXT, "description": "The same again is the same drill"},
    },
    "POST /v1/jobs/{job}/ssh": {"rank": _NUMBER},
    "POST /v1/jobs/{job}/checkpoints/verify": {"name": _TEXT, "shard": _NUMBER},
    "POST /v1/jobs/{job}/checkpoints/pin": {"pin": _TEXT, "name": _TEXT},
    "POST /v1/jobs/{job}/checkpoints/unpin": {"pin": _TEXT},
    "POST /v1/jobs/{job}/checkpoints/rm": {
        "name": _TEXT,
        "last": {"type": "boolean", "description": "Also the newest of a job that has ended"},
    },
    "POST /v1/imports": {"store": {**_TEXT, "description": "Its URL; the configured one"}},
    "POST /v1/imports/{name}": {"store": _TEXT, "manifest": {"type": "object"}},
    "POST /v1/plan": {**_JOB_FILE, "limit": _NUMBER},
    "POST /v1/advise": {
        **_JOB_FILE,
        "parameters": {**_NUMBER, "description": "Of the model, where the file does not say"},
        "search_s": {**_NUMBER, "description": "Hours of that phase, in seconds; 0: not known"},
        "train_s": {**_NUMBER, "description": "Else what the file says (spotd.work, model)"},
        "validate_s": _NUMBER,
    },
    "POST /v1/alerts/test": {"route": _TEXT},
    "POST /v1/jobs/{job}/resume": {"override_budget": _OVERRIDE},
    "POST /v1/costs/reconcile": {
        "cloud": _TEXT,
        "entries": {
            "type": "array",
            "items": {"type": "array"},
            "description": "Machines: id, type, has GPUs, micro-USD before credits, from, to "
            "(microseconds), micro-USD of credits",
        },
        "credits_microusd": {**_NUMBER, "description": "Credits that name no machine"},
        "dry_run": {"type": "boolean", "description": "Compare, and mark nothing"},
    },
    "POST /v1/secrets/{name}": {"value": _TEXT},
    "POST /v1/orphans/end": {
        "ids": {
            "type": "array",
            "items": _TEXT,
            "description": "Those that the caller saw: if others are held by now, none is ended",
        }
    },
    "POST /v1/users/{name}/disable": {
        "transfer_to": {**_TEXT, "description": "Who gets the unfinished jobs"}
    },
    "POST /v1/jobs/{job}/logs": {
        "cursor": {"type": "object", "additionalProperties": _NUMBER},
        "tail_bytes": _NUMBER,
        "rank": _NUMBER,
        "generation": _NUMBER,
        "stream": _TEXT,
        "wait_s": _WAIT,
    },
}
_BYTES: Schema = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_SENDS_BYTES = ("GET /v1/db/backup", "GET /v1/jobs/{job}/checkpoints/data")
_SENDS_TEXT = ("GET /metrics",)
_TAKES_BYTES = ("PUT /v1/packages/{digest}", "PUT /v1/imports/{name}/shard")
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


def describe(rows: Iterable[Row]) -> dict[str, Any]:
    """Return the document of these routes (verb, path, function)."""
    paths: dict[str, dict[str, Any]] = {}
    for verb, path, function in rows:
        paths.setdefault(path, {})[verb.lower()] = _operation(f"{verb} {path}", function)
    return {
        "openapi": "3.1.0",
        "info": {"title": "spotd", "version": version("spotd")},
        "paths": paths,
        "components": {"schemas": {"Answer": _ANSWER, "Refusal": _REFUSAL}},
    }


def _operation(route: str, function: Callable[..., Any]) -> dict[str, Any]:
    summary = (inspect.getdoc(function) or "").split("\n\n", maxsplit=1)[0].replace("\n", " ")
    path_parameters = [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}
        for name in re.findall(r"\{(\w+)\}", route)
    ]
    query_parameters = [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in QUERY.get(route, {}).items()
    ]
    operation: dict[str, Any] = {
        "summary": summary,
        "operationId": re.sub(r"\W+", "_", route.lower()),
        "parameters": path_parameters + query_parameters,
        "responses": {
            "200": _content("done", "Answer"),
            "default": _content("refused: what happened, and what to try", "Refusal"),
        },
    }
    if route in BODY:
        schema = {"type": "object", "properties": BODY[route], "additionalProperties": False}
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if route in _SENDS_BYTES:
        operation["responses"]["200"] = {"description": "done", "content": _BYTES}
    if route in _SENDS_TEXT:
        operation["responses"]["200"] = {
            "description": "done",
            "content": {"text/plain": {"schema": _TEXT}},
        }
    if route in _TAKES_BYTES:
        operation["requestBody"] = {"content": _BYTES}
    if route.startswith("HEAD "):
        for response in operation["responses"].values():
            del response["content"]
    return operation


def _path_schema(name: str) -> Schema:
    return _DIGEST if name == "digest" else {"type": "string", "minLength": 1}


def _content(description: str, name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
