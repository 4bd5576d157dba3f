"""The routes of the API, in one table.

The application, the permissions and the OpenAPI document are made from it. The files of
`spotd/api/routes` hold the handlers.
"""

from __future__ import annotations

from collections.abc import Mapping

from providers.base import CapacityType
from spotd.api.doctor import health
from spotd.api.http.openapi import describe
from spotd.api.http.route import ApiRoute, Content, Kind, Schema
from spotd.api.metrics.exposition import Metrics
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


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute("GET", "/v1/health", health.health),
    ApiRoute("GET", "/v1/doctor", health.doctor),
    ApiRoute(
        "GET",
        "/v1/policy/{cloud}",
        policy.read_policy,
        query={
            "types": {**_TEXT, "description": "Types of instances, with commas between (AWS)"},
            "spot": {"enum": ["0", "1"]},
        },
    ),
    ApiRoute("GET", "/v1/audit", audit.read_audit, query={"since_s": _NUMBER, "after": _NUMBER}),
    ApiRoute("GET", "/v1/secrets", secrets.list_secrets),
    ApiRoute(
        "POST", "/v1/secrets/{name}", secrets.set_secret, action="secret set", body={"value": _TEXT}
    ),
    ApiRoute("DELETE", "/v1/secrets/{name}", secrets.remove_secret, action="secret rm"),
    ApiRoute(
        "POST", "/v1/key/rotate", secrets.rotate_key, action="key rotate", reply_fields=("epoch",)
    ),
    ApiRoute("GET", "/v1/users", users.list_users),
    ApiRoute(
        "POST",
        "/v1/users/{name}/disable",
        users.disable_user,
        action="user disable",
        reply_fields=(
            "transferred_to",
            "jobs",
        ),
        body={"transfer_to": {**_TEXT, "description": "Who gets the unfinished jobs"}},
    ),
    ApiRoute("POST", "/v1/users/{name}/enable", users.enable_user, action="user enable"),
    ApiRoute(
        "POST", "/v1/alerts/test", health.test_alert, action="alerts test", body={"route": _TEXT}
    ),
    ApiRoute("GET", "/v1/quarantine", quarantine.show_quarantine),
    ApiRoute(
        "POST",
        "/v1/quarantine/release",
        quarantine.release_quarantine,
        action="quarantine release",
        reply_fields=("reason",),
    ),
    ApiRoute("GET", "/v1/safe-mode", quarantine.show_safe_mode),
    ApiRoute(
        "POST",
        "/v1/safe-mode/leave",
        quarantine.leave_safe_mode,
        action="safe-mode leave",
        reply_fields=("reason",),
    ),
    ApiRoute(
        "GET",
        "/v1/jobs",
        jobs.list_jobs,
        query={
            "all": {"enum": ["0", "1"]},
            "ended": {"enum": ["0", "1"]},
            "limit": _NUMBER,
        },
    ),
    ApiRoute(
        "POST",
        "/v1/jobs",
        jobs.submit_job,
        action="run",
        reply_fields=(
            "name",
            "id",
            "override",
        ),
        body={
            **_JOB_FILE,
            "secrets": _TEXTS,
            "packages": {"type": "array", "items": _PACKAGE},
            "request_id": {**_TEXT, "description": "The same again is the same job"},
            "override_budget": _OVERRIDE,
            "late": {"type": "boolean", "description": "Though its deadline cannot be promised"},
            "after": {**_TEXT, "description": "The job that is to succeed before, by name or id"},
            "continue": {
                **_TEXT,
                "description": "The id of a lost database's job: its HEAD goes on",
            },
        },
    ),
    ApiRoute("POST", "/v1/plan", explain.plan, body={**_JOB_FILE, "limit": _NUMBER}),
    ApiRoute(
        "POST",
        "/v1/advise",
        advice.advise,
        body={
            **_JOB_FILE,
            "parameters": {**_NUMBER, "description": "Of the model, where the file does not say"},
            "search_s": {**_NUMBER, "description": "Hours of that phase, in seconds; 0: not known"},
            "train_s": {**_NUMBER, "description": "Else what the file says (spotd.work, model)"},
            "validate_s": _NUMBER,
        },
    ),
    ApiRoute("GET", "/v1/images", images.list_images),
    ApiRoute(
        "POST",
        "/v1/images",
        images.bake_image,
        action="image bake",
        reply_fields=(
            "name",
            "id",
        ),
        body={
            **{name: taken for name, taken in _JOB_FILE.items() if name != "name"},
            "secrets": _TEXTS,
            "packages": {"type": "array", "items": _PACKAGE},
            "request_id": {**_TEXT, "description": "The same again is the same bake"},
            "image": {**_TEXT, "description": "Its name; the job's, where none is said"},
            "cloud": _TEXT,
            "region": _TEXT,
            "instance_type": {
                **_TEXT,
                "description": "Instead of the machine that the file asks for",
            },
        },
    ),
    ApiRoute(
        "DELETE",
        "/v1/images/{name}",
        images.remove_images,
        action="image rm",
        reply_fields=("items",),
        query={"cloud": _TEXT, "region": _TEXT, "force": {"enum": ["0", "1"]}},
    ),
    ApiRoute("GET", "/v1/nodes", jobs.list_nodes, query={"job": _TEXT}),
    ApiRoute("GET", "/v1/orphans", orphans.list_orphans),
    ApiRoute(
        "POST",
        "/v1/orphans/end",
        orphans.end_orphans,
        action="orphans end",
        reply_fields=(
            "count",
            "items",
        ),
        body={
            "ids": {
                "type": "array",
                "items": _TEXT,
                "description": "Those that the caller saw: if others are held by now, "
                "none is ended",
            }
        },
    ),
    ApiRoute("GET", "/v1/costs", costs.all_costs, query={"limit": _NUMBER}),
    ApiRoute(
        "GET", "/v1/costs/report", cost_report.report, query={**_TIMES, "by": {"enum": list(SUMS)}}
    ),
    ApiRoute("GET", "/v1/costs/focus", cost_report.focus, query=_TIMES),
    ApiRoute("GET", "/v1/budgets", budgets.list_budgets),
    ApiRoute(
        "POST",
        "/v1/costs/reconcile",
        bill_comparison.reconcile_bill,
        action="cost reconcile",
        reply_fields=(
            "cloud",
            "segments",
        ),
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
    ),
    ApiRoute(
        "GET",
        "/v1/offers",
        offers.list_offers,
        query={
            **_OFFERS,
            "sort": {"enum": ["price", "gpu", "discount"]},
            "limit": _NUMBER,
        },
    ),
    ApiRoute("GET", "/v1/prices", offers.price_history, query={**_OFFERS, "since_s": _NUMBER}),
    ApiRoute(
        "GET",
        "/v1/stats",
        stats.stats,
        query={
            "since_s": _NUMBER,
            "by": {"enum": ["cloud", "region", "zone", "pool", "hour", "weekday"]},
            "capacity": _OFFERS["capacity"],
        },
    ),
    ApiRoute("GET", "/v1/use", machine_usage.machine_use, query={"since_s": _NUMBER}),
    ApiRoute("GET", "/v1/review", rightsize_review.review, query={"since_s": _NUMBER}),
    ApiRoute("GET", "/v1/traces", traces.traces, query={"since_s": _NUMBER, "gpus": _TEXT}),
    ApiRoute("GET", "/v1/providers", notice_times.providers),
    ApiRoute("GET", "/v1/jobs/{job}", jobs.show_job),
    ApiRoute("GET", "/v1/jobs/{job}/file", jobs.job_spec),
    ApiRoute("GET", "/v1/jobs/{job}/why", explain.why),
    ApiRoute("GET", "/v1/jobs/{job}/sizing", rightsize.job_sizing),
    ApiRoute("GET", "/v1/drills", drills.list_drills, query={"job": _TEXT}),
    ApiRoute(
        "GET",
        "/v1/jobs/{job}/drills/terms",
        drills.drill_terms,
        query={"kind": _DRILL, "within_s": _REAL},
    ),
    ApiRoute(
        "POST",
        "/v1/jobs/{job}/drills",
        drills.order_drill,
        action="drill run",
        reply_fields=(
            "drill",
            "id",
        ),
        body={
            "kind": _DRILL,
            "within_s": {**_REAL, "description": "Seconds that it may take to train again"},
            "id": {**_TEXT, "description": "The same again is the same drill"},
        },
    ),
    ApiRoute("GET", "/v1/jobs/{job}/cost", costs.job_cost),
    ApiRoute("GET", "/v1/jobs/{job}/cost/report", cost_report.job_report, query=_TIMES),
    ApiRoute(
        "POST",
        "/v1/jobs/{job}/results",
        results.import_results,
        action="results import",
        reply_fields=(
            "suite",
            "new",
        ),
        body={
            "suite": {**_TEXT, "description": "Which tests"},
            **dict.fromkeys(("cases", "passed"), _NUMBER),
            "failed": {"type": "array", "items": _TEXT, "description": "Names of cases"},
            **dict.fromkeys(("tokens_per_s", "ttft_s", "ttft_p95_s"), _REAL),
        },
    ),
    ApiRoute("GET", "/v1/jobs/{job}/checkpoints", checkpoints.list_checkpoints),
    ApiRoute(
        "POST",
        "/v1/jobs/{job}/checkpoints/verify",
        checkpoints.verify_checkpoint,
        body={"name": _TEXT, "shard": _NUMBER},
    ),
    ApiRoute(
        "POST",
        "/v1/jobs/{job}/checkpoints/pin",
        checkpoints.pin_checkpoint,
        action="ckpt pin",
        reply_fields=(
            "pin",
            "step",
        ),
        body={"pin": _TEXT, "name": _TEXT},
    ),
    ApiRoute(
        "POST",
        "/v1/jobs/{job}/checkpoints/unpin",
        checkpoints.unpin_checkpoint,
        action="ckpt unpin",
        reply_fields=("pin",),
        body={"pin": _TEXT},
    ),
    ApiRoute(
        "POST",
        "/v1/jobs/{job}/checkpoints/rm",
        checkpoints.remove_checkpoint,
        action="ckpt rm",
        reply_fields=(
            "step",
            "objects",
        ),
        body={
            "name": _TEXT,
            "last": {"type": "boolean", "description": "Also the newest of a job that has ended"},
        },
    ),
    ApiRoute(
        "POST",
        "/v1/imports",
        checkpoint_imports.begin_import,
        action="ckpt import",
        reply_fields=(
            "id",
            "store",
        ),
        body={"store": {**_TEXT, "description": "Its URL; the configured one"}},
    ),
    ApiRoute(
        "POST",
        "/v1/imports/{name}",
        checkpoint_imports.commit_import,
        action="ckpt import commit",
        reply_fields=(
            "step",
            "bytes",
        ),
        body={"store": _TEXT, "manifest": {"type": "object"}},
    ),
    ApiRoute("GET", "/v1/jobs/{job}/ssh", access.ssh_address, query={"rank": _NUMBER}),
    ApiRoute(
        "POST",
        "/v1/jobs/{job}/ssh",
        access.ssh_access,
        action="ssh",
        reply_fields=("node_id",),
        body={"rank": _NUMBER},
    ),
    ApiRoute(
        "POST", "/v1/jobs/{job}/cancel", jobs.cancel_job, action="cancel", reply_fields=("id",)
    ),
    ApiRoute("POST", "/v1/jobs/{job}/pause", jobs.pause_job, action="pause", reply_fields=("id",)),
    ApiRoute(
        "POST",
        "/v1/jobs/{job}/resume",
        jobs.resume_job,
        action="resume",
        reply_fields=(
            "id",
            "override",
        ),
        body={"override_budget": _OVERRIDE},
    ),
    ApiRoute(
        "GET",
        "/v1/events",
        events.read_events,
        kind=Kind.LONG_POLL,
        query={
            "job": _TEXT,
            "after": _NUMBER,
            "limit": _NUMBER,
            "last": _NUMBER,
            "wait_s": _WAIT,
            "phase": {**_TEXT, "description": "Answer at once when the job has another one"},
        },
    ),
    ApiRoute(
        "POST",
        "/v1/jobs/{job}/logs",
        logs.read_logs,
        kind=Kind.LONG_POLL,
        body={
            "cursor": {"type": "object", "additionalProperties": _NUMBER},
            "tail_bytes": _NUMBER,
            "rank": _NUMBER,
            "generation": _NUMBER,
            "stream": _TEXT,
            "wait_s": _WAIT,
        },
    ),
    ApiRoute("GET", "/metrics", Metrics.text, kind=Kind.STREAM, sends=Content.TEXT),
    # It holds every job's key and secrets, though encrypted: its owner has time to guess.
    ApiRoute(
        "GET",
        "/v1/db/backup",
        backup.copy_database,
        kind=Kind.STREAM,
        action="db backup",
        large=True,
        sends=Content.BYTES,
    ),
    # The weights are the job's result: not for users who may only read.
    ApiRoute(
        "GET",
        "/v1/jobs/{job}/checkpoints/data",
        checkpoints.pull_checkpoint,
        kind=Kind.STREAM,
        action="ckpt pull",
        large=True,
        query={
            "name": {**_TEXT, "description": "A step or a pin; the newest where it is empty"},
            "first": {**_NUMBER, "description": "The first shard that is wanted"},
            "unit": {**_TEXT, "description": "Only this checkpoint of a program's folder"},
        },
        sends=Content.BYTES,
    ),
    ApiRoute("HEAD", "/v1/packages/{digest}", packages.has_package, kind=Kind.STREAM),
    ApiRoute("GET", "/v1/packages/{digest}", packages.has_package, kind=Kind.STREAM),
    ApiRoute(
        "PUT",
        "/v1/packages/{digest}",
        packages.receive_package,
        kind=Kind.STREAM,
        action="upload",
        receives=Content.BYTES,
    ),
    ApiRoute(
        "PUT",
        "/v1/imports/{name}/shard",
        checkpoint_imports.receive_shard,
        kind=Kind.STREAM,
        action="ckpt import shard",
        query={
            "store": _TEXT,
            **dict.fromkeys(("step", "stream", "number", "size"), _NUMBER),
            "digests": {**_TEXT, "description": "XXH3 (128 bits, hex) of each 16 MiB, by commas"},
        },
        receives=Content.BYTES,
    ),
    ApiRoute("GET", "/v1/openapi.json", describe, kind=Kind.OPENAPI),
)
BY_KEY: Mapping[tuple[str, str], ApiRoute] = {(r.method, r.path): r for r in ROUTES}
