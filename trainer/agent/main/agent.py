"""The agent: one loop that owns all state; threads for whatever waits post their news to it."""

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
from trainer.agent.base.desired_state import load_demands
from trainer.agent.base.notices import NoticeBook, from_clouds, watch
from trainer.agent.base.paths import in_memory
from trainer.agent.base.phase import Phase
from trainer.agent.base.stop_timing import Stopping, StopStep
from trainer.agent.data.caches import Caches
from trainer.agent.main.control import Control
from trainer.agent.main.deadman import Deadman
from trainer.agent.main.drill_actions import strike
from trainer.agent.main.shutdown import let_go
from trainer.agent.main.worker_flag import WorkerFlag, describe
from trainer.agent.main.worker_link import WorkerLink
from trainer.agent.run.journal_replay import JournalReplay, describe_agent
from trainer.agent.run.save_requests import SaveRequests
from trainer.agent.run.saver import Saver
from trainer.agent.run.timing_stats import TimingStats
from trainer.agent.run.training import Training
from trainer.agent.watch.watchdog import Watchdog

_LOG = logging.getLogger(__name__)
TICK_S = 0.5
LOOK_S = 0.02
COMMAND_TIMEOUT_S = 20.0
_WELL = {wire.EXIT_FINISHED, wire.EXIT_RELEASED, wire.EXIT_FENCED}
LINGER_S = 600.0  # after the end, for whoever follows
LINGER_STOPPED_S = 2.0
DISKS_S = 60.0  # more than these, for disks that are not wiped yet: a container's removal takes 30


class Agent:
    """Built around a Site; `run` returns when the agent's work is over, or at SIGTERM."""

    def __init__(self, site: AgentContext, watcher: NoticeWatcher, recall: JournalReplay) -> None:
        self._site = site
        self._watcher = watcher
        self._journal = site.journal
        self._demands = load_demands(site.places.state)
        self._dangers = ActiveNotices(site.monotonic, site.now_us)
        self._outlook = WorkerFlag(self._dangers, self._demands)
        self._pace = TimingStats(recall, self._demands, lambda: self._outlook.planned)
        saver = Saver(site, recall.said, self._pace.policy, lambda: self._link.open)
        self._training = Training(site, self._demands, recall, saver, self.on_fact)
        self.deadman = Deadman(site.config, site.monotonic())
        self._ward = Watchdog(site, self._training, self._demands, self._pace, recall)
        self._caches = Caches(site, self._demands)
        self._saves = SaveRequests(self._demands, self._pace, self._warn, recall, site.monotonic())
        self._beat_at = 0.0
        self._leave_at: float | None = None
        self._disks_done = threading.Event()
        self._told_to_leave = False
        self._met: set[str] = set()
        self._book = NoticeBook(self, from_clouds(recall.notices))
        self._control = Control(
            site.places.control_socket,
            command=self._command,
            watched_after=self._watched_after,
            wake=lambda: self._site.post(lambda: None),
            here=lambda word: self._site.post(lambda: self._hear(word)),
        )
        self._journal.on_append = self._control.poke
        for notice in recall.notices:
            self._dangers.meet(notice)
        self._link = WorkerLink(site.places.worker_socket, self._flag, self)

    def greet(self, recall: JournalReplay) -> None:
        """The first entry of this agent, and the training that an earlier one left."""
        if recall.is_first:
            self._journal.append(wire.HELLO, describe_agent(recall.boot_id))
        else:
            self._warn("the node agent was started again")
        if not in_memory(self._site.places):
            self._warn(f"no /dev/shm here: secrets lie in {self._site.places.memory}, on a disk")
        if self._demands.start is not None:
            self._training.begin()

    def run(self) -> None:
        """Work until the end; the sockets accept already."""
        threading.Thread(
            target=watch, args=(self._watcher, self._book, self._site.ended), daemon=True
        ).start()
        self._ward.start()
        self._survive(self._training.warm_up)
        while not self._is_over():
            self._turn()
        self._site.ended.set()
        self._control.close()
        self._link.close()

    def end(self) -> None:
        """Leave the loop, and training alone (SIGTERM)."""
        self._warn("the node agent was told to end; training goes on without it")
        self._site.ended.set()

    def _warn(self, text: str) -> None:
        self._journal.append(wire.WARNING, {"text": text})

    def _turn(self) -> None:
        try:
            self._survive(self._site.news.get(timeout=self._until_next()))
            while not self._site.news.empty():
                self._survive(self._site.news.get_nowait())
        except queue.Empty:
            pass  # nothing new: a look around
        now = self._site.monotonic()
        self._survive(self._training.poll)
        self._survive(lambda: self._consider(now))
        self._survive(lambda: self._ward.look(now))
        self._survive(lambda: self._caches.look(self._training.phase))
        if now >= self._beat_at:
            self._beat_at = now + self._site.config.heartbeat_s
            self._journal.retry()
            self._demands.retry()
            at_us = self._site.now_us()
            self._control.beat({"seq": self._journal.seq, "at_us": at_us, "step": self._pace.step})

    def _survive(self, work: Callable[[], object]) -> None:
        """The last resort: what the machine refuses for one thing must not end all the others,
        a save before the machine goes among them. Each such error is on record once."""
        try:
            work()
        except OSError as error:
            text = f"the node agent met an error and goes on: {error!r}: see agent.log"
            if text not in self._met:
                self._met.add(text)
                _LOG.exception("an error of the machine")
                self._warn(text)

    def _until_next(self) -> float:
        now = self._site.monotonic()
        times = [now + TICK_S, self._beat_at]
        stopping = self._demands.stopping
        if stopping is not None and self._training.phase is Phase.RUNNING:
            times += [stopping.kill_at] + ([] if stopping.termed else [stopping.term_at])
            # Nobody tells when what a held shell waits for has ended: looked for at short intervals
            # first, and longer ones when a save takes its time.
            times.append(now + min(max((now - stopping.asked_at) / 10, LOOK_S), TICK_S))
        elif stopping is None:
            policy = self._pace.policy()
            times += [danger.latest_stop(policy, now) for danger in self._dangers]
        return max(min(times) - now, 0.01)

    def _is_over(self) -> bool:
        now, told = self._site.monotonic(), self._told_to_leave
        if self._site.ended.is_set() or self._training.phase is not Phase.ENDED:
            return self._site.ended.is_set()
        waits = self._training.awaits_final and not told
        if not waits and self._leave_at is None:
            self._leave_at = now + LINGER_S
            code = self._training.code
            self._disks_done = let_go(self._site, self._watcher, code, self._dangers)
        if told and self._leave_at is not None:
            self._leave_at = min(self._leave_at, now + LINGER_STOPPED_S)
        elif self.deadman.on:  # it stays, and guards the machine
            failed = self._training.code not in _WELL
            return self.deadman.spent(now, waits=waits, failed=failed)
        late_s = -1.0 if self._leave_at is None else now - self._leave_at
        return late_s >= (0.0 if self._disks_done.is_set() else DISKS_S)

    # --- stopping

    def _consider(self, now: float) -> None:
        """Whether it is time to stop, or to insist."""
        stopping, phase = self._demands.stopping, self._training.phase
        if phase is Phase.ENDED:
            return
        if stopping is None:
            danger = self._dangers.due(self._pace.policy(), now)
            idle = phase is Phase.WAITING
            if danger is not None:
                self.stop(f"{danger.reason}: the latest safe moment", None)
            elif self.deadman.due(self._pace.policy(), now, idle=idle):
                self.stop(self.deadman.reason(now), None if idle else self.deadman.deadline)
            elif self._saves.due(now, self._site.config.rank):
                self._save({})
        elif phase is Phase.RUNNING:
            self._insist(stopping, now)

    def stop(self, reason: str, deadline: float | None, *, gentle: bool = True) -> None:
        """Finish the step, save, release, exit 75; or end at once where nothing can be saved."""
        if self._training.phase is Phase.ENDED:
            return
        stopping = self._demands.stopping
        if stopping is not None:
            if deadline is not None:
                stopping.advance(deadline)
            return
        now, policy = self._site.monotonic(), self._pace.policy()
        kill_at = stop_timing.kill_at_of(policy, now, deadline, self._dangers.deadline)
        gentle &= policy.engine != stop_timing.ENGINE_NONE and self._link.connected > 0
        running = self._training.phase is Phase.RUNNING
        self._demands.stopping = Stopping(reason, now, kill_at, gentle)
        if running:  # or a program that ends at once is followed by the script's next line
            self._training.hold_shells(end=False)
        self._link.publish()  # before anything that needs room or waits for a disk
        self._demands.write()
        plan = stop_timing.plan_of(policy.engine) if running else "nothing runs: end"
        told = {"reason": reason, "plan": plan, "deadline_s": round(kill_at - now, 3)}
        self._journal.append(wire.DRAINING, told | {"stops": True})
        if not running:
            self._training.stop_idle()

    def _insist(self, stopping: Stopping, now: float) -> None:
        # What the last of the connected has said is in the news by now, or was read.
        heard = not self._link.connected and self._site.news.empty()
        self._training.hold_shells(end=heard)
        match stopping.next_step(now):
            case StopStep.TERM:
                stopping.termed = True
                self._demands.write()
                self._training.signal(signal.SIGTERM)
            case StopStep.KILL:
                self._training.kill(saver=False)  # it has the last moments, with all the machine
                stopping.kill_at = now + TICK_S
            case StopStep.WAIT:
                pass

    # --- notices: called from the watching thread

    def on_notice(self, notice: Notice) -> None:
        """Our own branch first, which waits for no disk; a replacement depends on the record."""
        self._site.post(lambda: self._meet(notice, news=True))
        left_s = None
        if notice.deadline_us is not None:
            left_s = max(notice.deadline_us - self._site.now_us(), 0) / 1e6
        data = {"notice_id": notice.notice_id, "kind": notice.kind.value, "remaining_s": left_s}
        self._journal.append(wire.NOTICE, {**data, "source": notice.source, "text": notice.text})

    def on_deadline(self, notice: Notice) -> None:
        self._site.post(lambda: self._meet(notice))

    def on_withdrawn(self, notice_id: str) -> None:
        self._journal.append(wire.NOTICE_WITHDRAWN, {"notice_id": notice_id})
        self._site.post(lambda: self._withdraw(notice_id))

    def _withdraw(self, notice_id: str) -> None:
        self._outlook.withdraw(notice_id)
        self._link.publish()

    def on_metadata(self, up: bool, error: str) -> None:
        self._journal.append(wire.METADATA, {"up": up, "error": error})
        self._site.post(lambda: self._saves.see(up=up))

    def _meet(self, notice: Notice, *, news: bool = False) -> None:
        """Plan for a notice, in the loop."""
        danger, now = self._dangers.meet(notice), self._site.monotonic()
        if danger is None or danger.deadline is None:
            return
        stopping, running = self._demands.stopping, self._training.phase is Phase.RUNNING
        if stopping is not None:
            stopping.advance(max(self._pace.policy().kill_by(now, danger.deadline), now))
        if not news or not running or stopping is not None:
            self._link.publish()
            return
        # It may end sooner than it says: save at once, if that leaves time for the end.
        policy = self._pace.policy()
        snapshot = policy.fits_snapshot(now, danger.deadline)
        self._demands.saves += snapshot
        self._link.publish()
        if snapshot:
            self._demands.write()
        self._journal.append(wire.DRAINING, describe(danger, policy, now, snapshot=snapshot))

    # --- training processes: called from the threads of their connections

    def _flag(self) -> Mapping[str, Any]:
        return self._outlook.flag(self._site.monotonic())

    def on_fact(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == wire.PROGRESS:
            data = self._ward.usage.add(data, self._site.monotonic())
        self._journal.append(kind, data)
        self._site.post(lambda: self._note(kind, data))

    def on_worker_exit(self, rank: int, code: int) -> None:
        self._site.post(lambda: self._training.note_worker_exit(rank, code))

    def on_step(self, rank: int, step: int) -> None:
        self._site.post(lambda: self._ward.step(rank, step))

    def on_busy(self, for_s: float) -> None:
        self._site.post(lambda: self._ward.excuse(for_s))

    def on_saver_wanted(self, argv: Sequence[str]) -> None:
        self._site.post(lambda: self._training.want_saver(argv))

    def on_nonsense(self, text: str) -> None:
        _LOG.warning("a training process says nonsense: %s", text)

    def on_hang_up(self, rank: int) -> None:
        self._site.post(lambda: self._ward.left(rank))

    def _note(self, kind: str, data: Mapping[str, Any]) -> None:
        self._training.note_said(kind)
        self._ward.note(kind, data)
        leaves = self._outlook.note(kind, data)
        if leaves and self._training.phase is Phase.RUNNING:
            self.stop(f"its own plan for the notice: {leaves}", None)
        self._saves.note(kind, self._site.monotonic())
        if kind == wire.CHECKPOINT and data.get("final") is True:
            self._training.final = True

    # --- commands: called from the threads of their connections

    def _command(self, command: Command) -> Reply:
        ours = self._site.config.generation
        if command.generation != ours:
            text = f"this agent serves generation {ours}, not {command.generation}"
            return Reply(False, f"{text}: an older one must not start, a newer one needs its own")
        answer: Future[Reply] = Future()

        def obey() -> None:
            try:
                answer.set_result(self._obey(command))
            except WireError as error:
                answer.set_result(Reply(False, f"{command.name}: {error}"))
            except OSError as error:
                answer.set_result(Reply(False, f"{command.name} failed: {error}; try again"))
                raise
            except Exception as error:
                answer.set_exception(error)
                raise

        self._site.post(obey)
        try:
            return answer.result(COMMAND_TIMEOUT_S)
        except FutureTimeoutError:
            return Reply(False, "the agent is busy: try again")

    def _hear(self, word: DaemonPresence | None) -> None:
        self.deadman.hear(word.left_s if word else None, self._site.monotonic())
        if word and word.mtbf_s and word.mtbf_s != self._outlook.mtbf_s:
            self._outlook.mtbf_s = word.mtbf_s
            self._link.publish()

    def _obey(self, command: Command) -> Reply:
        self._hear(None)
        match command.name:
            case wire.START:
                self._start(command)
            case wire.RELEASE:
                self.stop("the replacement is ready", None)
            case wire.DRAIN:
                self.stop(*stop_timing.asked_of(command.data, self._site.monotonic()))
            case wire.SAVE:
                return self._save(command.data)
            case wire.STRIKE:
                return strike(command.data, self._demands, self._training, self)
            case _:
                self._kill()
        return Reply(True)

    def _start(self, command: Command) -> None:
        start = parse_start(command.data)
        if self._training.phase is Phase.ENDED:
            return  # it has been started, and is over
        self._demands.accept(start, self._site.monotonic())
        self._training.begin()
        self._link.publish()

    def _save(self, data: Mapping[str, Any]) -> Reply:
        if data.get("final") is True:
            why_not = self._training.commit_final()
            return Reply(not why_not, why_not)
        running = self._training.phase is Phase.RUNNING
        if running and self._saves.ask(self._site.monotonic()):
            self._link.publish()
            self._demands.write()
            if not self._link.connected:
                self._training.signal(signal.SIGUSR1, only_if_caught=True)
        return Reply(True)

    def _kill(self) -> None:
        self._told_to_leave = True
        self.stop("told to stop at once", None)
        self._training.kill()

    def _watched_after(self, seq: int) -> None:
        if self._journal.skip_to(seq):
            self._warn("the end of the journal was lost with a crash of the machine")
