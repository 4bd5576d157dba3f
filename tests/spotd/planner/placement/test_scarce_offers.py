"""Whose turn it is at offers that were out: who asks, who waits for whom, and for how long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import Offer, Scope
from spotd.domain.fast_replace import changed
from spotd.domain.job import JobSpec
from spotd.domain.market import Market, Refusal, WaitingRequest
from spotd.domain.queue import Limits, QueueEntry
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.placement.rank import TURN, RankedOffer
from spotd.planner.placement.scarce_offers import (
    AGAIN_MOST_US,
    AGAIN_US,
    ANSWERS_US,
    LOOKS_US,
    PATIENCE_US,
    patient,
)
from tests.spotd.planner.build import JOB, NOW, hello, market, offer, settle, spec, view

OUT = offer("aws-1a", 10.0)  # was refused, and is back
DEAR = offer("gcp-1a", 60.0)
BACK_US = NOW - S
MINE = spec(priority=100)


def refused(
    of: Offer = OUT, ago_s: float = 61.0, by: str = "x-g1-c0-r0", code: str = ""
) -> Refusal:
    return Refusal(of.key, Scope.OFFER, code or "CapacityError", NOW - int(ago_s * S), by)


def asker(name: str, priority: int = 900, at_us: int = BACK_US, **fields: Any) -> WaitingRequest:
    """It waits since long ago, and is to ask since a second ago."""
    keys = fields.pop("keys", ())
    of: JobSpec = fields.pop("of", spec(priority=priority))
    turn = QueueEntry(name, name, of.resources.num_nodes, 0, priority, created_at_us=5)
    return WaitingRequest(replace(turn, **fields), of, at_us, frozenset(keys))


def sold(*askers: WaitingRequest, **fields: Any) -> Market:
    base = {"offers": (OUT,), "refusals": (refused(),), "requests": askers}
    return market(**(base | fields))


def waits(of: JobSpec = MINE, **fields: Any) -> View:
    base = {"waiting_since_us": NOW - 900 * S, "waiting_told_us": NOW - S, "offers_at_us": BACK_US}
    return view(job={"spec": of} | base | fields)


def asked(market_: Market, before: View | None = None) -> list[str]:
    """What it asks for now."""
    after, _ = settle(before or waits(), market_)
    return [node.offer.zone for node in after.nodes if node.id not in _ids(before)]


def _ids(before: View | None) -> set[str]:
    return {node.id for node in before.nodes} if before else set()


@pytest.mark.parametrize(
    "other",
    [
        asker("hi"),
        asker("hi", at_us=NOW - LOOKS_US + 1),
        asker("hi", at_us=NOW),
        asker("hi", at_us=NOW - ANSWERS_US + 1, keys=(OUT.key,)),
        asker("hi", 100),
    ],
    ids=[
        "a higher one",
        "that is late",
        "that is just due",
        "that has asked",
        "an older one, as it waits longer",
    ],
)
def test_who_is_behind_leaves_it_to_those_ahead(other: WaitingRequest) -> None:
    after, plan = settle(waits(), sold(other))
    assert not after.nodes
    assert after.job.queue.offers_at_us == NOW, "it is the next, and ready"
    assert plan.wake_at_us == NOW + AGAIN_US
    does = "requests it now" if other.keys else "requests first"
    assert f"hi (priority {other.turn.priority}) {does}, ahead by " in plan.reason


def test_who_has_just_come_is_behind_those_who_wait() -> None:
    """Whatever their projects used."""
    after, plan = settle(waits(), sold(asker("hi", 100, used_microusd=(5, 5), created_at_us=NOW)))
    assert not after.nodes
    assert "hi (priority 100) requests first, ahead by the time that it has waited" in plan.reason


def test_what_did_not_boot_is_scarce_as_well() -> None:
    slow = refused(ago_s=4000.0, code="BootTimeout")
    assert asked(sold(asker("hi"), refusals=(slow,))) == []


def test_a_single_machine_that_was_refused_for_want_of_room_keeps_its_turn() -> None:
    assert asked(sold(asker("hi"), refusals=(refused(by="hi-g1-c0-r0"),))) == []


@pytest.mark.parametrize(
    ("codes", "known"),
    [([], False), (["", TURN], False), ([TURN, ""], True), (["CapacityError", TURN], True)],
    ids=["nothing fits", "the best is free", "the best is another's", "the best of what is back"],
)
def test_patience_is_for_what_is_liked_best(codes: list[str], *, known: bool) -> None:
    rows = [RankedOffer(OUT, 1, excluded=code, code=code) for code in codes]
    assert patient(waits(waiting_since_us=NOW).job, NOW, rows) is known


@pytest.mark.parametrize(
    "other",
    [
        asker("lo", 99),
        asker("hi", at_us=NOW + 1),
        asker("hi", at_us=NOW - LOOKS_US),
        asker("hi", at_us=NOW - ANSWERS_US, keys=(OUT.key,)),
        asker("hi", keys=(DEAR.key,)),
        asker("hi", of=spec(priority=900, max_hourly_microusd=9_000_000)),
        asker("hi", of=spec(priority=900, alternatives=())),
        asker(JOB),
    ],
    ids=[
        "a lower one",
        "one that waits for what is out",
        "one that nobody decides about",
        "one that has no answer",
        "one that asked for another",
        "one that may not pay it",
        "one that it does not fit",
        "itself",
    ],
)
def test_nothing_is_kept_for_who_could_not_take_it_now(other: WaitingRequest) -> None:
    assert asked(sold(other)) == ["aws-1a"]


def test_what_was_never_refused_is_nobodys() -> None:
    assert asked(sold(asker("hi"), refusals=(refused(DEAR),))) == ["aws-1a"]
    assert asked(sold(asker("hi"), refusals=(refused(ago_s=61.0 + 3600),))) == ["aws-1a"]
    assert asked(sold(asker("hi"), refusals=(refused(ago_s=60.0 + 3600),))) == ["aws-1a"]
    assert asked(sold(asker("hi"), refusals=(refused(ago_s=59.0 + 3600),))) == []


def test_a_turn_is_kept_while_nobody_could_decide() -> None:
    """A daemon that was away for an hour comes back: it is still the first one's turn."""
    late = asker("hi", at_us=NOW - 1800 * S)
    assert asked(sold(late)) == ["aws-1a"]
    for since in ("started_at_us", "listening_since_us"):
        assert asked(sold(late, **{since: NOW - LOOKS_US + 1})) == []
        assert asked(sold(late, **{since: NOW - LOOKS_US})) == ["aws-1a"]


def test_of_equals_in_line_it_goes_by_fair_share_then_age() -> None:
    mine = asker(JOB, 500, used_microusd=(2, 0), created_at_us=7)
    less = asker("a", 500, used_microusd=(1, 9), created_at_us=9)
    assert asked(sold(mine, less), waits(spec())) == []
    assert asked(
        sold(mine, replace(less, turn=replace(less.turn, used_microusd=(3, 0)))), waits(spec())
    ) == ["aws-1a"]
    for age, first in ((6, []), (8, ["aws-1a"])):
        same = asker("a", 500, used_microusd=(2, 0), created_at_us=age)
        assert asked(sold(mine, same), waits(spec())) == first


def test_a_gang_that_was_refused_lets_a_smaller_one_try() -> None:
    """Less came back than it needs; and who is smaller is not in its way without an end either."""
    gang = asker("hi", of=spec(priority=900, num_nodes=4))
    assert asked(sold(gang)) == []
    by_it = sold(gang, refusals=(refused(by="hi-g3-c0-r2"),))
    assert asked(by_it) == ["aws-1a"]
    before = sold(gang, refusals=(refused(ago_s=194.0, by="hi-g3-c0-r2"), refused(ago_s=125.0)))
    alone = changed(before, requests=())
    assert asked(alone) == ["aws-1a"], "it is back"
    assert asked(before) == [], "others were refused since then: it may try again"
    for ago_s, may in ((185.0, []), (184.9, ["aws-1a"])):
        last = sold(gang, refusals=(refused(ago_s=ago_s, by="hi-g3-c0-r2"), refused(ago_s=125.0)))
        assert asked(last) == may, "within a minute they were refused together"
    pair = asker("hi", of=spec(priority=900, num_nodes=2))
    assert asked(sold(pair, refusals=(refused(by="hi-g3-c0-r1"),))) == ["aws-1a"]
    mine = waits(spec(priority=900, num_nodes=4))
    own = sold(
        asker("lo", 100), asker(JOB, of=mine.job.spec), refusals=(refused(by=f"{JOB}-g1-c0-r1"),)
    )
    after, plan = settle(mine, own)
    assert not after.nodes
    assert "ahead by this one's last try there" in plan.reason
    assert asked(changed(own, requests=own.queue.requests[1:]), mine) == ["aws-1a"] * 4


def test_who_was_refused_for_its_price_lets_others_try() -> None:
    price = refused(ago_s=301.0, by="hi-g1-c0-r0", code="PriceError")
    assert asked(sold(asker("hi"), refusals=(price,))) == ["aws-1a"]
    assert asked(sold(asker("hi"), refusals=(replace(price, node_id="y-g1-c0-r0"),))) == []


def test_a_job_takes_the_next_best_only_after_it_was_patient() -> None:
    both = sold(
        asker("hi", of=spec(priority=900, max_hourly_microusd=20_000_000)), offers=(OUT, DEAR)
    )
    fresh = waits(waiting_since_us=0, offers_at_us=0)
    after, plan = settle(fresh, both)
    assert (after.nodes, after.job.queue.offers_at_us) == ((), NOW)
    assert "hi (priority 900) requests first, ahead by priority (this one has 100)" in plan.reason
    assert asked(both, waits(waiting_since_us=NOW - PATIENCE_US + 1)) == []
    assert asked(both, waits(waiting_since_us=NOW - PATIENCE_US)) == ["gcp-1a"]


def test_what_it_likes_better_and_is_free_is_not_waited_with() -> None:
    cheap = offer("azure-1a", 5.0)
    assert asked(sold(asker("hi"), offers=(OUT, cheap))) == ["azure-1a"]


def test_who_is_far_behind_looks_more_seldom() -> None:
    for ahead, pause_us in ((3, 3 * AGAIN_US), (40, AGAIN_MOST_US)):
        _, plan = settle(waits(), sold(*(asker(f"hi{n}") for n in range(ahead))))
        assert plan.wake_at_us == NOW + pause_us


def test_why_names_who_is_ahead_before_anything_is_back() -> None:
    out = (refused(ago_s=10.0), refused(DEAR, ago_s=5.0))
    others = (asker("hi", at_us=NOW + 50 * S), asker("mid", 400, at_us=NOW + 50 * S))
    after, plan = settle(waits(), sold(*others, offers=(OUT, DEAR), refusals=out))
    assert after.job.queue.offers_at_us == NOW + 50 * S, "when the first is back"
    told = (
        f"ahead of it for {OUT.key}: hi (priority 900), by priority (this one has 100) and 1 more"
    )
    assert told in plan.reasons
    off = {"offers": (OUT, DEAR, offer("azure-1a", 5.0)), "disabled": {"azure": "off"}}
    _, plan = settle(waits(), sold(others[0], refusals=out, **off))
    assert told.removesuffix(" and 1 more") in plan.reasons, "not of what never comes back"


def test_who_has_a_machine_on_its_way_or_no_room_stands_in_no_line() -> None:
    none = sold(refusals=(refused(ago_s=10.0),))
    two = spec(candidates=2)
    coming = view(hello(), job={"spec": two, "offers_at_us": NOW - S})
    assert settle(coming, none)[0].job.queue.offers_at_us == 0
    full = changed(none, blocked="limits.max_nodes is 1", limits=Limits(1))
    assert settle(waits(), full)[0].job.queue.offers_at_us == 0
    assert settle(waits(place_after_us=NOW + S), none)[0].job.queue.offers_at_us == 0
    assert settle(waits(), sold())[0].job.queue.offers_at_us == 0, "it has asked"
    assert settle(waits(), none)[0].job.queue.offers_at_us == NOW + 50 * S


def test_for_ever_nobody_waits_where_all_are_ready() -> None:
    """Of any number in line for any offers, one may ask at each; so does the line end."""
    names = [f"j{n}" for n in range(6)]
    offers = (OUT, offer("gcp-1a", 11.0))
    spoiled = tuple(refused(o, by=f"{names[n]}-g1-c0-r0") for n, o in enumerate(offers * 3))
    specs = {n: spec(num_nodes=1 + i % 3, priority=100 * (i % 2)) for i, n in enumerate(names)}
    left = dict(specs)
    while left:
        line = [
            asker(n, of.queue.priority, of=of, created_at_us=int(n[1])) for n, of in left.items()
        ]
        now = sold(*line, offers=offers, refusals=spoiled)
        may = []
        for name, of in left.items():
            before = view(
                job={
                    "spec": of,
                    "id": name,
                    "name": name,
                    "offers_at_us": BACK_US,
                    "waiting_since_us": NOW - PATIENCE_US,
                }
            )
            if settle(before, now)[0].nodes:
                may.append(name)
        assert may, left
        left = {n: of for n, of in left.items() if n not in may}
