"""One job over AWS, Google Cloud and Azure, through their real SDKs, on machines that cloud-init
sets up by our user data. Needs root; without it, a failure."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from spotd.demo.screen import PlainScreen
from tests.e2e.demo_clouds import play
from tests.e2e.rig import Reference

pytestmark = pytest.mark.root

# A local disk that is there, and that nobody can make a file system on.
UNWELL = {
    "/usr/local/sbin/lsblk": "echo /dev/nvme9n1 disk Amazon EC2 NVMe Instance Storage",
    "/usr/local/sbin/wipefs": "exit 0",
}


@pytest.mark.e2e
@pytest.mark.timeout(400)  # the reference may be made in it
def test_an_unwell_machine_is_left_and_two_reclaimed_ones_as_if_nothing_had_happened(
    folder: Path, reference: Reference
) -> None:
    said = io.StringIO()
    screen = PlainScreen(Console(file=said, width=200))
    try:
        evidence = play(folder / "box", screen, unwell=UNWELL, reference=reference)
        assert [text for good, text in evidence.verdicts() if not good] == []
        unwell, *_ = evidence.nodes
        assert unwell.offer.cloud == "aws"
        assert not unwell.training.first_step_at_us, "nothing of the job ran there"
        assert "no file system on /dev/nvme9n1" in unwell.training.exit_tail
    except BaseException:
        logs = sorted(folder.glob("box/*.log"))
        print(said.getvalue(), *(path.read_text()[-5000:] for path in logs), sep="\n")
        raise
