"""Jobs: submit, claim, steer, read back."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from providers.base import Offer, OfferRequest
from spotd.domain.events import Event
from spotd.domain.fast_replace import changed
from spotd.domain.health import HealthSpec
from spotd.domain.job import Desired, HeadSnapshot, JobSpec
from spotd.domain.node_history import Prerequisite
from spotd.domain.plan import ChangeJob
from spotd.domain.states import Outcome
from spotd.domain.units import S
from spotd.store.codec import CodecError, decode, encode
from spotd.store.errors import DuplicateIdError, DuplicateNameError, StoreError
from spotd.store.interface import Store
from spotd.store.jobs import JobPage
from spotd.wire import Mount
from tests.spotd.store.build import NOW, Bell, commit, offer, plan, spec, submission, submit, view
from tests.spotd.store.conftest import make

LEASE = 30 * S


@pytest.mark.parametrize("ends", [False, True])
def test_what_became_of_the_job_before(store: Store, *, ends: bool) -> None:
    submit(store, "j1")
    submit(store, "j2", after="j1")
    submit(store, "j3", after="gone")
    if ends:
        done = {"outcome": Outcome.FAILED, "outcome_text": "why", "finished_at_us": NOW + S}
        commit(store, view(store, "j1"), plan(ChangeJob(done)))
    found = store.load_views(["j1", "j2", "j3"], NOW)
    told = (Outcome.FAILED, "why", NOW + S) if ends else (None, "", 0)
    assert found["j2"].before == Prerequisite("j1", *told)
    assert (found["j1"].before, found["j3"].before) == (None, None)


def test_a_job_is_read_back_as_it_was_submitted(store: Store) -> None:
    rich = spec(
        envs={"A": "1", "ünï": "☃"},
        secrets=("TOKEN",),
        packages=(Mount("ab", ""), Mount("cd", "~/data")),
        alternatives=(OfferRequest(accelerator="H100"), OfferRequest(cpus=4.5)),
        recover_on_exit_codes=(3, 4),
        health=HealthSpec(ratio=0.5),
        deadline_us=NOW + 5,
    )
    job = store.jobs.submit(
        submission("j1", spec=rich, secrets={"TOKEN": b"\x00sealed"}, job_key=b"\xff\x00"), NOW
    )
    assert job.spec == rich
    assert (job.id, job.version, job.desired, job.outcome) == ("j1", 0, Desired.RUN, None)
    assert store.jobs.find("j1") == store.jobs.find("train") == job
    assert store.jobs.secrets("j1") == {"TOKEN": b"\x00sealed"}
    assert store.jobs.key("j1") == b"\xff\x00"
    assert store.jobs.spec_yaml("j1") == "name: j1\n"


def test_the_codec_is_strict() -> None:
    text = encode(spec())
    assert decode(JobSpec, text) == spec()
    for broken in (
        text.replace('"num_nodes":1', '"num_nodes":true'),
        text.replace('"num_nodes":1', '"num_nodes":1,"nodes":2'),
        text.replace('"run":"python train.py",', ""),
        text.replace('"ordered":false', '"ordered":0'),
        text.replace('"spot"', '"sport"'),
        "[]",
        "{",
    ):
        assert broken != text
        with pytest.raises(CodecError):
            decode(JobSpec, broken)


def test_what_says_nothing_is_not_written_for_the_spotd_before() -> None:
    """It would refuse the whole row for a key that it does not know."""
    plain, zoned = offer(), replace(offer(), zone_id="use1-az6")
    assert not {"zone_id", "reservation", "interconnect"} & json.loads(encode(plain)).keys()
    assert json.loads(encode(zoned)).keys() - json.loads(encode(plain)).keys() == {"zone_id"}
    assert decode(Offer, encode(zoned)) == zoned
    assert decode(Offer, encode(plain)) == plain


def test_the_same_request_again_returns_the_first_job(store: Store) -> None:
    first = store.jobs.submit(submission("j1", name="a", request_id="r1"), NOW)
    again = store.jobs.submit(submission("j2", name="b", request_id="r1"), NOW + 1)
    assert again.id == first.id
    assert len(store.jobs.rows()) == 1


def test_a_name_is_unique_among_unfinished_jobs(store: Store) -> None:
    before = submit(store, "j1")
    with pytest.raises(DuplicateNameError, match="not finished yet") as caught:
        store.jobs.submit(submission("j2", name="j1"), NOW)
    assert caught.value.job_id == "j1"
    ended = {"outcome": Outcome.FAILED, "finished_at_us": NOW}
    commit(store, before, plan(ChangeJob(ended)))
    newest = store.jobs.submit(submission("j2", name="j1"), NOW + 1)
    assert store.jobs.find("j1") is not None
    assert store.jobs.find("j1").id == "j1"  # type: ignore[union-attr]  # an id goes before a name
    assert store.jobs.rows(finished=False) == [newest]


def test_an_id_is_on_record_once_whatever_became_of_its_job(store: Store) -> None:
    first = store.jobs.submit(submission("j1", name="a", request_id="r1"), NOW)
    with pytest.raises(DuplicateIdError, match="spotctl show j1"):
        store.jobs.submit(submission("j1", name="b", request_id="r2"), NOW)
    with pytest.raises(DuplicateIdError):  # rather than that the name is taken: by itself
        store.jobs.submit(submission("j1", name="a"), NOW)
    ended = {"outcome": Outcome.FAILED, "finished_at_us": NOW}
    commit(store, view(store, "j1"), plan(ChangeJob(ended)))
    with pytest.raises(DuplicateIdError):
        store.jobs.submit(submission("j1", name="a"), NOW)
    assert store.jobs.submit(submission("j1", name="b", request_id="r1"), NOW).id == first.id
    assert len(store.jobs.rows()) == 1


def test_a_job_that_goes_on_has_its_head_from_the_beginning(store: Store) -> None:
    head = HeadSnapshot(
        7, 1200, "jobs/j1/m", released=False, final=False, seen_at_us=3, read_at_us=4
    )
    job = store.jobs.submit(submission("j1", head=head), NOW)
    assert (job.head, job.generation) == (head, 0)
    assert view(store, "j1").job.head == head
    assert store.jobs.submit(submission("j2"), NOW).head is None


def test_names_are_had_by_id_of_those_jobs_that_there_are(store: Store) -> None:
    for job_id, name in (("j1", "train"), ("j2", "eval"), ("j3", "other")):
        store.jobs.submit(submission(job_id, name=name), NOW)
    assert store.jobs.names({"j1", "j2", "train", "gone"}) == {"j1": "train", "j2": "eval"}
    assert store.jobs.names(()) == {}


def test_the_newest_jobs_are_had_a_few_at_a_time_and_counted(store: Store) -> None:
    for number in range(4):
        store.jobs.submit(submission(f"j{number}", name=f"job-{number}"), NOW + number // 2)
    over = store.load_views(["j3"], NOW)["j3"]
    commit(store, over, plan(ChangeJob({"outcome": Outcome.FAILED, "finished_at_us": NOW})))

    def newest(limit: int, *, finished: bool) -> tuple[list[str], int]:
        found, total = store.jobs.newest(limit, finished)
        return [job.id for job in found], total

    assert newest(9, finished=True) == (["j3", "j2", "j1", "j0"], 4)
    assert newest(3, finished=True) == (["j3", "j2", "j1"], 4)
    assert newest(1, finished=False) == (["j2"], 3)


def test_a_pause_that_nobody_ordered_is_told_with_it_and_once(store: Store) -> None:
    store.jobs.submit(submission("j1"), NOW)
    said = Event("budget_stop", "the budget is used up", alert=True)
    assert store.jobs.pause("j1", said, NOW + 1)
    job = store.jobs.find("j1")
    assert job is not None
    assert job.desired is Desired.PAUSE
    assert [row.event for row in store.events.of_kinds("j1", ["budget_stop"])] == [said]
    assert not store.jobs.pause("j1", said, NOW + 2)
    store.jobs.set_desired("j1", Desired.CANCEL, NOW + 3)
    assert not store.jobs.pause("j1", said, NOW + 4), "it is to end"
    assert len(store.events.of_kinds("j1", ["budget_stop"])) == 1


def test_the_last_that_ended_come_first_whenever_they_were_submitted(store: Store) -> None:
    for number in range(4):
        store.jobs.submit(submission(f"j{number}", name=f"job-{number}"), NOW + number)
    assert store.jobs.ended(9) == ([], 0)
    for at_us, job_id in enumerate(("j3", "j0", "j2"), NOW + 10):
        over = store.load_views([job_id], at_us)[job_id]
        ended = ChangeJob({"outcome": Outcome.FAILED, "finished_at_us": at_us})
        commit(store, over, plan(ended))
    found, total = store.jobs.ended(2)
    assert ([job.id for job in found], total) == (["j2", "j0"], 3)


def test_many_threads_submit_one_name_and_one_wins(url: str) -> None:
    stores = [make(url) for _ in range(4)]
    outcomes: list[str] = []

    def one(number: int) -> None:
        try:
            outcomes.append(
                stores[number].jobs.submit(submission(f"j{number}", name="same"), NOW).id
            )
        except DuplicateNameError as error:
            outcomes.append(f"lost to {error.job_id}")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [text for text in outcomes if not text.startswith("lost")]
    assert len(winners) == 1
    assert sorted(outcomes) == sorted([*winners, *[f"lost to {winners[0]}"] * 3])
    for opened in stores:
        opened.close()


def test_due_jobs_are_claimed_once_oldest_first(store: Store) -> None:
    for number in (3, 1, 2):
        submit(store, f"j{number}", at_us=NOW + number)
    now_us = NOW + 10
    assert store.jobs.claim(now_us, "me", 2, LEASE) == ["j1", "j2"]
    assert store.jobs.claim(now_us, "you", 9, LEASE) == ["j3"]
    assert store.jobs.claim(now_us, "me", 9, LEASE) == []
    assert store.jobs.next_wake_us() == now_us + LEASE
    assert set(store.jobs.claim(now_us + LEASE, "me", 9, LEASE)) == {"j1", "j2", "j3"}


def test_a_commit_ends_the_claim_and_sets_the_timer(store: Store) -> None:
    before = submit(store)
    assert store.jobs.claim(NOW, "me", 1, LEASE) == ["j1"]
    commit(store, before, plan(wake_at_us=NOW + 7 * S))
    assert store.jobs.next_wake_us() == NOW + 7 * S
    assert store.jobs.claim(NOW + 7 * S - 1, "me", 1, LEASE) == []
    assert store.jobs.claim(NOW + 7 * S, "me", 1, LEASE) == ["j1"]


def test_what_is_observed_during_a_pass_makes_the_job_due_again(store: Store, bell: Bell) -> None:
    before = submit(store)
    store.jobs.claim(NOW, "me", 1, LEASE)
    store.jobs.set_desired("j1", Desired.PAUSE, NOW + 1)
    rings = bell.rings
    after = commit(store, before, plan(wake_at_us=0), NOW + 2)
    assert after.job.desired is Desired.RUN  # as the plan saw it
    assert bell.rings == rings + 1
    assert store.jobs.claim(NOW + 2, "me", 1, LEASE) == ["j1"]
    commit(store, view(store), plan(), NOW + 3)
    assert bell.rings == rings + 1
    assert store.jobs.next_wake_us() is None


def test_two_daemons_claim_disjoint_jobs(url: str) -> None:
    stores = [make(url), make(url)]
    for number in range(40):
        stores[0].jobs.submit(submission(f"j{number:02}"), NOW)
    taken: list[list[str]] = [[], []]
    start = threading.Barrier(2)

    def take(number: int) -> None:
        start.wait()
        while got := stores[number].jobs.claim(NOW, f"d{number}", 3, LEASE):
            taken[number] += got

    threads = [threading.Thread(target=take, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = taken[0] + taken[1]
    assert len(everything) == len(set(everything)) == 40
    for opened in stores:
        opened.close()


def test_desired_of_a_job(store: Store) -> None:
    before = submit(store)
    assert store.jobs.set_desired("j1", Desired.PAUSE, NOW).desired is Desired.PAUSE
    assert store.jobs.set_desired("j1", Desired.RUN, NOW).desired is Desired.RUN
    assert store.jobs.set_desired("j1", Desired.CANCEL, NOW).desired is Desired.CANCEL
    assert store.jobs.set_desired("j1", Desired.RUN, NOW).desired is Desired.CANCEL
    assert view(store).job.wakeup.notes == before.job.wakeup.notes + 4
    with pytest.raises(StoreError, match="no job 'nope'"):
        store.jobs.set_desired("nope", Desired.RUN, NOW)


def test_a_finished_job_stays_finished(store: Store) -> None:
    before = submit(store)
    ended = {"outcome": Outcome.SUCCEEDED, "outcome_text": "done", "finished_at_us": NOW}
    after = commit(store, before, plan(ChangeJob(ended)))
    assert changed(after.job, notes=after.job.wakeup.notes) == view(store).job
    assert store.jobs.set_desired("j1", Desired.CANCEL, NOW).desired is Desired.RUN


def test_unknown_ids_are_clear(store: Store) -> None:
    assert store.load_view("nope", NOW) is None
    assert store.jobs.find("nope") is None
    assert store.nodes.of_job("nope") == []
    for read in (store.jobs.spec_yaml, store.jobs.key):
        with pytest.raises(StoreError, match="spotctl ps"):
            read("nope")


def test_jobs_are_paged_in_the_order_that_is_asked_for(store: Store) -> None:
    for number, name in enumerate(["b-1", "a_1", "b%2"]):
        store.jobs.submit(submission(f"j{number}", spec=spec(name)), NOW + number * S)
    done = {"outcome": Outcome.FAILED, "outcome_text": "why", "finished_at_us": NOW + 9 * S}
    commit(store, view(store, "j1"), plan(ChangeJob(done)))

    def names(**wanted: Any) -> tuple[list[str], int]:
        found, total = store.jobs.page(JobPage(**{"limit": 9} | wanted))
        return [job.name for job in found], total

    assert names() == (["b%2", "a_1", "b-1"], 3)
    assert names(limit=1, offset=1) == (["a_1"], 3)
    assert names(sort="oldest") == (["b-1", "a_1", "b%2"], 3)
    assert names(sort="name")[0][0] == "a_1"
    assert names(sort="ended")[0][0] == "a_1"
    assert names(state="unfinished") == (["b%2", "b-1"], 2)
    assert names(state="ended") == names(state="failed") == (["a_1"], 1)
    assert names(name="%") == (["b%2"], 1), "no pattern"
    assert names(name="_") == (["a_1"], 1), "no pattern"


def test_a_job_that_waits_for_another_person(store: Store) -> None:
    submit(store, "j1")
    asked = store.jobs.ask_approval("j1", "ada", "exceeds team", NOW)
    assert asked.approval.approval_asked_by == "", "it runs"
    store.jobs.set_desired("j1", Desired.PAUSE, NOW)
    asked = store.jobs.ask_approval("j1", "ada", "exceeds team", NOW)
    assert (asked.approval.approval_asked_by, asked.approval.approval_text) == (
        "ada",
        "exceeds team",
    )
    assert store.jobs.find("j1") == asked
    run = store.jobs.set_desired("j1", Desired.RUN, NOW)
    assert (run.approval.approval_asked_by, run.approval.approval_text) == ("", "")
    held = submission("j2", spec=spec("other"), approval_asked_by="ada", approval_text="why")
    assert store.jobs.submit(held, NOW).desired is Desired.PAUSE
    found = store.jobs.find("j2")
    assert found is not None
    assert found.approval.approval_asked_by == "ada"
