"""The doctor says of each cloud and each store how long machines save without the box."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from providers.cloud_facts import StoreFacts
from providers.clouds import STORES
from spotd.api.doctor.credential_check import check_store_reach
from spotd.api.request.request import Check
from spotd.planner.core.credential_lease import AccessMethod, StoreReach

DAY_S = 86_400.0
LENT = StoreReach("gcp", "gcp", "s3://b", "aws", AccessMethod.LENT, DAY_S, lasts_s=43_200.0)


def checked(reach: StoreReach) -> Check:
    [check] = check_store_reach([reach])
    return check


def test_what_is_lent_lasts_two_thirds_of_its_time() -> None:
    check = checked(LENT)
    assert (check.name, check.ok) == ("unattended gcp", True)
    assert check.text == (
        "s3://b: saves for 8 h without spotd (credentials of the job's folder alone, lent by spotd "
        "for 12 h); limits.unattended_h is 24"
    )


def test_what_lasts_for_ever_is_bound_by_the_limit_alone() -> None:
    for way in (AccessMethod.ROLE, AccessMethod.KEYS, AccessMethod.PROOF):
        check = checked(replace(LENT, way=way, lasts_s=0.0))
        assert check.ok
        assert check.text == (
            f"s3://b: saves for 24 h without spotd ({way.value}); each of them reaches the folders "
            "of all jobs"
        )
    week = checked(replace(LENT, lasts_s=7 * DAY_S))
    assert week.text.endswith(
        "saves for 24 h without spotd (" + AccessMethod.LENT.value + " for 168 h)"
    )


def test_a_role_that_opens_more_than_what_is_lent_is_told() -> None:
    """Of its own cloud, lent to all: without a role it has its job's folder alone."""
    own = replace(LENT, cloud="aws")
    assert "all jobs" not in checked(own).text
    assert "by node_role each of them reaches the folders of all jobs all the same" in (
        checked(replace(own, roled=True)).text
    )


def test_what_cannot_be_lent_is_a_problem() -> None:
    check = checked(replace(LENT, error="AuthError: not authorized", lasts_s=0.0))
    assert not check.ok
    assert check.text == "s3://b: AuthError: not authorized"
    assert "[stores]" in check.try_


@pytest.mark.parametrize(
    ("cloud", "key"),
    [("aws", "node_role"), ("gcp", "node_service_account"), ("azure", "node_identity")],
)
def test_machines_without_a_right_are_a_problem_with_its_fix(cloud: str, key: str) -> None:
    own = StoreReach("mine", cloud, "x://b", cloud, AccessMethod.NONE, DAY_S)
    assert not checked(own).ok
    assert checked(own).try_ == (
        f"set {key} in [providers.mine], or add [stores.NAME.lend] for x://b to config.toml, or "
        "keys to its options"
    )
    other = replace(own, store_cloud="gcp" if cloud == "aws" else "aws")
    assert checked(other).try_ == (
        "add [stores.NAME.lend] for x://b to config.toml, or keys to its options; or, for as long "
        "as the box is away, [stores.NAME.federate]"
    )
    nobodys = replace(own, store_cloud="")
    assert "federate" not in checked(nobodys).try_, "a server of one's own believes no cloud"


def test_a_cloud_that_the_stores_cloud_cannot_trust_is_not_told_to_federate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reach = StoreReach("mine", "gcp", "s3://b", "aws", AccessMethod.NONE, DAY_S)
    assert "federate" in checked(reach).try_
    monkeypatch.setitem(cast("dict[str, StoreFacts]", STORES), "aws", _trusting("azure"))
    assert "federate" not in checked(reach).try_
    assert "[stores.NAME.lend]" in checked(reach).try_


def _trusting(cloud: str) -> StoreFacts:
    store = STORES["aws"]
    return replace(store, trusts={cloud: store.trusts[cloud]})
