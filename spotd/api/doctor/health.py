"""Routes about the daemon itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

from providers.stores.base import NotFoundError, ObjectStore
from providers.stores.base import StoreError as ObjectsError
from spotd.api.doctor.alert_check import check_routes
from spotd.api.doctor.cloud_readiness import check_clouds
from spotd.api.doctor.credential_check import check_reach
from spotd.api.doctor.jump_host_check import check_ways
from spotd.api.doctor.live_proofs import check_proofs
from spotd.api.doctor.provider_warnings import check_remarks
from spotd.api.doctor.scorecard import scorecard
from spotd.api.request.request import ApiContext, ApiRequest, Check, not_found
from spotd.api.routes.drills import check_drills
from spotd.api.routes.orphans import check_held
from spotd.api.views.bucket_costs import check_buckets
from spotd.api.views.resources import iso, usd
from spotd.base.clock import Ids
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.planner.core.expiry import expires_us
from spotd.store.interface import StoreError


def health(call: ApiRequest) -> dict[str, Any]:
    """A cheap sign of life that touches the database. `contested` is why this daemon stands still,
    or null."""
    return {
        "kind": "Health",
        "ok": True,
        "version": version("spotd"),
        "deployment": call.backing.store.deployment(),
        "now": iso(call.now_us),
        "contested": call.backing.contested() or None,
    }


def doctor(call: ApiRequest) -> dict[str, Any]:
    """Everything that spotd needs to work, tried for real where trying is free."""
    backing = call.backing
    checks = [
        Check("version", True, f"spotd {version('spotd')}"),
        _tried("database", lambda: _check_database(backing)),
        _tried("object store", lambda: _check_objects(backing.objects, backing.ids)),
        *_check_checkpoints(backing),
        *check_reach(backing.reaches()),
        *check_buckets(backing),
        *_check_market(backing, call.now_us),
        *check_remarks(backing),
        *check_ways(backing),
        *_check_quarantine(backing),
        *_check_standing(backing),
        *check_routes(backing, call.now_us),
        *check_proofs(backing, call.now_us),
        *check_drills(backing, call.now_us),
        *check_clouds(backing, call.now_us),
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
    good, score = all(check.ok for check in checks), _score(backing, call.now_us)
    return {"kind": "Doctor", "ok": good, "checks": items, "score": score}


def _score(backing: ApiContext, now_us: int) -> list[dict[str, Any]]:
    """Nothing where the database is away, which is told above."""
    try:
        rows = scorecard(backing, now_us)
    except StoreError:
        return []
    return [
        {"pillar": row.pillar, "good": row.good, "text": row.text, "try": row.try_} for row in rows
    ]


def _tried(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except (StoreError, ObjectsError) as error:
        return Check(name, False, str(error), f"see the {name} settings in config.toml")


def _check_database(backing: ApiContext) -> str:
    jobs = backing.store.jobs(False)
    return f"deployment {backing.store.deployment()}, {len(jobs)} unfinished jobs"


def _check_objects(objects: ObjectStore, ids: Ids) -> str:
    """Write, read back and delete one small object."""
    nonce = ids.token()
    key = f"doctor/{nonce}"
    objects.put(key, nonce.encode())
    data, _ = objects.get(key)
    objects.delete(key)
    if data != nonce.encode():
        raise ObjectsError("an object that was just written reads back differently")
    return f"{objects.url} takes, returns and deletes an object"


def _check_checkpoints(backing: ApiContext) -> list[Check]:
    """The store of jobs that name none. Machines on this box write to a folder as the daemon's
    user; a bucket they reach with rights of their own, and the daemon only reads there: HEAD."""
    url = backing.defaults().store
    if not url:
        return []
    rented = [info.name for info in backing.providers_info() if not info.local]
    if url.startswith("file:") and rented and not backing.is_shared(url):
        text = f"{url} is a folder, which machines of {', '.join(rented)} do not have"
        advice = (
            "set checkpoint.store in config.toml to a bucket, as s3://, gs:// or az://; or say "
        )
        return [Check("checkpoint store", False, text, f"{advice}shared = true in [stores.NAME]")]
    check = _check_objects if url.startswith("file:") else _check_reading
    return [_tried("checkpoint store", lambda: check(backing.open_store(url), backing.ids))]


def _check_reading(objects: ObjectStore, ids: Ids) -> str:
    """Read one object that is not there."""
    with contextlib.suppress(NotFoundError):
        objects.get(f"doctor/{ids.token()}")
    return f"{objects.url} answers, and lets the daemon read"


def _check_market(backing: ApiContext, now_us: int) -> list[Check]:
    """The limits and the providers, which without a database nobody knows."""
    try:
        market, nodes = backing.market(now_us), backing.store.active_nodes()
    except StoreError as error:
        return [Check("limits", False, str(error), "see the database settings in config.toml")]
    return [
        Check("limits", True, _check_limits(market)),
        *worst_case(market, nodes, now_us),
        *check_held(backing.held(), backing.held_leftovers(), market),
        *_check_providers(backing, market),
    ]


def _check_quarantine(backing: ApiContext) -> list[Check]:
    """Told while it lasts."""
    try:
        reason = backing.store.quarantine()
    except StoreError:
        return []  # told with the database
    advice = "look at what the clouds list, then: spotctl quarantine release"
    return [Check("quarantine", False, reason, advice)] if reason else []


def _check_standing(backing: ApiContext) -> list[Check]:
    """What keeps the daemon from its work, while it lasts."""
    contested = backing.contested()
    if contested:
        advice = "look at `spotctl nodes` on both, and stop the one that is wrong"
        return [Check("deployment", False, contested, advice)]
    reason = backing.safe_mode()
    advice = "see `journalctl -u spotd` for what it crashed of, then: spotctl safe-mode leave"
    return [Check("safe mode", False, reason, advice)] if reason else []


def _check_limits(market: Market) -> str:
    limits = market.limits
    nodes = f"{market.nodes} of {limits.max_nodes or 'any number of'} nodes"
    cap = f"${usd(limits.max_microusd_per_h):.2f}/h" if limits.max_microusd_per_h else "no cap"
    return f"{nodes}, ${usd(market.microusd_per_h):.2f}/h of {cap}"


def worst_case(market: Market, nodes: Iterable[Node], now_us: int) -> list[Check]:
    """What a control box that dies now, and stays dead, would cost: every machine of ours until its
    expiry, and a machine that no record knows at the dearest price that the limits allow. What is
    held already has a line of its own.

    A machine keeps the expiry that it has, and counts its own time without us, also where
    `limits.unattended_h` is shorter by now.
    """
    cap = market.limits.max_microusd_per_h
    prices = [offer.price_microusd_per_h for offer in market.offers]
    dearest = max((price for price in prices if not cap or price <= cap), default=0)
    alone_us = int(market.timing.unattended_s * S)
    rest = [
        (node.offer.price_microusd_per_h, max(alone_us, expires_us(node) - now_us))
        for node in nodes
    ]
    ours = f"{len(rest)} machine{'' if len(rest) == 1 else 's'}, {_bill(rest)} at most"
    leak = f"{_bill([(dearest, alone_us)])} with spot-reaper; else until you end it"
    return [Check("if spotd dies", True, ours), Check("if one leaks", True, leak)]


def _bill(rest: Sequence[tuple[int, int]]) -> str:
    """What machines cost that go on for a while: of each, micro-USD an hour and microseconds."""
    rate, hours = sum(price for price, _ in rest), max((us for _, us in rest), default=0) / 3600 / S
    total = usd(int(sum(price * us for price, us in rest) / 3600 / S))
    return f"${usd(rate):,.2f}/h for {hours:.3g} h: ${total:,.2f}"


def _check_providers(backing: ApiContext, market: Market) -> list[Check]:
    checks, silent = [], backing.silent()
    for info in backing.providers_info():
        offers = sum(offer.provider == info.name for offer in market.offers)
        why = market.disabled.get(info.name) or silent.get(info.name, "")
        text = why or (f"{offers} offers" if offers else "no offers known")
        label = f"{info.kind}, local" if info.local and info.kind != "local" else info.kind
        advice = f"check [providers.{info.name}] in config.toml and its credentials"
        if info.kind == "local":
            advice = f"spotctl cloud up, and the url in [providers.{info.name}] that it prints"
        checks.append(
            Check(f"provider {info.name}", bool(offers) and not why, f"{text} ({label})", advice)
        )
    return checks


def test_alert(call: ApiRequest) -> dict[str, Any]:
    """Send a test message to one route (`route`), or to all."""
    wanted = call.text("route")
    results = call.backing.test_alert(wanted)
    if not results:
        what = f"alert route {wanted!r}" if wanted else "alert route at all"
        raise not_found(f"there is no {what}", "add [alerts.routes.NAME] to config.toml")
    items = [{"route": route, "ok": not error, "error": error} for route, error in results.items()]
    return {"kind": "AlertTest", "ok": not any(results.values()), "items": items}
