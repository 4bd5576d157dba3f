"""Watch the program and its machine.

A hung program is restarted once. The machine is given up if a GPU fails, its preparation fails, or
its bucket mounts keep failing. A full disk is reported.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spotd import wire
from spotd.wire import EXIT_FENCED, EXIT_FINISHED, EXIT_RELEASED
from trainer.agent.base.context import AgentContext
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.health_verdict import (
    GPU,
    HUNG,
    MACHINE,
    MOUNT,
    HealthVerdict,
    HealthWarning,
)
from trainer.agent.base.phase import AFTER_PROGRAM, Phase
from trainer.agent.data.mounts import Mounts
from trainer.agent.run.journal_replay import JournalReplay, WorkerFact, parse_worker_fact
from trainer.agent.run.timing_stats import TimingStats
from trainer.agent.run.training import Training
from trainer.agent.watch import gpus, kernel, stack_dump
from trainer.agent.watch.disk import CONFIRM_S, DiskMonitor
from trainer.agent.watch.hang_detector import MIN_SILENT_S, HangDetector
from trainer.agent.watch.kernel import Grade, Xid
from trainer.agent.watch.metrics_parser import MetricsParser
from trainer.agent.watch.peers import PeerMonitor
from trainer.agent.watch.stack_dump import StackDump
from trainer.agent.watch.straggler_detector import CHECK_S, WARM_UP_S, StragglerDetector
from trainer.agent.watch.usage import WINDOW_S, Usage

REPORT_S = 1.0  # between reporting a hang and ending the program, for readers of the journal
SETTLE_S = 2.0  # for the kernel's message on a memory error, which tells more than a count
UNKILLABLE_S = 30.0


class Watchdog:
    """Belongs to the agent's loop; `start` starts the threads that read kernel messages and
    GPUs."""

    def __init__(
        self,
        context: AgentContext,
        training: Training,
        *,
        desired: DesiredState,
        timing_stats: TimingStats,
        replay: JournalReplay,
    ) -> None:
        self._context = context
        self._training = training
        self._desired = desired
        self._timing_stats = timing_stats
        self._restarted = replay.health.restarted
        self._reported_xids: set[int] = set()
        self._kill_at = context.monotonic()  # an earlier agent's pending verdict is due now
        min_silent_s = float(context.environ.get("SPOTD_HANG_S", MIN_SILENT_S))
        confirm_s = float(context.environ.get("SPOTD_DISK_FULL_S", CONFIRM_S))
        self._disk = DiskMonitor(
            context.paths.folder,
            context.journal,
            self._kill_at,
            full=replay.disk_full,
            confirm_s=confirm_s,
        )
        self._hang_detector = HangDetector(
            timing_stats, context.monotonic(), min_silent_s=min_silent_s, stepping=replay.stepping
        )
        self._peers = PeerMonitor(context.monotonic())
        self._reporting = replay.stepping
        self._dumping = False  # a thread is taking stacks
        check_s = float(context.environ.get("SPOTD_STRAGGLER_CHECK_S", CHECK_S))
        warm_up_s = float(context.environ.get("SPOTD_STRAGGLER_WARM_UP_S", WARM_UP_S))
        self._metrics = MetricsParser(StragglerDetector(check_s, warm_up_s))
        window_s = float(context.environ.get("SPOTD_USAGE_S", WINDOW_S))
        self.usage = Usage(window_s)
        self._gpus = gpus.GpuMonitor()
        self._suspected = False  # the last GPU report has a finding that would end training
        self._gpu_ends = 0
        self._mounts = Mounts(context, desired)
        training.on_script_exit, training.can_run = self._on_script_exit, self._mounts.all_up

    def start(self) -> None:
        """Start reading kernel messages and querying the GPUs."""
        context = self._context
        threading.Thread(
            target=gpus.watch_gpus,
            args=(context.environ.get("SPOTD_NVIDIA_SMI", "nvidia-smi"), context.ended),
            kwargs={
                "on_report": self._on_gpus,
                "on_timeout": lambda text: context.post(
                    lambda: self._report(HealthWarning("gpu_noted", text))
                ),
                "every_s": float(context.environ.get("SPOTD_GPUS_EVERY_S", gpus.EVERY_S)),
            },
            name="gpus",
            daemon=True,
        ).start()
        threading.Thread(
            target=kernel.watch_kernel,
            args=(context.environ.get("SPOTD_KMSG", kernel.KMSG), context.ended),
            kwargs={
                "on_xid": lambda xid, is_new: context.post(
                    lambda: self._on_xid(xid, is_new=is_new)
                ),
                "on_unreadable": lambda text: context.post(lambda: self._warn(text)),
            },
            name="kernel",
            daemon=True,
        ).start()

    def on_fact(self, kind: str, data: Mapping[str, Any]) -> None:
        """Process a message of the program."""
        self._timing_stats.add(parse_worker_fact(kind, data))
        self._hang_detector.on_message(stepped=kind == wire.PROGRESS)
        self._peers.reset()
        self._reporting = self._reporting or kind == wire.PROGRESS
        for warning in self._metrics.on_fact(kind, data, self._context.monotonic()):
            self._report(warning)

    def step(self, rank: int, step: int) -> None:
        """Record a rank's step.

        On a machine without rank 0 no process reports step times, and they are derived from this.
        """
        step_s = self._hang_detector.on_rank_step(rank, step, self._context.monotonic())
        self._peers.reset()
        if step_s is not None and not self._reporting:
            self._hang_detector.on_message(stepped=True)
            self._timing_stats.add(WorkerFact(step, None, step_s))

    def on_disconnect(self, rank: int) -> None:
        """Forget a rank that has ended or moved to another process."""
        self._hang_detector.ranks.remove(rank)

    def on_idle(self, rank: int) -> None:
        """Expect no steps of a rank whose training has ended."""
        self._hang_detector.on_idle(rank)
        self._peers.reset()

    def allow_silence(self, for_s: float) -> None:
        """Allow silence for a long operation of the program."""
        self._hang_detector.allow_silence(for_s)
        self._peers.reset()

    def check(self, now: float) -> None:
        """Run all checks, and end the program or report warnings as needed."""
        self._check_program(now)
        peers = self._peers.check(now, self._peers_wait_s(), self._timing_stats.step)
        for warning in self._mounts.check(self._training.phase, now):
            self._report(warning)
        if peers is not None:
            self._report(peers)
        self._report_reads(now)
        if self._mounts.lost:
            self._end(HealthVerdict(MOUNT, self._mounts.lost, again=False))
        if self._training.phase is not Phase.ENDED:
            self._disk.check(now)
            problem = self._context.preparation.check(self._context.journal, now)
            if problem:
                self._end(HealthVerdict(MACHINE, problem, again=False))

    def _check_program(self, now: float) -> None:
        """Check for a hang, and carry out a pending verdict. A stop in progress has its own
        deadline."""
        hangs, verdict = self._hang_detector.check(now), self._training.verdict
        if self._training.phase is not Phase.RUNNING or self._desired.stopping is not None:
            return
        if verdict is not None:
            if now >= self._kill_at:
                self._kill_unfit(verdict, now)
        elif hangs and not self._dumping:
            self._dumping = True
            threading.Thread(
                target=self._dump_stacks, args=(self._describe_hang(),), name="stacks", daemon=True
            ).start()

    def _peers_wait_s(self) -> float:
        """Return how long the program's ranks wait for other machines; 0 if not at all or
        unknown."""
        start, stopping = self._desired.start, self._desired.stopping
        if start is None or stopping is not None or self._training.phase is not Phase.RUNNING:
            return 0.0
        known = start.gang.num_nodes > 1 and start.checkpoint.engine == "spotd"
        return start.gang.peer_timeout_s if known and self._training.verdict is None else 0.0

    def _describe_hang(self) -> str:
        steps = self._hang_detector
        silent_s = max(steps.silent_s, steps.ranks.silent_s)
        text = f"no step for {silent_s:.0f} s after step {self._timing_stats.step}"
        text = f"{text}, {steps.limit_s:.0f} s are allowed"
        return f"{text}: {steps.ranks.text}" if steps.ranks.text else text

    def _dump_stacks(self, text: str) -> None:
        """Take stacks before anything is ended. Runs in a thread."""
        log = self._context.paths.logs / f"rank{self._context.config.rank}.log"
        dumps = stack_dump.dump_stacks(self._training.workers(stack_dump.STACKS_SIGNAL), log)
        self._context.post(lambda: self._on_stacks(text, dumps))

    def _on_stacks(self, text: str, dumps: list[StackDump]) -> None:
        """End the hung program, unless it has continued meanwhile.

        On a machine without rank 0 only warn, because rank 0 may be in a long operation that is
        unknown here.
        """
        self._dumping = False
        if self._training.phase is not Phase.RUNNING or self._desired.stopping is not None:
            return
        steps = self._hang_detector
        if max(steps.silent_s, steps.ranks.silent_s) < steps.limit_s:
            self._warn(f"{text}; then it continued")
        elif self._reporting or not self._context.config.rank:
            self._end(HealthVerdict(HUNG, text, again=self._may_restart()), dumps)
        else:
            about = {"stacks": [dump.to_data() for dump in dumps]}
            self._report(HealthWarning("hung_here", f"training hangs here: {text}", about))
            self._hang_detector.reset()

    def _on_script_exit(self, code: int) -> None:
        """Blame a lost mount for the program's exit, if there was one."""
        for warning in self._mounts.read_errors(self._context.monotonic()):
            self._report(warning)
        self._report_reads(self._context.monotonic(), last=True)
        if code in (EXIT_FINISHED, EXIT_RELEASED, EXIT_FENCED):
            return
        if text := self._mounts.failure_cause(self._context.monotonic()):
            text = f"{text}, and the program failed"
            self._end(HealthVerdict(MOUNT, text, again=self._may_restart()))

    def _kill_unfit(self, verdict: HealthVerdict, now: float) -> None:
        """Kill the program; one that cannot be killed hangs in the kernel, perhaps forever."""
        self._training.kill(saver=False)
        if now >= self._kill_at + UNKILLABLE_S:
            self._training.end_unfit(replace(verdict, text=f"{verdict.text}; it cannot be killed"))

    def _on_gpus(self, report: gpus.GpuReport) -> bool:
        """Process a report, in the polling thread; returns whether to query again soon."""
        self.usage.add_gpu_utilisation([gpu.busy for gpu in report.gpus if gpu.busy is not None])
        ends = self._gpu_ends
        findings = self._gpus.judge(report)
        worst = findings[0].grade if findings else Grade.NOTED
        if worst is Grade.FATAL and not self._suspected:
            self._suspected = True
            return True
        self._suspected = False
        if worst is Grade.CONTAINED:
            self._context.ended.wait(SETTLE_S)
        self._context.post(lambda: self._on_gpu_findings(findings, ends))
        return False

    def _on_gpu_findings(self, findings: list[gpus.Finding], ends: int) -> None:
        if self._training.phase is Phase.ENDED or ends != self._gpu_ends:
            return
        for finding in findings:
            if finding.grade is Grade.FATAL:
                self._end(HealthVerdict(GPU, finding.text, again=False))
            elif finding.grade is Grade.NOTED:
                self._report(HealthWarning("gpu_noted", finding.text))
            elif self._training.phase is Phase.RUNNING:
                self._end(HealthVerdict(GPU, finding.text, again=self._may_restart()))

    def _on_xid(self, xid: Xid, *, is_new: bool) -> None:
        """Process an Xid. One from before the agent's start counts only if fatal: that GPU has not
        recovered."""
        running = self._training.phase is Phase.RUNNING
        if self._training.phase is Phase.ENDED:
            return
        if xid.grade is Grade.FATAL:
            self._end(HealthVerdict(GPU, xid.text, again=False))
        elif xid.grade is Grade.CONTAINED and is_new and running:
            self._end(HealthVerdict(GPU, xid.text, again=self._may_restart()))
        elif is_new and xid.number not in self._reported_xids:
            self._reported_xids.add(xid.number)
            self._report(HealthWarning("gpu_noted", xid.text, {"xid": xid.number}))

    def _may_restart(self) -> bool:
        """Whether the program may restart here: once, and only if it is not part of a gang."""
        start = self._desired.start
        return not self._restarted and start is not None and start.gang.num_nodes == 1

    def _end(self, verdict: HealthVerdict, dumps: list[StackDump] | None = None) -> None:
        training = self._training
        if training.verdict is not None:
            return
        self._restarted = self._restarted or verdict.again
        ranks = {str(rank): step for rank, step in self._hang_detector.ranks.steps.items()}
        self._hang_detector.reset()
        self._metrics.begin()
        self.usage.begin()
        self._gpus.forget_errors()
        self._gpu_ends += verdict.what == GPU
        stacks = [dump.to_data() for dump in dumps or []]
        report = {
            "stacks": len(stacks),
            "dumps": stacks,
            "ranks": ranks,
            "step": self._timing_stats.step,
        }
        self._context.journal.append(wire.UNWELL, {**verdict.to_data(), **report})
        if training.phase is Phase.RUNNING:
            training.verdict = verdict
            self._kill_at = self._context.monotonic() + (REPORT_S if verdict.what == HUNG else 0.0)
        elif training.phase not in AFTER_PROGRAM:
            training.end_unfit(verdict)

    def _report(self, warning: HealthWarning) -> None:
        if self._training.phase is not Phase.ENDED:
            self._context.journal.append(wire.WARNING, warning.to_data())

    def _report_reads(self, now: float, *, last: bool = False) -> None:
        for read in self._mounts.pending_reads(now, last=last):
            self._context.journal.append(wire.MOUNT_READ, read)

    def _warn(self, text: str) -> None:
        self._context.journal.append(wire.WARNING, {"text": text})
