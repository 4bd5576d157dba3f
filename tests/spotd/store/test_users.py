"""Users who are shut out, and whom machines let in."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Connection

from spotd.domain.job import Desired
from spotd.domain.plan import ChangeJob
from spotd.domain.states import NodeState, Outcome
from spotd.store import jobs
from spotd.store.engine import BrokenRuleError
from spotd.store.errors import DisabledUserError, NoSuccessorError
from spotd.store.interface import Store
from spotd.store.transaction import Transaction
from spotd.store.users import DisabledUser
from tests.fixtures import postgres
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.store.build import NOW, commit, kinds, move, placed, plan, submission, view
from tests.spotd.store.conftest import make

NODE = "j1-g1-0"
ALICE = DisabledUser("alice", 1000, NOW, "root", "bob")


def test_a_user_is_shut_out_and_let_in_again(store: Store) -> None:
    assert store.users.disabled() == []
    store.users.disable(DisabledUser("zoe", -1, NOW, "root"))
    store.users.disable(ALICE)
    assert [row.name for row in store.users.disabled()] == ["alice", "zoe"]
    again = DisabledUser("alice", 1000, NOW + 1, "eve")
    store.users.disable(again)
    assert store.users.disabled()[0] == again
    assert store.users.enable("alice")
    assert not store.users.enable("alice")
    assert [row.name for row in store.users.disabled()] == ["zoe"]


def test_unfinished_jobs_become_those_of_the_successor(store: Store) -> None:
    for number in (1, 2):
        store.jobs.submit(submission(f"j{number}"), NOW)
    store.jobs.submit(submission("j3", user="carol"), NOW)
    ended = {"outcome": Outcome.SUCCEEDED, "finished_at_us": NOW}
    commit(store, view(store, "j2"), plan(ChangeJob(ended)))
    assert store.jobs.owners() == {"j1": "alice", "j3": "carol"}
    with pytest.raises(NoSuccessorError, match="alice has 1 unfinished jobs"):
        store.users.disable(DisabledUser("alice", 1000, NOW, "root"))
    assert store.users.disabled() == []
    assert store.users.disable(ALICE) == ["j1"]
    assert store.jobs.owners() == {"j1": "bob", "j3": "carol"}
    assert kinds(store)[-1] == "transferred"
    job = store.jobs.find("j1")
    assert job is not None
    assert job.desired is Desired.RUN, "it goes on"


def test_who_is_shut_out_submits_nothing(store: Store) -> None:
    first = submission("j1", request_id="r")
    store.jobs.submit(first, NOW)
    store.users.disable(ALICE)
    with pytest.raises(DisabledUserError, match="alice is disabled"):
        store.jobs.submit(submission("j2"), NOW)
    assert store.jobs.owners() == {"j1": "bob"}
    assert store.jobs.submit(first, NOW).id == "j1", "its answer was lost"
    store.users.enable("alice")
    store.jobs.submit(submission("j2"), NOW)


def test_a_job_that_is_submitted_at_that_moment_moves_too(server: postgres.Postgres) -> None:
    """Its transaction is not over when that of the others is to begin."""
    store = make(server.url(server.create("ready")))
    with ThreadPoolExecutor(1) as other:

        def submit(conn: Connection) -> Future[list[str]]:
            tx = Transaction(conn)
            jobs._submit(tx, submission("j1"), NOW)
            tx.flush()
            disabling = other.submit(store.users.disable, ALICE)
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not server.execute(waiting) and not disabling.done():
                time.sleep(0.01)
            return disabling

        assert store.session.database.write(submit).result(LIMIT_S) == ["j1"]
    assert store.jobs.owners() == {"j1": "bob"}
    store.close()


def test_a_job_that_is_submitted_at_that_moment_is_left_to_nobody(
    server: postgres.Postgres,
) -> None:
    """The list of jobs that a person saw before was empty."""
    store = make(server.url(server.create("ready")))
    with ThreadPoolExecutor(1) as other:

        def submit(conn: Connection) -> Future[list[str]]:
            tx = Transaction(conn)
            jobs._submit(tx, submission("j1"), NOW)
            tx.flush()
            disabling = other.submit(store.users.disable, replace(ALICE, successor=""))
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not server.execute(waiting) and not disabling.done():
                time.sleep(0.01)
            return disabling

        with pytest.raises(NoSuccessorError):
            store.session.database.write(submit).result(LIMIT_S)
    assert store.users.disabled() == []
    assert store.jobs.owners() == {"j1": "alice"}
    store.close()


def test_machines_that_may_have_a_key_of_one_who_is_shut_out(store: Store) -> None:
    placed(store)
    store.users.add_admission(NODE, "alice", NOW)
    store.users.add_admission(NODE, "bob", NOW)
    assert store.users.admitted_though_disabled() == []
    store.users.disable(ALICE)
    assert store.users.admitted_though_disabled() == [(NODE, "alice")]
    store.users.record_dismissed(NODE, "alice", NOW - 1)
    assert store.users.admitted_though_disabled() == [(NODE, "alice")], "it got the key after that"
    store.users.record_dismissed(NODE, "alice", NOW)
    assert store.users.admitted_though_disabled() == []
    store.users.add_admission(NODE, "alice", NOW + 1)
    assert store.users.admitted_though_disabled() == [(NODE, "alice")]
    move(store, NODE, NodeState.GONE)
    assert store.users.admitted_though_disabled() == [], "with the machine the key is gone"


def test_there_is_no_admission_to_a_machine_that_nobody_knows(store: Store) -> None:
    with pytest.raises(BrokenRuleError):
        store.users.add_admission("none", "alice", NOW)
