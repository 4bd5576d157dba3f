"""Machines that are held can be seen, and a person can release them."""

from __future__ import annotations

from spotd.decide.sweeping import Fate
from spotd.serve.call import Call
from spotd.serve.orphans import end_orphans, list_orphans
from tests.spotd.serve.rig import Rig


def test_they_are_listed_with_what_they_cost(rig: Rig) -> None:
    rig.hold("i-1", 60, "job jold is not on record")
    rig.hold("i-2", 60, "its tag says that it belongs to d1", Fate.FOREIGN)
    ours, foreign = list_orphans(Call(rig.backing()))["items"]
    assert (ours["instance"], ours["ours"], ours["price_usd_per_h"]) == ("i-1", True, 19.93)
    assert (ours["job"], ours["generation"]) == ("jold", "3")
    assert (foreign["instance"], foreign["ours"]) == ("i-2", False)


def test_they_are_released_by_a_person_whose_name_is_kept(rig: Rig) -> None:
    rig.hold("i-1", 60, "job jold is not on record")
    rig.hold("i-2", 60, "its tag says that it belongs to d1", Fate.FOREIGN)
    call = Call(rig.backing(), actor="ada")
    assert end_orphans(call)["items"] == ["i-1"]
    assert rig.store.orphans_released_us("aws") == call.now_us
    [event] = [r.event for r in rig.store.events(None) if r.event.kind == "orphans_released"]
    assert event.text.startswith("ada released 1 held machine")
    assert event.data["instances"] == ["i-1"]


def test_nothing_is_released_where_nobody_could_look(rig: Rig) -> None:
    """Another box sweeps that cloud, or it was away: what is held there was not in the list."""
    rig.hold("i-1", 60, "job jold is not on record")
    rig.unswept = ["gcp"]
    call = Call(rig.backing(), actor="ada")
    assert list_orphans(call)["unswept"] == ["gcp"]
    end_orphans(call)
    assert rig.store.orphans_released_us("gcp") == 0
    rig.held = []
    later = Call(rig.backing(), actor="ada")
    assert end_orphans(later)["count"] == 0
    assert rig.store.orphans_released_us("aws") == call.now_us
