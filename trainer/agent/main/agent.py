"""The agent: one loop owns all state, and threads for blocking work post callbacks to it."""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from providers.base import Notice, NoticeWatcher
from spotd import wire
from spotd.wire import Command, DaemonPresence, Reply, WireError, parse_start
from trainer.agent.base import stop_timing
from trainer.agent.base.active_notices import ActiveNotices
from trainer.agent.base.context import AgentContext
from trainer.agent.base.desired_state import load_desired_state
from trainer.agent.base.notices import NoticeTracker, cloud_notices, poll_notices
from trainer.agent.base.paths import secrets_in_memory
from trainer.agent.base.phase import Phase
from trainer.agent.base.stop_timing import Stopping, StopStep
from trainer.agent.data.caches import Caches
from trainer.agent.main.control import Control
from trainer.agent.main.deadman import Deadman
from trainer.agent.main.drill_actions import inject_fault
from trainer.agent.main.shutdown import start_shutdown
from trainer.agent.main.worker_flag import WorkerFlag, describe_draining
from trainer.agent.main.worker_link import WorkerLink
from trainer.agent.run.journal_replay import JournalReplay, describe_hello
from trainer.agent.run.save_requests import SaveRequests
from trainer.agent.run.saver import Saver
from trainer.agent.run.timing_stats import TimingStats
from trainer.agent.run.training import Training
from trainer.agent.watch.watchdog import Watchdog

_LOG = logging.getLogger(__name__)
TICK_S = 0.5
MIN_POLL_S = 0.02
COMMAND_TIMEOUT_S = 20.0
LINGER_S = 600.0  # after the end, for readers of the journal
LINGER_STOPPED_S = 2.0
DISKS_S = 60.0  # in addition, until the disks are wiped: removing a container takes up to 30


class Agent:
    """One generation's agent. `run` returns when its work is over, or after SIGTERM."""

    def __init__(
        self, context: AgentContext, watcher: NoticeWatcher, replay: JournalReplay
    ) -> None:
        self._context = context
        self._watcher = watcher
        self._journal = context.journal
        self._desired = load_desired_state(context.paths.state)
        self._active_notices = ActiveNotices(context.monotonic, context.now_us)
        self._worker_flag = WorkerFlag(self._active_notices, self._desired)
        self._timing_stats = TimingStats(replay, self._desired, lambda: self._worker_flag.planned)
        saver = Saver(
            context,
            replay.reported,
            stop_timing=self._timing_stats.stop_timing,
            open_count=lambda: self._link.open_count,
        )
        self._training = Training(
            context, self._desired, replay=replay, saver=saver, report=self.on_fact
        )
        self._training.notice_deadline = lambda: self._active_notices.deadline
        self.deadman = Deadman(context.config, context.monotonic())
        self._watchdog = Watchdog(
            context,
            self._training,
            desired=self._desired,
            timing_stats=self._timing_stats,
            replay=replay,
        )
        self._caches = Caches(context, self._desired)
        self._saves = SaveRequests(
            self._desired,
            self._timing_stats,
            warn=self._warn,
            replay=replay,
            now=context.monotonic(),
        )
        self._beat_at = 0.0
        self._leave_at: float | None = None
        self._disks_done = threading.Event()
        self._stop_requested = False
        self._reported_errors: set[str] = set()
        self._notice_tracker = NoticeTracker(self, cloud_notices(replay.notices))
        self._control = Control(
            context.paths.control_socket,
            command=self._command,
            watched_after=self._watched_after,
            wake=lambda: self._context.post(lambda: None),
            on_presence=self._on_daemon_presence,
        )
        self._journal.on_append = self._control.poke
        for notice in replay.notices:
            self._active_notices.add(notice)
        self._link = WorkerLink(context.paths.worker_socket, self._flag, self)

    def announce(self, replay: JournalReplay) -> None:
        """Write the first journal entry, and resume the training that an earlier agent left."""
        if replay.is_first:
            self._journal.append(wire.HELLO, describe_hello(replay.boot_id))
        else:
            self._warn("the node agent was started again")
        if not secrets_in_memory(self._context.paths):
            self._warn(f"no /dev/shm here: secrets are in {self._context.paths.memory}, on a disk")
        if self._desired.start is not None:
            self._training.begin()

    def run(self) -> None:
        """Work until the end. The sockets already accept connections."""
        threading.Thread(
            target=poll_notices,
            args=(self._watcher, self._notice_tracker, self._context.ended),
            daemon=True,
        ).start()
        self._watchdog.start()
        self._run_safely(self._training.warm_up)
        while not self._is_over():
            self._run_once()
        self._context.ended.set()
        self._control.close()
        self._link.close()

    def end(self) -> None:
        """Leave the loop without ending training (SIGTERM)."""
        self._warn("the node agent was asked to end; training continues without it")
        self._context.ended.set()

    def _warn(self, text: str) -> None:
        self._journal.append(wire.WARNING, {"text": text})

    def _run_once(self) -> None:
        try:
            self._run_safely(self._context.callbacks.get(timeout=self._until_next()))
            while not self._context.callbacks.empty():
                self._run_safely(self._context.callbacks.get_nowait())
        except queue.Empty:
            pass  # no callback: run the periodic checks
        now = self._context.monotonic()
        self._run_safely(self._training.poll)
        self._run_safely(lambda: self._check_stop(now))
        self._run_safely(lambda: self._watchdog.check(now))
        self._run_safely(lambda: self._caches.update(self._training.phase))
        if now >= self._beat_at:
            self._beat_at = now + self._context.config.heartbeat_s
            self._journal.retry()
            self._desired.retry()
            at_us = self._context.now_us()
            self._control.beat(
                {"seq": self._journal.seq, "at_us": at_us, "step": self._timing_stats.step}
            )

    def _run_safely(self, work: Callable[[], object]) -> None:
        """Run a part of the loop so that an OSError in it does not end the others.

        Otherwise an error in one part could prevent the save before the machine goes. Each such
        error is recorded once.
        """
        try:
            work()
        except OSError as error:
            text = f"the node agent continues after an error: {error!r}: see agent.log"
            if text not in self._reported_errors:
                self._reported_errors.add(text)
                _LOG.exception("an error of the machine")
                self._warn(text)

    def _until_next(self) -> float:
        now = self._context.monotonic()
        times = [now + TICK_S, self._beat_at]
        stopping = self._desired.stopping
        if stopping is not None and self._training.phase is Phase.RUNNING:
            times += [stopping.kill_at] + ([] if stopping.termed else [stopping.term_at])
            # There is no event when the child of a stopped shell ends, so poll for it: often at
            # first, less often when a save takes long.
            times.append(now + min(max((now - stopping.asked_at) / 10, MIN_POLL_S), TICK_S))
        elif stopping is None:
            timing = self._timing_stats.stop_timing()
            times += [active.latest_stop(timing, now) for active in self._active_notices]
        return max(min(times) - now, 0.01)

    def _is_over(self) -> bool:
        now, stop_requested = self._context.monotonic(), self._stop_requested
        if self._context.ended.is_set() or self._training.phase is not Phase.ENDED:
            return self._context.ended.is_set()
        awaits_final = self._training.awaits_final and not stop_requested
        if not awaits_final and self._leave_at is None:
            self._leave_at = now + LINGER_S
            training = self._training
            self._disks_done = start_shutdown(
                self._context,
                self._watcher,
                ended_well=training.ended_well,
                released=training.ended_well and training.code == wire.EXIT_RELEASED,
                active_notices=self._active_notices,
            )
        if stop_requested and self._leave_at is not None:
            self._leave_at = min(self._leave_at, now + LINGER_STOPPED_S)
        elif self.deadman.enabled:  # the agent stays to switch the machine off in the end
            failed = not self._training.ended_well
            return self.deadman.should_power_off(now, awaits_final=awaits_final, failed=failed)
        late_s = -1.0 if self._leave_at is None else now - self._leave_at
        return late_s >= (0.0 if self._disks_done.is_set() else DISKS_S)

    # --- stopping

    def _check_stop(self, now: float) -> None:
        """Stop training if it is time to, or enforce a stop in progress."""
        stopping, phase = self._desired.stopping, self._training.phase
        if phase is Phase.ENDED:
            return
        if stopping is None:
            active = self._active_notices.due(self._timing_stats.stop_timing(), now)
            idle = phase is Phase.WAITING
            if active is not None:
                self.stop(f"{active.reason}: the latest safe moment", None)
            elif self.deadman.due(self._timing_stats.stop_timing(), now, idle=idle):
                self.stop(self.deadman.reason(now), None if idle else self.deadman.deadline)
            elif self._saves.due(now, self._context.config.rank):
                self._save({})
        elif phase is Phase.RUNNING:
            self._enforce_stop(stopping, now)

    def stop(
        self,
        reason: str,
        deadline: float | None,
        *,
        gentle: bool = True,
        outputs_until: float | None = None,
    ) -> None:
        """Finish the step, save, release, exit 75; or end at once if nothing can be saved."""
        if self._training.phase is Phase.ENDED:
            return
        stopping = self._desired.stopping
        if stopping is not None:
            stopping.outputs_until = outputs_until or stopping.outputs_until
            if deadline is not None:
                stopping.advance(deadline)
            return
        now, timing = self._context.monotonic(), self._timing_stats.stop_timing()
        kill_at = stop_timing.kill_deadline(timing, now, deadline, self._active_notices.deadline)
        gentle &= timing.engine != stop_timing.ENGINE_NONE and self._link.connected > 0
        running = self._training.phase is Phase.RUNNING
        self._desired.stopping = Stopping(
            reason=reason,
            asked_at=now,
            kill_at=kill_at,
            gentle=gentle,
            outputs_until=outputs_until,
        )
        if running:  # before the request: the script must not run its next line after the program
            self._training.hold_shells(end=False)
        self._link.publish()  # before anything that needs memory or waits for a disk
        self._desired.write()
        plan = stop_timing.describe_stop(timing.engine) if running else "nothing runs: end"
        entry = {"reason": reason, "plan": plan, "deadline_s": round(kill_at - now, 3)}
        self._journal.append(wire.DRAINING, entry | {"stops": True})
        if not running:
            self._training.stop_idle()

    def _enforce_stop(self, stopping: Stopping, now: float) -> None:
        # True once the last connection's messages have all been processed.
        all_received = not self._link.connected and self._context.callbacks.empty()
        self._training.hold_shells(end=all_received)
        match stopping.next_step(now):
            case StopStep.TERM:
                stopping.termed = True
                self._desired.write()
                self._training.signal(signal.SIGTERM)
            case StopStep.KILL:
                self._training.kill(saver=False)  # the saver gets the last moments
                stopping.kill_at = now + TICK_S
            case StopStep.WAIT:
                pass

    # --- notices: called from the watching thread

    def on_notice(self, notice: Notice) -> None:
        """Post the notice to the loop first, which does not wait for a disk; a replacement needs
        the entry."""
        self._context.post(lambda: self._plan_for_notice(notice, is_new=True))
        remaining_s = None
        if notice.deadline_us is not None:
            remaining_s = max(notice.deadline_us - self._context.now_us(), 0) / 1e6
        data = {
            "notice_id": notice.notice_id,
            "kind": notice.kind.value,
            "remaining_s": remaining_s,
            "source": notice.source,
            "text": notice.text,
        }
        self._journal.append(wire.NOTICE, data)

    def on_deadline(self, notice: Notice) -> None:
        self._context.post(lambda: self._plan_for_notice(notice))

    def on_withdrawn(self, notice_id: str) -> None:
        self._journal.append(wire.NOTICE_WITHDRAWN, {"notice_id": notice_id})
        self._context.post(lambda: self._withdraw(notice_id))

    def _withdraw(self, notice_id: str) -> None:
        self._worker_flag.withdraw(notice_id)
        self._link.publish()

    def on_metadata(self, up: bool, error: str) -> None:
        self._journal.append(wire.METADATA, {"up": up, "error": error})
        self._context.post(lambda: self._saves.set_metadata_up(up=up))

    def _plan_for_notice(self, notice: Notice, *, is_new: bool = False) -> None:
        """Decide the reaction to a notice. Runs in the loop."""
        active, now = self._active_notices.add(notice), self._context.monotonic()
        if active is None or active.deadline is None:
            return
        stopping, running = self._desired.stopping, self._training.phase is Phase.RUNNING
        if stopping is not None:
            stopping.advance(
                max(self._timing_stats.stop_timing().kill_by(now, active.deadline), now)
            )
        if not is_new or not running or stopping is not None:
            self._link.publish()
            return
        # The machine may go before its deadline: save at once, if time is left for a last save.
        timing = self._timing_stats.stop_timing()
        snapshot = timing.allows_snapshot(now, active.deadline)
        self._desired.saves += snapshot
        self._link.publish()
        if snapshot:
            self._desired.write()
        self._journal.append(
            wire.DRAINING, describe_draining(active, timing, now, snapshot=snapshot)
        )

    # --- training processes: called from the threads of their connections

    def _flag(self) -> Mapping[str, Any]:
        return self._worker_flag.flag(self._context.monotonic())

    def on_fact(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == wire.PROGRESS:
            data = self._watchdog.usage.add(data, self._context.monotonic())
        self._journal.append(kind, data)
        self._context.post(lambda: self._on_fact(kind, data))

    def on_worker_exit(self, rank: int, code: int) -> None:
        self._context.post(lambda: self._training.note_worker_exit(rank, code))

    def on_step(self, rank: int, step: int) -> None:
        self._context.post(lambda: self._watchdog.step(rank, step))

    def on_busy(self, for_s: float) -> None:
        self._context.post(lambda: self._watchdog.allow_silence(for_s))

    def on_idle(self, rank: int) -> None:
        self._context.post(lambda: self._watchdog.on_idle(rank))

    def on_saver_request(self, argv: Sequence[str]) -> None:
        self._context.post(lambda: self._training.request_saver(argv))

    def on_invalid_message(self, text: str) -> None:
        _LOG.warning("invalid message from a training process: %s", text)

    def on_disconnect(self, rank: int) -> None:
        self._context.post(lambda: self._watchdog.on_disconnect(rank))

    def _on_fact(self, kind: str, data: Mapping[str, Any]) -> None:
        self._training.note_kind(kind)
        self._watchdog.on_fact(kind, data)
        leaves = self._worker_flag.note(kind, data)
        if leaves and self._training.phase is Phase.RUNNING:
            self.stop(f"the program's own plan for the notice: {leaves}", None)
        self._saves.note(kind, self._context.monotonic())
        if kind == wire.CHECKPOINT and data.get("final") is True:
            self._training.final = True

    # --- commands: called from the threads of their connections

    def _command(self, command: Command) -> Reply:
        generation = self._context.config.generation
        if command.generation != generation:
            text = f"this agent serves generation {generation}, not {command.generation}"
            return Reply(False, f"{text}: an older one must not start, a newer one needs its own")
        answer: Future[Reply] = Future()

        def execute() -> None:
            try:
                answer.set_result(self._execute(command))
            except WireError as error:
                answer.set_result(Reply(False, f"{command.name}: {error}"))
            except OSError as error:
                answer.set_result(Reply(False, f"{command.name} failed: {error}; try again"))
                raise
            except Exception as error:
                answer.set_exception(error)
                raise

        self._context.post(execute)
        try:
            return answer.result(COMMAND_TIMEOUT_S)
        except FutureTimeoutError:
            return Reply(False, "the agent is busy: try again")

    def _on_daemon_presence(self, presence: DaemonPresence) -> None:
        self._context.post(lambda: self._renew(presence))

    def _renew(self, presence: DaemonPresence | None) -> None:
        """Reset the dead man's switch: the daemon has sent its presence, or a command."""
        self.deadman.renew(presence.left_s if presence else None, self._context.monotonic())
        if presence and presence.mtbf_s and presence.mtbf_s != self._worker_flag.mtbf_s:
            self._worker_flag.mtbf_s = presence.mtbf_s
            self._link.publish()

    def _execute(self, command: Command) -> Reply:
        self._renew(None)
        match command.name:
            case wire.START:
                self._start(command)
            case wire.RELEASE:
                self.stop("the replacement is ready", None)
            case wire.DRAIN:
                order = stop_timing.parse_drain(command.data, self._context.monotonic())
                self.stop(order.reason, order.deadline, outputs_until=order.outputs_until)
            case wire.SAVE:
                return self._save(command.data)
            case wire.STRIKE:
                return inject_fault(
                    command.data, self._desired, training=self._training, agent=self
                )
            case _:
                self._kill()
        return Reply(True)

    def _start(self, command: Command) -> None:
        start = parse_start(command.data)
        if self._training.phase is Phase.ENDED:
            return  # started before, and already over
        self._desired.accept(start, self._context.monotonic())
        self._training.begin()
        self._link.publish()

    def _save(self, data: Mapping[str, Any]) -> Reply:
        if data.get("final") is True:
            refusal = self._training.commit_final()
            return Reply(not refusal, refusal)
        running = self._training.phase is Phase.RUNNING
        if running and self._saves.request(self._context.monotonic()):
            self._link.publish()
            self._desired.write()
            if not self._link.connected:
                self._training.signal(signal.SIGUSR1, only_if_caught=True)
        return Reply(True)

    def _kill(self) -> None:
        self._stop_requested = True
        self.stop("ordered to stop at once", None)
        self._training.kill()
        self._training.give_up_outputs()

    def _watched_after(self, seq: int) -> None:
        if self._journal.skip_to(seq):
            self._warn("the end of the journal was lost with a crash of the machine")
