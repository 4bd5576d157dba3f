"""The doctor's look at who is told of alerts: whether messages would arrive, and whether the last
ones did. It sends none."""

from __future__ import annotations

from spotd.api.request.request import ApiContext, Check
from spotd.domain.units import S
from spotd.store.interface import RouteRow, StoreError

LATE_US = 600 * S  # waiting for longer, an alert that could not be sent is a failure
_TEST = "spotctl doctor --send, or spotctl alerts test {}"


def check_routes(backing: ApiContext, now_us: int) -> list[Check]:
    """A line for each route."""
    routes = backing.reach_routes()
    try:
        rows = {row.route: row for row in backing.store.route_rows()}
    except StoreError:
        return []  # told with the database
    if not routes:
        text = "no route: alerts are lines of the daemon's own log, and nobody is sent them"
        fix = "add [alerts.routes.default] to config.toml"
        return [Check("alerts", True, text, fix, doubtful=True)]
    return [_check(name, *routes[name], rows.get(name), now_us) for name in routes]


def _check(name: str, obstacle: str, gone: bool, row: RouteRow | None, now_us: int) -> Check:
    label, test = f"alerts {name}", _TEST.format(name)
    told = _told(row, now_us)
    waiting = f"; {row.waiting} wait, {_failing(row)}" if row and row.error else ""
    if obstacle:
        fix = "see that the box reaches it, and that its URL is the one that was given out"
        return Check(label, False, f"{obstacle}; {told}{waiting}", fix)
    if gone:
        fix = f"give it the URL of a webhook that is there, then: {test}"
        return Check(label, False, f"out of use: it was told so by the address; {told}", fix)
    if row and row.error:
        late = now_us - row.since_us > LATE_US
        return Check(label, not late, f"{told}{waiting}", test, doubtful=not late)
    never = row is None or not row.delivered_at_us
    return Check(label, True, f"reached; {told}", test if never else "", doubtful=never)


def _told(row: RouteRow | None, now_us: int) -> str:
    if row is None or not row.delivered_at_us:
        return "nothing was delivered yet"
    return f"last delivered {_ago(now_us - row.delivered_at_us)} ago"


def _failing(row: RouteRow) -> str:
    return f"the last try said: {row.error}"


def _ago(us: int) -> str:
    seconds = max(0, us // S)
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
