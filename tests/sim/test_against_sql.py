"""The memory store against SQLite: the same calls, in any order, have the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from spotd.domain.units import S
from spotd.store.alerts import AlertRow
from spotd.store.checkpoints import CheckpointRow
from spotd.store.commit import CommitResult, CommitStatus
from spotd.store.engine import BrokenRuleError
from spotd.store.errors import StoreError
from spotd.store.events import EventRow
from spotd.store.interface import Store
from spotd.store.sql_store import SqlStore
from tests.sim.memory_store import MemoryStore
from tests.sim.random_source import JOBS, Call, Chance, perform
from tests.spotd.store.build import Bell
from tests.spotd.store.conftest import DEPLOYMENT, make

STEPS = 220


def _known(value: object) -> object:
    """Without the words of a database for what it refuses."""
    if isinstance(value, list):
        return [_known(item) for item in value]
    if isinstance(value, CommitResult) and value.status is CommitStatus.REJECTED:
        return value.status
    if isinstance(value, EventRow | AlertRow) and value.event.kind == "plan_rejected":
        return replace(value, event=replace(value.event, text=""))
    return value


READS: dict[str, Callable[[Store, int], object]] = {
    "views": lambda store, now_us: store.load_views([*JOBS, "nobody"], now_us),
    "market": lambda store, now_us: store.market.load(now_us),
    "jobs": lambda store, _: [
        store.jobs.rows(),
        store.jobs.rows(finished=False),
        store.jobs.find("name1"),
    ],
    "nodes": lambda store, _: [store.nodes.of_job(job) for job in JOBS],
    "found": lambda store, _: store.nodes.find(["j0-g1-0", "j1-g1-1", "j0-g1-0", "x"]),
    "active": lambda store, _: (store.nodes.active(), store.nodes.booted()),
    "events": lambda store, _: [*store.events.rows(None, 3, 9999), *store.events.rows("j0", 0, 5)],
    "segments": lambda store, _: (store.ledger.segments(), store.ledger.segments("j1")),
    "checkpoints": lambda store, _: [_by_manifest(store, job) for job in JOBS],
    "progress": lambda store, _: [store.progress.rows(job, 5) for job in JOBS],
    "offsets": lambda store, _: [store.logs.offsets(job) for job in JOBS],
    "alerts": lambda store, now_us: store.alerts.due(now_us + 3600 * S, 99),
    "routes": lambda store, _: store.alerts.routes(),
    "times": lambda store, _: (store.jobs.next_wake_us(), store.leases.newest_us()),
    "throughput": lambda store, now_us: store.progress.recent_throughput(now_us),
    "audit": lambda store, now_us: (store.audit.rows(0), store.audit.rows(now_us - 60 * S, 9, 3)),
    "people": lambda store, _: [
        store.jobs.owners(),
        store.users.disabled(),
        store.users.admitted_though_disabled(),
    ],
    "users": lambda store, _: store.jobs.users(["j0", "j1", "nobody"]),
    "rest": lambda store, _: [store.deployment.id(), store.deployment.quarantine(), _sealed(store)],
}


def _sealed(store: Store) -> list[object]:
    jobs = [[store.jobs.key(job.id), store.jobs.secrets(job.id)] for job in store.jobs.rows()]
    kept = [store.secrets.rows(), store.secrets.values(["A", "B", "C"])]
    return [store.secrets.key_state(), *jobs, *kept]


def _by_manifest(store: Store, job_id: str) -> list[CheckpointRow]:
    """Of the same moment, generation and step, none comes first."""
    rows = store.checkpoints.rows(job_id)
    assert rows == sorted(rows, key=lambda row: (row.committed_at_us, row.generation, row.step))
    return sorted(rows, key=lambda row: row.manifest)


@pytest.fixture
def sql() -> Iterator[SqlStore]:
    """A database of the test's own."""
    opened = make("sqlite://", Bell())
    yield opened
    opened.close()


@pytest.mark.parametrize("seed", range(8))
def test_the_same_calls_have_the_same_results(sql: SqlStore, seed: int) -> None:
    memory = MemoryStore(DEPLOYMENT, Bell())
    chance = Chance(memory, seed)
    for step in range(STEPS):
        call = chance.call()
        # What was refused is looked up when the market is loaded, and then kept: in both at once.
        assert sql.market.load(chance.now_us) == memory.market.load(chance.now_us)
        assert _told(sql, call) == _told(memory, call), call
        if step % 3 == 0:
            _compare(sql, memory, chance.now_us)
    _compare(sql, memory, chance.now_us)
    assert len(memory.ledger.segments()) > 3, "nothing much happened"


def _told(store: Store, call: Call) -> object:
    """What came of it."""
    try:
        return _known(perform(store, call))
    except (StoreError, ValueError) as error:
        wordless = isinstance(error, ValueError | BrokenRuleError)
        return type(error), "" if wordless else str(error)


def _compare(sql: Store, memory: Store, now_us: int) -> None:
    """Everything that can be read."""
    for name, read in READS.items():
        assert _known(read(memory, now_us)) == _known(read(sql, now_us)), name
