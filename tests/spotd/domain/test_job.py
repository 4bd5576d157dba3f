"""A job's facts that are derived from others."""

from __future__ import annotations

import pytest

from spotd.domain.states import Outcome
from tests.spotd.planner.build import head, job, spec


@pytest.mark.parametrize(
    ("outcome", "step", "outputs_at_us", "bake", "kept_nothing"),
    [
        (Outcome.SUCCEEDED, 0, 0, "", True),
        (Outcome.SUCCEEDED, 5, 0, "", False),
        (Outcome.SUCCEEDED, 0, 9, "", False),
        (Outcome.SUCCEEDED, 0, 0, "torch", False),
        (Outcome.FAILED, 0, 0, "", False),
        (None, 0, 0, "", False),
    ],
)
def test_only_a_success_without_checkpoint_and_outputs_kept_nothing(
    outcome: Outcome | None, step: int, outputs_at_us: int, bake: str, kept_nothing: bool
) -> None:
    ended = job(
        outcome=outcome,
        head=head(step=step, final=True),
        spec=spec(bake=bake),
        outputs_at_us=outputs_at_us,
    )
    assert ended.kept_nothing is kept_nothing
