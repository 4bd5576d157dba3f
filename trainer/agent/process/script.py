"""A script of the job (`setup` or `run`) as the agent controls it, across restarts of the agent."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

from spotd.wire import FailedPart
from trainer.agent.base.paths import write_private
from trainer.agent.process.processes import (
    Process,
    catches,
    children_since,
    end_held_shells,
    find_script_process,
    hold_shells,
    identify,
    is_alive,
    kill_tree,
    kill_with_descendants,
    resume_shells,
    send_signal,
    session_of,
    workers,
)
from trainer.agent.process.script_supervisor import (
    ScriptExit,
    ScriptPids,
    ScriptSpec,
    read_exit,
    read_pids,
)

KILLED_CODE = 128 + signal.SIGKILL


class ScriptState(Enum):
    """The state of a script."""

    ABSENT = "absent"
    STARTING = "ordered"  # its supervisor has the spec; the script is about to run
    RUNNING = "running"
    ENDED = "ended"


class Script:
    """Starts, observes and ends one script through its supervisor process.

    `state` is the path prefix of the files `.ordered`, `.proc` and `.exit` in memory.
    `supervisor_argv` and `supervisor_env` start a supervisor; `warm_up` starts it ahead of time,
    because starting Python takes longer than a handover should. `container_scripts`, for a script
    in a container: the file that its shell runs there, and the file that the container's first
    process runs. The supervisor's own child is then only a client of the engine.
    """

    def __init__(
        self,
        state: Path,
        supervisor_argv: Sequence[str],
        supervisor_env: Mapping[str, str],
    ) -> None:
        self._state = state
        self.container_scripts: tuple[Path, Path] | None = None
        self._argv = list(supervisor_argv)
        self._env = dict(supervisor_env)
        self._supervisor: subprocess.Popen[bytes] | None = None
        self.start_count = 0  # more than 1 if supervisors ended before they started the script

    def warm_up(self) -> None:
        """Start a supervisor that waits for its spec. Raises OSError if no process can be
        started."""
        if self._supervisor is not None and not self._is_idle(self._supervisor):
            self._supervisor = None
        if self._supervisor is None and self.state is ScriptState.ABSENT:
            self._supervisor = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, cwd="/", env=self._env, start_new_session=True
            )

    def start(self, spec: ScriptSpec) -> None:
        """Run the script. Raises OSError if no process can be started or memory is full.

        If the state is ABSENT then, or becomes ABSENT later, it may be started again.
        """
        self.warm_up()
        assert self._supervisor is not None  # noqa: S101 - just started
        assert self._supervisor.stdin is not None  # noqa: S101 - it is a pipe
        # Written first: an agent that is killed here must not start the script a second time.
        supervisor = identify(self._supervisor.pid)
        identity = None if supervisor is None else [supervisor.pid, supervisor.started]
        write_private(self._state.with_suffix(".ordered"), json.dumps(identity).encode())
        self.start_count += 1
        with self._supervisor.stdin as pipe:
            pipe.write(spec.to_line())

    @property
    def state(self) -> ScriptState:
        if self._supervisor is not None:
            self._supervisor.poll()  # reaps the process
        supervisor = self._recorded_supervisor()
        alive = supervisor is not None and is_alive(supervisor)
        # Read after the supervisor's state: whatever it wrote before it ended is there by now.
        if read_exit(self._state) is not None:
            return ScriptState.ENDED
        pids = self.pids
        if pids is not None:
            return ScriptState.RUNNING if is_alive(pids.supervisor) else self._end_orphans()
        return ScriptState.STARTING if alive else ScriptState.ABSENT

    @property
    def pids(self) -> ScriptPids | None:
        return read_pids(self._state)

    @property
    def exit(self) -> ScriptExit:
        """How the script ended; a script whose supervisor was killed ended with it."""
        script_exit = read_exit(self._state)
        text = "the script's supervisor was killed, and the script with it"
        return script_exit or ScriptExit(KILLED_CODE, text, 0.0, text, FailedPart.AGENT.value)

    def signal_workers(self, number: int, *, only_if_caught: bool = False) -> int:
        """Signal the training processes, never their launchers; returns how many."""
        workers = self.workers(number)
        if only_if_caught:
            workers = [worker for worker in workers if catches(worker.pid, number)]
        return sum(send_signal(worker, number) for worker in workers)

    def workers(self, number: int) -> list[Process]:
        """Return the training processes to send signal `number` to."""
        root = self._root()
        return workers(root, number) if root else []

    def hold_shells(self, *, end: bool) -> None:
        """Stop its shells before their next line; with `end`, end those that have no children left.

        The stopped state is visible in `/proc`, so a restarted agent can continue.
        """
        root = self._root()
        if root:
            hold_shells(root)
            if end:
                end_held_shells(root)

    def resume_shells(self) -> None:
        """Continue the stopped shells."""
        root = self._root()
        if root:
            resume_shells(root)

    def kill(self) -> int:
        """Kill the script and its descendants; returns how many. The supervisor stays and records
        the exit."""
        pids, supervisor = self.pids, self._recorded_supervisor()
        if pids is not None:
            killed = self._kill_in_container(pids)
            root = pids.supervisor.pid if is_alive(pids.supervisor) else 0
            return killed + kill_tree(root, session_of(pids.program))
        if supervisor is None or not is_alive(supervisor):
            return 0
        # The script is about to start, and does not start without its supervisor.
        killed = kill_tree(supervisor.pid)
        return killed + send_signal(supervisor, signal.SIGKILL)

    def reset(self) -> None:
        """Make an ended script startable again.

        The exit file is deleted last, so that the script counts as ended until then.
        """
        for suffix in (".ordered", ".proc", ".exit"):
            self._state.with_suffix(suffix).unlink(missing_ok=True)
        self.start_count = 0

    def close_idle_supervisor(self) -> None:
        """End a supervisor that waits for a spec."""
        if self._supervisor is not None and self._supervisor.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended by itself
                self._supervisor.stdin.close()

    @staticmethod
    def _is_idle(supervisor: subprocess.Popen[bytes]) -> bool:
        """Whether the supervisor is alive and still waits for a spec."""
        used = supervisor.stdin is None or supervisor.stdin.closed
        return supervisor.poll() is None and not used

    def _root(self) -> int:
        """Return the process whose descendants are the script's, or 0."""
        pids = self.pids
        if pids is None or not is_alive(pids.supervisor):
            return 0
        if self.container_scripts is not None:
            return find_script_process(self.container_scripts[0])
        return pids.supervisor.pid

    def _kill_in_container(self, pids: ScriptPids) -> int:
        """Kill the script in the container, and its orphans that the container's first process
        adopted.

        Processes that were there before the script are left alone.
        """
        if self.container_scripts is None:
            return 0
        script, holder_script = self.container_scripts
        killed = kill_with_descendants(root) if (root := find_script_process(script)) else 0
        holder = find_script_process(holder_script)
        while holder and (children := children_since(holder, pids.program.started)):
            killed += sum(kill_with_descendants(child) for child in children)
        return killed

    def _recorded_supervisor(self) -> Process | None:
        try:
            identity = json.loads(self._state.with_suffix(".ordered").read_bytes())
        except FileNotFoundError:
            return None
        return None if identity is None else Process(*identity)

    def _end_orphans(self) -> ScriptState:
        """Kill the remaining processes of a script whose supervisor is gone, because its output and
        exit are no longer recorded."""
        if read_exit(self._state) is None:
            self.kill()
        return ScriptState.ENDED
