"""The five times of a machine that got a notice."""

from __future__ import annotations

from typing import Any

import pytest

from providers.base import NoticeKind
from spotd.api.views.evictions import TIMES, asked_to_stop, evictions
from spotd.cli.jobs import print_evictions
from spotd.cli.local_time import instant
from spotd.domain.events import Event
from spotd.domain.node import NoticeRecord
from spotd.domain.states import LeaveReason
from spotd.domain.units import S
from spotd.store.events import EventRow
from spotd.store.journal import JournalBatch
from spotd.wire import JournalEntry
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import SPOT, Rig, story
from tests.spotd.store import build

NOTICE = NoticeRecord("n1", NoticeKind.PREEMPT, 100 * S, 130 * S)
ENDED = {"released_at_us": 112 * S, "exited_at_us": 113 * S, "gone_at_us": 140 * S}


def times(asked_us: int = 102 * S, notice: NoticeRecord = NOTICE, **fields: Any) -> list[Any]:
    node = build.new_node(**{**ENDED, **fields}, notices=(notice,))
    (found,) = evictions([node], {node.id: asked_us})
    return [at and at[11:19] for at in (found[name] for name in TIMES)]


@pytest.mark.req("PRE-06")
def test_all_five() -> None:
    assert times() == ["00:01:40", "00:01:42", "00:01:52", "00:01:53", "00:02:20"]


@pytest.mark.req("PRE-06")
@pytest.mark.parametrize("missing", range(1, len(TIMES)))
def test_what_is_missing_is_unknown_and_never_0(
    missing: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = dict(zip(TIMES, (NOTICE, 102 * S, *ENDED.values()), strict=True))
    fields[TIMES[missing]] = 0
    _, asked, released, ended, gone = fields.values()
    found = times(asked, released_at_us=released, exited_at_us=ended, gone_at_us=gone)
    assert [at is None for at in found] == [number == missing for number in range(len(TIMES))]
    row = {name: at and f"2026-11-25T{at}.000000Z" for name, at in zip(TIMES, found, strict=True)}
    print_evictions([{**row, "generation": 3, "rank": 1}])
    titles, line = capsys.readouterr().out.splitlines()[-2:]
    assert line.count("unknown") == 1
    title = {"asked": "STOP SENT"}.get(TIMES[missing], TIMES[missing].upper())
    assert line.index("unknown") == titles.index(title)
    assert instant("2026-11-25T00:01:40Z") in line
    assert "1970" not in line


def test_what_came_before_the_notice_is_of_something_else() -> None:
    """A program that had been asked to save for a pause, and ended, on a machine that was kept."""
    found = times(60 * S, released_at_us=70 * S, exited_at_us=80 * S)
    assert found == ["00:01:40", None, None, None, "00:02:20"]


def test_a_recommendation_and_a_notice_that_was_withdrawn_evict_nobody() -> None:
    node = build.new_node(notices=(NoticeRecord("n", NoticeKind.REBALANCE, S, None),))
    gone = build.new_node(notices=(NoticeRecord("n", NoticeKind.PREEMPT, S, None, withdrawn=True),))
    assert evictions([node, gone], {}) == []


def test_to_train_on_until_later_is_not_to_be_asked() -> None:
    def said(at_us: int, **data: object) -> EventRow:
        return EventRow(1, at_us, "j1", Event("node_draining", "the node drains", "n", data=data))

    assert asked_to_stop([said(5)]) == {}
    assert asked_to_stop([said(5), said(9, stops=True)]) == {"n": 9}


@pytest.mark.req("PRE-06")
def test_a_job_tells_them(rig: Rig, client: PathClient, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a machine that was taken away before its program had ended."""
    assert client.get(f"/v1/jobs/{story(rig)}")["evictions"] == []
    job_id = rig.submit("warned", ago_s=5000)
    node = rig.launch(job_id, SPOT, ago_s=4900)
    rig.train(node, ago_s=4800, until_s=2000, first=0, last=9)
    told = {"notice_id": "n", "kind": "preempt", "source": "imds", "remaining_s": 30}
    later = {"reason": "preempt", "plan": "train on", "deadline_s": 30.0}
    asked = {"reason": "preempt", "plan": "finish the step, save, release", "stops": True}
    released = {"generation": node.generation, "step": 9}
    for seq, ago_s, kind, data in (
        (1000, 1000, "notice", told),
        (1001, 999, "draining", later),
        (1002, 990, "draining", asked),
        (1003, 980, "released", released),
    ):
        entry = JournalEntry(seq, rig.ago(ago_s), node.generation, kind, data)
        rig.store.journal.record([JournalBatch(node.id, (entry,), rig.ago(ago_s))])
    rig.leave(node, 960, LeaveReason.PREEMPTED, "preempt notice")
    (found,) = client.get(f"/v1/jobs/{job_id}")["evictions"]
    assert found["ended"] is None
    known = [found[name] for name in TIMES if name != "ended"]
    assert known == sorted(known)
    assert "T" in found["asked"]
    print_evictions([found])
    assert capsys.readouterr().out.count("unknown") == 1
