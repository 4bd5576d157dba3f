"""The intervals that guides to training on spot machines name, by real programs. Each checkpoint
has all that a resume needs, so that the frequent ones need no other beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spotd.history.drill_judgement import MOST_SIGMAS, sigmas_off
from spotd.wire import EXIT_FINISHED, HeadRef
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.rig import AgentEnd, Trainer
from tests.trainer.test_train import head_of

NEAR = 100  # steps of which the trend before a resume is


@pytest.mark.req("CKP-01")
def test_each_500_steps_of_2000(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, steps=2000, every_steps=500)
    with AgentEnd() as agent:
        assert trainer.run(1, agent) == EXIT_FINISHED, trainer.output()
        assert [save["step"] for save in agent.of("checkpoint")] == [500, 1000, 1500, 2000]


@dataclass
class Killed:
    """One that saved each 100 steps and was killed at 640; what it had reported by then."""

    trainer: Trainer
    losses: dict[int, float]

    def __post_init__(self) -> None:
        head = head_of(self.trainer)
        assert head.current is not None
        self.newest: HeadRef = head.current
        self.previous = head.previous

    def folder(self, ref: HeadRef) -> Path:
        return Path(self.trainer.folder, "store", ref.manifest).parent

    def resumed(self, generation: int, until: int) -> tuple[int, list[int], dict[int, float]]:
        """Where it goes on, what it passed over, and its losses, of one that ends before a save."""
        with AgentEnd() as agent:
            process = self.trainer.held(until).start(generation, agent)
            step = agent.wait("claimed").data["step"]
            agent.wait("progress", lambda data: data["to_step"] >= until)
            process.kill()
            process.wait(LIMIT_S)
            agent.wait_left()
            skipped = [entry["step"] for entry in agent.of("checkpoint_skipped")]
            return step, skipped, agent.losses()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    trainer = Trainer(tmp_path_factory.mktemp("killed"), steps=2000, every_steps=100)
    with AgentEnd() as agent:
        process = trainer.held(640).start(1, agent)
        agent.wait("progress", lambda data: data["to_step"] == 640)
        agent.wait("checkpoint", lambda data: data["step"] == 600)
        process.kill()
        process.wait(LIMIT_S)
        agent.wait_left()
        yield Killed(trainer, agent.losses())
    trainer.end()


@pytest.mark.behaviour("no seam in the curve of losses", way="spotd's trainer")
@pytest.mark.req("CKP-31", "MON-10")
def test_a_resume_leaves_no_seam_in_the_losses(killed: Killed) -> None:
    step, _, losses = killed.resumed(2, 640)
    assert step == 600
    again = range(601, 641)
    before = [killed.losses[at] for at in range(601 - NEAR, 601)]
    off = sigmas_off(before, [losses[at] for at in again])
    assert off is not None
    assert off <= MOST_SIGMAS
    assert [losses[at] for at in again] == [killed.losses[at] for at in again], "bit for bit"
    anew = [killed.losses[at] for at in range(1, 41)]
    off = sigmas_off(before, anew)
    assert off is not None
    assert off > MOST_SIGMAS, "one that had begun anew would be seen"


@pytest.mark.req("CKP-02")
def test_killed_at_640_it_goes_on_from_600_alone_or_says_that_it_is_500(killed: Killed) -> None:
    assert (killed.newest.step, killed.previous[0].step) == (600, 500)
    older = killed.folder(killed.previous[0])
    hidden = older.rename(older.with_name("hidden"))
    assert killed.resumed(3, 610)[:2] == (600, []), "alone: nothing else is there to read"
    hidden.rename(older)
    for shard in killed.folder(killed.newest).glob("r*"):
        shard.unlink()  # its weights
    step, skipped, _ = killed.resumed(4, 510)
    assert (step, skipped) == (500, [600])
    assert "continues after step 500" in killed.trainer.output()
