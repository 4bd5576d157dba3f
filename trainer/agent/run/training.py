"""One node's part of a generation, from the packages to the exit code.

setup -> (our engine: the program claims HEAD itself | any script: we claim) -> run -> (any script:
final manifest or release) -> exited. Every step can be taken up again by a restarted agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spotd import wire
from spotd.wire import Head, StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.health_verdict import HealthVerdict
from trainer.agent.base.phase import Phase
from trainer.agent.process.script import Script, ScriptState
from trainer.agent.process.script_supervisor import Exit
from trainer.agent.run.container import Stage
from trainer.agent.run.exit_code import final_save, meaning_of
from trainer.agent.run.head_authority import Authority, EndedError, authority_of
from trainer.agent.run.journal_replay import JournalReplay
from trainer.agent.run.prepare import start_unpacking
from trainer.agent.run.saver import Saver
from trainer.fence import FencedError

Tell = Callable[[str, Mapping[str, Any]], None]
_CRASHED = 1
_ORDERS = 3  # a script that does not start, because its keeper dies, is ordered this often


class Training:
    """Lives in the agent's loop: no method waits. `past` is what this boot's journal has; `tell`
    takes what becomes of saves that the agent makes."""

    def __init__(
        self,
        site: AgentContext,
        demands: DesiredState,
        past: JournalReplay,
        saver: Saver,
        tell: Tell,
    ) -> None:
        self._site, self._tell = site, tell
        self._demands = demands
        self._said = said = set(past.said)
        self._saver, self._container = saver, saver.container
        memory, keeper = site.places.memory, (site.keeper_argv, site.keeper_env)
        self._setup = Script(memory / "setup", *keeper)
        self._run = Script(memory / "run", *keeper)
        self.workers = self._run.workers
        self._authority: Authority | None = None
        self._worker_codes: dict[int, int] = {}
        self._exit: Exit | None = None
        self.final = wire.CHECKPOINT + ":final" in said  # the job's success is in HEAD
        self.claimed = wire.CLAIMED in said
        self._fenced = self._over = False  # over: the script; its last words may be on their way
        self.unwell = past.unwell.pending  # what runs is to be ended for
        self.blame: Callable[[int], None] = lambda _code: None  # may find it unwell by its exit
        self.may_run: Callable[[], bool] = lambda: True  # what it reads is there
        self.code: int | None = None  # of EXITED, when this agent has written it
        self.phase = Phase.ENDED if wire.EXITED in said else Phase.WAITING

    # --- forward

    def warm_up(self) -> None:
        """Have a keeper ready, so that `run` starts without delay."""
        if self.phase is Phase.WAITING:
            self._run.warm_up()

    def begin(self) -> None:
        """Take up the start document, at whatever point an earlier agent left it."""
        if self._authority is None:
            self._authority = authority_of(self._site, self._start, self, self._tell)
        if self.phase is not Phase.WAITING:
            return
        if self._start.image:
            self._container.enter(setup=self._setup, run=self._run)
            self._saver.enter()
        if self._run.state is not ScriptState.ABSENT:
            self._enter_running()
        elif self._setup.state is not ScriptState.ABSENT or self._container.begun:
            self.phase = Phase.SETUP
        else:
            self._prepare()

    def poll(self) -> None:
        """Look at the processes, and take the next step if one has ended."""
        if self.phase is Phase.SETUP:
            self._poll_setup()
        elif self.phase is Phase.RUNNING:
            self._poll_run()

    def _prepare(self) -> None:
        self.phase = Phase.PREPARING
        given_up = lambda: self.phase is not Phase.PREPARING  # noqa: E731
        start_unpacking(self._site, self._start, given_up, self._prepared)

    def _prepared(self, error: str) -> None:
        if error:
            self._setup_failed(_CRASHED, 0.0, error)
        elif self.phase is Phase.PREPARING:
            self.phase = Phase.SETUP
            self._saver.begin_early(self._start, self._demands.claim_until)
            self._poll_setup()

    def _poll_setup(self) -> None:
        if self._start.image and not self._in_container():
            return
        if self._site.places.inherits or not self._start.setup.strip():
            self._setup_done()
            return
        self._say_once(wire.SETUP, wire.SETUP, {"status": "begin"})
        state = self._setup.state
        if state is ScriptState.ABSENT:
            self._order(self._setup, "setup", "setup", self._start.setup)
        if state is not ScriptState.ENDED:
            return
        if (ended := self._setup.ended).code:
            self._setup_failed(ended.code, ended.seconds, ended.tail)
            return
        self._say_once(wire.SETUP + ":ok", wire.SETUP, {"status": "ok", "seconds": ended.seconds})
        self._setup_done()

    def _in_container(self) -> bool:
        """Whether there is one to run in; where there can be none, the job ends, or the machine."""
        look = self._container.look(self._start, self._site.monotonic())
        if look.stage is Stage.REFUSED:
            self._setup_failed(look.code or _CRASHED, look.seconds, look.text)
        elif look.stage is Stage.UNREACHED:
            self.end_unfit(look.unwell(self._site.journal))
        return look.stage is Stage.UP

    def _setup_failed(self, code: int, seconds: float, tail: str) -> None:
        if self.phase is Phase.ENDED:
            return
        data = {"status": "failed", "code": code, "seconds": seconds, "tail": tail}
        self._site.journal.append(wire.SETUP, data)
        self._end()

    def _setup_done(self) -> None:
        if self._start.hold:
            self._say_once(wire.READY, wire.READY, {})  # the next generation has a rank for us
        elif self._start.bake:
            self._exited(wire.EXIT_FINISHED, Exit(0, "setup is done", 0.0))
        elif self._authority is None:
            self._enter_running()
            self._order_run()
        else:
            self._say_once(wire.READY, wire.READY, {})
            self.phase = Phase.CLAIMING
            self._authority.start_claim(self._claim_of)

    def _claim_of(self) -> tuple[str, float]:
        """From the claiming thread. Raises EndedError when we were stopped meanwhile."""
        if self.phase is not Phase.CLAIMING:
            raise EndedError
        return self._demands.claim_of(self._site.monotonic())

    def on_claimed(self, head: Head) -> None:
        """HEAD is ours: now, and not before, the script may run."""
        if self.phase is not Phase.CLAIMING:
            self._give_back(head)
            return
        self.claimed = True
        current = head.current
        data = {"step": current.step, "manifest": current.manifest} if current else {"step": 0}
        self._say_once(wire.CLAIMED, wire.CLAIMED, {"manifest": "", **data})
        if head.final:
            self._exited(wire.EXIT_FINISHED, Exit(0, "the job had already finished", 0.0))
            return
        self._enter_running()
        self._order_run()

    def _give_back(self, head: Head) -> None:
        """We were stopped while the claim was under way: let nobody wait for us."""
        ours = head.generation == self._site.config.generation and not head.final
        if ours and self._authority is not None:
            self._authority.start_release()

    def _order_run(self) -> None:
        if not self.may_run():
            return  # `poll` asks again
        if self.unwell is not None:
            self.unwell = None
            self._said.discard(wire.STARTED)
        self._order(self._run, f"rank{self._site.config.rank}", "run", self._start.run)

    def _enter_running(self) -> None:
        self.phase = Phase.RUNNING
        if self._authority is not None:
            self._authority.start_watch()

    def _order(self, script: Script, stream: str, name: str, text: str) -> None:
        if self._demands.stopping is not None:
            self.stop_idle()  # nothing is begun any more
            return
        if script.orders >= _ORDERS:
            self._fail(f"the process that should start {name} ends at once: see agent.log")
            return
        # `poll` tries again, for as long as there is no room
        until = self._demands.claim_until
        self._container.try_order(script, name, stream, text, self._start, until)

    # --- the end

    def _poll_run(self) -> None:
        state, pids = self._run.state, self._run.pids
        if pids is not None:
            self._say_once(wire.STARTED, wire.STARTED, {"pids": [pids.program.pid]})
        if state is ScriptState.ABSENT:
            self._order_run()
        elif state is ScriptState.ENDED:
            self._hear_out()

    def _hear_out(self) -> None:
        """The program's own last words come before its end: they say what its exit means."""
        now = self._site.monotonic()
        if not self._over:
            self.blame(self._run.ended.code)
            self._saver.begin_end(now)
            self._run.kill()  # what the script left behind
        self._over = True
        again = self.unwell is not None and self.unwell.again and not self.final
        if self._saver.finish(now, self._demands.stopping, stays=again):
            self._site.post(lambda: self._ran(self._run.ended))  # after what the lines have posted

    def want_saver(self, argv: Sequence[str]) -> None:
        """The program asks for a saver beside it. Raises OSError."""
        if self.phase is Phase.RUNNING and not self._over and self._authority is None:
            self._saver.want(argv, self._start, self._demands.claim_until)

    def _ran(self, ended: Exit) -> None:
        if self.phase is not Phase.RUNNING:
            return
        self._exit = ended
        if self.unwell is not None and self._demands.stopping is None and not self.final:
            self._ended_unwell(self.unwell, ended)
            return
        if self._authority is None:
            self._exited(self._code_of_ours(ended.code), ended)
            return
        if self._demands.stopping is not None:
            self.phase = Phase.SETTLING
            self._authority.start_release()
        elif ended.code == 0 and self._start.num_nodes == 1:
            self.phase = Phase.SETTLING
            self._authority.start_final()
        else:
            self._exited(_CRASHED if ended.code == wire.EXIT_FENCED else ended.code, ended)

    def _ended_unwell(self, unwell: HealthVerdict, ended: Exit) -> None:
        """It begins again, or that was its end here. HEAD shuts out what it had under way."""
        if not unwell.again:
            self._exited(unwell.code, ended)
            return
        self._run.forget()
        self._exit, self._over = None, False
        self._worker_codes.clear()
        self._order_run()

    def _code_of_ours(self, code: int) -> int:
        """What the exit means."""
        meant, warning = meaning_of(
            code,
            set(self._worker_codes.values()),
            final=self.final,
            released=wire.RELEASED in self._said,
            stopped=self._demands.stopping is not None,
        )
        if warning:
            self._site.journal.append(wire.WARNING, {"text": warning})
        return meant

    def on_settled(self, head: Head | None, *, final: bool) -> None:
        """The script's end is in HEAD."""
        self.final = self.final or final
        current = head.current if head else None
        step, manifest = (current.step, current.manifest) if current else (0, "")
        if final and current is not None:
            self._site.journal.append(wire.CHECKPOINT, final_save(current))
        elif head is not None:
            self._site.journal.append(wire.RELEASED, {"step": step, "manifest": manifest})
        if self.phase is Phase.SETTLING:
            ended = self._exit or Exit(0, "", 0.0)
            self._exited(wire.EXIT_FINISHED if final else wire.EXIT_RELEASED, ended)

    def on_fenced(self, error: FencedError) -> None:
        """A newer generation owns HEAD: nothing that runs here counts any more."""
        self._fenced = True
        if self.phase is not Phase.ENDED:
            self.kill()
            self._exited(wire.EXIT_FENCED, Exit(wire.EXIT_FENCED, str(error), 0.0))

    def on_store_failed(self, text: str) -> None:
        """HEAD cannot be moved, and trying again cannot help."""
        if self.phase is Phase.RUNNING:
            self._site.journal.append(wire.WARNING, {"text": text})
        elif self.phase is not Phase.ENDED:
            self._fail(text)

    def commit_final(self) -> str:
        """All ranks of a gang exited 0: rank 0 says so in HEAD. Returns why not, or nothing."""
        config = self._site.config
        if self._authority is None or config.rank:
            return "only rank 0 of a script without our engine commits the final manifest"
        if self.phase is not Phase.ENDED or not self._finished():
            return "rank 0 has not exited 0"
        if not self.final:
            self._authority.start_final()
        return ""

    @property
    def awaits_final(self) -> bool:
        """Over, but nobody else can say in HEAD that the gang has finished, when it has."""
        ours = self._authority is not None and not self.final and not self._fenced
        over = self.phase is Phase.ENDED and self._demands.stopping is None
        return ours and over and self._finished()

    def _fail(self, text: str) -> None:
        self._exited(_CRASHED, Exit(_CRASHED, text, 0.0))

    def _exited(self, code: int, ended: Exit) -> None:
        if self.phase is Phase.ENDED:
            return
        self.code = code
        ranks = {str(self._site.config.rank): ended.code}
        ranks |= {f"worker{rank}": worker for rank, worker in sorted(self._worker_codes.items())}
        self._say_once(wire.EXITED, wire.EXITED, {"code": code, "ranks": ranks, "tail": ended.tail})
        self._end()

    def _finished(self) -> bool:
        """Rank 0 of a gang, done, and still to say so in HEAD when all the others are."""
        first_of_gang = self._start.num_nodes > 1 and not self._site.config.rank
        return first_of_gang and self._run.state is ScriptState.ENDED and not self._run.ended.code

    def _end(self) -> None:
        self.phase = Phase.ENDED
        if not self.awaits_final:
            self._demands.forget()
        self._run.dismiss()
        self._saver.kill()
        self._container.remove()
        for name in ("setup.sh", "run.sh", "saver.sh", "setup.in", "run.in", "saver.in"):
            (self._site.places.memory / name).unlink(missing_ok=True)

    # --- what others ask for

    def note_worker_exit(self, rank: int, code: int) -> None:
        """A training process said how it ends; its launcher will not."""
        self._worker_codes[rank] = code

    def note_said(self, kind: str) -> None:
        """A training process has journalled this."""
        self._said.add(kind)

    def stop_idle(self) -> None:
        """Asked to stop while no program runs that could save. One that settles has ended."""
        if self.phase is Phase.SETTLING:
            return
        self.kill()
        if self._authority is not None and self.claimed:
            self.phase = Phase.SETTLING
            self._authority.start_release()
        else:
            text = f"asked to stop while {self.phase.value}"
            self._exited(wire.EXIT_RELEASED, Exit(wire.EXIT_RELEASED, text, 0.0))

    def hold_shells(self, *, end: bool) -> None:
        """In a stop: the script begins no other line, and with `end` its shells end after what they
        run. After the last step of all they go on: what comes then is part of the job."""
        if self.final:
            self._run.resume_shells()
        else:
            self._run.hold_shells(end=end)

    def signal(self, number: int, *, only_if_caught: bool = False) -> int:
        """Signal the training processes (those with a handler, if so asked); returns how many."""
        return self._run.signal_workers(number, only_if_caught=only_if_caught)

    def end_unfit(self, unwell: HealthVerdict) -> None:
        """Nothing more is to run on this machine."""
        self.kill()
        self._exited(unwell.code, Exit(unwell.code, unwell.text, 0.0))

    def kill(self, *, saver: bool = True) -> None:
        """End every process of the job on this node, now; the `saver` too, or not yet."""
        self._setup.kill()
        self._run.kill()
        if saver:
            self._saver.kill()
        if self.phase is not Phase.RUNNING:
            self._container.kill()

    @property
    def _start(self) -> StartDocument:
        start = self._demands.start
        assert start is not None  # noqa: S101 - `begin` comes after it
        return start

    def _say_once(self, mark: str, kind: str, data: Mapping[str, Any]) -> None:
        if mark not in self._said:
            self._said.add(mark)
            self._site.journal.append(kind, data)
