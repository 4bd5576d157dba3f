"""A changed value is what `dataclasses.replace` makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.job import Attempt
from spotd.domain.market import LaunchPermission
from spotd.domain.node import NodeAddress
from spotd.domain.plan import Plan
from spotd.domain.states import NodeState
from tests.spotd.planner.build import job, market, node, offer, view

CHANGES: list[tuple[Any, dict[str, Any]]] = [
    (node(), {"instance_id": "i-1", "chosen": True}),
    (node(), {"address": NodeAddress("h", port=22), "state": NodeState.GONE}),
    (job(), {"generation": 3}),
    (view(node()), {"attempts": (Attempt("j1", 1, 2, "first"),)}),
    (market(), {"launch": LaunchPermission(hedging=False), "deployment": "d7"}),
    (Plan((), (), 0, "why"), {"wake_at_us": 4}),
]


@pytest.mark.parametrize(("value", "new"), CHANGES, ids=lambda one: type(one).__name__)
def test_as_replace_does(value: Any, new: dict[str, Any]) -> None:
    before = repr(value)
    made = changed(value, **new)
    assert made == replace(value, **new)
    assert vars(made) == vars(replace(value, **new))
    assert type(made) is type(value)
    assert made is not value
    assert repr(value) == before, "the old one stays as it is"


def test_what_was_reckoned_of_the_fields_before_is_reckoned_again() -> None:
    one = offer("aws-1a")
    assert "aws-1a" in one.key
    other = changed(one, zone="aws-1b")
    assert other.key == replace(one, zone="aws-1b").key != one.key


def test_the_field_of_a_part_is_set_in_that_part() -> None:
    before = node(host="h", port=22)
    made = changed(before, port=23, ssh_user="me", chosen=True)
    address = replace(before.address, port=23, ssh_user="me")
    assert made == replace(before, address=address, chosen=True)
    assert before.address.port == 22, "the old one stays as it is"
    assert changed(before, address=NodeAddress("a"), port=5).address == NodeAddress("a", port=5)


def test_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(TypeError, match="Node has no field host_name"):
        changed(node(), host_name="a")


@dataclass(frozen=True)
class Checked:
    a: int

    def __post_init__(self) -> None:
        assert self.a


@pytest.mark.parametrize("value", [Checked(1), "text"], ids=["checked", "text"])
def test_what_is_more_than_its_fields_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="use dataclasses"):
        changed(value, a=0)
