"""Looks after the program and its machine: one that hangs is ended and begun again, once, a machine
whose GPU has failed, that did not come up well, or whose mounts of buckets do not stay, is given
up, and a full disk is told of."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spotd import wire
from spotd.wire import EXIT_FENCED, EXIT_FINISHED, EXIT_RELEASED
from trainer.agent.base.context import AgentContext
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.health_verdict import GPU, HUNG, MACHINE, MOUNT, HealthVerdict
from trainer.agent.base.phase import Phase
from trainer.agent.base.warnings import HealthWarning
from trainer.agent.data.mounts import Mounts
from trainer.agent.run.journal_replay import JournalReplay, WorkerFact
from trainer.agent.run.timing_stats import TimingStats
from trainer.agent.run.training import Training
from trainer.agent.watch import gpus, kernel, stack_dump
from trainer.agent.watch.disk import STAYS_S, Disk
from trainer.agent.watch.hang_detector import LEAST_S, StepWatch
from trainer.agent.watch.kernel import Grade, Xid
from trainer.agent.watch.metrics_parser import MetricsParser
from trainer.agent.watch.peers import PeerWatch
from trainer.agent.watch.stack_dump import Stacks
from trainer.agent.watch.straggler_detector import CHECK_S, WARM_UP_S, StragglerDetector
from trainer.agent.watch.usage import WINDOW_S, Usage

TOLD_S = 1.0  # between the word that a program hangs and its end: for whoever follows the journal
SETTLE_S = 2.0  # for the kernel's own word on a memory error, which says more than a count
UNKILLABLE_S = 30.0


class Watchdog:
    """Belongs to the agent's loop; `start` begins the thread that reads the kernel's messages."""

    def __init__(
        self,
        site: AgentContext,
        training: Training,
        demands: DesiredState,
        pace: TimingStats,
        past: JournalReplay,
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
        self._peers = PeerWatch(site.monotonic())
        self._reporting = past.stepping
        self._taking = False  # a thread takes the stacks
        check_s = float(site.environ.get("SPOTD_STRAGGLER_CHECK_S", CHECK_S))
        warm_up_s = float(site.environ.get("SPOTD_STRAGGLER_WARM_UP_S", WARM_UP_S))
        self._figures = MetricsParser(StragglerDetector(check_s, warm_up_s))
        window_s = float(site.environ.get("SPOTD_USAGE_S", WINDOW_S))
        self.usage = Usage(window_s)
        self._gpus = gpus.Watch()
        self._suspected = False  # the last look at the GPUs found what would end training
        self._gpu_ends = 0
        self._mounts = Mounts(site, demands)
        training.blame, training.may_run = self._blame, self._mounts.stand

    def start(self) -> None:
        """Read what the kernel says, and look at the GPUs."""
        site = self._site
        threading.Thread(
            target=gpus.watch,
            args=(site.environ.get("SPOTD_NVIDIA_SMI", "nvidia-smi"), site.ended),
            kwargs={
                "hear": self._hear_gpus,
                "silent": lambda text: site.post(
                    lambda: self._remark(HealthWarning("gpu_noted", text))
                ),
                "every_s": float(site.environ.get("SPOTD_GPUS_EVERY_S", gpus.EVERY_S)),
            },
            name="gpus",
            daemon=True,
        ).start()
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
        self._pace.note(JournalReplay.of_fact(kind, data))
        self._steps.hear(stepped=kind == wire.PROGRESS)
        self._peers.hear()
        self._reporting = self._reporting or kind == wire.PROGRESS
        for remark in self._figures.note(kind, data, self._site.monotonic()):
            self._remark(remark)

    def step(self, rank: int, step: int) -> None:
        """A rank tells how far it has come. On a machine without rank 0 nobody reports how long a
        step takes, and this shows it."""
        step_s = self._steps.hear_rank(rank, step, self._site.monotonic())
        self._peers.hear()
        if step_s is not None and not self._reporting:
            self._steps.hear(stepped=True)
            self._pace.note(WorkerFact(step, None, step_s))

    def left(self, rank: int) -> None:
        """A rank says nothing more: it has ended, or others are its ranks now."""
        self._steps.ranks.leave(rank)

    def excuse(self, for_s: float) -> None:
        """The program is at something that takes long."""
        self._steps.excuse(for_s)
        self._peers.hear()

    def look(self, now: float) -> None:
        """Whether something is to be done, or said."""
        self._look_at_program(now)
        peers = self._peers.look(now, self._peers_wait_s(), self._pace.step)
        for remark in [*self._mounts.look(self._training.phase, now), *([peers] if peers else [])]:
            self._remark(remark)
        self._tell_read(now)
        if self._mounts.gone:
            self._end(HealthVerdict(MOUNT, self._mounts.gone, again=False))
        if self._training.phase is not Phase.ENDED:
            self._disk.look(now)
            wrong = self._site.preparation.look(self._site.journal, now)
            if wrong:
                self._end(HealthVerdict(MACHINE, wrong, again=False))

    def _look_at_program(self, now: float) -> None:
        """Whether it hangs, or is to be gone by now. A stop under way has its own deadline."""
        hangs, unwell = self._steps.look(now), self._training.unwell
        if self._training.phase is not Phase.RUNNING or self._demands.stopping is not None:
            return
        if unwell is not None:
            if now >= self._kill_at:
                self._insist(unwell, now)
        elif hangs and not self._taking:
            self._taking = True
            threading.Thread(
                target=self._take_stacks, args=(self._say_hung(),), name="stacks", daemon=True
            ).start()

    def _peers_wait_s(self) -> float:
        """How long the ranks of the program wait for those of other machines; 0: they do not, or
        nobody would know."""
        start, stopping = self._demands.start, self._demands.stopping
        if start is None or stopping is not None or self._training.phase is not Phase.RUNNING:
            return 0.0
        known = start.num_nodes > 1 and start.engine == "spotd"
        return start.peer_timeout_s if known and self._training.unwell is None else 0.0

    def _say_hung(self) -> str:
        steps = self._steps
        silent_s = max(steps.silent_s, steps.ranks.silent_s)
        text = f"no step for {silent_s:.0f} s after step {self._pace.step}"
        text = f"{text}, {steps.limit_s:.0f} s are allowed"
        return f"{text}: {steps.ranks.text}" if steps.ranks.text else text

    def _take_stacks(self, text: str) -> None:
        """Before anything is ended; in a thread."""
        log = self._site.places.logs / f"rank{self._site.config.rank}.log"
        found = stack_dump.take(self._training.workers(stack_dump.STACKS_SIGNAL), log)
        self._site.post(lambda: self._judge_hung(text, found))

    def _judge_hung(self, text: str, found: list[Stacks]) -> None:
        """Nobody is ended who went on meanwhile. On a machine without rank 0 it is only told: that
        rank may be at something that takes long, of which nobody here has heard."""
        self._taking = False
        if self._training.phase is not Phase.RUNNING or self._demands.stopping is not None:
            return
        steps = self._steps
        if max(steps.silent_s, steps.ranks.silent_s) < steps.limit_s:
            self._warn(f"{text}; then it went on")
        elif self._reporting or not self._site.config.rank:
            self._end(HealthVerdict(HUNG, text, again=self._may_restart()), found)
        else:
            about = {"stacks": [one.to_data() for one in found]}
            self._remark(HealthWarning("hung_here", f"training hangs here: {text}", about))
            self._steps.forget()

    def _blame(self, code: int) -> None:
        """The program has ended by itself: of a mount that was lost, perhaps."""
        for remark in self._mounts.errors(self._site.monotonic()):
            self._remark(remark)
        self._tell_read(self._site.monotonic(), last=True)
        text = self._mounts.trouble(self._site.monotonic())
        if text and code not in (EXIT_FINISHED, EXIT_RELEASED, EXIT_FENCED):
            text = f"{text}, and the program failed"
            self._end(HealthVerdict(MOUNT, text, again=self._may_restart()))

    def _insist(self, unwell: HealthVerdict, now: float) -> None:
        """What cannot be killed waits in the kernel, for ever perhaps."""
        self._training.kill(saver=False)
        if now >= self._kill_at + UNKILLABLE_S:
            self._training.end_unfit(replace(unwell, text=f"{unwell.text}; it cannot be killed"))

    def _hear_gpus(self, look: gpus.Look) -> bool:
        """In the thread that looks; whether it is to look again soon."""
        self.usage.look([gpu.busy for gpu in look.gpus if gpu.busy is not None])
        ends = self._gpu_ends
        found = self._gpus.judge(look)
        worst = found[0].grade if found else Grade.NOTED
        if worst is Grade.FATAL and not self._suspected:
            self._suspected = True
            return True
        self._suspected = False
        if worst is Grade.CONTAINED:
            self._site.ended.wait(SETTLE_S)
        self._site.post(lambda: self._meet(found, ends))
        return False

    def _meet(self, found: list[gpus.Finding], ends: int) -> None:
        if self._training.phase is Phase.ENDED or ends != self._gpu_ends:
            return
        for finding in found:
            if finding.grade is Grade.FATAL:
                self._end(HealthVerdict(GPU, finding.text, again=False))
            elif finding.grade is Grade.NOTED:
                self._remark(HealthWarning("gpu_noted", finding.text))
            elif self._training.phase is Phase.RUNNING:
                self._end(HealthVerdict(GPU, finding.text, again=self._may_restart()))

    def _hear(self, xid: Xid, *, news: bool) -> None:
        """What was said before we came counts if it is the end of a GPU: it has not recovered."""
        running = self._training.phase is Phase.RUNNING
        if self._training.phase is Phase.ENDED:
            return
        if xid.grade is Grade.FATAL:
            self._end(HealthVerdict(GPU, xid.text, again=False))
        elif xid.grade is Grade.CONTAINED and news and running:
            self._end(HealthVerdict(GPU, xid.text, again=self._may_restart()))
        elif news and xid.number not in self._told:
            self._told.add(xid.number)
            self._remark(HealthWarning("gpu_noted", xid.text, {"xid": xid.number}))

    def _may_restart(self) -> bool:
        """Once on a machine; the ranks of a gang begin together or not at all."""
        start = self._demands.start
        return not self._restarted and start is not None and start.num_nodes == 1

    def _end(self, unwell: HealthVerdict, found: list[Stacks] | None = None) -> None:
        training = self._training
        if training.unwell is not None:
            return
        self._restarted = self._restarted or unwell.again
        ranks = {str(rank): step for rank, step in self._steps.ranks.steps.items()}
        self._steps.forget()
        self._figures.begin()
        self.usage.begin()
        self._gpus.forget_errors()
        self._gpu_ends += unwell.what == GPU
        taken = [one.to_data() for one in found or []]
        said = {"stacks": len(taken), "dumps": taken, "ranks": ranks, "step": self._pace.step}
        self._site.journal.append(wire.UNWELL, {**unwell.to_data(), **said})
        if training.phase is Phase.RUNNING:
            training.unwell = unwell
            self._kill_at = self._site.monotonic() + (TOLD_S if unwell.what == HUNG else 0.0)
        elif training.phase is not Phase.SETTLING:
            training.end_unfit(unwell)

    def _remark(self, remark: HealthWarning) -> None:
        if self._training.phase is not Phase.ENDED:
            self._site.journal.append(wire.WARNING, remark.to_data())

    def _tell_read(self, now: float, *, last: bool = False) -> None:
        for told in self._mounts.read(now, last=last):
            self._site.journal.append(wire.MOUNT_READ, told)

    def _warn(self, text: str) -> None:
        self._site.journal.append(wire.WARNING, {"text": text})
