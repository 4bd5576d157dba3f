"""The connection to PostgreSQL breaks in the middle of a COMMIT, again and again: nobody knows then
whether it took place, and nothing is made twice, lost, or counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spotd.domain.states import NodeState, Outcome
from spotd.store.errors import StoreUnavailableError
from tests.fixtures import postgres
from tests.fixtures.commit_cutter import CommitCutter, Lost
from tests.spotd.fake_world import TICK_S, Stage

EACH = 12  # COMMITs; a turn of the story has some five
MOST_TURNS = 2000


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    with postgres.running() as running:
        yield running


def heard(ask: Callable[[], Any]) -> Any:
    """The answer; None when the connection broke."""
    try:
        return ask()
    except StoreUnavailableError:
        return None


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("lost", Lost)
def test_a_commit_of_which_nobody_knows_is_found_out(
    server: postgres.Postgres, tmp_path: Path, lost: Lost
) -> None:
    """The whole life of a job, its machine taken away once, while one COMMIT in some breaks off."""
    name = server.create()
    Stage(tmp_path, server.url(name)).close()  # the schema, undisturbed
    cutter = CommitCutter(tmp_path / "cut", server.folder, lost)
    try:
        url = f"postgresql://{postgres.USER}@/{name}?host={cutter.folder}"
        with closing(Stage(tmp_path, url)) as stage:
            _tell_story(stage, cutter)
    finally:
        cutter.close()


def _tell_story(stage: Stage, cutter: CommitCutter) -> None:
    stage.goal = None
    stage.submit()
    cutter.each = EACH

    def play(until: Callable[[], object]) -> int:
        broken = 0
        for _ in range(MOST_TURNS):
            if heard(until):
                return broken
            try:
                stage.turn()
            except StoreUnavailableError:
                broken += 1
                stage.clock.sleep(TICK_S)
        raise AssertionError("it takes too long")

    broken = play(lambda: stage.nodes("j1", NodeState.RUNNING))
    (node,) = stage.nodes("j1")
    stage.strike(node)
    broken += play(lambda: len(stage.nodes("j1", NodeState.RUNNING, NodeState.GONE)) == 2)
    stage.goal = 0
    broken += play(lambda: stage.over("j1"))
    cutter.each = 0

    assert cutter.struck >= 10
    assert broken >= 5, "decisions and records were among them"
    assert stage.job().outcome is Outcome.SUCCEEDED
    nodes = stage.nodes("j1")
    assert [stage.creates(node) for node in nodes] == [1] * len(nodes), "nothing was made twice"
    assert stage.alive() == []
    segments = stage.store.ledger.segments("j1")
    assert {row.node_id for row in segments} == {node.id for node in nodes}
    assert [row.state for row in segments] == ["closed"] * len(nodes), "nor counted twice"
