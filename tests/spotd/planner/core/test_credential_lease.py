"""Which way machines get at a store, and when what they were lent is renewed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.planner.core.credential_lease import (
    AccessMethod,
    StoreAccess,
    left_h,
    lent_late,
    renew_us,
    unattended_s,
    way_to,
)
from tests.spotd.planner import build
from tests.spotd.planner.build import NOW

HOUR = 3600 * S
DAY_S = 86_400.0
BUCKET = StoreAccess("s3://b", "aws", roles=frozenset({"aws", "gcp"}))


@pytest.mark.parametrize(
    ("store", "cloud", "way"),
    [
        (StoreAccess("file:///x"), "aws", AccessMethod.FOLDER),
        (BUCKET, "aws", AccessMethod.ROLE),
        (BUCKET, "gcp", AccessMethod.NONE),
        (replace(BUCKET, roles=frozenset({"gcp"})), "aws", AccessMethod.NONE),
        (replace(BUCKET, keys=True), "aws", AccessMethod.KEYS),
        (replace(BUCKET, keys=True), "gcp", AccessMethod.KEYS),
        (replace(BUCKET, lends="others"), "aws", AccessMethod.ROLE),
        (replace(BUCKET, lends="others"), "gcp", AccessMethod.LENT),
        (replace(BUCKET, lends="others", keys=True), "gcp", AccessMethod.LENT),
        (replace(BUCKET, lends="others", keys=True), "aws", AccessMethod.KEYS),
        (replace(BUCKET, lends="all", keys=True), "aws", AccessMethod.LENT),
        (replace(BUCKET, lends="all"), "azure", AccessMethod.LENT),
        (replace(BUCKET, proves=frozenset({"gcp"})), "gcp", AccessMethod.PROOF),
        (
            replace(BUCKET, proves=frozenset({"gcp"}), lends="others", keys=True),
            "gcp",
            AccessMethod.PROOF,
        ),
        (replace(BUCKET, proves=frozenset({"gcp"}), lends="others"), "azure", AccessMethod.LENT),
        (replace(BUCKET, proves=frozenset({"gcp"}), lends="all"), "gcp", AccessMethod.LENT),
        (replace(BUCKET, proves=frozenset({"gcp"})), "azure", AccessMethod.NONE),
        (replace(BUCKET, cloud="", roles=frozenset({""})), "", AccessMethod.ROLE),
    ],
)
def test_the_way(store: StoreAccess, cloud: str, way: AccessMethod) -> None:
    assert way_to(store, cloud) is way


@pytest.mark.parametrize(
    ("way", "lasts_s", "alone_s"),
    [
        (AccessMethod.LENT, 3600.0, 2400.0),
        (AccessMethod.LENT, 129_600.0, 86_400.0),
        (AccessMethod.LENT, 604_800.0, DAY_S),
        (AccessMethod.ROLE, 0.0, DAY_S),
        (AccessMethod.KEYS, 0.0, DAY_S),
        (AccessMethod.PROOF, 0.0, DAY_S),
        (AccessMethod.FOLDER, 0.0, DAY_S),
        (AccessMethod.NONE, 3600.0, 0.0),
    ],
)
def test_how_long_a_machine_saves_alone(way: AccessMethod, lasts_s: float, alone_s: float) -> None:
    assert unattended_s(way, lasts_s, DAY_S) == pytest.approx(alone_s)


def test_a_loan_is_renewed_at_a_third_and_late_at_half() -> None:
    node = build.node(NodeState.RUNNING, lent_at_us=NOW, lent_until_us=NOW + 12 * HOUR)
    assert renew_us(node) == NOW + 4 * HOUR
    assert not lent_late(node, NOW + 6 * HOUR - 1)
    assert lent_late(node, NOW + 6 * HOUR)
    assert left_h(node, NOW + 3 * HOUR) == 9.0
    assert left_h(node, NOW + 13 * HOUR) == 0.0


@pytest.mark.parametrize("state", list(NodeState))
def test_only_who_uses_it_has_it_renewed(state: NodeState) -> None:
    node = build.node(state, lent_at_us=NOW, lent_until_us=NOW + HOUR)
    uses = state in {NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING}
    assert bool(renew_us(node)) is uses
    assert lent_late(node, NOW + HOUR) is uses
    for over in ({"exit_code": 0}, {"setup_failed": True}, {"released_at_us": 1}):
        assert renew_us(changed(node, **over)) == 0  # type: ignore[arg-type]
    assert renew_us(changed(node, lent_at_us=0, lent_until_us=0)) == 0
    assert not lent_late(changed(node, lent_at_us=0, lent_until_us=0), NOW + HOUR)
