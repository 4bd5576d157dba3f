"""The last things, when all is over on this machine: its disks, and the cloud that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from providers.base import NoticeWatcher
from spotd import wire
from trainer.agent.base.active_notices import ActiveNotice
from trainer.agent.base.context import AgentContext
from trainer.agent.base.leased_credentials import give_back
from trainer.agent.base.notices import acknowledge, from_clouds
from trainer.agent.base.paths import AgentPaths
from trainer.agent.cleanup.wipe import wipe

# After a crash somebody may want to look: then the disk goes with the machine, as it is.
_WIPED_AFTER = frozenset({wire.EXIT_FINISHED, wire.EXIT_RELEASED, wire.EXIT_FENCED})


REMOVAL_S = 30.0  # for an engine to remove its container, which it is asked to twenty times


def let_go(
    site: AgentContext, watcher: NoticeWatcher, code: int | None, dangers: Iterable[ActiveNotice]
) -> threading.Event:
    """In a thread of its own: nothing here may keep the agent from its loop. Set when the disks are
    done with; who ends before that cuts it short, and then nothing says that they are wiped."""
    done, notices = threading.Event(), [danger.notice for danger in dangers]

    def run() -> None:
        try:
            give_back(site.places)
            stays = site.config.regroups and code == wire.EXIT_RELEASED and not notices
            if site.config.wipe and code in _WIPED_AFTER and not stays:
                await_removal(site.places)
                site.journal.append(wire.WIPED, wipe(site.places))
        finally:
            done.set()
        if code == wire.EXIT_RELEASED:
            # All is saved and released: the cloud need not wait, once our last lines are out.
            acknowledge(watcher, from_clouds(notices), site.ended)

    threading.Thread(target=run, name="leaving", daemon=True).start()
    return done


def await_removal(places: AgentPaths) -> None:
    """Until there is no container any more, whose root's files nobody else could remove; for so
    long at most."""
    end_s = time.monotonic() + REMOVAL_S
    while places.container.exists() and time.monotonic() < end_s:
        time.sleep(0.1)
