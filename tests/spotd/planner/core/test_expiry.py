"""Whose expiry is moved on, and how far."""

from __future__ import annotations

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.market import Timing
from spotd.domain.plan import AddNode
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.planner.core.expiry import (
    LIFE_LIMIT_S,
    expiry_tags,
    first_expiry_us,
    life_limit_s,
    renewal_us,
    renewed_late,
)
from spotd.planner.core.node_bootstrap import agent_config
from spotd.planner.planner import decide
from tests.spotd.planner import build
from tests.spotd.planner.build import NOW

HOUR = 3600 * S
DAY = Timing(unattended_s=86_400.0)


class Cloud:
    """What a provider says about its machines."""

    watcher = "aws"
    limits_life = True
    power_off = ("off",)
    prepared_file = ""


def test_a_machine_is_asked_for_with_its_whole_time() -> None:
    market = build.market(timing=Timing(unattended_s=10.5))
    plan = decide(build.view(), market, NOW + 1)
    [node] = [change.node for change in plan.changes if isinstance(change, AddNode)]
    assert node.lease.expires_at_us == NOW + 11 * S, "in whole seconds, as a tag is"
    assert expiry_tags(node) == {"spotd-expires": str(NOW // S + 11), "spotd-unattended-s": "10"}
    assert life_limit_s(node) == LIFE_LIMIT_S
    assert expiry_tags(changed(node, expires_at_us=0)) == {}


def test_a_machine_is_renewed_as_soon_as_it_is_known() -> None:
    launched = build.node(NodeState.LAUNCHING, instance_id="i-1", expires_at_us=NOW + HOUR)
    assert renewal_us(launched, DAY, NOW) == NOW + 24 * HOUR


@pytest.mark.parametrize(
    ("state", "left_us", "due"),
    [
        (NodeState.RUNNING, 24 * HOUR, False),
        (NodeState.RUNNING, 23 * HOUR, False),
        (NodeState.RUNNING, 23 * HOUR - 1, True),
        (NodeState.RUNNING, -HOUR, True),
        (NodeState.BOOTING, HOUR, True),
        (NodeState.DRAINING, HOUR, True),
        (NodeState.LAUNCHING, HOUR, False),  # there is no machine yet that we know of
        (NodeState.TERMINATING, HOUR, False),
        (NodeState.GONE, HOUR, False),
    ],
)
def test_what_is_renewed(state: NodeState, left_us: int, due: bool) -> None:
    """Every hour, as long as somebody wants it."""
    node = build.node(state, expires_at_us=NOW - 99 * HOUR, renewed_until_us=NOW + left_us)
    until_us = renewal_us(node, DAY, NOW)
    assert until_us == (first_expiry_us(DAY, NOW) if due else 0)


def test_a_machine_without_a_tag_gets_one() -> None:
    assert renewal_us(build.node(NodeState.RUNNING), DAY, NOW) == NOW + 24 * HOUR


def test_a_longer_time_is_told_at_once_and_a_shorter_one_when_it_is_due() -> None:
    node = build.node(NodeState.RUNNING, expires_at_us=NOW + 24 * HOUR)
    assert renewal_us(node, Timing(unattended_s=2 * 86_400.0), NOW)
    assert not renewal_us(node, Timing(unattended_s=86_400.0 / 2), NOW)


@pytest.mark.parametrize(("left_h", "late"), [(23, False), (13, False), (12, False), (11, True)])
def test_when_a_person_has_to_know(left_h: int, late: bool) -> None:
    node = build.node(NodeState.RUNNING, expires_at_us=NOW + left_h * HOUR)
    assert renewed_late(node, DAY, NOW) is late


@pytest.mark.parametrize(
    ("hours", "limit_s"), [(1, LIFE_LIMIT_S), (84, LIFE_LIMIT_S), (720, 2 * (720 * 3600 - 1))]
)
def test_a_limit_that_cannot_be_moved_is_twice_those_that_can_and_a_week_at_least(
    hours: int, limit_s: int
) -> None:
    asked_us = NOW + 1  # a cloud's limit is in whole seconds
    node = build.node(
        NodeState.LAUNCHING, requested_at_us=asked_us, expires_at_us=NOW + hours * HOUR
    )
    assert life_limit_s(node) == limit_s


def test_what_an_agent_is_told_of_its_time() -> None:
    """As its tag says, whenever it is started; the cloud's own limit only where there is one."""
    node = build.node(NodeState.BOOTING, requested_at_us=NOW - HOUR, expires_at_us=NOW + 23 * HOUR)
    cloud = Cloud()
    config = agent_config("d", build.job(), node, cloud, NOW)  # type: ignore[arg-type]
    assert (config.unattended_s, config.left_s) == (86_400, 23 * 3600)
    assert (config.life_s, config.power_off) == (LIFE_LIMIT_S - 3600, ("off",))
    cloud.limits_life = False
    renewed = changed(node, renewed_until_us=NOW + 24 * HOUR)
    config = agent_config("d", build.job(), renewed, cloud, NOW)  # type: ignore[arg-type]
    assert (config.left_s, config.life_s) == (24 * 3600, 0)
    older = changed(node, expires_at_us=0, renewed_until_us=NOW + HOUR)
    config = agent_config("d", build.job(), older, Cloud(), NOW)  # type: ignore[arg-type]
    timeless = (config.unattended_s, config.left_s, config.life_s)
    assert timeless == (0, 0, 0), "asked for before there were expiries"


def test_an_agent_whose_time_is_over_is_told_that_nothing_is_left() -> None:
    """A limit of its cloud is there all the same: 0 would be none."""
    week_us = LIFE_LIMIT_S * S
    late = build.node(
        NodeState.BOOTING, requested_at_us=NOW - week_us, expires_at_us=NOW - week_us + 24 * HOUR
    )
    config = agent_config("d", build.job(), late, Cloud(), NOW)  # type: ignore[arg-type]
    assert (config.unattended_s, config.left_s, config.life_s) == (86_400, 0, 1)
