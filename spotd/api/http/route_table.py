"""The routes of the API: each operation of `spotd/api_routes/routes.py` with its handler.

The application, the permissions and the OpenAPI document are made from this table. The files of
`spotd/api/routes` hold the handlers.
"""

from __future__ import annotations

from collections.abc import Mapping

from spotd.api.doctor import health
from spotd.api.http.openapi import describe
from spotd.api.http.route import ApiRoute, Content, Kind
from spotd.api.metrics.exposition import Metrics
from spotd.api.routes import (
    access,
    advice,
    backup,
    bill_comparison,
    budgets,
    checkpoint_imports,
    checkpoints,
    cost_report,
    costs,
    curves,
    daemon,
    drills,
    events,
    explain,
    images,
    jobs,
    log_search,
    logs,
    machine_usage,
    notice_times,
    offers,
    orphans,
    outputs,
    packages,
    policy,
    results,
    rightsize,
    rightsize_review,
    secrets,
    stats,
    tokens,
    traces,
    users,
)
from spotd.api_routes import routes

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(routes.HEALTH, health.health),
    ApiRoute(routes.DOCTOR, health.doctor),
    ApiRoute(routes.CLOUD_POLICY, policy.read_policy),
    ApiRoute(routes.READ_AUDIT, events.read_audit),
    ApiRoute(routes.LIST_SECRETS, secrets.list_secrets),
    ApiRoute(routes.SET_SECRET, secrets.set_secret, action="secret set"),
    ApiRoute(routes.REMOVE_SECRET, secrets.remove_secret, action="secret rm"),
    ApiRoute(routes.ROTATE_KEY, secrets.rotate_key, action="key rotate", reply_fields=("epoch",)),
    ApiRoute(routes.LIST_USERS, users.list_users),
    ApiRoute(
        routes.DISABLE_USER,
        users.disable_user,
        action="user disable",
        reply_fields=(
            "transferred_to",
            "jobs",
        ),
    ),
    ApiRoute(routes.ENABLE_USER, users.enable_user, action="user enable"),
    ApiRoute(routes.WHO_AM_I, tokens.who_am_i),
    ApiRoute(routes.LIST_TOKENS, tokens.list_tokens),
    ApiRoute(
        routes.MAKE_TOKEN,
        tokens.make_token,
        action="user token",
        reply_fields=(
            "id",
            "role",
        ),
    ),
    ApiRoute(
        routes.REVOKE_TOKEN, tokens.revoke_token, action="user revoke", reply_fields=("user",)
    ),
    ApiRoute(routes.TEST_ALERT, health.test_alert, action="alerts test"),
    ApiRoute(routes.SHOW_QUARANTINE, daemon.show_quarantine),
    ApiRoute(
        routes.RELEASE_QUARANTINE,
        daemon.release_quarantine,
        action="quarantine release",
        reply_fields=("reason",),
    ),
    ApiRoute(routes.SHOW_SAFE_MODE, daemon.show_safe_mode),
    ApiRoute(
        routes.LEAVE_SAFE_MODE,
        daemon.leave_safe_mode,
        action="safe-mode leave",
        reply_fields=("reason",),
    ),
    ApiRoute(routes.LIST_JOBS, jobs.list_jobs),
    ApiRoute(
        routes.SUBMIT_JOB,
        jobs.submit_job,
        action="run",
        reply_fields=(
            "name",
            "id",
            "override",
        ),
    ),
    ApiRoute(routes.PLAN, explain.plan),
    ApiRoute(routes.ADVISE, advice.advise),
    ApiRoute(routes.LIST_IMAGES, images.list_images),
    ApiRoute(
        routes.BAKE_IMAGE,
        images.bake_image,
        action="image bake",
        reply_fields=(
            "name",
            "id",
        ),
    ),
    ApiRoute(
        routes.REMOVE_IMAGES, images.remove_images, action="image rm", reply_fields=("items",)
    ),
    ApiRoute(routes.LIST_NODES, jobs.list_nodes),
    ApiRoute(routes.LIST_ORPHANS, orphans.list_orphans),
    ApiRoute(
        routes.END_ORPHANS,
        orphans.end_orphans,
        action="orphans end",
        reply_fields=(
            "count",
            "items",
        ),
    ),
    ApiRoute(routes.ALL_COSTS, costs.all_costs),
    ApiRoute(routes.COST_REPORT, cost_report.report),
    ApiRoute(routes.FOCUS_COSTS, cost_report.focus),
    ApiRoute(routes.LIST_BUDGETS, budgets.list_budgets),
    ApiRoute(
        routes.APPROVE_BUDGET,
        budgets.approve_override,
        action="budget approve",
        reply_fields=(
            "id",
            "asked_by",
            "override",
        ),
    ),
    ApiRoute(
        routes.RELOAD_CONFIG,
        daemon.reload_config,
        action="config reload",
        reply_fields=("changed",),
    ),
    ApiRoute(
        routes.RECONCILE_BILL,
        bill_comparison.reconcile_bill,
        action="cost reconcile",
        reply_fields=(
            "cloud",
            "segments",
        ),
    ),
    ApiRoute(routes.LIST_OFFERS, offers.list_offers),
    ApiRoute(routes.PRICE_HISTORY, offers.price_history),
    ApiRoute(routes.STATS, stats.stats),
    ApiRoute(routes.MACHINE_USE, machine_usage.machine_use),
    ApiRoute(routes.RIGHTSIZE_REVIEW, rightsize_review.review),
    ApiRoute(routes.TRACES, traces.traces),
    ApiRoute(routes.LIST_PROVIDERS, notice_times.providers),
    ApiRoute(routes.SHOW_JOB, jobs.show_job),
    ApiRoute(routes.JOB_FILE, jobs.job_spec),
    ApiRoute(routes.EXPLAIN_JOB, explain.why),
    ApiRoute(routes.JOB_SIZING, rightsize.job_sizing),
    ApiRoute(routes.LIST_DRILLS, drills.list_drills),
    ApiRoute(routes.DRILL_TERMS, drills.drill_terms),
    ApiRoute(
        routes.RUN_DRILL,
        drills.order_drill,
        action="drill run",
        reply_fields=(
            "drill",
            "id",
        ),
    ),
    ApiRoute(routes.JOB_COST, costs.job_cost),
    ApiRoute(routes.JOB_COST_REPORT, cost_report.job_report),
    ApiRoute(routes.JOB_CURVES, curves.job_curves),
    ApiRoute(
        routes.IMPORT_RESULTS,
        results.import_results,
        action="results import",
        reply_fields=(
            "suite",
            "new",
        ),
    ),
    ApiRoute(routes.LIST_CHECKPOINTS, checkpoints.list_checkpoints),
    ApiRoute(routes.LIST_OUTPUTS, outputs.list_outputs),
    ApiRoute(
        routes.REMOVE_OUTPUTS,
        outputs.remove_outputs,
        action="outputs rm",
        reply_fields=("objects", "bytes"),
    ),
    ApiRoute(routes.VERIFY_CHECKPOINT, checkpoints.verify_checkpoint),
    ApiRoute(
        routes.PIN_CHECKPOINT,
        checkpoints.pin_checkpoint,
        action="ckpt pin",
        reply_fields=(
            "pin",
            "step",
        ),
    ),
    ApiRoute(
        routes.UNPIN_CHECKPOINT,
        checkpoints.unpin_checkpoint,
        action="ckpt unpin",
        reply_fields=("pin",),
    ),
    ApiRoute(
        routes.REMOVE_CHECKPOINT,
        checkpoints.remove_checkpoint,
        action="ckpt rm",
        reply_fields=(
            "step",
            "objects",
        ),
    ),
    ApiRoute(
        routes.BEGIN_IMPORT,
        checkpoint_imports.begin_import,
        action="ckpt import",
        reply_fields=(
            "id",
            "store",
        ),
    ),
    ApiRoute(
        routes.COMMIT_IMPORT,
        checkpoint_imports.commit_import,
        action="ckpt import commit",
        reply_fields=(
            "step",
            "bytes",
        ),
    ),
    ApiRoute(routes.SSH_ADDRESS, access.ssh_address),
    ApiRoute(routes.SSH_ACCESS, access.ssh_access, action="ssh", reply_fields=("node_id",)),
    ApiRoute(routes.CANCEL_JOB, jobs.cancel_job, action="cancel", reply_fields=("id",)),
    ApiRoute(routes.PAUSE_JOB, jobs.pause_job, action="pause", reply_fields=("id",)),
    ApiRoute(
        routes.RESUME_JOB,
        jobs.resume_job,
        action="resume",
        reply_fields=(
            "id",
            "override",
        ),
    ),
    ApiRoute(routes.READ_EVENTS, events.read_events, kind=Kind.LONG_POLL),
    ApiRoute(routes.READ_LOGS, logs.read_logs, kind=Kind.LONG_POLL),
    ApiRoute(routes.SEARCH_LOGS, log_search.search_logs),
    ApiRoute(routes.METRICS, Metrics.text, kind=Kind.STREAM, sends=Content.TEXT),
    # It holds every job's key and secrets, though encrypted: its owner has time to guess.
    ApiRoute(
        routes.BACK_UP_DATABASE,
        backup.copy_database,
        kind=Kind.STREAM,
        action="db backup",
        large=True,
        sends=Content.BYTES,
    ),
    # The weights are the job's result: not for users who may only read.
    ApiRoute(
        routes.PULL_CHECKPOINT,
        checkpoints.pull_checkpoint,
        kind=Kind.STREAM,
        action="ckpt pull",
        large=True,
        sends=Content.BYTES,
    ),
    ApiRoute(
        routes.PULL_OUTPUTS,
        outputs.pull_outputs,
        kind=Kind.STREAM,
        action="outputs",
        large=True,
        sends=Content.BYTES,
    ),
    ApiRoute(routes.HAS_PACKAGE, packages.has_package, kind=Kind.STREAM),
    ApiRoute(routes.GET_PACKAGE, packages.has_package, kind=Kind.STREAM),
    ApiRoute(
        routes.PUT_PACKAGE,
        packages.receive_package,
        kind=Kind.STREAM,
        action="upload",
        receives=Content.BYTES,
    ),
    ApiRoute(
        routes.IMPORT_SHARD,
        checkpoint_imports.receive_shard,
        kind=Kind.STREAM,
        action="ckpt import shard",
        receives=Content.BYTES,
    ),
    ApiRoute(routes.OPENAPI, describe, kind=Kind.OPENAPI),
)
BY_KEY: Mapping[tuple[str, str], ApiRoute] = {
    (route.operation.method, route.operation.path): route for route in ROUTES
}
