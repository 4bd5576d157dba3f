"""A simulated machine: power, network, disk, the agent's journal, and a trainer that really fences.

The agent is a model of `trainer/agent` that speaks the real wire format; when to stop is decided by
the agent's own policy code, and who may write by the trainer's own `Fence`. A step costs time and
nothing else; what a checkpoint holds is the number of its step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from providers.base import Notice, NoticeKind
from providers.stores.base import StoreError
from spotd import wire
from spotd.wire import (
    AgentConfig,
    Command,
    Heartbeat,
    JournalEntry,
    Manifest,
    Reply,
    parse_presence,
    parse_start,
)
from tests.sim.faults import Faults
from tests.sim.gangs import LOOK_S, MEET_S, VAIN_S, Gang, Gangs
from tests.sim.guard import Guard
from tests.sim.jump import SimJumpHost
from tests.sim.kernel import Kernel, Process
from tests.sim.objects import BucketClient
from tests.sim.threads import Event
from trainer.agent.base.active_notices import ActiveNotices
from trainer.agent.base.stop_timing import StopTiming, stop_timing_of
from trainer.agent.watch.disk import CONFIRM_S
from trainer.fence import Fence, FencedError, HeadLostError

STEP_S = 10.0
SETUP_S = (5.0, 60.0)
SAVE_S = (2.0, 10.0)  # to write the shards, before the manifest
POLL_S = 1.0  # of the metadata service, and of HEAD before a claim
HEARTBEAT_S = 10.0  # slower than ours, as what is taken for silence is (see daemon.py)
RETRY_S = 5.0  # after the store did not answer
DIED = 1  # exit code of a program that crashed


class Listener(Protocol):
    """One open follow stream."""

    def hear(self, line: bytes) -> None: ...

    def hang_up(self) -> None: ...


class Watch(Protocol):
    """Who sees what the training program does."""

    def fenced(self, job_id: str, generation: int, owner: str) -> None: ...

    def claimed(self, trainer: Trainer, step: int) -> None: ...

    def trained(self, trainer: Trainer, step: int) -> None: ...


class SimMachine:
    """One machine, from power on to power off."""

    def __init__(
        self,
        kernel: Kernel,
        faults: Faults,
        name: str,
        open_store: Callable[[str, SimMachine], BucketClient],
        steps_of: Callable[[str], int],
        watch: Watch,
        gangs: Gangs,
    ) -> None:
        self.kernel = kernel
        self.gangs = gangs
        self.faults = faults
        self.name = name
        self.random = faults.stream(f"machine/{name}")
        self.process = Process(name, alive=False)
        self.cut = False  # off the network, in both directions
        self.cut_from_us = False  # ... to and from us alone: it still reaches its bucket
        self.way: SimJumpHost | None = None  # what packets between it and us pass through
        self.metadata_up = True
        self.disk_us = 0  # since when its disk is as it is
        self.disk_is_full = False
        self.disk_told_us = 0  # when its agent said that it stays full; 0: there is room
        self.stirred = Event(kernel)  # the metadata service says something else than before
        self.was_warned = False  # of its end, ever
        self.was_alone = False  # for so long that its dead-man ended what ran
        self.mute_us = 0  # when it last could not be heard, as far as anybody looked
        self.ill_us = 0  # ... for a reason of its own
        self.agent: SimAgent | None = None
        self.cleaned = False  # it lets nobody in any more
        self.switch_off: Callable[[], None] = lambda: None  # what its dead-man does
        self.left_alone: Callable[[], None] = lambda: None  # it hears why a program is stopped
        self.notices: dict[str, Notice] = {}
        self.open_store = open_store
        self.make_trainer: Callable[[SimMachine, SimAgent, wire.StartDocument], Trainer] = Trainer
        self.steps_of = steps_of
        self.watch = watch

    @property
    def reachable(self) -> bool:
        """Whether packets get to us and back."""
        return self.answers and self.way_up

    @property
    def answers(self) -> bool:
        """Whether it would be reachable by a jump host that is well, if it is behind one."""
        return self.online and not self.cut_from_us

    @property
    def way_up(self) -> bool:
        """Whether nothing between it and us is down."""
        return self.way is None or self.way.up

    @property
    def online(self) -> bool:
        """Whether packets get in and out. A frozen machine answers nobody."""
        frozen = self.process.frozen_until_us > self.kernel.now_us
        return self.process.alive and not self.cut and not frozen

    @property
    def cut_off(self) -> bool:
        """Whether packets to it get lost, instead of being refused."""
        return self.cut or self.cut_from_us or not self.way_up

    @property
    def speaks(self) -> bool:
        """Whether who listens can hear it."""
        return self.reachable and self.agent is not None and self.agent.running

    @property
    def is_well(self) -> bool:
        """Whether who listens could hear it, if the way to it were whole."""
        return self.answers and self.agent is not None and self.agent.running

    @property
    def stays(self) -> bool:
        """Whether nothing says that it goes, it could tell us so, and its training goes on."""
        goes = any(n.kind is not NoticeKind.REBALANCE for n in self.notices.values())
        heard = self.reachable and self.metadata_up and self.agent is not None
        return heard and not goes and self.agent is not None and self.agent.trains

    def clean(self) -> None:
        """Its disk becomes an image: the agent ends, and the keys go."""
        self.cleaned = True
        if self.agent is not None:
            self.agent.die()

    def power_on(self) -> None:
        self.process.alive = True

    def power_off(self) -> None:
        if self.process.alive:
            self.kernel.kill(self.process)
        if self.agent is not None:
            self.agent.fall_silent()

    def warn(self, notice: Notice) -> None:
        """The metadata service says so from now on; the agent hears it when it polls."""
        self.notices[notice.notice_id] = notice
        self.was_warned = self.was_warned or notice.kind is not NoticeKind.REBALANCE
        self._stir()

    def withdraw(self, notice_id: str) -> None:
        self.notices.pop(notice_id, None)
        self._stir()

    def turn_metadata(self, *, up: bool) -> None:
        """Whether its metadata service answers, from now on."""
        self.metadata_up = up
        self._stir()

    def fill_disk(self, *, full: bool) -> None:
        """Whether there is room on its disk, from now on."""
        if full is not self.disk_is_full:
            self.disk_is_full, self.disk_us = full, self.kernel.now_us

    def _stir(self) -> None:
        """An agent that polls every POLL_S sees it within that time. (Ours does not poll for what
        has not changed: most of a run's time would go there.)"""
        self.kernel.after(self.random.uniform(0.0, POLL_S), self.stirred.set)

    def boot(self, config: AgentConfig) -> str:
        """Start the agent; harmless when it runs. What an earlier generation left here ends first.
        Why not, or ""."""
        if self.agent is not None and config.generation < self.agent.config.generation:
            return "a newer generation was started on this machine"
        if self.agent is None:
            self.agent = SimAgent(self, config)
        elif config.generation > self.agent.config.generation:
            self.agent.retire()
            self.agent = SimAgent(self, config, prepared=self.agent.prepared)
        self.agent.begin(config)
        return ""


class SimAgent:
    """The agent of one node, with its journal, which survives the agent's own death."""

    def __init__(self, machine: SimMachine, config: AgentConfig, *, prepared: bool = False) -> None:
        self.config = config
        self.prepared = prepared  # its setup is done, by whichever generation
        self._held = False
        self.journal: list[JournalEntry] = []
        self.step = 0
        self.running = False
        self._machine = machine
        self._kernel = machine.kernel
        self._listeners: list[Listener] = []
        self._active_notices = ActiveNotices(self._monotonic, self._now_us)
        self.guard = Guard(config, self._monotonic)
        self._met: set[str] = set()
        self._trainer: Trainer | None = None
        self._failed = False  # it crashed
        self._over = False  # nothing is started here any more
        self._turn = 0  # tells the tasks of an agent that died from those of the next one

    def begin(self, config: AgentConfig) -> None:
        """Greet once, and go on where an agent before left off."""
        if self.running:
            return
        self.running = True
        self.guard = Guard(config, self._monotonic)
        self._turn += 1
        turn = self._turn
        if not self.journal:
            self.say(wire.HELLO, {"boot_id": self._machine.name, "wire": wire.WIRE_VERSION})
        else:
            self.say(wire.WARNING, {"text": "the node agent was started again"})
        self._kernel.spawn(self._machine.process, lambda: self._watch(turn))

    def die(self) -> None:
        """The agent's process ends; training goes on without it."""
        self.running = False
        self.fall_silent()

    def retire(self) -> None:
        """Another generation takes the machine over: nothing of this one goes on."""
        self.die()
        if self._trainer is not None:
            self._trainer.killed = True

    def fall_silent(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.hang_up()

    @property
    def trainer(self) -> Trainer | None:
        """The program, from when it was started on."""
        return self._trainer

    @property
    def trains(self) -> bool:
        """Whether agent and program run, and nobody has asked it to stop."""
        trainer = self._trainer
        alive = self.running and trainer is not None
        return alive and trainer is not None and not (trainer.stop_wanted or trainer.ended)

    # --- towards the daemon

    def follow(self, after: int, listener: Listener) -> None:
        """Say what is in the journal behind entry `after`, and everything that comes."""
        self._listeners.append(listener)
        for entry in self.journal[after:]:
            listener.hear(entry.to_line())
        self._beat()

    def hear(self, line: bytes) -> None:
        """What the daemon says on a follow stream, where it also says what it has of the logs."""
        with suppress(wire.WireError):
            if self.running:
                self.guard.hear(parse_presence(line).left_s)

    def leave(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def say(self, kind: str, data: Mapping[str, Any]) -> None:
        """Journal a fact, and tell who follows."""
        seq = len(self.journal) + 1
        entry = JournalEntry(seq, self._now_us(), self.config.generation, kind, data)
        self.journal.append(entry)
        for listener in list(self._listeners):
            listener.hear(entry.to_line())

    def exited(self, code: int) -> None:
        """The program ended, or will not begin."""
        self._failed = code == DIED
        as_asked = code in (wire.EXIT_RELEASED, wire.EXIT_FENCED)
        part = wire.FailedPart.NOTHING if as_asked else wire.FailedPart.PROGRAM
        data = {"code": code, "ranks": {"0": code}, "tail": "", "part": part.value}
        self.say(wire.EXITED, data)

    def _beat(self) -> None:
        beat = Heartbeat(len(self.journal), self._now_us(), self.config.generation, self.step)
        for listener in list(self._listeners):
            listener.hear(beat.to_line())

    def obey(self, command: Command) -> Reply:
        """One command, with the agent's own rules: other generations are refused."""
        if not self.running:
            return Reply(False, "no agent runs here")
        self.guard.hear(None)
        if command.generation != self.config.generation:
            return Reply(False, f"this agent serves generation {self.config.generation}")
        match command.name:
            case wire.START:
                self._start(command)
            case wire.SAVE:
                if self._trainer is not None:
                    self._trainer.save_wanted = True
                    self._trainer.poke.set()
            case wire.RELEASE | wire.DRAIN:
                self._stop(f"{command.name} was asked")
            case _:
                return Reply(False, f"unknown command {command.name}")
        return Reply(True)

    def _start(self, command: Command) -> None:
        start = parse_start(command.data)
        if self._over:
            return
        if start.program.bake:
            self._over = True
            self._kernel.spawn(self._machine.process, self._set_up)
            return
        if start.hold:
            if not self._held:
                self._held = True
                self._kernel.spawn(self._machine.process, self._prepare)
            return
        left_us = self._kernel.now_us + int(start.head.claim_deadline_s * 1e6)
        if self._trainer is None:
            self._trainer = self._machine.make_trainer(self._machine, self, start)
            self._trainer.claim_by(start.head.claim, left_us)
            self._kernel.spawn(self._machine.process, self._trainer.run)
        else:
            self._trainer.claim_by(start.head.claim, left_us)

    def _prepare(self) -> None:
        """All that one does which has no rank yet."""
        self._kernel.sleep(self._machine.random.uniform(*SETUP_S))
        self.prepared = True
        self.say(wire.READY, {})

    def _set_up(self) -> None:
        """All that a bake does."""
        self._kernel.sleep(self._machine.random.uniform(*SETUP_S))
        self.say(wire.SETUP, {"status": "ok", "seconds": 1.0})
        self.exited(wire.EXIT_FINISHED)

    def _stop(self, reason: str) -> None:
        trainer = self._trainer
        if trainer is None or trainer.stop_wanted or trainer.ended:
            return
        self.say(wire.DRAINING, {"reason": reason, "plan": "save, release", "deadline_s": 0.0})
        trainer.stop_wanted = True
        trainer.poke.set()

    # --- notices

    def _watch(self, turn: int) -> None:
        """Poll the metadata service and beat, for as long as this agent lives."""
        beat_at_us = 0
        up = True
        while self.running and self._turn == turn:
            if self._kernel.now_us >= beat_at_us:
                beat_at_us = self._kernel.now_us + int(HEARTBEAT_S * 1e6)
                self._beat()
            if self._machine.metadata_up != up:
                up = self._machine.metadata_up
                self.say(wire.METADATA, {"up": up, "error": "" if up else "no answer"})
            if up:
                self._compare()
            self._look_at_disk()
            self._consider()
            # What it has met has a latest moment, to be seen in time.
            self._machine.stirred.wait(POLL_S if self._met else HEARTBEAT_S)
            self._machine.stirred.clear()

    def _look_at_disk(self) -> None:
        """It has been otherwise than was said for so long that it counts."""
        machine = self._machine
        if machine.disk_is_full is bool(machine.disk_told_us):
            return
        if self._kernel.now_us - machine.disk_us >= CONFIRM_S * 1e6:
            machine.disk_told_us = self._kernel.now_us if machine.disk_is_full else 0
            self.say(wire.DISK, {"full": machine.disk_is_full, "text": "of a fault"})

    def _compare(self) -> None:
        """What is said now against what was said before: a notice that is missing is withdrawn."""
        for notice_id in sorted(self._met - self._machine.notices.keys()):
            self._met.discard(notice_id)
            self._active_notices.withdraw(notice_id)
            self.say(wire.NOTICE_WITHDRAWN, {"notice_id": notice_id})
        for notice in list(self._machine.notices.values()):
            if notice.notice_id in self._met:
                continue
            self._met.add(notice.notice_id)
            left_s = None
            if notice.deadline_us is not None:
                left_s = max(notice.deadline_us - self._kernel.now_us, 0) / 1e6
            data = {"notice_id": notice.notice_id, "kind": notice.kind.value}
            data |= {"remaining_s": left_s, "source": notice.source, "text": notice.text}
            self.say(wire.NOTICE, data)
            active, trainer = self._active_notices.add(notice), self._trainer
            if active is None or active.deadline is None or trainer is None:
                continue
            if trainer.policy().allows_snapshot(self._monotonic(), active.deadline):
                trainer.save_wanted = True
                trainer.poke.set()

    def _consider(self) -> None:
        trainer = self._trainer
        if trainer is not None and not trainer.ended:
            active = self._active_notices.due(trainer.policy(), self._monotonic())
            if active is not None:
                self._stop(f"{active.reason}: the latest safe moment")
            elif not trainer.stop_wanted and self.guard.stops(trainer.policy()):
                self._machine.was_alone = True
                self._machine.left_alone()
                self._stop("no contact with the control box")
        elif trainer is None and not self._over:
            if self.guard.idles():
                self._over = self._machine.was_alone = True
                self.exited(wire.EXIT_RELEASED)
        elif self.guard.gives_up(failed=self._failed):
            self._machine.switch_off()

    def _monotonic(self) -> float:
        return self._kernel.now_us / 1e6

    def _now_us(self) -> int:
        return self._kernel.now_us


class _KilledError(Exception):
    """SIGKILL: not a word more."""


class _LostRankError(Exception):
    """A collective failed."""


class Trainer:
    """The training program: claims, trains, saves, releases."""

    def __init__(self, machine: SimMachine, agent: SimAgent, start: wire.StartDocument) -> None:
        self.poke = Event(machine.kernel)
        self.save_wanted = False
        self.stop_wanted = False
        self.ended = False
        self.erred = False  # it ended by its own mistake, with what it had not saved
        self.killed = False  # by the next generation on its machine
        self.code = 0
        size = start.gang.num_nodes
        self._gang: Gang | None = None
        if size > 1:
            self._gang = machine.gangs.of(agent.config.job_id, agent.config.generation)
        self._machine = machine
        self._kernel = machine.kernel
        self._agent = agent
        self._start = start
        self._random = machine.random
        self._claim = start.head.claim
        self._claim_us = 0
        self._saves_s = 0.0
        self._policy = stop_timing_of(start, SAVE_S[1], STEP_S)
        self._step = 0
        self._told_step = 0  # progress was told up to here
        self._told_us = 0

    @property
    def job_id(self) -> str:
        return self._agent.config.job_id

    @property
    def generation(self) -> int:
        return self._agent.config.generation

    @property
    def step(self) -> int:
        """The last one that was computed."""
        return self._step

    def claim_by(self, claim: str, deadline_us: int) -> None:
        """When HEAD may be taken; a later command may only advance it."""
        if self._claim_us == 0 or claim == wire.CLAIM_NOW:
            self._claim, self._claim_us = claim, deadline_us

    def policy(self) -> StopTiming:
        return self._policy

    @property
    def there(self) -> bool:
        """Whether the other ranks of its gang can reach it."""
        return self._machine.online and not (self.ended or self.killed)

    def run(self) -> None:
        """To the end of the program; its last words are its exit code."""
        try:
            code = self._live()
        except _KilledError:
            self.ended, self.code = True, DIED
            return
        except _LostRankError as error:
            self._agent.say(wire.WARNING, {"text": str(error)})
            code = DIED
        except FencedError:
            config = self._agent.config
            self._machine.watch.fenced(config.job_id, config.generation, config.token)
            code = wire.EXIT_FENCED
        except HeadLostError as error:
            self._agent.say(wire.WARNING, {"text": str(error)})
            code = DIED
        self.ended, self.code = True, code
        if not self.killed:
            self._agent.exited(code)

    def _sleep(self, seconds: float) -> None:
        self._kernel.sleep(seconds)
        if self.killed:
            raise _KilledError

    def _live(self) -> int:
        if not self._agent.prepared:
            self._sleep(self._random.uniform(*SETUP_S))
        self._agent.prepared = True
        self._agent.say(wire.STARTED, {"pids": [1]})
        config = self._agent.config
        store = self._machine.open_store(self._start.storage.store_url, self._machine)
        fence = Fence(
            store,
            config.job_id,
            config.generation,
            config.token,
            known_generation=self._start.head.head_generation,
            make_nonce=lambda: f"{self._random.getrandbits(64):016x}",
            sleep=self._sleep,
        )
        self._agent.say(wire.READY, {})
        if self._gang is not None and not self._meet(self._gang):
            return wire.EXIT_RELEASED
        if self._gang is not None and config.rank:
            return self._follow(self._gang)
        fence.wait_claimable(self._claim_of, POLL_S, self._nap, lambda: self._kernel.now_us / 1e6)
        if self.stop_wanted:
            return wire.EXIT_RELEASED
        head = self._insist(fence.claim)
        self._step = self._told_step = head.current.step if head.current else 0
        manifest = head.current.manifest if head.current else ""
        self._machine.watch.claimed(self, self._step)
        self._agent.say(wire.CLAIMED, {"step": self._step, "manifest": manifest})
        if head.final:
            return wire.EXIT_FINISHED
        return self._train(fence)

    def _meet(self, gang: Gang) -> bool:
        """Until all ranks are there; False when one is told to stop before."""
        gang.members[self._agent.config.rank] = self
        give_up_us = self._kernel.now_us + int(MEET_S * 1e6)
        while not gang.is_whole(self._start.gang.num_nodes):
            if self.stop_wanted:
                return False
            if self._kernel.now_us >= give_up_us:
                raise _LostRankError("not all ranks came")
            self._nap(LOOK_S)
        return True

    def _follow(self, gang: Gang) -> int:
        """A rank that computes its part, until rank 0 has ended; or another one is gone."""
        while (code := gang.verdict()) is None:
            self._nap(LOOK_S)
            self._miss_nobody(gang)
        return code

    def _miss_nobody(self, gang: Gang) -> None:
        """Raises _LostRankError, after a collective has hung for a while."""
        if gang.verdict() is None and not gang.is_whole(self._start.gang.num_nodes):
            self._sleep(self._random.uniform(*VAIN_S))
            if gang.verdict() is None:
                raise _LostRankError("another rank is gone")

    def _claim_of(self) -> tuple[str, float]:
        if self.stop_wanted:
            return wire.CLAIM_NOW, 0.0
        return self._claim, (self._claim_us - self._kernel.now_us) / 1e6

    def _nap(self, seconds: float) -> None:
        self.poke.wait(seconds)
        self.poke.clear()
        if self.killed:
            raise _KilledError

    def _insist(self, act: Callable[[], Any]) -> Any:
        """Until the store answers: a fence's call may always be made again."""
        while True:
            try:
                return act()
            except (FencedError, HeadLostError):
                raise
            except StoreError:
                self._sleep(RETRY_S)

    def _train(self, fence: Fence) -> int:
        last = self._machine.steps_of(self._agent.config.job_id)
        kernel, every_s = self._kernel, self._start.checkpoint.every_s
        saved_us = self._told_us = kernel.now_us
        while True:
            due_us = min(
                saved_us + int(every_s * 1e6),
                self._told_us + int(self._start.program.progress_every_s * 1e6),
                kernel.now_us + int((last - self._step) * STEP_S * 1e6),
            )
            self._train_until(max(due_us, kernel.now_us + int(STEP_S * 1e6)), last)
            for fault, code in (("trainer_crash", DIED), ("trainer_lies", wire.EXIT_FINISHED)):
                if self._machine.faults.strikes(fault):
                    self.erred = True
                    return code
            self._tell()
            final, stop = self._step >= last, self.stop_wanted
            if final or stop or self.save_wanted or kernel.now_us >= saved_us + int(every_s * 1e6):
                trigger = "final" if final else "stop" if stop else "cadence"
                self._save(fence, trigger, final=final, released=stop)
                saved_us, self.save_wanted = kernel.now_us, False
            if final:
                return wire.EXIT_FINISHED
            if stop:
                self._agent.say(wire.RELEASED, {"step": self._step, "manifest": ""})
                return wire.EXIT_RELEASED

    def _train_until(self, at_us: int, last: int) -> None:
        """Whole steps; whoever pokes is heard at the end of the step under way."""
        began_us, gang = self._kernel.now_us, self._gang
        while self._kernel.now_us < at_us and not (self.stop_wanted or self.save_wanted):
            left_s = (at_us - self._kernel.now_us) / 1e6
            self._nap(left_s if gang is None else min(left_s, STEP_S))
            if gang is not None:
                self._miss_nobody(gang)
                self.stop_wanted |= gang.stops()
                self.save_wanted |= gang.saves()
        for other in gang.others(0) if gang is not None else ():
            other.save_wanted = False
        steps = -((began_us - self._kernel.now_us) // int(STEP_S * 1e6))
        self._sleep(max(0.0, steps * STEP_S - (self._kernel.now_us - began_us) / 1e6))
        self._step = self._agent.step = min(self._step + steps, last)
        self._machine.watch.trained(self, self._step)

    def _tell(self) -> None:
        steps = self._step - self._told_step
        if steps <= 0:
            return
        data = {"from_step": self._told_step + 1, "to_step": self._step, "losses": [1.0]}
        data |= {"first_at_us": self._told_us, "last_at_us": self._kernel.now_us}
        data |= {"tokens": 1000 * steps, "busy_s": steps * STEP_S}
        self._agent.say(wire.PROGRESS, data)
        self._told_step, self._told_us = self._step, self._kernel.now_us

    def _save(self, fence: Fence, trigger: str, *, final: bool, released: bool) -> None:
        config = self._agent.config
        began_us = self._kernel.now_us
        self._sleep(self._random.uniform(*SAVE_S))
        manifest = Manifest(config.job_id, config.generation, self._step, began_us, 1, final=final)
        head = self._insist(lambda: fence.commit(manifest, released=released or final))
        took_s = (self._kernel.now_us - began_us) / 1e6
        self._saves_s = max(self._saves_s, min(took_s, 60.0))
        self._policy = stop_timing_of(self._start, self._saves_s or SAVE_S[1], STEP_S)
        data = {"step": self._step, "manifest": head.current.manifest, "bytes": 0}
        data |= {"digest": head.current.digest, "stage_s": 0.0, "write_s": took_s}
        data |= {"trigger": trigger, "released": head.released, "final": final}
        self._agent.say(wire.CHECKPOINT, data)
