"""Test the `budget` block: limits on cost and interruptions."""

from __future__ import annotations

import pytest

from spotd.domain.preferences import NO_CAPS, Caps, SpendAlert
from spotd.spec import KnownNames
from spotd.store.codec import decode_spec, encode
from tests.spotd.spec.test_load import read, refused

BUDGET = "run: x\nspotd: {budget: {max_cost_usd: 800, max_interruptions: 5, routes: {ROUTES}}}\n"


@pytest.mark.req("BUD-08")
def test_limits_and_routes_are_read() -> None:
    spec = read(BUDGET.replace("ROUTES", "100: finance, 50: team")).spec
    assert spec.limits.max_cost_microusd == 800_000_000
    assert spec.limits.caps == Caps(5, (SpendAlert(50, "team"), SpendAlert(100, "finance")))
    assert [spec.limits.caps.route(percent) for percent in (50, 80, 100)] == ["team", "", "finance"]
    assert decode_spec(encode(spec)) == spec
    none = read("run: x").spec
    assert none.limits.caps == NO_CAPS
    assert "caps" not in encode(none), "rows of before stay readable for the spotd before"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BUDGET.replace("ROUTES", "50: opps"), "no route 'opps' is configured"),
        (BUDGET.replace("ROUTES", "60: ops"), "spotd.budget.routes"),
        ("run: x\nspotd: {budget: {routes: {50: ops}}}", "need max_cost_usd"),
        ("run: x\nspotd: {budget: {max_interruptions: -1}}", "spotd.budget.max_interruptions"),
    ],
)
def test_invalid_budgets_are_refused(text: str, message: str) -> None:
    (problem,) = refused(text, known=KnownNames(routes=("ops",)))
    assert message in problem
