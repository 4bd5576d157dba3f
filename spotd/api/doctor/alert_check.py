"""Doctor checks of alert routes: whether messages would arrive, and whether the last ones did.

It sends no message.
"""

from __future__ import annotations

from spotd.api.request.context import ApiContext
from spotd.api.request.request import Check
from spotd.domain.units import S
from spotd.store.alerts import RouteRow
from spotd.store.errors import StoreError

LATE_US = 600 * S  # an alert that waits longer is a failure
_TEST = "spotctl doctor --send, or spotctl alerts test {}"


def check_alert_routes(context: ApiContext, now_us: int) -> list[Check]:
    """Return one check for each alert route."""
    routes = context.alerts.check_routes()
    try:
        rows = {row.route: row for row in context.store.alerts.routes()}
    except StoreError:
        return []  # the database check reports it
    if not routes:
        message = "no route: alerts are only written to the daemon's log"
        fix = "add [alerts.routes.default] to config.toml"
        return [Check("alerts", True, message, fix, doubtful=True)]
    return [_check(name, *routes[name], rows.get(name), now_us) for name in routes]


def _check(name: str, problem: str, out_of_use: bool, row: RouteRow | None, now_us: int) -> Check:
    label, test = f"alerts {name}", _TEST.format(name)
    delivery = _last_delivery(row, now_us)
    waiting = f"; {row.waiting} wait, {_last_error(row)}" if row and row.error else ""
    if problem:
        fix = "see that the box reaches it, and that its URL is the one that was given out"
        return Check(label, False, f"{problem}; {delivery}{waiting}", fix)
    if out_of_use:
        fix = f"configure the URL of an existing webhook, then: {test}"
        return Check(label, False, f"disabled: its address no longer exists; {delivery}", fix)
    if row and row.error:
        late = now_us - row.since_us > LATE_US
        return Check(label, not late, f"{delivery}{waiting}", test, doubtful=not late)
    never = row is None or not row.delivered_at_us
    return Check(label, True, f"reached; {delivery}", test if never else "", doubtful=never)


def _last_delivery(row: RouteRow | None, now_us: int) -> str:
    if row is None or not row.delivered_at_us:
        return "nothing was delivered yet"
    return f"last delivered {_ago(now_us - row.delivered_at_us)} ago"


def _last_error(row: RouteRow) -> str:
    return f"the last attempt failed: {row.error}"


def _ago(us: int) -> str:
    seconds = max(0, us // S)
    for unit, unit_s in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s} {unit}"
    return f"{seconds} s"
