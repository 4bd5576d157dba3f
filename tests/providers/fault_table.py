"""The table of provider methods, faults and clouds: which combinations the tests play, and the
outcome. docs/conformance.md and the tests are generated from it.

    python -m tests.providers.fault_table > docs/conformance.md
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from providers.base import (
    AuthError,
    CapacityError,
    LaunchRequest,
    OfferRequest,
    PriceError,
    Provider,
    ProviderError,
    QuotaError,
    RejectedError,
    Scope,
    ThrottledError,
    UnknownOutcome,
)
from providers.clouds import CLOUDS
from tests.fixtures.waiting import until
from tests.providers.conformance import Rig, expiry_s, live, settled

MAKES = ("local", *CLOUDS)
METHODS = ("offers", "launch", "terminate", "list", "notices", "renew", "leftovers", "discard")
LOST, HIDDEN, GONE, PRICE = "timeout after success", "not visible yet", "already gone", "price"
# fault -> (how a rig plays it, the error of its class, the scope that it spoils)
REFUSED: dict[str, tuple[str, type[ProviderError], Scope]] = {
    "throttled": ("throttled", ThrottledError, Scope.PROVIDER),
    "no capacity": ("no_capacity", CapacityError, Scope.OFFER),
    "quota": ("quota", QuotaError, Scope.REGION),
    "bad request": ("rejected", RejectedError, Scope.OFFER),
    "bad credentials": ("unauthorized", AuthError, Scope.PROVIDER),
}
FAULTS = (LOST, *REFUSED, PRICE, HIDDEN, GONE)

# The outcome of the faults that are not refusals, per method if it differs.
_OUTCOMES = {
    LOST: "`UnknownOutcome`; a repeated call has no second effect",
    PRICE: "`PriceError`, and nothing is created",
    HIDDEN: {
        "launch": "a repeated call returns the same machine",
        "terminate": "success; a repeated call ends the machine",
        "list": "missing from this list, present in the next",
        "renew": "success; a repeated call moves the expiry",
        "leftovers": "missing from this list, present in the next",
        "discard": "success; a repeated call removes it",
    },
    GONE: {
        "launch": "no new machine is created",
        "terminate": "success",
        "renew": "success, and the machine does not come back",
        "discard": "success",
    },
}
_BUYS = "it requests no machine"
_NAMES = "it names no resource"
# (method, fault) -> why it cannot happen, at any cloud.
NEVER: dict[tuple[str, str], str] = {
    **{(m, f): _BUYS for m in METHODS if m != "launch" for f in ("no capacity", "quota", PRICE)},
    **{(m, GONE): _NAMES for m in ("offers", "list", "notices", "leftovers")},
    ("offers", HIDDEN): "it reads none of spotd's resources",
    ("notices", HIDDEN): "a notice that is not visible yet is reported by the machine itself",
}
# (make, method) -> why no fault can happen there.
SILENT = {("azure", "notices"): "it makes no call: Azure notifies only the machine"}


def cells(make: str) -> list[tuple[str, str]]:
    """Return (method, fault) of everything that is played at a cloud."""
    return [
        (method, fault)
        for method, fault in itertools.product(METHODS, FAULTS)
        if (method, fault) not in NEVER and (make, method) not in SILENT
    ]


def outcome(method: str, fault: str) -> str:
    """Return the outcome that the caller sees."""
    if fault in REFUSED:
        _, error, scope = REFUSED[fault]
        return f"`{error.__name__}` of the {scope.value}"
    result = _OUTCOMES[fault]
    return result if isinstance(result, str) else result[method]


@dataclass
class Stage:
    """A prepared call, and a check whether its effect has happened exactly once."""

    cloud: Provider
    ask: Callable[[], object]
    done: Callable[[], object]
    request: LaunchRequest | None = None


class FaultTable:
    """Inherit, with the cloud's `make` and a fixture `rig`."""

    make = ""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Generate a test for each cell of the table."""
        metafunc.parametrize(("method", "fault"), cells(self.make))

    def test_cell(self, rig: Rig, method: str, fault: str) -> None:
        stage = _stage(rig, method, fault.replace(" ", "-"))
        if fault in REFUSED:
            _refused(rig, stage, method, *REFUSED[fault])
        elif fault == LOST:
            rig.break_next("lost_reply", method)
            with pytest.raises(UnknownOutcome):
                stage.ask()
            stage.ask()
            until(stage.done)
        elif fault == PRICE:
            assert stage.request is not None
            cheap = dataclasses.replace(stage.request, max_price_microusd_per_h=1)
            with pytest.raises(PriceError):
                stage.cloud.launch(cheap)
            assert live(stage.cloud, cheap.token) == []
        elif fault == HIDDEN:
            _hidden(rig, stage, method)
        elif method in ("launch", "renew"):
            _ended(stage, method)
        else:
            stage.ask()
            until(stage.done)
            stage.ask()
            assert stage.done()


def _refused(
    rig: Rig, stage: Stage, method: str, what: str, error: type[ProviderError], scope: Scope
) -> None:
    """The error has its class, the call has no effect, and the next call succeeds."""
    rig.break_next(what, method)
    with pytest.raises(ProviderError) as caught:
        stage.ask()
    assert type(caught.value) is error
    assert caught.value.scope is scope
    assert str(caught.value)
    if isinstance(caught.value, ThrottledError):
        assert caught.value.retry_after_s > 0
    stage.ask()
    until(stage.done)


def _hidden(rig: Rig, stage: Stage, method: str) -> None:
    if method == "launch":
        assert stage.request is not None
        stage.ask()
        settled(stage.cloud, stage.request.token)
        rig.break_next("invisible", "list")
        assert stage.cloud.list() == []
    elif method in ("list", "leftovers"):
        rig.break_next("invisible", method)
        assert stage.ask() == []
    else:
        rig.break_next("invisible", method)
        stage.ask()
        assert not stage.done()
    stage.ask()
    until(stage.done)


def _ended(stage: Stage, method: str) -> None:
    """The machine is gone, and this call does not bring it back."""
    assert stage.request is not None
    token = stage.request.token
    if method == "launch":
        stage.ask()
    stage.cloud.terminate(settled(stage.cloud, token).instance_id)
    until(lambda: live(stage.cloud, token) == [])
    with contextlib.suppress(RejectedError):  # "used up" is as good as the machine that has ended
        stage.ask()
    assert live(stage.cloud, token) == []


def _stage(rig: Rig, method: str, name: str) -> Stage:
    """For offers, use an adapter without caches; for other calls, offers may have been read."""
    cloud = rig.provider()
    if method == "offers":
        return Stage(cloud, lambda: cloud.offers(OfferRequest()), lambda: True)
    if method == "notices":
        return Stage(cloud, cloud.notices, lambda: True)
    request = rig.request(cloud, f"{method}-{name}")
    token = request.token
    if method == "launch":
        once = lambda: len(live(cloud, token)) == 1  # noqa: E731
        return Stage(cloud, lambda: cloud.launch(request), once, request)
    cloud.launch(request)
    resource_id = settled(cloud, token).instance_id
    if method == "terminate":
        return Stage(cloud, lambda: cloud.terminate(resource_id), lambda: live(cloud, token) == [])
    if method == "renew":
        until_s = 1_900_000_000
        return Stage(
            cloud,
            lambda: cloud.renew(resource_id, until_s * 1_000_000),
            lambda: expiry_s(cloud, token) == until_s,
            request,
        )
    if method == "list":
        return Stage(cloud, cloud.list, lambda: len(live(cloud, token)) == 1)
    rig.break_next("leftovers", "terminate")
    cloud.terminate(resource_id)
    [left, *_] = until(cloud.leftovers)
    if method == "leftovers":
        return Stage(cloud, cloud.leftovers, cloud.leftovers)
    gone = lambda: left.leftover_id not in {leftover.leftover_id for leftover in cloud.leftovers()}  # noqa: E731
    return Stage(cloud, lambda: cloud.discard(left.leftover_id), gone)


_HEAD = """# Provider methods and faults

This page lists, for each cloud adapter, the outcome of every method under every fault. Each cell of
the table is a test that runs with every change. It runs the real adapter through the real SDK
against a stand-in for its cloud (clouds/):

```console
$ pytest tests/providers -k test_cell
```

The table and the tests are generated from the same rows in `tests/providers/fault_table.py`, which
also writes this page. `tests/providers/test_fault_table.py` checks that the page is current.
`providers/base.py` defines the errors. [faults.md](faults.md) says how spotd reacts to them. Each
vendor has its own messages for "throttled", "quota" and the other faults. `providers/*/codes.py`
maps them to errors, with a test for each code.

"""


def page() -> str:
    """Return docs/conformance.md."""
    played = {make: set(cells(make)) for make in MAKES}
    rows = [f"| method | fault | {' | '.join(MAKES)} |", "|---" * (2 + len(MAKES)) + "|"]
    for method, fault in itertools.product(METHODS, FAULTS):
        if (method, fault) in NEVER:
            reported = [f"cannot happen: {NEVER[method, fault]}"] * len(MAKES)
        else:
            reported = [
                outcome(method, fault)
                if (method, fault) in played[make]
                else f"cannot happen: {SILENT[make, method]}"
                if (make, method) in SILENT
                else "**missing**"
                for make in MAKES
            ]
        rows.append(f"| {method} | {fault} | {' | '.join(reported)} |")
    total = sum(map(len, played.values()))
    return f"{_HEAD}{total} cells are tested.\n\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(page(), end="")
