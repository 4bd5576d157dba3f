"""What nodes say: each entry once, and nothing that they say wrongly stops anybody."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from providers.base import NoticeKind
from spotd import wire
from spotd.domain.events import Severity
from spotd.domain.health import HealthSpec
from spotd.domain.job import CheckpointSpec, HeadSnapshot
from spotd.domain.node import NoticeRecord
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import Throughput
from spotd.planner.core.slow_detection import slow
from spotd.store.errors import StoreUnavailableError
from spotd.store.interface import Store
from spotd.store.journal import JournalBatch
from spotd.store.journal_entries import APPLY
from spotd.wire import JournalEntry
from spotd.wire.printed_steps import StepSeries
from tests.spotd.store.build import (
    NOW,
    Bell,
    commit,
    kinds,
    move,
    new_node,
    node,
    opening,
    placed,
    said,
    view,
)
from tests.spotd.store.conftest import make

NODE = "j1-g1-0"
AT = NOW + 60 * S


def _checkpoint(step: int, **fields: Any) -> tuple[str, dict[str, Any]]:
    data = {"step": step, "manifest": f"m{step}", "bytes": 10, "trigger": "steps", "write_s": 0.5}
    return "checkpoint", {**data, **fields}


def _progress(last: int, **fields: Any) -> tuple[str, dict[str, Any]]:
    data = {"from_step": last, "to_step": last, "losses": [0.5], "tokens": 100, "busy_s": 2.0}
    return "progress", {**data, **fields}


def test_every_kind_of_the_wire_has_a_meaning() -> None:
    assert APPLY.keys() == wire.JOURNAL_KINDS


def _image(status: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "image", {"status": status, "image": "r.io/x:1", **fields}


def test_the_container_that_a_job_began_with_is_kept(store: Store) -> None:
    placed(store)
    first, second = (f"sha256:{str(number) * 64}" for number in (1, 2))
    found = {"engine": "podman", "pulled": True, "seconds": 2.5}
    begun = [_image("begin"), _image("pulling", text="copying 3 of 9")]
    store.journal.record([said(*begun)])
    assert store.events.image_digest("j1") == ""
    again = [_image("ok", digest=digest, **found) for digest in (first, second)]
    store.journal.record([said(*again, first=3)])
    assert store.events.image_digest("j1") == first
    assert store.events.image_digest("j2") == ""
    texts = [row.event.text for row in store.events.rows("j1")]
    assert texts[-4:] == [
        "the container image r.io/x:1 is pulled to the machine",
        "pulling: copying 3 of 9",
        f"r.io/x:1 pulled in 2.5 s, for podman: {first}",
        f"r.io/x:1 pulled in 2.5 s, for podman: {second}",
    ]


def test_no_digest_is_taken_over_that_is_none(store: Store) -> None:
    placed(store)
    entry = _image("ok", digest="latest; rm -rf /", engine="podman", pulled=True)
    store.journal.record([said(entry, _image("??"), first=1)])
    assert store.events.image_digest("j1") == ""
    assert kinds(store)[-2:] == ["journal", "journal"]


@pytest.mark.parametrize("version", [1, wire.WIRE_VERSION, 99])
def test_which_wire_an_agent_speaks_is_kept(store: Store, version: int) -> None:
    placed(store)
    assert node(store).agent.wire == 0
    hello = JournalEntry(1, AT, 1, wire.HELLO, {"wire": version}, wire=version)
    store.journal.record([JournalBatch(NODE, (hello,), AT)])
    assert node(store).agent.wire == version
    assert ("wire" in kinds(store)) == (version == 99)


@pytest.mark.parametrize(
    ("released", "text"),
    [
        ({"step": 6, "manifest": "m6"}, "handed the job over at step 6"),
        (
            {"step": 0, "manifest": ""},
            "handed the job over without a checkpoint: nothing has been saved",
        ),
    ],
)
def test_a_release_names_a_step_only_if_it_is_saved(
    store: Store, released: dict[str, Any], text: str
) -> None:
    placed(store)
    store.journal.record([said(("released", released))])
    assert store.events.rows("j1")[-1].event.text == text


def test_a_life_from_hello_to_release(store: Store) -> None:
    placed(store)
    batch = said(
        ("hello", {"agent": "1", "wire": 1}),
        ("setup", {"status": "begin"}),
        ("setup", {"status": "ok", "seconds": 2}),
        ("started", {"pids": [1]}),
        ("ready", {}),
        ("claimed", {"step": 5, "manifest": "m5"}),
        _progress(6),
        _checkpoint(6),
        ("released", {"step": 6, "manifest": "m6"}),
        ("exited", {"code": 75, "ranks": {"0": 75}, "tail": "bye"}),
    )
    store.journal.record([batch])
    now = node(store)
    once = (
        now.startup.hello_at_us,
        now.startup.ready_at_us,
        now.training.claimed_at_us,
        now.training.first_step_at_us,
    )
    assert (
        *once,
        now.training.released_at_us,
        now.training.exited_at_us,
        now.agent.heard_at_us,
    ) == (AT,) * 7
    assert (
        now.training.last_step,
        now.training.exit_code,
        now.training.exit_tail,
        now.agent.journal_seq,
    ) == (6, 75, "bye", 10)
    job = view(store).job
    assert job.head == HeadSnapshot(1, 6, "m6", released=True, final=False, seen_at_us=AT)
    assert job.progress.first_step_at_us == AT
    assert [row.manifest for row in store.checkpoints.rows("j1")] == ["m6"]
    expected = ["setup", "setup", "started", "ready", "claimed", "released", "exited"]
    assert [kind for kind in kinds(store) if kind != "pass"] == expected


@pytest.mark.parametrize(
    ("asked", "text"),
    [(True, "the program stopped as requested"), (False, "the program ended with code 75")],
)
def test_75_is_told_as_the_stop_that_it_means(store: Store, asked: bool, text: str) -> None:
    """The shell of a script that was stopped has a code of its own."""
    placed(store)
    part = "nothing" if asked else "program"
    ended = {"code": 75, "ranks": {"0": 143}, "part": part}
    store.journal.record([said(("released", {"step": 0}), ("exited", ended))])
    texts = [row.event.text for row in store.events.rows("j1") if row.event.kind == "exited"]
    assert texts == [text]


@pytest.mark.parametrize(
    ("part", "kept", "text"),
    [
        ("program", "program", "the program ended with code 1"),
        ("store", "store", "the checkpoint store could not be used"),
        ("of a newer agent", "program", "the program ended with code 1"),
    ],
)
def test_what_failed_is_kept_with_its_cause(store: Store, part: str, kept: str, text: str) -> None:
    placed(store)
    store.journal.record([said(("exited", {"code": 1, "cause": "403 denied", "part": part}))])
    status = node(store).training
    assert (status.failed_part, status.exit_cause) == (kept, "403 denied")
    texts = [row.event.text for row in store.events.rows("j1") if row.event.kind == "exited"]
    assert texts == [text]


def test_no_more_of_a_checkpoint_is_near_its_machine_than_there_is_of_it(store: Store) -> None:
    placed(store)
    store.journal.record([said(_checkpoint(2, near_bytes=11), _checkpoint(4, near_bytes=9))])
    assert [row.near_bytes for row in store.checkpoints.rows("j1")] == [10, 9]


def test_what_a_checkpoint_uploaded_is_told_from_what_it_shares(store: Store) -> None:
    placed(store)
    saves = [_checkpoint(2), _checkpoint(4, new_bytes=3), _checkpoint(6, new_bytes=99)]
    store.journal.record([said(*saves, _checkpoint(8, new_bytes=3, near_bytes=9))])
    rows = store.checkpoints.rows("j1")
    assert [row.new_bytes for row in rows] == [10, 3, 10, 3]
    assert [row.near_bytes for row in rows] == [0, 0, 0, 3]


def _outputs(status: str, **data: Any) -> tuple[str, dict[str, Any]]:
    return ("outputs", {"status": status, "files": 2, "bytes": 3000, **data})


def _stored(manifest: str = "m1", **data: Any) -> tuple[str, dict[str, Any]]:
    values = {"manifest": manifest, "digest": "d", "new_bytes": 1000, "seconds": 1.5, "text": ""}
    return _outputs("stored", **(values | data))


def test_outputs_are_on_record_once(store: Store) -> None:
    placed(store)
    store.journal.record([said(_outputs("begin"))])
    assert node(store).storage.outputs_since_us
    assert store.outputs.rows("j1") == []
    store.journal.record([said(_stored(), first=2)])
    store.journal.record([said(_stored(), first=3)])  # as a restarted agent may
    (row,) = store.outputs.rows("j1")
    assert (row.manifest, row.files, row.bytes, row.new_bytes) == ("m1", 2, 3000, 1000)
    assert (row.generation, row.rank, row.node_id) == (1, 0, node(store).id)
    assert node(store).storage.outputs_since_us == 0
    assert view(store).job.progress.outputs_at_us == row.stored_at_us
    texts = [row.event.text for row in store.events.rows("j1") if row.event.kind == "outputs"]
    assert texts[:2] == [
        "uploading 2 files, 2.9 KiB",
        "j1 has stored 2 of its files, 2.9 KiB in 1.5 s",
    ]


@pytest.mark.parametrize(
    ("entry", "severity", "alert"),
    [
        (_stored(), Severity.INFO, False),
        (_stored(text="model is left out"), Severity.WARNING, True),
        (_outputs("failed", text="the store refuses"), Severity.ERROR, True),
    ],
)
def test_outputs_that_are_not_all_stored_alert(
    store: Store, entry: tuple[str, dict[str, Any]], severity: Severity, alert: bool
) -> None:
    placed(store)
    store.journal.record([said(_outputs("begin"), entry)])
    event = [row.event for row in store.events.rows("j1") if row.event.kind == "outputs"][-1]
    assert (event.severity, event.alert) == (severity, alert)
    assert node(store).storage.outputs_since_us == 0


def test_a_warning_alerts_if_it_says_so(store: Store) -> None:
    placed(store)
    loud = ("warning", {"text": "files are not saved", "alert": True})
    store.journal.record([said(("warning", {"text": "odd"}), loud)])
    rows = [row.event for row in store.events.rows("j1") if row.event.kind == "node_warning"]
    assert [event.alert for event in rows] == [False, True]


def test_entries_count_once_however_often_they_arrive(store: Store) -> None:
    placed(store)
    batch = said(("hello", {}), _progress(1), _progress(2), _checkpoint(2))
    again = said(_progress(2), _checkpoint(2), _progress(3), first=3)
    for sent in (batch, batch, again, batch):
        store.journal.record([sent])
    assert [row.to_step for row in store.progress.rows("j1")] == [1, 2, 3]
    assert len(store.checkpoints.rows("j1")) == 1
    assert node(store).agent.journal_seq == 5


def test_two_daemons_that_follow_one_node_record_it_once(url: str) -> None:
    stores = [make(url), make(url)]
    placed(stores[0])
    batches = [said(_progress(n), first=n, heard_at_us=AT + n) for n in range(1, 31)]
    start = threading.Barrier(2)

    def follow(store: Store) -> None:
        start.wait()
        for batch in batches:
            while True:
                with suppress(StoreUnavailableError):  # the row was the other's for too long
                    store.journal.record([batch])
                    break

    threads = [threading.Thread(target=follow, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row.to_step for row in stores[0].progress.rows("j1")] == list(range(1, 31))
    for store in stores:
        store.close()


def test_steps_alone_make_nobody_decide(store: Store, bell: Bell) -> None:
    placed(store)
    store.journal.record([said(_progress(1))])
    notes, rings = view(store).job.wakeup.notes, bell.rings
    store.journal.record([said(_progress(2), first=2, heard_at_us=AT + S)])
    assert (view(store).job.wakeup.notes, bell.rings) == (notes, rings)
    assert node(store).agent.heard_at_us == AT + S
    store.journal.record([said(_checkpoint(2), first=3, heard_at_us=AT + S)])
    assert (view(store).job.wakeup.notes, bell.rings) == (notes + 1, rings + 1)


def test_an_entry_after_a_lost_link_makes_the_job_due(store: Store) -> None:
    placed(store)
    store.journal.record([said(_progress(1))])
    store.nodes.record_link(NODE, AT + S)
    notes = view(store).job.wakeup.notes
    store.journal.record([said(_progress(2), first=2, heard_at_us=AT + 2 * S)])
    assert (view(store).job.wakeup.notes, node(store).agent.link_down_at_us) == (notes + 1, 0)


def test_a_script_without_our_engine_trains_when_it_runs(store: Store) -> None:
    for name, engine in (("ours", "spotd"), ("any", "none")):
        placed(store, name, checkpoint=CheckpointSpec("file:///c", engine=engine))
        store.journal.record([said(("started", {}), node_id=f"{name}-g1-0")])
    assert node(store, "ours-g1-0").training.first_step_at_us == 0
    assert node(store, "any-g1-0").training.first_step_at_us == AT
    assert view(store, "any").job.progress.first_step_at_us == AT


def test_throughput_of_the_newest_attempt_that_chose_alone(store: Store) -> None:
    placed(store)
    move(store, NODE, NodeState.BOOTING, chosen=True)
    store.journal.record([said(_progress(1), _progress(2))])
    expected = tuple(Throughput(1, AT, step, 100, 2.0) for step in (1, 2))
    assert view(store, now_us=AT).throughput == expected
    assert view(store, now_us=AT + 3600 * S).throughput == ()
    commit(store, view(store), opening("j1", 2))
    assert view(store, now_us=AT).throughput == expected, "it may be given back"
    move(store, NODE, NodeState.DRAINING)
    move(store, "j1-g2-0", NodeState.BOOTING, chosen=True)
    assert view(store, now_us=AT).throughput == ()


def test_a_view_looks_back_as_far_as_its_checks_need(store: Store) -> None:
    patient = HealthSpec(checks=10, check_every_s=60.0)
    placed(store, health=patient)
    move(store, NODE, NodeState.BOOTING, chosen=True)
    store.journal.record([said(_progress(1))])
    assert len(view(store, now_us=AT + 1799 * S).throughput) == 1
    assert view(store, now_us=AT + 1801 * S).throughput == ()


@pytest.mark.req("HLT-03")
def test_the_check_of_all_jobs_brings_those_that_may_be_slow(store: Store) -> None:
    """Four minutes at full speed; then half of it, nothing at all, a long save, and the same."""
    names = ("halved", "silent", "saving", "steady", "booting")
    for name in names:
        placed(store, name)
        move(store, f"{name}-g1-0", NodeState.BOOTING, chosen=True)
        if name != "booting":
            move(store, f"{name}-g1-0", NodeState.RUNNING)
    for turn in range(48):
        at_us = AT + turn * 5 * S
        step = _progress(turn)
        batches = [
            said(step, node_id=f"{n}-g1-0", first=turn + 1, heard_at_us=at_us) for n in names
        ]
        store.journal.record(batches)
    later = {"halved": {"tokens": 50}, "saving": {"tokens": 0, "busy_s": 0.0}, "steady": {}}
    now_us = AT + 275 * S
    for turn, at_us in enumerate(range(AT + 240 * S, now_us + 1, 5 * S), start=49):
        for name, fields in later.items():
            step = _progress(turn, **fields)
            batch = said(step, node_id=f"{name}-g1-0", first=turn, heard_at_us=at_us)
            store.journal.record([batch])
    found = store.progress.recent_throughput(now_us)
    assert set(found) == {"halved", "silent"}
    commit(store, view(store, "halved"), opening("halved", 2))  # a notice, perhaps withdrawn again
    assert set(store.progress.recent_throughput(now_us)) == {"halved", "silent"}
    for name in found:
        assert found[name] == (HealthSpec(), view(store, name, now_us).throughput)
    # What is left out would not be called slow, and what is would be, after all its checks.
    late_us = AT + 360 * S
    views = {name: view(store, name, late_us) for name in names}
    slow_now = {n for n, v in views.items() if slow(v.throughput, HealthSpec(), late_us)}
    assert slow_now <= set(store.progress.recent_throughput(late_us)) | {"booting"}
    assert "silent" in slow_now


# --- notices


def _notice(left_s: float | None, notice_id: str = "n1") -> tuple[str, dict[str, Any]]:
    data = {"notice_id": notice_id, "kind": "preempt", "remaining_s": left_s, "source": "imds"}
    return "notice", data


def test_a_notice_has_its_deadline_on_our_clock(store: Store) -> None:
    placed(store)
    store.journal.record([said(_notice(120.0), _notice(None, "n2"), _notice(-3.0, "n3"))])
    preempt = (NoticeKind.PREEMPT, AT)
    assert node(store).notices == (
        NoticeRecord("n1", *preempt, AT + 120 * S, source="imds"),
        NoticeRecord("n2", *preempt, None, source="imds"),
        NoticeRecord("n3", *preempt, AT, source="imds"),
    )


def test_a_notice_heard_late_keeps_its_deadline(store: Store) -> None:
    """We were away for a minute: the node's own clock says how old the notice is."""
    placed(store)
    entries = (
        JournalEntry(1, 5_000 * S, 1, *_notice(120.0)),
        JournalEntry(2, 5_050 * S, 1, *_progress(9)),
    )
    store.journal.record([JournalBatch(NODE, entries, AT)])
    [notice] = node(store).notices
    assert (notice.heard_at_us, notice.deadline_us) == (AT - 50 * S, AT + 70 * S)


def test_a_clock_that_is_set_between_entries_shortens_no_deadline(store: Store) -> None:
    placed(store)
    store.nodes.record_heartbeats({NODE: AT - 2 * S})
    entries = (
        JournalEntry(1, 5_000 * S, 1, *_notice(120.0)),
        JournalEntry(2, 99_000 * S, 1, *_progress(9)),
    )
    store.journal.record([JournalBatch(NODE, entries, AT)])
    [notice] = node(store).notices
    assert notice.deadline_us == AT - 2 * S + 120 * S


def test_a_notice_can_be_withdrawn_and_come_back(store: Store) -> None:
    placed(store)
    withdrawn = ("notice_withdrawn", {"notice_id": "n1"})
    store.journal.record([said(_notice(60.0), withdrawn)])
    assert [notice.withdrawn for notice in node(store).notices] == [True]
    store.journal.record([said(withdrawn, _notice(60.0), first=3)])
    assert [notice.withdrawn for notice in node(store).notices] == [False]


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("left_s", [(60.0, 30.0), (30.0, 60.0)], ids=["sooner", "later"])
def test_of_two_deadlines_at_once_the_earlier_one_counts(
    store: Store, left_s: tuple[float, float], known: bool
) -> None:
    placed(store)
    if known:
        store.journal.record([said(_notice(120.0))])
    batch = said(_notice(left_s[0]), _notice(left_s[1]), first=2)
    store.journal.record([batch])
    [notice] = node(store).notices
    assert notice.deadline_us == AT + 30 * S
    assert kinds(store).count("notice_heard") == 1


@pytest.mark.parametrize("batches", [1, 2, 3], ids=["at-once", "in-two", "one-by-one"])
def test_a_notice_that_comes_back_has_its_new_times(store: Store, batches: int) -> None:
    """Its old deadline may have passed long ago."""
    placed(store)
    withdrawn = ("notice_withdrawn", {"notice_id": "n1"})
    entries = [
        JournalEntry(1, 5_000 * S, 1, *_notice(30.0)),
        JournalEntry(2, 5_010 * S, 1, *withdrawn),
        JournalEntry(3, 5_200 * S, 1, *_notice(120.0)),
    ]
    store.nodes.record_heartbeats({NODE: AT - 300 * S})
    parts = {1: [entries], 2: [entries[:1], entries[1:]], 3: [[entry] for entry in entries]}
    for part in parts[batches]:
        heard_at_us = AT - 5_200 * S + part[-1].at_us
        store.journal.record([JournalBatch(NODE, tuple(part), heard_at_us)])
    [notice] = node(store).notices
    assert (notice.heard_at_us, notice.deadline_us) == (AT, AT + 120 * S)
    assert not notice.withdrawn


# --- HEAD and checkpoints


def test_a_node_cannot_make_its_job_final(store: Store) -> None:
    placed(store)
    store.journal.record([said(_checkpoint(9, final=True, released=True))])
    head = view(store).job.head
    assert head is not None
    assert (head.released, head.final) == (True, False)
    assert store.checkpoints.rows("j1")[0].final


def test_an_older_generation_does_not_move_head(store: Store) -> None:
    before = placed(store)
    commit(store, before, opening("j1", 2))
    newer = said(("claimed", {"step": 5, "manifest": "m5"}), node_id="j1-g2-0", generation=2)
    store.journal.record([newer, said(_checkpoint(50), ("released", {"step": 50}))])
    head = view(store).job.head
    assert head == HeadSnapshot(2, 5, "m5", released=False, final=False, seen_at_us=AT)
    assert len(store.checkpoints.rows("j1")) == 1  # on record all the same


def test_every_rank_may_report_the_same_checkpoint(store: Store) -> None:
    placed(store, "j1", new_node(number=0), replace(new_node(number=1), rank=1))
    store.journal.record([said(_checkpoint(3)), said(_checkpoint(3), node_id="j1-g1-1")])
    store.journal.record([said(_checkpoint(3), _checkpoint(4), node_id="j1-g1-1", first=2)])
    assert [row.step for row in store.checkpoints.rows("j1")] == [3, 4]


def test_losses_are_kept_to_the_last_bit(store: Store) -> None:
    placed(store)
    losses = [0.1, 1 / 3, 5e-324, math.inf, math.nan, 7]
    store.journal.record([said(_progress(6, from_step=1, losses=losses))])
    [row] = store.progress.rows("j1")
    assert repr(row.losses) == repr(tuple(float(loss) for loss in losses))
    assert store.progress.rows("j1", after=row.id) == []


# --- what a human should know


@pytest.mark.parametrize(
    ("kind", "data", "alert", "words"),
    [
        ("checkpoint_failed", {"step": 4, "error": "disk full"}, True, "step 4 failed: disk full"),
        ("checkpoint_skipped", {"step": 4, "manifest": "m", "error": "torn"}, True, "passed over"),
        ("metadata", {"up": False, "error": "timeout"}, False, "does not answer"),
        ("metadata", {"up": True}, False, "answers again"),
        ("draining", {"reason": "notice", "plan": "save"}, False, "drains (notice): save"),
        ("setup", {"status": "failed", "code": 3, "tail": "no pip"}, False, "failed with code 3"),
        ("warning", {"text": "clock \x00skew"}, False, "clock skew"),
    ],
)
def test_events(store: Store, kind: str, data: dict[str, Any], alert: bool, words: str) -> None:
    placed(store)
    store.journal.record([said((kind, data))])
    row = store.events.rows("j1")[-1]
    assert words in row.event.text
    assert (row.event.alert, row.event.node_id) == (alert, NODE)
    assert len(store.alerts.due(AT, 10)) == int(alert)


def test_a_failed_setup(store: Store) -> None:
    placed(store)
    store.journal.record([said(("setup", {"status": "failed", "code": 1, "tail": "oops"}))])
    assert (node(store).training.setup_failed, node(store).training.exit_tail) == (True, "oops")


# --- garbage


@pytest.mark.req("HLT-07")
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("progress", {}),
        ("progress", {"from_step": 1, "to_step": 2, "losses": ["x"]}),
        ("progress", {"from_step": 1, "to_step": 2, "losses": [10**400]}),
        ("progress", {"from_step": -1, "to_step": 2}),
        ("progress", {"from_step": True, "to_step": 2}),
        ("progress", {"from_step": 1, "to_step": 10**30}),
        ("progress", {"from_step": 1, "to_step": 2, "busy_s": math.nan}),
        ("checkpoint", {"step": 1, "manifest": ""}),
        ("notice", {"notice_id": "n", "kind": "doom", "remaining_s": 1}),
        ("notice", {"notice_id": "n", "kind": "preempt", "remaining_s": 1e300}),
        ("exited", {"code": None}),
        ("exited", {"code": 2**40}),
        ("wiped", {"what": 5}),
        ("disk", {"full": "very", "text": "t"}),
        ("disk", {"full": True}),
        ("cache", {"status": "lost", "path": "p", "files": 1, "bytes": 2}),
        ("cache", {"status": "kept", "path": 5, "files": 1, "bytes": 2}),
        ("wiped", {"what": ["workdir"], "failed": 2**80}),
        ("results", {"suite": "a", "cases": 2, "passed": 3}),
        ("results", {"suite": "a", "ttft_s": math.inf}),
        ("nonsense", {}),
    ],
)
def test_garbage_becomes_a_warning_and_stops_nobody(
    store: Store, kind: str, data: dict[str, Any]
) -> None:
    placed(store)
    store.journal.record([said((kind, data), ("ready", {}))])
    assert (node(store).startup.ready_at_us, node(store).agent.journal_seq) == (AT, 2)
    warnings = [row.event.text for row in store.events.rows("j1") if row.event.kind == "journal"]
    assert len(warnings) == 1
    assert kind in warnings[0]


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (
            {"what": "hung", "text": "no step for 130 s", "again": True, "stacks": 8},
            "hung",
            "training hangs: no step for 130 s; the stacks of 8 of its processes are in its log",
        ),
        (
            {"what": "gpu", "text": "GPU 0000:c0:00 reports Xid 79", "again": False},
            "gpu",
            "GPU 0000:c0:00 reports Xid 79; that was its end on this machine",
        ),
        (
            {"what": "machine", "text": "nvidia-smi shows 7 of 8 GPUs", "again": False},
            "unfit",
            "the machine is not fit to train on: nvidia-smi shows 7 of 8 GPUs; that was its end",
        ),
    ],
)
def test_what_ails_a_machine_is_told_at_once(
    store: Store, data: dict[str, Any], kind: str, text: str
) -> None:
    placed(store)
    code = 256 if kind == "hung" else 257
    store.journal.record([said(("unwell", data), ("exited", {"code": code}))])
    told, ended = (row.event for row in store.events.rows("j1") if row.event.kind != "pass")
    assert (told.kind, told.alert) == (kind, True)
    assert told.text.startswith(text)
    assert ("it restarts here" in told.text) is data["again"]
    assert ended.text == f"the {'program was ended' if kind == 'hung' else 'machine was given up'}"


def test_a_machine_that_prepares_itself_says_so(store: Store) -> None:
    placed(store)
    begin, ok = ({"status": "begin"}, {"status": "ok", "seconds": 41.26})
    store.journal.record([said(("prepared", begin), ("prepared", ok))])
    told = [row.event.text for row in store.events.rows("j1") if row.event.kind == "prepared"]
    assert told == [
        "the machine prepares itself: disks, clock, GPUs",
        "the machine is prepared, 41.3 s after its agent began",
    ]


def test_a_full_disk_is_told_and_known_until_there_is_room(store: Store) -> None:
    placed(store)
    full = ("disk", {"full": True, "text": "3 of 102400 MiB are free at /home/u/.spotd"})
    store.journal.record([said(full)])
    assert node(store).storage.disk_full_at_us == AT
    told = store.events.rows("j1")[-1].event
    assert (told.kind, told.alert, told.node_id) == ("disk", True, NODE)
    assert told.text == "the disk stays full: 3 of 102400 MiB are free at /home/u/.spotd"
    job = view(store).job
    assert job.wakeup.notes > job.wakeup.notes_seen, "it is decided about at once"
    room = ("disk", {"full": False, "text": "512 of 102400 MiB are free at /home/u/.spotd"})
    store.journal.record([said(room, first=2)])
    assert node(store).storage.disk_full_at_us == 0
    told = store.events.rows("j1")[-1].event
    assert (told.kind, told.alert) == ("disk", False)
    assert told.text.startswith("the disk has room again: 512 of")


def test_what_becomes_of_a_cache_is_told_and_a_failure_warns(store: Store) -> None:
    placed(store)
    done = {"status": "restored", "path": "~/c", "files": 3, "bytes": 2_500_000, "seconds": 1.5}
    failed = {"status": "failed", "path": "~/c", "text": "cannot be kept: it is away"}
    store.journal.record([said(("cache", done), ("cache", failed))])
    first, then = (row.event for row in store.events.rows("j1") if row.event.kind == "cache")
    assert first.text == "cache ~/c restored: 3 files, 2.5 MB in 1.5 s"
    assert (then.text, then.severity) == (
        "cache ~/c: cannot be kept: it is away",
        Severity.WARNING,
    )


def test_going_back_is_told(store: Store) -> None:
    placed(store)
    back = ("rolled_back", {"step": 1500, "from_step": 1719})
    store.journal.record([said(back, ("exited", {"code": 258}))])
    told, ended = (row.event for row in store.events.rows("j1") if row.event.kind != "pass")
    assert (told.kind, told.alert) == ("rolled_back", True)
    assert "1500" in told.text
    assert "1719" in told.text
    assert ended.text == "training diverged permanently"


def test_what_was_foretold_at_a_notice_and_what_came_of_it(store: Store) -> None:
    placed(store)
    foretold = {"left_s": 118.0, "start_in_s": 42.5, "end_in_s": 99.0, "margin_s": 19.0}
    took = {"save_s": 56.5, "flight_s": None}
    train = {"status": "planned", "action": "train", "step": 70, **foretold, **took}
    nothing = train | {"action": "release", "left_s": 20.0, "end_in_s": 0.0}
    ended = {"status": "ended", "action": "save", "step": 88, "manifest": "m", "kept": True}
    ended |= {"predicted_s": 56.5, "took_s": 54.25, "margin_s": 17.5}
    late = ended | {"kept": False, "margin_s": -0.5, "step": 64}
    store.journal.record([said(*(("plan", data) for data in (train, nothing, ended, late)))])
    told = [row.event for row in store.events.rows("j1") if row.event.kind.startswith("plan")]
    texts = [event.text for event in told]
    assert texts[0] == (
        "with 118 s left at step 70 it keeps training, and begins its last save in 42 s at the "
        "latest; by the measurements that ends 19 s before the machine does"
    )
    assert texts[1] == (
        "with 20 s left at step 70 it releases the job at its last durable checkpoint at once, "
        "because no save fits"
    )
    released = "54.2 s after the decision to save, 56.5 s predicted,"
    assert texts[2] == f"step 88 released {released} 17.5 s before the end"
    assert texts[3] == (
        f"step 64 released {released} -0.5 s before the end: the save was not done in time"
    )
    assert told[0].data == {"action": "train", **foretold, "save_s": 56.5}
    assert told[2].data["took_s"] == 54.25
    assert [event.severity.value for event in told] == ["info", "info", "info", "warning"]


def test_entries_of_another_generation_or_an_unknown_node(store: Store) -> None:
    placed(store)
    store.journal.record(
        [said(("ready", {}), node_id="nope"), said(("ready", {}), generation=9), said()]
    )
    assert node(store).startup.ready_at_us == 0
    assert kinds(store)[-1] == "journal"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
_NAMES = sorted(
    {"step", "manifest", "code", "losses", "from_step", "to_step", "status", "kind", "notice_id"}
    | {
        "what",
        "how",
        "left_mounts",
        "failed",
        "remaining_s",
        "tail",
        "text",
        "up",
        "wire",
        "final",
        "released",
        "busy_s",
        "seconds",
    }
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    entries=st.lists(
        st.tuples(
            st.integers(),
            st.integers(),
            st.sampled_from(sorted(wire.JOURNAL_KINDS)),
            st.dictionaries(st.sampled_from(_NAMES), _JSON, max_size=6),
        ),
        max_size=6,
    )
)
def test_nothing_that_a_node_says_raises(
    fuzzed: Store, entries: list[tuple[int, int, str, dict[str, Any]]]
) -> None:
    journal = tuple(JournalEntry(seq, at, 1, kind, data) for seq, at, kind, data in entries)
    fuzzed.journal.record([JournalBatch(NODE, journal, AT)])
    assert view(fuzzed).nodes[0].agent.heard_at_us == AT


@pytest.fixture
def fuzzed(store: Store) -> Store:
    placed(store)
    return store


def test_the_step_at_the_beginning_of_a_window(store: Store) -> None:
    placed(store)
    assert store.progress.windows(["j1", "nowhere"], 0) == {}
    reports = [
        ("progress", {"from_step": 5, "to_step": 9, "first_at_us": NOW - 4 * S, "last_at_us": NOW}),
        ("progress", {"from_step": 10, "to_step": 12}),
    ]
    store.journal.record([said(*reports)])
    (window,) = store.progress.windows(["j1", "nowhere"], 0).values()
    first = store.progress.rows("j1")[0]
    assert (window.from_step, window.reports) == (4, 2)
    assert window.begin_us == first.at_us - 4 * S
    assert store.progress.windows(["j1"], NOW + 10**12) == {}


def test_printed_steps_are_on_record(store: Store) -> None:
    placed(store)
    store.journal.record([said(("printed_steps", {"series": {"step": [1, 40, 40]}}))])
    assert node(store).training.printed_steps == {"step": StepSeries(1, 40, 40)}
    restarted = {"step": [30, 60, 31], "epoch": [1, 2, 0]}  # an agent that has read the end
    store.journal.record([said(("printed_steps", {"series": restarted}), first=2)])
    assert node(store).training.printed_steps == {
        "step": StepSeries(1, 60, 40),
        "epoch": StepSeries(1, 2, 0),
    }
