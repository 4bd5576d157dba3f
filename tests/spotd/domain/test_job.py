"""A job's facts that are derived from others."""

from __future__ import annotations

import pytest

from spotd.domain.states import Outcome
from tests.spotd.planner.build import head, job, spec


@pytest.mark.parametrize(
    ("outcome", "step", "bake", "kept_nothing"),
    [
        (Outcome.SUCCEEDED, 0, "", True),
        (Outcome.SUCCEEDED, 5, "", False),
        (Outcome.SUCCEEDED, 0, "torch", False),
        (Outcome.FAILED, 0, "", False),
        (None, 0, "", False),
    ],
)
def test_only_a_success_without_a_checkpoint_kept_nothing(
    outcome: Outcome | None, step: int, bake: str, kept_nothing: bool
) -> None:
    ended = job(outcome=outcome, head=head(step=step, final=True), spec=spec(bake=bake))
    assert ended.kept_nothing is kept_nothing
