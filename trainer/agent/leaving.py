"""The last things, when all is over on this machine: its disks, and the cloud that waits."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from providers.base import Notice, NoticeWatcher
from spotd import wire
from trainer.agent.notices import acknowledge
from trainer.agent.site import Site
from trainer.agent.wipe import wipe

# After a crash somebody may want to look: then the disk goes with the machine, as it is.
_WIPED_AFTER = frozenset({wire.EXIT_FINISHED, wire.EXIT_RELEASED, wire.EXIT_FENCED})


def let_go(
    site: Site, watcher: NoticeWatcher, code: int | None, notices: Sequence[Notice]
) -> threading.Thread:
    """In a thread of its own: nothing here may keep the agent from its loop."""

    def run() -> None:
        if site.config.wipe and code in _WIPED_AFTER:
            site.journal.append(wire.WIPED, wipe(site.places))
        if code == wire.EXIT_RELEASED:
            # All is saved and released: the cloud need not wait, once our last lines are out.
            acknowledge(watcher, notices, site.ended)

    thread = threading.Thread(target=run, name="leaving", daemon=True)
    thread.start()
    return thread
