"""The route that compares a cloud's bill with the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from providers.clouds import CLOUDS
from providers.dollars import format_microusd
from spotd.api.request.request import ApiRequest, bad_input, storable
from spotd.api.views.resources import iso
from spotd.domain.events import Event, Severity
from spotd.money.billing_exports import Entry
from spotd.money.reconcile import LedgerSegment, Outcome, outcome_data, reconcile
from spotd.store.ledger import stretch_of

MOST_US = 253_402_300_799_000_000  # the end of the year 9999; also the limit for micro-USD
_FIELDS = (str, str, bool, int, int, int, int)  # types of the fields of an Entry, in order
_FIX = "use a spotctl of the daemon's version"
NAMED = 3


def reconcile_bill(call: ApiRequest) -> dict[str, Any]:
    """Compare a cloud's bill with the ledger, and mark the segments whose amount is final.

    `entries` has one row per machine: key, type, has GPUs, micro-USD before credits, from, to,
    micro-USD of credits; `credits_microusd` has other credits. With `dry_run` nothing is marked.
    More than 1 % unexplained raises an alert.
    """
    cloud = call.text("cloud")
    known = [name for name, facts in CLOUDS.items() if facts.bill]
    if cloud not in known:
        raise bad_input(
            f"{cloud[:40]!r} has no supported bill format", f"one of {', '.join(known)}"
        )
    dry_run = call.body.get("dry_run") is True
    credits_microusd = call.body.get("credits_microusd", 0)
    if type(credits_microusd) is not int or abs(credits_microusd) >= MOST_US:
        raise bad_input("credits_microusd must be a whole number of micro-USD", _FIX)
    outcome = reconcile(
        _entries(call), _ledger_segments(call, cloud), call.now_us, credits_microusd
    )
    store = call.context.store
    if not dry_run:
        store.ledger.record_invoiced(outcome.invoiced, call.now_us)
        if outcome.alerts:
            store.events.add("", _alert(cloud, outcome), call.now_us)
    rows = (*outcome.matched, *outcome.missing)
    names = store.jobs.names({row.job_id for row in rows})
    return {
        "kind": "Reconciliation",
        "cloud": cloud,
        "since": iso(outcome.since_us),
        "until": iso(outcome.until_us),
        "dry_run": dry_run,
        **outcome_data(outcome, names),
    }


def _entries(call: ApiRequest) -> list[Entry]:
    rows = call.body.get("entries")
    if not isinstance(rows, list) or not all(_is_entry(row) for row in rows):
        raise bad_input("entries must be a list of machines", _FIX)
    return [Entry(*row) for row in rows]


def _is_entry(row: object) -> bool:
    if not isinstance(row, list) or len(row) != len(_FIELDS):
        return False
    if not all(type(value) is kind for value, kind in zip(row, _FIELDS, strict=True)):
        return False
    (key, description), (cost, start_us, end_us, credit) = row[:2], row[3:]
    in_range = max(abs(cost), abs(credit)) < MOST_US and 0 <= start_us <= end_us < MOST_US
    return bool(in_range and storable(key + description))


def _ledger_segments(call: ApiRequest, cloud: str) -> list[LedgerSegment]:
    """Return the ledger's segments of that cloud's real machines."""
    store = call.context.store
    rows = [row for row in store.ledger.segments() if row.state != "void"]
    nodes = {node.id: node for node in store.nodes.find(sorted({row.node_id for row in rows}))}
    return [
        LedgerSegment(row.id, node.instance_id, node.id, row.job_id, stretch_of(row, call.now_us))
        for row in rows
        if (node := nodes.get(row.node_id)) is not None
        and not node.offer.local
        and (node.offer.cloud or node.offer.provider) == cloud
    ]


def _alert(cloud: str, outcome: Outcome) -> Event:
    since, until = (str(iso(at_us))[:10] for at_us in (outcome.since_us, outcome.until_us))
    parts = []
    for description, rows in (
        ("with GPUs that the ledger does not know", outcome.unknown),
        ("of the ledger that the bill does not have", outcome.missing),
    ):
        if rows:
            parts.append(f"{len(rows)} {description} ({_keys_text([row.key for row in rows])})")
    message = (
        f"the bill of {cloud} from {since} to {until}: "
        f"{format_microusd(outcome.unexplained_microusd)} "
        f"({outcome.share * 100:.1f} %) is unexplained"
    )
    if parts:
        message += f": machines {' and '.join(parts)}"
    key = f"unexplained:{cloud}:{since}"
    return Event("unexplained", message, severity=Severity.WARNING, alert=True, key=key)


def _keys_text(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return ", ".join(keys[:NAMED]) + more
