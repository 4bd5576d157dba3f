"""Machines that are held can be seen, and a person can release them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.api.doctor.health import doctor
from spotd.api.request.request import ApiError, ApiRequest
from spotd.api.routes.orphans import check_held, end_orphans, list_orphans
from spotd.base.errors import UserError
from spotd.planner.core.orphan_policy import OrphanAction, leftovers_of
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import Rig


def test_they_are_listed_with_what_they_cost(rig: Rig) -> None:
    rig.hold("i-1", 60, "job jold is not on record")
    rig.hold("i-2", 60, "its tag says that it belongs to d1", OrphanAction.FOREIGN)
    ours, foreign = list_orphans(ApiRequest(rig.context()))["items"]
    assert (ours["id"], ours["ours"], ours["price_usd_per_h"]) == ("i-1", True, 19.93)
    assert (ours["job"], ours["generation"]) == ("jold", "3")
    assert (foreign["id"], foreign["ours"]) == ("i-2", False)


def test_what_ours_cost_together_is_named(rig: Rig) -> None:
    """It is in no bill: there is no job that wanted them."""
    assert check_held([], [], rig.context().market(0)) == []
    rig.hold("i-1", 60, "job jold is not on record")
    rig.hold("i-2", 60, "its tag says that it belongs to d1", OrphanAction.FOREIGN)
    rig.hold("i-3", 60, "job jold is not on record")
    rig.hold("i-4", 60, "job jold is not on record")
    rig.held[3] = replace(rig.held[3], provider="gone")
    data = list_orphans(ApiRequest(rig.context()))
    assert (data["usd_per_h"], data["unpriced"]) == (39.86, 1)
    [check] = [
        c for c in doctor(ApiRequest(rig.context()))["checks"] if c["name"] == "held machines"
    ]
    assert not check["ok"]
    text = "i-1, i-3, i-4: $39.86/h and 1 of unknown price, in no job's bill"
    assert (check["text"], "spotctl orphans" in check["try"]) == (text, True)


def test_they_are_released_by_a_person_whose_name_is_kept(rig: Rig) -> None:
    rig.hold("i-1", 60, "job jold is not on record")
    rig.hold("i-2", 60, "its tag says that it belongs to d1", OrphanAction.FOREIGN)
    call = ApiRequest(rig.context(), actor="ada")
    assert end_orphans(call)["items"] == ["i-1"]
    assert rig.store.orphans.released_us("aws") == call.now_us
    [event] = [r.event for r in rig.store.events.rows(None) if r.event.kind == "orphans_released"]
    assert event.text.startswith("ada released held resources: machines 1, leftovers 0")
    assert event.data["ids"] == ["i-1"]


def test_what_machines_left_is_listed_and_released_by_itself(rig: Rig) -> None:
    """The machines of that cloud may be swept by another box: nobody here has seen them."""
    rig.hold_disk("vol-1", 60, "job jold is not on record")
    rig.hold_disk("vol-2", 60, "its tag says that it belongs to d1", OrphanAction.FOREIGN)
    call = ApiRequest(rig.context(), actor="ada")
    data = list_orphans(call)
    ours, foreign = data["items"]
    assert (ours["what"], ours["id"], ours["ours"], ours["job"]) == ("disk", "vol-1", True, "jold")
    assert (foreign["id"], foreign["ours"]) == ("vol-2", False)
    assert (data["usd_per_h"], data["unpriced"]) == (0.0, 0)
    [check] = [c for c in doctor(call)["checks"] if c["name"] == "held leftovers"]
    assert (check["ok"], check["text"].split(":")[0]) == (False, "vol-1")
    assert end_orphans(call)["items"] == ["vol-1"]
    assert rig.store.orphans.released_us(leftovers_of("aws")) == call.now_us
    assert rig.store.orphans.released_us("aws") == 0
    [event] = [r.event for r in rig.store.events.rows(None) if r.event.kind == "orphans_released"]
    assert event.text.startswith("ada released held resources: machines 0, leftovers 1")


def test_no_more_is_released_than_was_seen(rig: Rig) -> None:
    """Between the list and the order to end what is in it, a sweep held another fleet."""
    rig.hold("i-1", 60, "job jold is not on record")
    rig.hold("i-2", 60, "job jold is not on record")
    with pytest.raises(ApiError, match="1 more are held now than you confirmed: i-2") as refused:
        end_orphans(ApiRequest(rig.context(), body={"ids": ["i-1"]}))
    assert refused.value.status == 409
    assert rig.store.orphans.released_us("aws") == 0
    assert end_orphans(ApiRequest(rig.context(), body={"ids": ["i-2", "i-1", "i-0"]}))["count"] == 2
    with pytest.raises(ApiError, match="ids must be a list"):
        end_orphans(ApiRequest(rig.context(), body={"ids": "i-1"}))


def test_nothing_is_released_in_quarantine(rig: Rig) -> None:
    """It would not be ended, and go without a look when the quarantine is over."""
    rig.hold("i-1", 60, "the database is in quarantine: restored")
    rig.store.deployment.set_quarantine("restored", 1)
    with pytest.raises(ApiError, match="in quarantine: restored") as refused:
        end_orphans(ApiRequest(rig.context()))
    assert "spotctl quarantine release" in refused.value.try_
    assert rig.store.orphans.released_us("aws") == 0


def test_nothing_is_released_where_nobody_could_look(rig: Rig) -> None:
    """Another box sweeps that cloud, or it was away: what is held there was not in the list."""
    rig.hold("i-1", 60, "job jold is not on record")
    rig.unlisted_providers = ["gcp"]
    call = ApiRequest(rig.context(), actor="ada")
    assert list_orphans(call)["unswept"] == ["gcp"]
    end_orphans(call)
    assert rig.store.orphans.released_us("gcp") == 0
    rig.held = []
    later = ApiRequest(rig.context(), actor="ada")
    assert end_orphans(later)["count"] == 0
    assert rig.store.orphans.released_us("aws") == call.now_us


def test_what_a_request_says_and_nobody_reads_is_refused(client: PathClient) -> None:
    """It might be what was to hold the request back."""
    with pytest.raises(UserError, match="field 'instances'") as caught:
        client.post("/v1/orphans/end", {"instances": ["i-1"]})
    assert "ids" in caught.value.try_
