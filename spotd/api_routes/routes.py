"""The operations of the API, in one table: method, path, and the fields that each takes.

The server attaches handlers and permissions to them in `spotd/api/http/route_table.py`; clients
call them by name. No path of the API is written anywhere else.
"""

from __future__ import annotations

from providers.base import CapacityType
from spotd.api_routes.operation import (
    Operation,
    Schema,
    no_parameters,
    of_cloud,
    of_digest,
    of_job,
    of_name,
)
from spotd.api_routes.person import ROLES
from spotd.domain.fault_drill import DrillKind
from spotd.money.report import SUMS

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

HEALTH = Operation("GET", "/v1/health", no_parameters)
DOCTOR = Operation("GET", "/v1/doctor", no_parameters)
CLOUD_POLICY = Operation(
    "GET",
    "/v1/policy/{cloud}",
    of_cloud,
    query={
        "types": {**_TEXT, "description": "Types of instances, with commas between (AWS)"},
        "spot": {"enum": ["0", "1"]},
    },
)
READ_AUDIT = Operation(
    "GET", "/v1/audit", no_parameters, query={"since_s": _NUMBER, "after": _NUMBER}
)
LIST_SECRETS = Operation("GET", "/v1/secrets", no_parameters)
SET_SECRET = Operation("POST", "/v1/secrets/{name}", of_name, body={"value": _TEXT})
REMOVE_SECRET = Operation("DELETE", "/v1/secrets/{name}", of_name)
ROTATE_KEY = Operation("POST", "/v1/key/rotate", no_parameters)
LIST_USERS = Operation("GET", "/v1/users", no_parameters)
DISABLE_USER = Operation(
    "POST",
    "/v1/users/{name}/disable",
    of_name,
    body={"transfer_to": {**_TEXT, "description": "Who gets the unfinished jobs"}},
)
ENABLE_USER = Operation("POST", "/v1/users/{name}/enable", of_name)
WHO_AM_I = Operation("GET", "/v1/me", no_parameters)
LIST_TOKENS = Operation("GET", "/v1/tokens", no_parameters)
MAKE_TOKEN = Operation(
    "POST",
    "/v1/users/{name}/tokens",
    of_name,
    body={
        "role": {"enum": ["", *ROLES], "description": "The most that the token allows"},
        "lifetime_s": {**_NUMBER, "description": "90 days where it is left out"},
    },
)
REVOKE_TOKEN = Operation("DELETE", "/v1/tokens/{name}", of_name)
TEST_ALERT = Operation("POST", "/v1/alerts/test", no_parameters, body={"route": _TEXT})
SHOW_QUARANTINE = Operation("GET", "/v1/quarantine", no_parameters)
RELEASE_QUARANTINE = Operation("POST", "/v1/quarantine/release", no_parameters)
SHOW_SAFE_MODE = Operation("GET", "/v1/safe-mode", no_parameters)
LEAVE_SAFE_MODE = Operation("POST", "/v1/safe-mode/leave", no_parameters)
LIST_JOBS = Operation(
    "GET",
    "/v1/jobs",
    no_parameters,
    query={
        "all": {"enum": ["0", "1"]},
        "ended": {"enum": ["0", "1"]},
        "limit": _NUMBER,
        "offset": {**_NUMBER, "description": "Of a page; with it, state, name and sort apply"},
        "state": {**_TEXT, "description": "unfinished, ended, or an outcome; all, without it"},
        "name": {**_TEXT, "description": "A part of the names"},
        "sort": {**_TEXT, "description": "newest, oldest, name or ended"},
    },
)
SUBMIT_JOB = Operation(
    "POST",
    "/v1/jobs",
    no_parameters,
    body={
        **_JOB_FILE,
        "secrets": _TEXTS,
        "packages": {"type": "array", "items": _PACKAGE},
        "request_id": {**_TEXT, "description": "The same again is the same job"},
        "override_budget": _OVERRIDE,
        "late": {"type": "boolean", "description": "Though its deadline cannot be promised"},
        "no_checkpoints": {"type": "boolean", "description": "A preemption may cost all its work"},
        "after": {**_TEXT, "description": "The job that must succeed before, by name or id"},
        "continue": {
            **_TEXT,
            "description": "The id of a job of a lost database, to continue from its HEAD",
        },
    },
)
PLAN = Operation("POST", "/v1/plan", no_parameters, body={**_JOB_FILE, "limit": _NUMBER})
ADVISE = Operation(
    "POST",
    "/v1/advise",
    no_parameters,
    body={
        **_JOB_FILE,
        "parameters": {**_NUMBER, "description": "Of the model, where the file does not say"},
        "search_s": {**_NUMBER, "description": "Hours of that phase, in seconds; 0: not known"},
        "train_s": {**_NUMBER, "description": "Default: from the file (spotd.work, model)"},
        "validate_s": _NUMBER,
    },
)
LIST_IMAGES = Operation("GET", "/v1/images", no_parameters)
BAKE_IMAGE = Operation(
    "POST",
    "/v1/images",
    no_parameters,
    body={
        **{name: taken for name, taken in _JOB_FILE.items() if name != "name"},
        "secrets": _TEXTS,
        "packages": {"type": "array", "items": _PACKAGE},
        "request_id": {**_TEXT, "description": "The same again is the same bake"},
        "image": {**_TEXT, "description": "Its name; default: the job's"},
        "cloud": _TEXT,
        "region": _TEXT,
        "instance_type": {
            **_TEXT,
            "description": "Instead of the machine in the file",
        },
    },
)
REMOVE_IMAGES = Operation(
    "DELETE",
    "/v1/images/{name}",
    of_name,
    query={"cloud": _TEXT, "region": _TEXT, "force": {"enum": ["0", "1"]}},
)
LIST_NODES = Operation(
    "GET",
    "/v1/nodes",
    no_parameters,
    query={
        "job": _TEXT,
        "id": {**_TEXT, "description": "Of one machine, gone or not"},
        "provider": {**_TEXT, "description": "The newest machines of this one, gone ones too"},
        "limit": _NUMBER,
    },
)
LIST_ORPHANS = Operation("GET", "/v1/orphans", no_parameters)
END_ORPHANS = Operation(
    "POST",
    "/v1/orphans/end",
    no_parameters,
    body={
        "ids": {
            "type": "array",
            "items": _TEXT,
            "description": "Machines that the caller saw: if others are held now, none is ended",
        }
    },
)
ALL_COSTS = Operation("GET", "/v1/costs", no_parameters, query={"limit": _NUMBER})
COST_REPORT = Operation(
    "GET", "/v1/costs/report", no_parameters, query={**_TIMES, "by": {"enum": list(SUMS)}}
)
FOCUS_COSTS = Operation("GET", "/v1/costs/focus", no_parameters, query=_TIMES)
LIST_BUDGETS = Operation("GET", "/v1/budgets", no_parameters)
APPROVE_BUDGET = Operation("POST", "/v1/jobs/{job}/budget/approve", of_job)
RELOAD_CONFIG = Operation("POST", "/v1/config/reload", no_parameters)
RECONCILE_BILL = Operation(
    "POST",
    "/v1/costs/reconcile",
    no_parameters,
    body={
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
)
LIST_OFFERS = Operation(
    "GET",
    "/v1/offers",
    no_parameters,
    query={
        **_OFFERS,
        "sort": {"enum": ["price", "gpu", "discount"]},
        "limit": _NUMBER,
    },
)
PRICE_HISTORY = Operation("GET", "/v1/prices", no_parameters, query={**_OFFERS, "since_s": _NUMBER})
STATS = Operation(
    "GET",
    "/v1/stats",
    no_parameters,
    query={
        "since_s": _NUMBER,
        "by": {"enum": ["cloud", "region", "zone", "pool", "hour", "weekday"]},
        "capacity": _OFFERS["capacity"],
    },
)
MACHINE_USE = Operation("GET", "/v1/use", no_parameters, query={"since_s": _NUMBER})
RIGHTSIZE_REVIEW = Operation("GET", "/v1/review", no_parameters, query={"since_s": _NUMBER})
TRACES = Operation("GET", "/v1/traces", no_parameters, query={"since_s": _NUMBER, "gpus": _TEXT})
LIST_PROVIDERS = Operation("GET", "/v1/providers", no_parameters)
SHOW_JOB = Operation("GET", "/v1/jobs/{job}", of_job)
JOB_FILE = Operation("GET", "/v1/jobs/{job}/file", of_job)
EXPLAIN_JOB = Operation("GET", "/v1/jobs/{job}/why", of_job)
JOB_SIZING = Operation("GET", "/v1/jobs/{job}/sizing", of_job)
LIST_DRILLS = Operation("GET", "/v1/drills", no_parameters, query={"job": _TEXT})
DRILL_TERMS = Operation(
    "GET", "/v1/jobs/{job}/drills/terms", of_job, query={"kind": _DRILL, "within_s": _REAL}
)
RUN_DRILL = Operation(
    "POST",
    "/v1/jobs/{job}/drills",
    of_job,
    body={
        "kind": _DRILL,
        "within_s": {**_REAL, "description": "Seconds that it may take to train again"},
        "id": {**_TEXT, "description": "The same again is the same drill"},
    },
)
JOB_COST = Operation("GET", "/v1/jobs/{job}/cost", of_job)
JOB_COST_REPORT = Operation("GET", "/v1/jobs/{job}/cost/report", of_job, query=_TIMES)
JOB_CURVES = Operation("GET", "/v1/jobs/{job}/curves", of_job, query={"points": _NUMBER})
IMPORT_RESULTS = Operation(
    "POST",
    "/v1/jobs/{job}/results",
    of_job,
    body={
        "suite": {**_TEXT, "description": "Which tests"},
        **dict.fromkeys(("cases", "passed"), _NUMBER),
        "failed": {"type": "array", "items": _TEXT, "description": "Names of cases"},
        **dict.fromkeys(("tokens_per_s", "ttft_s", "ttft_p95_s"), _REAL),
    },
)
LIST_CHECKPOINTS = Operation("GET", "/v1/jobs/{job}/checkpoints", of_job)
LIST_OUTPUTS = Operation("GET", "/v1/jobs/{job}/outputs", of_job)
REMOVE_OUTPUTS = Operation("POST", "/v1/jobs/{job}/outputs/rm", of_job)
VERIFY_CHECKPOINT = Operation(
    "POST", "/v1/jobs/{job}/checkpoints/verify", of_job, body={"name": _TEXT, "shard": _NUMBER}
)
PIN_CHECKPOINT = Operation(
    "POST", "/v1/jobs/{job}/checkpoints/pin", of_job, body={"pin": _TEXT, "name": _TEXT}
)
UNPIN_CHECKPOINT = Operation(
    "POST", "/v1/jobs/{job}/checkpoints/unpin", of_job, body={"pin": _TEXT}
)
REMOVE_CHECKPOINT = Operation(
    "POST",
    "/v1/jobs/{job}/checkpoints/rm",
    of_job,
    body={
        "name": _TEXT,
        "last": {"type": "boolean", "description": "Also the newest of a job that has ended"},
    },
)
BEGIN_IMPORT = Operation(
    "POST",
    "/v1/imports",
    no_parameters,
    body={"store": {**_TEXT, "description": "Its URL; the configured one"}},
)
COMMIT_IMPORT = Operation(
    "POST", "/v1/imports/{name}", of_name, body={"store": _TEXT, "manifest": {"type": "object"}}
)
SSH_ADDRESS = Operation("GET", "/v1/jobs/{job}/ssh", of_job, query={"rank": _NUMBER})
SSH_ACCESS = Operation("POST", "/v1/jobs/{job}/ssh", of_job, body={"rank": _NUMBER})
CANCEL_JOB = Operation(
    "POST",
    "/v1/jobs/{job}/cancel",
    of_job,
    body={"no_outputs": {"type": "boolean", "description": "Leave its files on the machines"}},
)
PAUSE_JOB = Operation("POST", "/v1/jobs/{job}/pause", of_job)
RESUME_JOB = Operation("POST", "/v1/jobs/{job}/resume", of_job, body={"override_budget": _OVERRIDE})
READ_EVENTS = Operation(
    "GET",
    "/v1/events",
    no_parameters,
    query={
        "job": _TEXT,
        "after": _NUMBER,
        "limit": _NUMBER,
        "last": _NUMBER,
        "wait_s": _WAIT,
        "phase": {**_TEXT, "description": "Answer at once when the job has another one"},
    },
)
READ_LOGS = Operation(
    "POST",
    "/v1/jobs/{job}/logs",
    of_job,
    body={
        "cursor": {"type": "object", "additionalProperties": _NUMBER},
        "tail_bytes": _NUMBER,
        "since_us": {**_NUMBER, "description": "Leave out what was stored before"},
        "rank": _NUMBER,
        "generation": _NUMBER,
        "stream": _TEXT,
        "wait_s": _WAIT,
    },
)
SEARCH_LOGS = Operation(
    "GET",
    "/v1/jobs/{job}/logs/search",
    of_job,
    query={"text": _TEXT, "before": {**_TEXT, "description": "`next` of the reply before"}},
)
METRICS = Operation("GET", "/metrics", no_parameters)
BACK_UP_DATABASE = Operation("GET", "/v1/db/backup", no_parameters)
PULL_CHECKPOINT = Operation(
    "GET",
    "/v1/jobs/{job}/checkpoints/data",
    of_job,
    query={
        "name": {**_TEXT, "description": "A step or a pin; the newest where it is empty"},
        "first": {**_NUMBER, "description": "The first shard that is wanted"},
        "unit": {**_TEXT, "description": "Only this checkpoint of a program's folder"},
    },
)
PULL_OUTPUTS = Operation(
    "GET",
    "/v1/jobs/{job}/outputs/data",
    of_job,
    query={"first": {**_NUMBER, "description": "The first shard that is wanted"}},
)
HAS_PACKAGE = Operation("HEAD", "/v1/packages/{digest}", of_digest)
GET_PACKAGE = Operation("GET", "/v1/packages/{digest}", of_digest)
PUT_PACKAGE = Operation("PUT", "/v1/packages/{digest}", of_digest)
IMPORT_SHARD = Operation(
    "PUT",
    "/v1/imports/{name}/shard",
    of_name,
    query={
        "store": _TEXT,
        **dict.fromkeys(("step", "stream", "number", "size"), _NUMBER),
        "digests": {**_TEXT, "description": "XXH3 (128 bits, hex) of each 16 MiB, by commas"},
    },
)
OPENAPI = Operation("GET", "/v1/openapi.json", no_parameters)
