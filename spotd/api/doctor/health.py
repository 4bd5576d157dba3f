"""API routes about the daemon itself: health, doctor, and a test alert."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

from providers.dollars import format_microusd
from providers.stores.base import NotFoundError, ObjectStore
from providers.stores.base import StoreError as ObjectsError
from spotd.api.doctor.alert_check import check_alert_routes
from spotd.api.doctor.cloud_readiness import check_clouds, check_jump_hosts, check_provider_warnings
from spotd.api.doctor.credential_check import check_store_reach
from spotd.api.doctor.dashboard_check import check_dashboard
from spotd.api.doctor.live_proofs import check_live_proofs
from spotd.api.doctor.scorecard import scorecard
from spotd.api.request.context import ApiContext
from spotd.api.request.request import ApiRequest, Check, not_found
from spotd.api.routes.drills import check_drills
from spotd.api.routes.orphans import check_held
from spotd.api.views.bucket_costs import check_buckets
from spotd.api.views.resources import iso
from spotd.base.clock import Ids
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.planner.core.expiry import expires_us
from spotd.store.errors import StoreError


def health(call: ApiRequest) -> dict[str, Any]:
    """A cheap sign of life that reads the database. `contested` is the reason why this daemon makes
    no changes, or null."""
    return {
        "kind": "Health",
        "ok": True,
        "version": version("spotd"),
        "deployment": call.context.store.deployment.id(),
        "now": iso(call.now_us),
        "contested": call.context.daemon.contested() or None,
    }


def doctor(call: ApiRequest) -> dict[str, Any]:
    """Everything that spotd needs to work, tried for real where trying is free."""
    context = call.context
    checks = [
        Check("version", True, f"spotd {version('spotd')}"),
        _run_check("database", lambda: _check_database(context)),
        _run_check("object store", lambda: _check_objects(context.storage.objects, context.ids)),
        *_check_checkpoints(context),
        *check_store_reach(context.storage.store_reaches()),
        *check_buckets(context),
        *_check_market(context, call.now_us),
        *check_provider_warnings(context),
        *check_jump_hosts(context),
        *_check_quarantine(context),
        *_check_blocked(context),
        *check_alert_routes(context, call.now_us),
        *check_dashboard(context, call.now_us),
        *check_live_proofs(context, call.now_us),
        *check_drills(context, call.now_us),
        *check_clouds(context, call.now_us),
    ]
    items = [
        {
            "name": check.name,
            "ok": check.ok,
            "doubtful": check.doubtful,
            "text": check.text,
            "try": check.try_,
        }
        for check in checks
    ]
    ok, score = all(check.ok for check in checks), _score(context, call.now_us)
    return {"kind": "Doctor", "ok": ok, "checks": items, "score": score}


def _score(context: ApiContext, now_us: int) -> list[dict[str, Any]]:
    """Return the scorecard; empty when the database is away, which its own check reports."""
    try:
        rows = scorecard(context, now_us)
    except StoreError:
        return []
    return [
        {"pillar": row.pillar, "good": row.good, "text": row.text, "try": row.try_} for row in rows
    ]


def _run_check(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except (StoreError, ObjectsError) as error:
        return Check(name, False, str(error), f"see the {name} settings in config.toml")


def _check_database(context: ApiContext) -> str:
    jobs = context.store.jobs.rows(False)
    return f"deployment {context.store.deployment.id()}, {len(jobs)} unfinished jobs"


def _check_objects(objects: ObjectStore, ids: Ids) -> str:
    """Write, read back and delete one small object. Raises ObjectsError."""
    nonce = ids.token()
    key = f"doctor/{nonce}"
    objects.put(key, nonce.encode())
    data, _ = objects.get(key)
    objects.delete(key)
    if data != nonce.encode():
        raise ObjectsError("an object that was just written reads back differently")
    return f"{objects.url} stores, returns and deletes an object"


def _check_checkpoints(context: ApiContext) -> list[Check]:
    """Check the default checkpoint store of jobs that name none.

    Machines on this box write to a folder as the daemon's user. They access a bucket with their own
    credentials, and the daemon only reads HEAD there.
    """
    url = context.settings.defaults().store
    if not url:
        return []
    rented = [info.name for info in context.clouds.providers() if not info.local]
    if url.startswith("file:") and rented and not context.storage.is_shared(url):
        message = f"{url} is a folder, which machines of {', '.join(rented)} do not have"
        advice = (
            "set checkpoint.store in config.toml to a bucket, as s3://, gs:// or az://; or set "
        )
        return [
            Check("checkpoint store", False, message, f"{advice}shared = true in [stores.NAME]")
        ]
    check = _check_objects if url.startswith("file:") else _check_reading
    return [
        _run_check("checkpoint store", lambda: check(context.storage.open_store(url), context.ids))
    ]


def _check_reading(objects: ObjectStore, ids: Ids) -> str:
    """Read one object that does not exist, to test read access."""
    with contextlib.suppress(NotFoundError):
        objects.get(f"doctor/{ids.token()}")
    return f"{objects.url} answers, and lets the daemon read"


def _check_market(context: ApiContext, now_us: int) -> list[Check]:
    """Check the limits and the providers, which are not known without the database."""
    try:
        market, nodes = context.market(now_us), context.store.nodes.active()
    except StoreError as error:
        return [Check("limits", False, str(error), "see the database settings in config.toml")]
    return [
        Check("limits", True, _check_limits(market)),
        *worst_case(market, nodes, now_us),
        *check_held(context.clouds.held(), context.clouds.held_leftovers(), market),
        *_check_providers(context, market),
    ]


def _check_quarantine(context: ApiContext) -> list[Check]:
    """Report the quarantine while it lasts."""
    try:
        reason = context.store.deployment.quarantine()
    except StoreError:
        return []  # the database check reports it
    advice = "check what the clouds list, then run: spotctl quarantine release"
    return [Check("quarantine", False, reason, advice)] if reason else []


def _check_blocked(context: ApiContext) -> list[Check]:
    """Report conditions that currently stop the daemon from working."""
    contested = context.daemon.contested()
    if contested:
        advice = "compare `spotctl nodes` on both, and stop the wrong one"
        return [Check("deployment", False, contested, advice)]
    reason = context.daemon.safe_mode()
    advice = (
        "find the cause of the crashes in `journalctl -u spotd`, then run: spotctl safe-mode leave"
    )
    return [Check("safe mode", False, reason, advice)] if reason else []


def _check_limits(market: Market) -> str:
    limits = market.use.limits
    most = f"of {limits.max_nodes}" if limits.max_nodes else "(no limit)"
    rate = limits.max_microusd_per_h
    cap = f"of {format_microusd(rate)}/h" if rate else "(no limit)"
    return f"nodes: {market.use.nodes} {most}, {format_microusd(market.use.microusd_per_h)}/h {cap}"


def worst_case(market: Market, nodes: Iterable[Node], now_us: int) -> list[Check]:
    """Return the cost if the control box died now and stayed dead.

    That is the price of every machine of the deployment until its expiry, and of one machine that
    the database does not know, at the highest price that the limits allow. Held machines have their
    own check.

    A machine keeps its current expiry, even if `limits.unattended_h` was shortened since.
    """
    cap = market.use.limits.max_microusd_per_h
    prices = [offer.price_microusd_per_h for offer in market.offers]
    dearest = max((price for price in prices if not cap or price <= cap), default=0)
    unattended_us = int(market.timing.unattended_s * S)
    machines = [
        (node.offer.price_microusd_per_h, max(unattended_us, expires_us(node) - now_us))
        for node in nodes
    ]
    count = f"{len(machines)} machine{'' if len(machines) == 1 else 's'}"
    ours = f"{count}, {_cost_text(machines)} at most"
    leak = f"{_cost_text([(dearest, unattended_us)])} with spot-reaper; otherwise until you end it"
    return [Check("if spotd dies", True, ours), Check("if one leaks", True, leak)]


def _cost_text(machines: Sequence[tuple[int, int]]) -> str:
    """Return the cost of machines as text.

    `machines` are pairs of micro-USD per hour and remaining microseconds.
    """
    rate, hours = (
        sum(price for price, _ in machines),
        max((us for _, us in machines), default=0) / 3600 / S,
    )
    total = sum(price * us for price, us in machines) / 3600 / S
    return f"{format_microusd(rate)}/h for {hours:.3g} h: {format_microusd(total)}"


def _check_providers(context: ApiContext, market: Market) -> list[Check]:
    checks, silent = [], context.clouds.silent_providers()
    for info in context.clouds.providers():
        offers = sum(offer.provider == info.name for offer in market.offers)
        problem = market.launch.disabled.get(info.name) or silent.get(info.name, "")
        message = problem or (f"{offers} offers" if offers else "no offers known")
        label = f"{info.kind}, local" if info.local and info.kind != "local" else info.kind
        advice = f"check [providers.{info.name}] in config.toml and its credentials"
        if info.kind == "local":
            advice = f"spotctl cloud up, and the url in [providers.{info.name}] that it prints"
        checks.append(
            Check(
                f"provider {info.name}",
                bool(offers) and not problem,
                f"{message} ({label})",
                advice,
            )
        )
    return checks


def test_alert(call: ApiRequest) -> dict[str, Any]:
    """Send a test message to one route (`route`), or to all."""
    wanted = call.text("route")
    results = call.context.alerts.test(wanted)
    if not results:
        missing = f"alert route {wanted!r}" if wanted else "alert route at all"
        raise not_found(f"there is no {missing}", "add [alerts.routes.NAME] to config.toml")
    items = [{"route": route, "ok": not error, "error": error} for route, error in results.items()]
    return {"kind": "AlertTest", "ok": not any(results.values()), "items": items}
