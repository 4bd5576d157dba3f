"""Lanes: what hangs fills its own, terminates never wait behind creates, surveys are shared."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from spotd.daemon.pool import CLOUD_CALLS, NODE_CALLS, TELL_CALLS, TERMINATE_CALLS, Pool
from spotd.domain.node import EffectKind
from spotd.domain.plan import Effect
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.store import build

K = EffectKind


def effect(kind: EffectKind, zone: str = "aws-1a", number: int = 0) -> Effect:
    node = build.new_node(number=number, offer=build.offer(zone))
    return Effect(kind, node, job=None, deadline_us=0)  # type: ignore[arg-type]


class Calls:
    """Calls that begin and then wait until they may end."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.begun: Counter[tuple[str, EffectKind]] = Counter()
        self.let_go = threading.Event()
        self.pool = Pool(["aws", "gcp"], self._call)

    def _call(self, made: Effect) -> None:
        with self.changed:
            self.begun[made.node.offer.provider, made.kind] += 1
            self.changed.notify_all()
        assert self.let_go.wait(LIMIT_S)

    def until(self, provider: str, kind: EffectKind, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.begun[provider, kind] >= count, LIMIT_S)


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    yield made
    made.let_go.set()
    assert made.pool.close(LIMIT_S)


def test_a_cloud_that_hangs_fills_its_own_lane_alone(calls: Calls) -> None:
    for number in range(CLOUD_CALLS + 3):
        calls.pool.submit(effect(K.LAUNCH, number=number))
    calls.until("aws", K.LAUNCH, CLOUD_CALLS)
    for kind, zone in ((K.TERMINATE, "aws-1a"), (K.BOOT, "aws-1a"), (K.LAUNCH, "gcp-1a")):
        calls.pool.submit(effect(kind, zone))
        calls.until(zone[:3], kind, 1)
    assert calls.begun["aws", K.LAUNCH] == CLOUD_CALLS, "no more than that at once"


@pytest.mark.parametrize("slow", [K.BOOT, K.START, K.READ_HEAD])
def test_a_command_waits_neither_for_packages_nor_for_boots_nor_for_a_store(
    calls: Calls, slow: EffectKind
) -> None:
    """A DRAIN that is late is a machine that ends unsaved."""
    for number in range(40):
        calls.pool.submit(effect(slow, number=number))
    calls.until("aws", slow, NODE_CALLS[slow])
    for kind in {K.DRAIN, K.RELEASE, K.SAVE, *NODE_CALLS} - {slow}:
        calls.pool.submit(effect(kind))
        calls.until("aws", kind, 1)


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (K.TERMINATE, TERMINATE_CALLS),
        (K.RESOLVE, CLOUD_CALLS),
        (K.DRAIN, TELL_CALLS),
        *NODE_CALLS.items(),
    ],
)
def test_lanes_are_bounded(calls: Calls, kind: EffectKind, most: int) -> None:
    for number in range(most + 5):
        calls.pool.submit(effect(kind, number=number))
    calls.until("aws", kind, most)
    assert calls.begun["aws", kind] == most
    assert len(calls.pool._running) == most + 5
    calls.let_go.set()
    calls.until("aws", kind, most + 5)


def test_a_survey_that_waits_for_its_turn_does_for_all(calls: Calls) -> None:
    """A hundred nodes that ask at once are two listings, and leave the lane to the launches."""
    for number in range(CLOUD_CALLS):
        calls.pool.submit(effect(K.LAUNCH, number=number))
    calls.until("aws", K.LAUNCH, CLOUD_CALLS)
    for number in range(100):
        calls.pool.submit(effect(K.SURVEY, number=number))
    calls.pool.submit(effect(K.SURVEY, "gcp-1a"))
    assert len(calls.pool._running) == CLOUD_CALLS + 2
    calls.let_go.set()
    calls.until("aws", K.SURVEY, 1)
    calls.until("gcp", K.SURVEY, 1)
    calls.pool.submit(effect(K.SURVEY))
    calls.until("aws", K.SURVEY, 2)


def test_a_call_of_a_cloud_that_is_no_longer_configured_is_made_all_the_same(calls: Calls) -> None:
    """It fails then, and its error is recorded: dropping it would leave the node in silence."""
    calls.pool.submit(effect(K.TERMINATE, "old-1a"))
    calls.until("old", K.TERMINATE, 1)


def test_closing_drops_what_is_queued_and_waits_for_what_is_made() -> None:
    calls = Calls()
    for number in range(CLOUD_CALLS + 4):
        calls.pool.submit(effect(K.LAUNCH, number=number))
    calls.until("aws", K.LAUNCH, CLOUD_CALLS)
    threading.Timer(0.2, calls.let_go.set).start()
    assert calls.pool.close(LIMIT_S)
    assert calls.begun["aws", K.LAUNCH] == CLOUD_CALLS
    assert len(calls.pool._running) == 0
    calls.pool.submit(effect(K.LAUNCH))
    assert len(calls.pool._running) == 0, "nothing is begun any more"


def test_closing_does_not_wait_for_ever() -> None:
    calls = Calls()
    calls.pool.submit(effect(K.LAUNCH))
    calls.until("aws", K.LAUNCH, 1)
    assert not calls.pool.close(0.05)
    calls.let_go.set()
    assert calls.pool.close(LIMIT_S)
