"""Clouds are asked side by side, none for longer than the patience, and one that breaks is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from providers.base import AuthError, CapacityType
from providers.readiness import CapacityNeed, Finding, Grade, passed
from providers.split_credentials import SplitProvider
from spotd.observe.readiness import examine
from tests.fixtures.waiting import LIMIT_S, until


class Cloud:
    """As far as it is examined."""

    def __init__(self, *, waits: threading.Event | None = None, breaks: bool = False) -> None:
        self.needs: Sequence[CapacityNeed] = ()
        self._waits = waits
        self._breaks = breaks

    def check_readiness(self, needs: Sequence[CapacityNeed]) -> Sequence[Finding]:
        self.needs = needs
        if self._waits is not None:
            self._waits.wait(LIMIT_S)
        if self._breaks:
            raise KeyError("what no adapter should do")
        return [passed("credentials", "me")]


def test_each_is_told_by_itself() -> None:
    never = threading.Event()
    clouds: dict[str, Any] = {
        "good": Cloud(),
        "slow": Cloud(waits=never),
        "broken": Cloud(breaks=True),
        "of no kind": object(),
    }
    found = examine(clouds, {"good": [need()]}, patience_s=0.2)
    never.set()
    assert clouds["good"].needs == [need()]
    assert {*found} == {"good", "slow", "broken"}
    assert found["good"] == [passed("credentials", "me")]
    assert "within 0 s" in found["slow"][0].text
    assert "KeyError" in found["broken"][0].text
    assert {found[name][0].grade for name in ("slow", "broken")} == {Grade.FAIL}
    until(lambda: not [t for t in threading.enumerate() if t.name == "examine-slow"])


def need() -> CapacityNeed:
    return CapacityNeed("r", "z", "t", CapacityType.SPOT)


class Ends:
    """Credentials that end machines."""

    def list(self) -> list[object]:
        raise AuthError("expired")


def test_the_credentials_that_end_machines_are_looked_at_as_well() -> None:
    makes: Any = Cloud()
    for name in ("name", "local", "watcher", "limits_life", "power_off", "prepared_file"):
        setattr(makes, name, "")
    ends: Any = Ends()
    found = SplitProvider(makes, ends).check_readiness([])
    assert [(one.check, one.grade) for one in found] == [
        ("credentials", Grade.OK),
        ("credentials that end", Grade.FAIL),
    ]
