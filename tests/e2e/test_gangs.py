"""Jobs of several machines under torchrun, their weights divided between them: one is taken away,
with a notice and without. The job goes on with those that are left, or waits for a whole gang, and
ends in the bits of one machine. Played by `make soak-e2e`: `tests/trainer/test_machines.py` has the
short story."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.gangs import (
    STORIES,
    Story,
    changes,
    difference_from_one_machine,
    machines_of,
    played,
)


@pytest.mark.e2e
@pytest.mark.soak
@pytest.mark.xdist_group("kills of others")
@pytest.mark.req("ELA-01")
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_gang_that_loses_a_machine_ends_in_the_same_bits(
    folder: Path, python: Path, tmp_path: Path, story: Story
) -> None:
    with played(folder, python, story) as (box, job_id):
        found = changes(box, job_id)
        for change in found:
            print(f"{story}: {change}")
        assert found
        kept = machines_of(box, job_id)
        moved = [rows for rows in kept.values() if len(rows) > 1]
        if story.on_node_loss == "shrink":
            assert len(kept) == story.machines + 1, "one was lost, and one came in its place"
            assert len(moved) == story.machines, "those that were left, and the one that joined"
            assert all(node["state"] == "gone" for rows in moved for node in rows)
        else:
            assert not moved
        if story.notice_s:
            assert found[0].steps_lost <= 1
        assert found[-1].machines[1] == story.machines, "the gang is whole again"
        assert difference_from_one_machine(box, job_id, story, tmp_path / "alone") is None
