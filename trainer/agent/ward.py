"""Looks after the program and its machine: one that hangs is ended and begun again, once, a machine
whose GPU has failed, or that did not come up well, is given up, and a full disk is told of."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spotd import wire
from trainer.agent import kernel
from trainer.agent.demands import Demands
from trainer.agent.disk import STAYS_S, Disk
from trainer.agent.hanging import LEAST_S, StepWatch
from trainer.agent.kernel import Grade, Xid
from trainer.agent.pace import Pace
from trainer.agent.phase import Phase
from trainer.agent.recall import Recall
from trainer.agent.site import Site
from trainer.agent.training import Training
from trainer.agent.unwell import GPU, HUNG, MACHINE, Unwell

STACKS_SIGNAL = signal.SIGUSR2  # trainer.stop answers it
STACKS_S = 2.0  # for the stacks of a program that hangs to come to its log
UNKILLABLE_S = 30.0


class Ward:
    """Belongs to the agent's loop; `start` begins the thread that reads the kernel's messages."""

    def __init__(
        self, site: Site, training: Training, demands: Demands, pace: Pace, past: Recall
    ) -> None:
        self._site = site
        self._training = training
        self._demands = demands
        self._pace = pace
        self._restarted = past.unwell.restarted
        self._told: set[int] = set()
        self._kill_at = site.monotonic()  # what an earlier agent was about to end
        least_s = float(site.environ.get("SPOTD_HANG_S", LEAST_S))
        stays_s = float(site.environ.get("SPOTD_DISK_FULL_S", STAYS_S))
        self._disk = Disk(
            site.places.folder, site.journal, self._kill_at, full=past.disk_full, stays_s=stays_s
        )
        self._steps = StepWatch(pace, site.monotonic(), least_s=least_s, stepping=past.stepping)

    def start(self) -> None:
        """Read what the kernel says."""
        site = self._site
        threading.Thread(
            target=kernel.watch,
            args=(site.environ.get("SPOTD_KMSG", kernel.KMSG), site.ended),
            kwargs={
                "hear": lambda xid, news: site.post(lambda: self._hear(xid, news=news)),
                "blind": lambda text: site.post(lambda: self._warn(text)),
            },
            name="kernel",
            daemon=True,
        ).start()

    def note(self, kind: str, data: Mapping[str, Any]) -> None:
        """The program has said something."""
        self._pace.note(Recall.of_fact(kind, data))
        self._steps.hear(stepped=kind == wire.PROGRESS)

    def excuse(self, for_s: float) -> None:
        """The program is at something that takes long."""
        self._steps.excuse(for_s)

    def look(self, now: float) -> None:
        """Whether something is to be done, or said."""
        self._look_at_program(now)
        if self._training.phase is not Phase.ENDED:
            self._disk.look(now)
            wrong = self._site.preparation.look(self._site.journal, now)
            if wrong:
                self._end(Unwell(MACHINE, wrong, again=False))

    def _look_at_program(self, now: float) -> None:
        """Whether it hangs, or is to be gone by now. A stop under way has its own deadline."""
        hangs, unwell = self._steps.look(now), self._training.unwell
        if self._training.phase is not Phase.RUNNING or self._demands.stopping is not None:
            return
        if unwell is not None:
            if now >= self._kill_at:
                self._insist(unwell, now)
        elif hangs:
            silent_s, limit_s = self._steps.silent_s, self._steps.limit_s
            text = f"no step for {silent_s:.0f} s after step {self._pace.step}"
            text = f"{text}, {limit_s:.0f} s are allowed"
            self._end(Unwell(HUNG, text, again=self._may_restart()))

    def _insist(self, unwell: Unwell, now: float) -> None:
        """What cannot be killed waits in the kernel, for ever perhaps."""
        self._training.kill()
        if now >= self._kill_at + UNKILLABLE_S:
            self._training.end_unfit(replace(unwell, text=f"{unwell.text}; it cannot be killed"))

    def _hear(self, xid: Xid, *, news: bool) -> None:
        """What was said before we came counts if it is the end of a GPU: it has not recovered."""
        running = self._training.phase is Phase.RUNNING
        if self._training.phase is Phase.ENDED:
            return
        if xid.grade is Grade.FATAL:
            self._end(Unwell(GPU, xid.text, again=False))
        elif xid.grade is Grade.CONTAINED and news and running:
            self._end(Unwell(GPU, xid.text, again=self._may_restart()))
        elif news and xid.number not in self._told:
            self._told.add(xid.number)
            self._warn(f"{xid.text}; nothing follows from it")

    def _may_restart(self) -> bool:
        """Once on a machine; the ranks of a gang begin together or not at all."""
        start = self._demands.start
        return not self._restarted and start is not None and start.num_nodes == 1

    def _end(self, unwell: Unwell) -> None:
        training = self._training
        if training.unwell is not None:
            return
        hung = unwell.what == HUNG
        stacks = training.signal(STACKS_SIGNAL, only_if_caught=True) if hung else 0
        self._restarted = self._restarted or unwell.again
        self._steps.forget()
        data = {**unwell.to_data(), "stacks": stacks, "step": self._pace.step}
        self._site.journal.append(wire.UNWELL, data)
        if training.phase is Phase.RUNNING:
            training.unwell = unwell
            self._kill_at = self._site.monotonic() + (STACKS_S if hung else 0.0)
        elif training.phase is not Phase.SETTLING:
            training.end_unfit(unwell)

    def _warn(self, text: str) -> None:
        self._site.journal.append(wire.WARNING, {"text": text})
