"""What takes too long is told: when it is overdue, again later, and never with every look."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import Scope
from spotd.domain.events import Event, Severity
from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired
from spotd.domain.market import Market, Refusal, Timing
from spotd.domain.plan import Plan
from spotd.domain.queue import Limits
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.offers.cooldowns import NOT_LENT, OUTBID, OWN_IMAGE
from spotd.planner.offers.price_sanity import DOUBTED
from spotd.planner.placement.rank import RankedOffer
from spotd.planner.rules.stale_alerts import STAYS_AGAIN_S, STAYS_S, WAITS_AGAIN_S, advise
from tests.spotd.planner.build import (
    NOW,
    OFFERS,
    head,
    market,
    node,
    notice,
    offer,
    settle,
    spec,
    view,
)

WAITS_S = Timing.waits_s


def told(plan: Plan, kind: str) -> list[Event]:
    return [event for event in plan.events if event.kind == kind]


def live(before: View, kind: str, end_s: float, market_: Market | None = None) -> list[int]:
    """Decide whenever the plan says so, and each 20 s; the seconds at which `kind` was told."""
    found, now_s = [], 0.0
    while now_s < end_s:
        before, plan = settle(before, market_, NOW + int(now_s * S))
        again, twice = settle(before, market_, NOW + int(now_s * S))
        assert not told(twice, kind), "once"
        assert again.job.alerts.waiting_told_us == before.job.alerts.waiting_told_us
        found += [int(now_s)] * len(told(plan, kind))
        wake_s = (plan.wake_at_us - NOW) / S if plan.wake_at_us else end_s
        now_s = min(max(wake_s, now_s + 1e-6), now_s + 20)
    return found


def refused(code: str) -> Market:
    """Every offer is out for it, for ever."""
    refusals = (Refusal(OFFERS[0].key, Scope.PROVIDER, code, NOW + 10**9 * S),)
    return market(offers=OFFERS[:2], refusals=refusals)


def test_a_job_that_waits_for_long_is_told_again_and_again_but_not_at_every_look() -> None:
    hours = live(view(), "waits", 8 * 3600, refused("QuotaError"))
    assert hours == [WAITS_S, WAITS_S + WAITS_AGAIN_S]


QUOTA = "ask that cloud for more quota there, or allow other regions"
MORE = (
    "allow more zones, regions or kinds of machines (resources.any_of), or on-demand ones "
    "(use_spot: false)"
)
FIRST = "aws/aws-1/aws-1a/8xh100/spot"
DEAR = "gcp/gcp-1/gcp-1a/8xh100/spot"
MIXED = "all 3 offers that fit are out (2 over quota, 1 above max_hourly_cost)"
COOLING = f"{FIRST}: cooling for 1000000{{}} s more after"


@pytest.mark.parametrize(
    ("market_", "obstacle", "tries"),
    [
        (
            refused("QuotaError"),
            f"all 2 offers that fit are out; {COOLING.format(600)} QuotaError",
            QUOTA,
        ),
        (
            refused("Hung"),
            f"all 2 offers that fit are out; {COOLING.format(600)} Hung",
            "see `spotctl plan`",
        ),
        (
            refused("CapacityError"),
            f"all 2 offers that fit are out; {COOLING.format('060')} CapacityError",
            MORE,
        ),
        (
            replace(refused("QuotaError"), offers=(*OFFERS[:2], offer("gcp-1a", 99.0))),
            f"{MIXED}; {COOLING.format(600)} QuotaError",
            f"{QUOTA}; or raise max_hourly_cost; now: raise max_hourly_cost for {DEAR} at $99.00/h",
        ),
        (
            market(disabled={"aws": "key", "gcp": "key", "azure": "key"}),
            f"all 4 offers that fit are out; {FIRST}: aws cannot be used: key",
            "correct its credentials or its jump host (`spotctl doctor`)",
        ),
        (
            market(offers=(offer(price=99.0),)),
            f"the only offer that fits is out; {FIRST}: $99.00/h is above max_hourly_cost",
            f"raise max_hourly_cost; now: raise max_hourly_cost for {FIRST} at $99.00/h",
        ),
        (
            market(offers=()),
            "no provider offers a machine that fits; see `spotctl plan`",
            "request less in its resources, or configure another cloud",
        ),
        (
            market(blocked="3 of 3 nodes are in use"),
            "3 of 3 nodes are in use",
            "end other jobs, or raise the limits in config.toml",
        ),
    ],
)
def test_what_to_try_is_named(market_: Market, obstacle: str, tries: str) -> None:
    job = {"spec": spec(max_hourly_microusd=50_000_000), "waiting_since_us": NOW - 7200 * S}
    _, plan = settle(view(job=job), market_)
    text = f"train has waited 2.0 h for a machine: {obstacle}; try: {tries}"
    data = {"seconds": 7200.0}
    assert told(plan, "waits") == [
        Event("waits", text, "", Severity.WARNING, alert=True, key="j0:waits", data=data)
    ]


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("NoQuotaError", "for a quota"),
        ("UnpreparedError", "prepare the region"),
        ("PriceError", "max_hourly_cost"),
        (OWN_IMAGE, "image_id"),
        (NOT_LENT, "credentials for its store"),
        (DOUBTED, "a plausible price"),
        ("BootTimeout", "spotctl events"),
        ("Preempted", "more zones"),
    ],
)
def test_there_is_advice_against_what_a_person_can_change(code: str, word: str) -> None:
    assert word in advise([RankedOffer(OFFERS[0], 1, excluded="out", code=code)])


def test_nobody_is_advised_to_go_back_to_what_the_job_left_for_a_better_place() -> None:
    job = {"spec": spec(max_hourly_microusd=50_000_000), "waiting_since_us": NOW - 7200 * S}
    dear = replace(refused("QuotaError"), offers=(OFFERS[0], offer("gcp-1a", 99.0)))
    for whose, advised in (("j0", False), ("j1", True)):
        left = Refusal(DEAR, Scope.OFFER, OUTBID, NOW - S, f"{whose}-g1-c0-r0")
        _, plan = settle(view(job=job), replace(dear, refusals=(*dear.refusals, left)))
        (event,) = told(plan, "waits")
        assert ("; now: " in event.text) is advised


def test_a_wait_is_told_of_on_time_and_looked_at_when_it_is_to_be_told_again() -> None:
    job = {"waiting_since_us": NOW - int(WAITS_S * S)}
    after, plan = settle(view(job=job), refused("QuotaError"))
    (event,) = told(plan, "waits")
    assert event.text.startswith("train has waited 15 min for a machine")
    assert after.job.alerts.waiting_told_us == NOW
    assert plan.wake_at_us == NOW + int(WAITS_AGAIN_S * S)


def test_who_asks_in_vain_waits_all_the_time() -> None:
    """Between two refusals it has a machine for a moment, as far as it knows."""
    before, _ = settle(view(job={"waiting_since_us": NOW - 1000 * S}))
    assert before.nodes, "asked for"
    assert before.job.queue.waiting_since_us == NOW - 1000 * S
    again, _ = settle(before)
    assert again.job.queue.waiting_since_us == NOW - 1000 * S, "a request is not a machine"
    left = replace(before.nodes[0], state=NodeState.TERMINATING, instance_id="i-1")
    after, _ = settle(replace(before, nodes=(left,)), refused("QuotaError"))
    assert after.job.queue.waiting_since_us == NOW - 1000 * S, "nor one that is given back"


@pytest.mark.parametrize("fields", [{"desired": Desired.PAUSE}, {"stop_text": "max_cost"}])
def test_a_wait_ends_with_the_wish(fields: dict[str, Any]) -> None:
    job = {"waiting_since_us": NOW - 9 * S, "waiting_told_us": NOW - S} | fields
    after, _ = settle(view(job=job), refused("QuotaError"))
    assert (after.job.queue.waiting_since_us, after.job.alerts.waiting_told_us) == (0, 0)


def test_a_wait_ends_with_a_machine() -> None:
    launched = node(NodeState.LAUNCHING, instance_id="i-1", launched_at_us=NOW)
    after, _ = settle(view(launched, job={"waiting_since_us": NOW - 9 * S}))
    assert after.job.queue.waiting_since_us == 0


def test_a_machine_that_stays_is_told_with_what_it_costs() -> None:
    left = node(
        NodeState.TERMINATING,
        left_at_us=NOW - 7200 * S,  # it trained on for long after its notice
        terminating_at_us=NOW,
        terminated_at_us=NOW,
        cloud_state="stopping",
    )
    before = view(left, job={"desired": Desired.PAUSE})
    seconds = live(before, "stays", STAYS_S + STAYS_AGAIN_S + 900)
    first, second = seconds
    assert 0 <= first - STAYS_S < 60
    assert 0 <= second - first - STAYS_AGAIN_S < 60


def stays(text: str, seconds: float) -> list[Event]:
    said = f"node g1 in aws/aws-1a {text} in that cloud's own console"
    data = {"seconds": seconds}
    return [
        Event("stays", said, "j0-g1-c0-r0", Severity.ERROR, alert=True, key="j0:stays", data=data)
    ]


@pytest.mark.parametrize(
    ("after_s", "span"), [(900, "15 min"), (7199, "120 min"), (7200, "2.0 h"), (7.2e6, "2000.0 h")]
)
@pytest.mark.parametrize(("error", "why"), [("", ""), ("AuthError: key", " (AuthError: key)")])
def test_which_machine_stays_and_why_is_told(
    after_s: float, span: str, error: str, why: str
) -> None:
    late = node(
        NodeState.TERMINATING,
        left_at_us=NOW,
        terminating_at_us=NOW,
        effect_armed_at_us=NOW,
        effect_error=error,
    )
    _, plan = settle(view(late, job={"desired": Desired.PAUSE}), market(), NOW + int(after_s * S))
    bill = f"it counts as $10.00/h until that is over{why}"
    text = f"should have ended {span} ago, but aws still lists i-1-0-0: {bill}; end it"
    assert told(plan, "stays") == stays(text, after_s)


def test_an_unknown_launch_that_stays_unknown_is_told() -> None:
    lost = node(NodeState.LAUNCHING, requested_at_us=NOW)
    before, _ = settle(view(lost, job={"desired": Desired.CANCEL}))
    _, plan = settle(before, now=NOW + int(STAYS_S * S))
    text = (
        "was given up 15 min ago, and it is not known whether aws created a machine for t-1-0-0: "
        "it counts as $10.00/h until that is over; look for it"
    )
    assert told(plan, "stays") == stays(text, STAYS_S)


def test_who_waits_behind_a_limit_wakes_for_it_as_before() -> None:
    _, plan = settle(view(), market(limits=Limits(1), blocked="1 of 1 nodes are in use"))
    assert plan.wake_at_us == NOW + 15 * S


# --- the next checkpoint

EVERY_S = 300.0
PREEMPTED, GOING = LeaveReason.PREEMPTED, (notice(),)


def training(since_s: float = 0.0, **job: Any) -> View:
    """It came to its first step so long ago, and its agent talks on."""
    first_us = NOW - int(since_s * S)
    one = node(NodeState.RUNNING, first_step_at_us=first_us, heard_at_us=NOW)
    return view(one, job={"first_step_at_us": first_us, **job})


def hear(before: View, now_us: int, step: int = 0) -> View:
    """Its agent is heard; with `step`, it tells of a checkpoint."""
    nodes = tuple(changed(one, heard_at_us=now_us) for one in before.nodes)
    saved = head(step=step, seen_at_us=now_us) if step else before.job.head
    return replace(before, nodes=nodes, job=replace(before.job, head=saved))


def lives(saves_s: list[float], end_s: float) -> list[int]:
    """Seconds at which the user of one is told that saves at these moments, and is looked at each
    20 s and twice."""
    before, found, now_s = training(), [], 0.0
    left = list(saves_s)
    while now_s < end_s:
        now_us = NOW + int(now_s * S)
        step = 100 + int(now_s) if left and left[0] <= now_s else 0
        del left[: 1 if step else 0]
        before, plan = settle(hear(before, now_us, step), None, now_us)
        again, twice = settle(before, None, now_us)
        assert not told(twice, "unsaved"), "once"
        assert again.job == before.job
        found += [int(now_s)] * len(told(plan, "unsaved"))
        now_s += 20.0
    return found


def test_who_saves_in_time_alarms_nobody() -> None:
    assert lives([300.0 * n for n in range(1, 60)], 4 * 3600) == []


@pytest.mark.req("CKP-28", "MON-03")
def test_the_newest_checkpoint_is_told_as_old_once_until_there_is_another() -> None:
    """The store is away for two hours, and again for two."""
    away = [300.0, 600.0, 7800.0, 8100.0, 15_300.0]
    assert lives(away, 5 * 3600) == [1200, 8700, 15_900]


def test_one_that_is_late_each_time_is_told_once_an_hour() -> None:
    """Its steps take longer than its cadence."""
    assert lives([900.0 * n for n in range(1, 12)], 2.5 * 3600) == [600, 4200, 7800]


@pytest.mark.req("CKP-28", "MON-03")
def test_what_it_would_cost_is_told_to_its_routes() -> None:
    saved = head(step=480, seen_at_us=NOW - 700 * S)
    after, plan = settle(training(4000.0, head=saved))
    text = (
        "train has saved nothing for 12 min, but should save every 5 min: if node g1 in "
        "aws/aws-1a ends now, the job goes back to step 480"
    )
    data = {"seconds": 700.0, "step": 480}
    loud: dict[str, Any] = {"severity": Severity.ERROR, "alert": True, "key": "j0:unsaved"}
    assert told(plan, "unsaved") == [Event("unsaved", text, "j0-g1-c0-r0", **loud, data=data)]
    assert after.job.alerts.unsaved_told_us == NOW


def test_a_checkpoint_of_the_machine_before_is_not_its_own() -> None:
    """One that just began to train again had no time to save."""
    old = head(generation=1, seen_at_us=NOW - 9000 * S)
    _, plan = settle(training(30.0, head=old, generation=1))
    assert not told(plan, "unsaved")
    after = training(30.0)
    newer = tuple(replace(one, generation=2) for one in after.nodes)
    _, plan = settle(replace(after, nodes=newer, job=replace(after.job, generation=2, head=old)))
    assert not told(plan, "unsaved")


def test_it_goes_back_to_the_checkpoint_of_the_machine_before_where_it_has_none() -> None:
    late = training(4000.0)
    old = head(generation=1, step=480, seen_at_us=NOW - S)
    newer = tuple(replace(one, generation=2) for one in late.nodes)
    _, plan = settle(replace(late, nodes=newer, job=replace(late.job, generation=2, head=old)))
    [event] = told(plan, "unsaved")
    assert event.text.startswith("train has saved nothing for 67 min")
    assert (event.data["seconds"], event.data["step"]) == (4000.0, 480)
    assert event.text.endswith("the job goes back to step 480")


def test_however_short_the_cadence_a_save_has_a_minute() -> None:
    often = spec(checkpoint=replace(spec().checkpoint, every_s=4.0))
    assert not told(settle(training(50.0, spec=often))[1], "unsaved")
    for since_s, span in ((60.0, "60 s"), (119.4, "119 s"), (120.0, "2 min")):
        [event] = told(settle(training(since_s, spec=often))[1], "unsaved")
        words = f"train has saved nothing for {span}, but should save every 4 s"
        assert event.text.startswith(words)


def test_one_that_chooses_its_own_pauses_is_late_by_what_it_should_choose() -> None:
    """At the 4 h that are thought of its cloud it would save each 2 min: three times that."""
    auto = spec(checkpoint=replace(spec().checkpoint, auto=True, every_s=300.0))
    assert not told(settle(training(719.0, spec=auto))[1], "unsaved")
    [event] = told(settle(training(720.0, spec=auto))[1], "unsaved")
    assert "but should save every 6 min" in event.text


@pytest.mark.parametrize(
    ("node_", "job", "market_"),
    [
        ({"heard_at_us": NOW - 60 * S}, {}, {}),  # it may save, and nobody hears of it
        ({"link_down_at_us": NOW - S}, {}, {}),
        ({}, {}, {"listening_since_us": NOW - 5 * S}),
        ({}, {}, {"reached_since_us": {"aws": NOW - 5 * S}}),
        ({"exit_code": 0, "exited_at_us": NOW}, {}, {}),
        ({"released_at_us": NOW}, {}, {}),
        ({"state": NodeState.DRAINING, "leave_reason": PREEMPTED, "notices": GOING}, {}, {}),
        ({"first_step_at_us": 0}, {}, {}),
        ({"rank": 1}, {}, {}),
        ({}, {"stop_text": "max_duration"}, {}),
        ({}, {"outcome": Outcome.FAILED}, {}),
        ({}, {"spec": spec(checkpoint=replace(spec().checkpoint, engine="none"))}, {}),
        ({}, {"spec": spec(checkpoint=replace(spec().checkpoint, every_s=2001.0))}, {}),
    ],
)
def test_who_cannot_be_late_alarms_nobody(
    node_: dict[str, Any], job: dict[str, Any], market_: dict[str, Any]
) -> None:
    late = training(4000.0)
    assert told(settle(late)[1], "unsaved")
    nodes = tuple(changed(one, **node_) for one in late.nodes)
    other = replace(late, nodes=nodes, job=changed(late.job, **job))
    assert not told(settle(other, market(**market_))[1], "unsaved")


def test_it_is_looked_at_when_the_next_one_is_overdue() -> None:
    saved = head(seen_at_us=NOW - 100 * S)
    _, plan = settle(training(4000.0, head=saved))
    assert plan.wake_at_us <= NOW + int((2 * EVERY_S - 100) * S)
