"""Two real daemons on one PostgreSQL: one is killed, frozen or cut off, and the other goes on."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.demo.box import Box, BoxError, wait_for
from tests.fixtures import postgres
from tests.fixtures.pair import Pair, Twin, machines, running_pair
from tests.fixtures.processes import alive
from tests.fixtures.waiting import LIMIT_S

TIMING = """\
lease_s = 12
offers_every_s = 0.3
survey_every_s = 1.0
"""
pytestmark = pytest.mark.xdist_group("daemon")


@pytest.fixture(scope="module")
def cloud() -> Iterator[Box]:
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name, Box(Path(name)) as box:
        box.start_cloud()
        # Slow answers: whoever is frozen has a question on its way, and an old answer afterwards.
        slow = {"operation": "offers", "kind": "delay", "seconds": 1.0, "count": 0}
        box.call_cloud("/control/fault", slow)
        yield box


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    """Each pair has a database of its own there."""
    with postgres.running() as found:
        yield found


@pytest.fixture
def pair(cloud: Box, server: postgres.Postgres) -> Iterator[Pair]:
    for name in ("pids", "finish"):
        (cloud.folder / name).unlink(missing_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name,
        running_pair(Path(name), server, cloud, TIMING) as running,
    ):
        yield running


def script(folder: Path) -> str:
    """A job that runs until it is told to finish; each of its programs leaves its process id."""
    return f"""\
name: patient
resources:
  accelerators: H100:8
run: |
  echo $$ >> {folder}/pids
  while [ ! -e {folder}/finish ]; do sleep 0.05; done
spotd:
  checkpoint: {{engine: none}}
"""


def programs(pair: Pair) -> list[int]:
    path = pair.cloud.folder / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def started(pair: Pair, count: int) -> int:
    """The process id of the job's program number `count`."""
    wait_for(f"program {count}", lambda: len(programs(pair)) >= count, LIMIT_S)
    return programs(pair)[count - 1]


def strike(pair: Pair, job_id: str) -> None:
    """A notice for the machine that runs."""
    (row,) = [row for row in machines(pair.cloud, job_id) if not row["ended_at_us"]]
    pair.cloud.preempt(row["instance_id"], kind="preempt", mode="notice", notice_s=20)


def moved(pair: Pair, twin: Twin, writes: int) -> bool:
    """Whether that box has written more than that many offers; their prices do not stand still."""
    usd = 90 + time.monotonic() % 7
    where = {"personality": "aws", "capacity_type": "on_demand"}
    pair.cloud.call_cloud("/control/price", {"usd_per_hour": usd, **where})
    return pair.writes_of(twin) > writes


def let_first_hold_all(pair: Pair) -> None:
    """Wait until the first box has every duty.

    A busy machine may let it stand still for as long as a lease lasts. Then the second has some of
    them, and starts again.
    """
    first, second = pair.twins
    try:
        wait_for("the first to hold every duty", lambda: pair.holds_all(first), LIMIT_S / 3)
    except BoxError:
        second.kill_daemon()
        second.start_daemon()
        wait_for("the first to hold every duty", lambda: pair.holds_all(first), LIMIT_S)


HURTS: dict[str, Callable[[Twin], None]] = {
    "killed": Twin.kill_daemon,
    "frozen": Twin.pause_daemon,
    "cut-off": lambda twin: twin.cable.cut(),
}


def come_back(pair: Pair, twin: Twin, how: str) -> None:
    """It is as if nothing had happened to it, and takes part again."""
    if how == "killed":
        twin.start_daemon()
    twin.cable.mend()
    if how == "frozen":
        twin.resume_daemon()

    def answers() -> bool:
        try:
            return bool(twin.client.call(routes.LIST_JOBS()))
        except UserError:
            return False

    wait_for("it to be back", answers, LIMIT_S)


@pytest.mark.req("RPV-09")
@pytest.mark.parametrize("how", HURTS)
def test_the_other_goes_on_and_who_comes_back_changes_nothing(pair: Pair, how: str) -> None:
    with pair.explaining():
        take_over(pair, how, HURTS[how], lambda _: None)


def take_over(
    pair: Pair, how: str, hurt: Callable[[Twin], None], heal: Callable[[Twin], None]
) -> None:
    """One box is hurt while the job's machine is taken away, and comes back."""
    let_first_hold_all(pair)
    holder, other = pair.twins
    job_id = holder.submit(script(pair.cloud.folder), f"r-{how}")
    first = started(pair, 1)
    wait_for("offers to move", lambda: moved(pair, holder, 3), LIMIT_S)

    hurt(holder)
    strike(pair, job_id)
    second = started(pair, 2)
    wait_for("the other to hold every duty", lambda: pair.holds_all(other), LIMIT_S)
    wait_for("the first machine's end", lambda: not alive(first), LIMIT_S)

    seen = pair.writes_of(other)
    heal(holder)
    come_back(pair, holder, how)
    wait_for("offers to move again", lambda: moved(pair, other, seen + 30), LIMIT_S)
    assert pair.holds_all(other), "who comes back takes nothing away"
    assert pair.intruders() == []
    assert alive(second)
    (pair.cloud.folder / "finish").touch()
    holder.wait_phase(job_id, {"succeeded"}, LIMIT_S)
    assert other.job(job_id)["generation"] == 2
    wait_for("no machine to be left", lambda: all_ended(pair, job_id), LIMIT_S)
    assert pair.doubles(job_id) == []
    assert len(machines(pair.cloud, job_id)) == 2
    for twin in pair.twins:
        assert "Traceback" not in twin.tail("daemon", 1000)


def all_ended(pair: Pair, job_id: str) -> bool:
    return all(row["ended_at_us"] for row in machines(pair.cloud, job_id))
