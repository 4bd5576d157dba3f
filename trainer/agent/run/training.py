"""One node's part of a generation, from the packages to the exit code.

setup -> (spotd's engine: the program claims HEAD itself | any script: the agent claims) -> run ->
(any script: final manifest or release) -> exited. The outputs are uploaded before the success of a
script is recorded, and after everything else. A restarted agent can continue at every step.
"""
# More than 600 lines: one state machine, whose transitions are read together.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spotd import wire
from spotd.wire import Head, StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.health_verdict import HealthVerdict
from trainer.agent.base.phase import AFTER_PROGRAM, Phase
from trainer.agent.base.stop_timing import FINAL_S
from trainer.agent.base.streams import LogReader
from trainer.agent.process.script import Script, ScriptState
from trainer.agent.process.script_supervisor import ScriptExit
from trainer.agent.run.container import Stage
from trainer.agent.run.exit_code import final_checkpoint, interpret_exit
from trainer.agent.run.head_authority import Authority, EndedError, authority_of
from trainer.agent.run.journal_replay import JournalReplay
from trainer.agent.run.last_output import LastOutput
from trainer.agent.run.left_files import (
    AFTER_S,
    LeftFilesWatch,
    describe_left_files,
    find_unsaved,
)
from trainer.agent.run.outputs import DONE, FAILED_S, OutputsCollector
from trainer.agent.run.prepare import start_preparing
from trainer.agent.run.printed_steps import PrintedStepsWatch
from trainer.agent.run.saver import Saver
from trainer.fence import FencedError

Report = Callable[[str, Mapping[str, Any]], None]
_CRASHED = 1
_LEFT_FILES = f"{wire.WARNING}:left files"  # mark of the one warning of them
_MAX_STARTS = 3  # attempts to start a script whose supervisor dies before it does


class Training:
    """The state machine of one generation. Lives in the agent's loop: no method blocks.

    `replay` is the state from this boot's journal; `report` receives the journal entries of saves
    that the agent makes.
    """

    def __init__(
        self,
        context: AgentContext,
        desired: DesiredState,
        *,
        replay: JournalReplay,
        saver: Saver,
        report: Report,
    ) -> None:
        self._context, self._report = context, report
        self._desired = desired
        self._reported = reported = set(replay.reported)
        self._saver, self._container = saver, saver.container
        self._setup, self._run = (
            Script(context.paths.memory / name, context.supervisor_argv, context.supervisor_env)
            for name in ("setup", "run")
        )
        self.workers = self._run.workers
        self._authority: Authority | None = None
        self._worker_codes: dict[int, int] = {}
        self._left_files_watch = LeftFilesWatch(
            self._find_unsaved,
            report=self._report_unsaved,
            monotonic=context.monotonic,
            after_s=float(context.environ.get("SPOTD_LEFT_FILES_S") or AFTER_S),
        )
        self._printed_steps: PrintedStepsWatch | None = None
        self._run_exit: ScriptExit | None = None
        self._outputs = OutputsCollector(context, is_done=DONE in reported)
        self._outputs_until: float | None = None
        self._last_output = LastOutput(context)
        # When the machine goes, by its notices, on the monotonic clock; None if it stays.
        self.notice_deadline: Callable[[], float | None] = lambda: None
        self.final = wire.CHECKPOINT + ":final" in reported  # the job's success is in HEAD
        self.claimed = wire.CLAIMED in reported
        self._fenced = False
        self._script_ended = False  # its last messages may still be on their way
        self.verdict = replay.health.pending  # why the running script is to be ended
        # May set `verdict` by the exit code.
        self.on_script_exit: Callable[[int], None] = lambda _code: None
        self.can_run: Callable[[], bool] = lambda: True  # False while a mount is missing
        self.code: int | None = None  # of the EXITED entry, if this agent has written it
        self.ended_well = False  # with success or as asked: anybody may exit with 75 or 76
        self.phase = Phase.ENDED if wire.EXITED in reported else Phase.WAITING

    # --- progress

    def warm_up(self) -> None:
        """Start a supervisor in advance, so that `run` starts without delay."""
        if self.phase is Phase.WAITING:
            self._run.warm_up()

    def begin(self) -> None:
        """Continue with the start document, from wherever an earlier agent left it."""
        if self._authority is None:
            self._authority = authority_of(
                self._context, self._start, listener=self, report=self._report
            )
        if self.phase is not Phase.WAITING:
            return
        if self._start.program.image:
            self._container.run_scripts_inside(setup=self._setup, run=self._run)
            self._saver.run_in_container()
        if self._run.state is not ScriptState.ABSENT:
            self._enter_running()
        elif self._setup.state is not ScriptState.ABSENT or self._container.started:
            self.phase = Phase.SETUP
        else:
            self._prepare()

    def poll(self) -> None:
        """Check the processes, and take the next step if one has ended."""
        if self.phase is Phase.SETUP:
            self._poll_setup()
        elif self.phase is Phase.RUNNING:
            self._poll_run()

    def _prepare(self) -> None:
        self.phase = Phase.PREPARING
        cancelled = lambda: self.phase is not Phase.PREPARING  # noqa: E731
        start_preparing(self._context, self._start, cancelled=cancelled, done=self._prepared)

    def _prepared(self, error: str) -> None:
        if error:
            self._setup_failed(ScriptExit(_CRASHED, error, 0.0, error), wire.FailedPart.FILES)
        elif self.phase is Phase.PREPARING:
            self.phase = Phase.SETUP
            self._saver.start_early(self._start, self._desired.claim_until)
            self._poll_setup()

    def _poll_setup(self) -> None:
        if self._start.program.image and not self._container_ready():
            return
        if self._context.paths.inherits_workdir or not self._start.program.setup.strip():
            self._setup_done()
            return
        self._append_once(wire.SETUP, wire.SETUP, {"status": "begin"})
        state = self._setup.state
        if state is ScriptState.ABSENT:
            self._start_script(self._setup, "setup", self._start.program.setup, stream="setup")
        if state is not ScriptState.ENDED:
            return
        if (script_exit := self._setup.exit).code:
            self._setup_failed(script_exit, wire.FailedPart.SETUP)
            return
        self._append_once(
            wire.SETUP + ":ok", wire.SETUP, {"status": "ok", "seconds": script_exit.seconds}
        )
        self._setup_done()

    def _container_ready(self) -> bool:
        """Whether the container is up; if there can be none, the job or the machine is given up."""
        status = self._container.advance(self._start, self._context.monotonic())
        if status.stage is Stage.REFUSED:
            code, text = status.code or _CRASHED, status.text
            self._setup_failed(ScriptExit(code, text, status.seconds, text), wire.FailedPart.IMAGE)
        elif status.stage is Stage.UNAVAILABLE:
            self.end_unfit(status.record_unfit(self._context.journal))
        return status.stage is Stage.UP

    def _setup_failed(self, ended: ScriptExit, part: wire.FailedPart) -> None:
        if self.phase is Phase.ENDED:
            return
        what = {"status": "failed", "code": ended.code, "seconds": ended.seconds}
        why = {"tail": ended.tail, "cause": ended.cause, "part": ended.part or part.value}

        def end() -> None:
            self._context.journal.append(wire.SETUP, {**what, **why})
            self._end()

        self._store_last_output(then=end)

    def _setup_done(self) -> None:
        if self._start.hold:
            self._append_once(wire.READY, wire.READY, {})  # a rank only in the next generation
        elif self._start.program.bake:
            self._exited(wire.EXIT_FINISHED, ScriptExit(0, "setup is done", 0.0))
        elif self._authority is None:
            self._enter_running()
            self._start_run()
        else:
            self._append_once(wire.READY, wire.READY, {})
            self.phase = Phase.CLAIMING
            self._authority.start_claim(self._claim_of)

    def _claim_of(self) -> tuple[str, float]:
        """Return the claim terms; called in the claiming thread. Raises EndedError after a stop."""
        if self.phase is not Phase.CLAIMING:
            raise EndedError
        return self._desired.claim_terms(self._context.monotonic())

    def on_claimed(self, head: Head) -> None:
        """Start the script, which may run only now that HEAD is ours."""
        if self.phase is not Phase.CLAIMING:
            self._release_late_claim(head)
            return
        self.claimed = True
        current = head.current
        data = {"step": current.step, "manifest": current.manifest} if current else {"step": 0}
        self._append_once(wire.CLAIMED, wire.CLAIMED, {"manifest": "", **data})
        if head.final:
            self._exited(wire.EXIT_FINISHED, ScriptExit(0, "the job had already finished", 0.0))
            return
        self._enter_running()
        self._start_run()

    def _release_late_claim(self, head: Head) -> None:
        """Release a claim that completed after a stop, so that no one waits for us."""
        owned = head.generation == self._context.config.generation and not head.final
        if owned and self._authority is not None:
            self._authority.start_release()

    def _start_run(self) -> None:
        if not self.can_run():
            return  # `poll` tries again
        if self.verdict is not None:
            self.verdict = None
            self._reported.discard(wire.STARTED)
            self._outputs.is_done = False
        stream = f"rank{self._context.config.rank}"
        self._start_script(self._run, "run", self._start.program.run, stream=stream)

    def _enter_running(self) -> None:
        self.phase = Phase.RUNNING
        if self._authority is None:
            return
        self._authority.start_watch()
        context = self._context
        # In a folder, the files tell whether the program resumed. Rank 0 speaks for all ranks.
        if not self._start.checkpoint.directory and not context.config.rank:
            self._printed_steps = PrintedStepsWatch(
                LogReader(context.paths.logs / "rank0.log"),
                before=self._start.program.printed_steps,
                report=context.journal.append,
                monotonic=context.monotonic,
                report_every_s=self._start.program.progress_every_s,
            )

    def _start_script(self, script: Script, name: str, text: str, *, stream: str) -> None:
        if self._desired.stopping is not None:
            self.stop_idle()  # nothing is started any more
            return
        if script.start_count >= _MAX_STARTS:
            text = f"the process that should start {name} ends at once: see agent.log"
            self._fail(text, wire.FailedPart.AGENT)
            return
        # `poll` tries again while there is no memory or disk space.
        self._container.try_start(
            script,
            name,
            text,
            self._start,
            stream=stream,
            claim_until=self._desired.claim_until,
        )

    # --- the end

    def _poll_run(self) -> None:
        state, pids = self._run.state, self._run.pids
        if pids is not None:
            self._append_once(wire.STARTED, wire.STARTED, {"pids": [pids.program.pid]})
            self._left_files_watch.poll()
        if self._printed_steps is not None:
            self._printed_steps.poll()
        if state is ScriptState.ABSENT:
            self._start_run()
        elif state is ScriptState.ENDED:
            self._collect_last_messages()

    def _collect_last_messages(self) -> None:
        """Wait for the program's last messages before its exit is processed: they explain the
        exit."""
        now = self._context.monotonic()
        if not self._script_ended:
            self.on_script_exit(self._run.exit.code)
            self._saver.begin_end(now)
            self._run.kill()  # processes that the script left behind
        self._script_ended = True
        restarts = self.verdict is not None and self.verdict.again and not self.final
        succeeded = not self._run.exit.code and not restarts
        if self._saver.finish(now, self._desired.stopping, is_reused=restarts, succeeded=succeeded):
            # After what the connections have posted.
            self._context.post(lambda: self._run_ended(self._run.exit))

    def request_saver(self, argv: Sequence[str]) -> None:
        """Start a saver for the program. Raises OSError."""
        if self.phase is Phase.RUNNING and not self._script_ended and self._authority is None:
            self._saver.start(argv, self._start, self._desired.claim_until)

    def _run_ended(self, script_exit: ScriptExit) -> None:
        if self.phase is not Phase.RUNNING:
            return
        if self._printed_steps is not None:
            self._printed_steps.end()
        self._run_exit = script_exit
        if self.verdict is not None and self._desired.stopping is None and not self.final:
            self._end_for_verdict(self.verdict, script_exit)
            return
        if self._authority is None:
            self._leave(self._interpret_exit(script_exit.code), script_exit)
        elif self._desired.stopping is not None:
            self._release(script_exit)
        elif script_exit.code == 0 and self._start.gang.num_nodes == 1:
            self._collect_outputs(finished=True, then=self._settle_success)
        elif self._start.checkpoint.directory:
            self.phase = Phase.SETTLING
            self._authority.start_last_save()
        else:
            self._leave(script_exit.code, script_exit)

    def _release(self, script_exit: ScriptExit) -> None:
        assert self._authority is not None  # noqa: S101 - only HEAD's owner is asked to
        if wire.RELEASED in self._reported:  # by an earlier agent
            self._leave(wire.EXIT_RELEASED, script_exit)
            return
        self.phase = Phase.SETTLING
        self._authority.start_release(clean=script_exit.code == 0)

    def _settle_success(self, complete: bool) -> None:
        """Record the script's success, unless the machine goes before its outputs are stored.

        Then the next machine runs the end of the program once more.
        """
        assert self._authority is not None  # noqa: S101 - `_run_ended` has checked
        assert self._run_exit is not None  # noqa: S101 - it has ended
        if complete or self._desired.stopping is None:
            self.phase = Phase.SETTLING
            self._authority.start_final()
        else:
            self._release(self._run_exit)

    def _leave(self, code: int, script_exit: ScriptExit) -> None:
        """End this machine's part, after the program's outputs are stored."""
        self._collect_outputs(
            finished=code == wire.EXIT_FINISHED,
            then=lambda _complete: self._store_last_output(
                then=lambda: self._exited(code, script_exit)
            ),
        )

    def _store_last_output(self, *, then: Callable[[], None]) -> None:
        """Call `then`, after the rest of the output is uploaded if it is much."""

        def done() -> None:
            if self.phase is Phase.COLLECTING:
                then()

        if self._last_output.start(
            self._start, self._desired.stopping, self.notice_deadline(), done=done
        ):
            self.phase = Phase.COLLECTING
        else:
            then()

    def _collect_outputs(self, *, finished: bool, then: Callable[[bool], None]) -> None:
        """Upload the outputs in a thread, then call `then` with whether none is missing.

        A program that failed is restarted, so its outputs get only FAILED_S.
        """
        stopping, outputs = self._desired.stopping, self._start.files.outputs
        if self._outputs.is_done or outputs is None or (stopping and stopping.skips_outputs):
            then(True)
            return
        self.phase = Phase.COLLECTING
        if not finished and self._desired.stopping is None:
            self._outputs_until = self._context.monotonic() + FAILED_S

        def done(complete: bool) -> None:
            if self.phase is Phase.COLLECTING:
                then(complete)

        self._outputs.start(
            self._start,
            since_ns=self._started_ns(),
            finished=finished,
            deadline=self._outputs_deadline,
            done=done,
        )

    def _outputs_deadline(self) -> float | None:
        """Return when the upload of outputs must end; None if the machine may be waited for."""
        stopping, notice_s = self._desired.stopping, self.notice_deadline()
        ends = [] if self._outputs_until is None else [self._outputs_until]
        if notice_s is not None:
            ends.append(notice_s - FINAL_S)
        elif stopping is not None:
            ends.append(stopping.outputs_until or stopping.kill_at)
        return min(ends, default=None)

    def give_up_outputs(self) -> None:
        """End the upload of outputs as soon as possible."""
        self._outputs_until = self._context.monotonic()

    def _end_for_verdict(self, verdict: HealthVerdict, script_exit: ScriptExit) -> None:
        """Restart the script, or end this machine's part. HEAD fences off unfinished saves."""
        if not verdict.again:
            ended = replace(script_exit, cause=verdict.text)
            self._store_last_output(then=lambda: self._exited(verdict.code, ended))
            return
        self._run.reset()
        self._run_exit, self._script_ended = None, False
        self._worker_codes.clear()
        self._start_run()

    def _interpret_exit(self, code: int) -> int:
        """Return the exit code to report."""
        meaning, warning = interpret_exit(
            code,
            set(self._worker_codes.values()),
            final=self.final,
            released=wire.RELEASED in self._reported,
            stopped=self._desired.stopping is not None,
        )
        if warning:
            self._context.journal.append(wire.WARNING, {"text": warning})
        return meaning

    def on_saved(self) -> None:
        """Report the failure of a script whose last files are saved now."""
        if self.phase is Phase.SETTLING and self._run_exit is not None:
            self._leave(self._run_exit.code, self._run_exit)

    def on_settled(self, head: Head | None, *, final: bool, size: int = 0) -> None:
        """Record the script's end, which is now in HEAD."""
        self.final = self.final or final
        current = head.current if head else None
        step, manifest = (current.step, current.manifest) if current else (0, "")
        if final and current is not None:
            self._context.journal.append(wire.CHECKPOINT, final_checkpoint(current, size))
        elif head is not None:
            self._context.journal.append(wire.RELEASED, {"step": step, "manifest": manifest})
            self._reported.add(wire.RELEASED)
        if self.phase is Phase.SETTLING:
            script_exit = self._run_exit or ScriptExit(0, "", 0.0)
            if final and not size and not self._outputs.files:
                script_exit = replace(script_exit, tail=self._left_files())
            code = wire.EXIT_FINISHED if final else wire.EXIT_RELEASED
            if self._run_exit is None:
                self._exited(code, script_exit)  # nothing was run
            else:
                self._leave(code, script_exit)

    def _left_files(self) -> str:
        """Return the files that the script wrote on this machine, none of which is stored."""
        since_ns = self._started_ns()
        return describe_left_files(self._context.paths.workdir, since_ns=since_ns)

    def _started_ns(self) -> int:
        """Return when the script was started, by the file that was written for it."""
        try:
            return (self._context.paths.memory / "run.sh").stat().st_mtime_ns
        except OSError:
            return time.time_ns()

    def _find_unsaved(self) -> str:
        saved = self._authority is None or bool(self._start.checkpoint.directory)
        return find_unsaved(
            self._context, self._start, since_ns=self._started_ns(), saves_itself=saved
        )

    def _report_unsaved(self, text: str) -> None:
        data = {"text": text, "alert": True}
        self._context.post(lambda: self._append_once(_LEFT_FILES, wire.WARNING, data))

    def on_fenced(self, error: FencedError) -> None:
        """End everything, because a newer generation owns HEAD."""
        if wire.RELEASED in self._reported:
            return  # we have given HEAD away, and only our outputs are left to store
        self._fenced = True
        if self.phase is not Phase.ENDED:
            self.kill()
            self._exited(wire.EXIT_FENCED, ScriptExit(wire.EXIT_FENCED, str(error), 0.0))

    def on_store_failed(self, text: str) -> None:
        """Fail, or only warn while the script runs: HEAD cannot be moved."""
        if self.phase is Phase.RUNNING:
            self._context.journal.append(wire.WARNING, {"text": text})
        elif self.phase is not Phase.ENDED:
            self._fail(text, wire.FailedPart.STORE)

    def commit_final(self) -> str:
        """Commit the final manifest after all ranks exited 0; returns why not, or ""."""
        config = self._context.config
        if self._authority is None or config.rank:
            return "only rank 0 of a script without our engine commits the final manifest"
        if self.phase is not Phase.ENDED or not self._finished():
            return "rank 0 has not exited 0"
        if not self.final:
            self._authority.start_final()
        return ""

    @property
    def awaits_final(self) -> bool:
        """Whether this node is done, but must still record the gang's success in HEAD."""
        owned = self._authority is not None and not self.final and not self._fenced
        is_ended = self.phase is Phase.ENDED and self._desired.stopping is None
        return owned and is_ended and self._finished()

    def _fail(self, text: str, part: wire.FailedPart) -> None:
        """End this machine's part for a failure that is not the program's."""
        self._exited(_CRASHED, ScriptExit(_CRASHED, text, 0.0, text, part.value))

    def _exited(self, code: int, script_exit: ScriptExit) -> None:
        if self.phase is Phase.ENDED:
            return
        self.code = code
        released, fenced = self._desired.stopping is not None, self._fenced
        as_asked = {wire.EXIT_RELEASED: released, wire.EXIT_FENCED: fenced}.get(code, False)
        part = wire.FailedPart.NOTHING if as_asked else wire.FailedPart.PROGRAM
        self.ended_well = as_asked or code == wire.EXIT_FINISHED
        ranks = {str(self._context.config.rank): script_exit.code}
        ranks |= {f"worker{rank}": worker for rank, worker in sorted(self._worker_codes.items())}
        self._append_once(
            wire.EXITED,
            wire.EXITED,
            {
                "code": code,
                "ranks": ranks,
                "tail": script_exit.tail,
                "cause": script_exit.cause,
                "part": script_exit.part or part.value,
            },
        )
        self._end()

    def _finished(self) -> bool:
        """Whether this is rank 0 of a gang whose script exited 0."""
        first_of_gang = self._start.gang.num_nodes > 1 and not self._context.config.rank
        return first_of_gang and self._run.state is ScriptState.ENDED and not self._run.exit.code

    def _end(self) -> None:
        self.phase = Phase.ENDED
        if not self.awaits_final:
            self._desired.forget()
        self._run.close_idle_supervisor()
        self._saver.kill()
        self._container.remove()
        for name in ("setup.sh", "run.sh", "saver.sh", "setup.in", "run.in", "saver.in"):
            (self._context.paths.memory / name).unlink(missing_ok=True)

    # --- requests

    def note_worker_exit(self, rank: int, code: int) -> None:
        """Record the exit code that a training process announced, as its launcher hides it."""
        self._worker_codes[rank] = code

    def note_kind(self, kind: str) -> None:
        """Record that a training process has written an entry of this kind."""
        self._reported.add(kind)

    def stop_idle(self) -> None:
        """Stop while no program runs that could save. AFTER_PROGRAM it has ended already."""
        if self.phase in AFTER_PROGRAM:
            return
        self.kill()
        if self._authority is not None and self.claimed:
            self.phase = Phase.SETTLING
            self._authority.start_release()
        else:
            text = f"asked to stop while {self.phase.value}"
            self._exited(wire.EXIT_RELEASED, ScriptExit(wire.EXIT_RELEASED, text, 0.0))

    def hold_shells(self, *, end: bool) -> None:
        """During a stop, keep the script from its next line; with `end`, end its shells after their
        children.

        After the job's last step the script continues, as its remaining lines are part of the job.
        """
        if self.final:
            self._run.resume_shells()
        else:
            self._run.hold_shells(end=end)

    def signal(self, number: int, *, only_if_caught: bool = False) -> int:
        """Signal the training processes, or only those with a handler; returns how many."""
        return self._run.signal_workers(number, only_if_caught=only_if_caught)

    def end_unfit(self, verdict: HealthVerdict) -> None:
        """End everything on this machine, because it is unfit."""
        self.kill()
        self._exited(verdict.code, ScriptExit(verdict.code, verdict.text, 0.0, verdict.text))

    def kill(self, *, saver: bool = True) -> None:
        """Kill every process of the job on this node, with or without the `saver`."""
        self._setup.kill()
        self._run.kill()
        if saver:
            self._saver.kill()
        if self.phase is not Phase.RUNNING:
            self._container.kill()

    @property
    def _start(self) -> StartDocument:
        start = self._desired.start
        assert start is not None  # noqa: S101 - `begin` comes after it
        return start

    def _append_once(self, mark: str, kind: str, data: Mapping[str, Any]) -> None:
        if mark not in self._reported:
            self._reported.add(mark)
            self._context.journal.append(kind, data)
