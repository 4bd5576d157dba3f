"""A bake whose machine is taken away, with a death of the daemon now and then; the whole sweep is
`python -m tests.sim --sweep baked`."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.sim.__main__ import main
from tests.sim.machine import SimMachine

SOME = (0, 40, 80, 100, 120, 140, 160, 200)


@pytest.mark.parametrize("die_at", SOME)
def test_it_ends_in_an_image_or_in_none(die_at: int) -> None:
    assert main(["--sweep", "baked", "--die-at", str(die_at)]) == 0


def test_an_image_of_a_disk_that_is_not_clean_would_be_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with patch.object(SimMachine, "clean", lambda _self: None):
        assert main(["--sweep", "baked", "--die-at", "0"]) == 1
    assert "P1 at " in capsys.readouterr().out
