"""Final work on this machine: delete credentials, wipe disks, and acknowledge notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from providers.base import NoticeWatcher
from spotd import wire
from trainer.agent.base.active_notices import ActiveNotice
from trainer.agent.base.context import AgentContext
from trainer.agent.base.leased_credentials import delete_credentials
from trainer.agent.base.notices import acknowledge, cloud_notices
from trainer.agent.base.paths import AgentPaths
from trainer.agent.cleanup.wipe import wipe

REMOVAL_S = 30.0  # for the engine to remove its container, in up to twenty attempts


def start_shutdown(
    context: AgentContext,
    watcher: NoticeWatcher,
    *,
    ended_well: bool,
    released: bool,
    active_notices: Iterable[ActiveNotice],
) -> threading.Event:
    """Do the final work in a thread, so that the agent's loop is not blocked.

    After a crash the user may want to inspect the disk: it goes with the machine as it is. The
    returned event is set when the disks are done. If the agent ends before, no WIPED entry is
    written.
    """
    done, notices = threading.Event(), [active.notice for active in active_notices]

    def run() -> None:
        try:
            delete_credentials(context.paths)
            is_reused = context.config.regroups and released and not notices
            if context.config.wipe and ended_well and not is_reused:
                wait_container_removed(context.paths)
                context.journal.append(wire.WIPED, wipe(context.paths))
        finally:
            done.set()
        if released:
            # Everything is saved and released: the cloud need not wait for the notice's deadline.
            acknowledge(watcher, cloud_notices(notices), context.ended)

    threading.Thread(target=run, name="leaving", daemon=True).start()
    return done


def wait_container_removed(paths: AgentPaths) -> None:
    """Wait until the container is gone, as only its engine can remove its root's files; at most
    REMOVAL_S."""
    deadline = time.monotonic() + REMOVAL_S
    while paths.container.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
