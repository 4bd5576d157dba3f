"""One script of the job (`setup` or `run`) seen from the agent, across restarts of the agent."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

from trainer.agent.base.paths import write_private
from trainer.agent.process.processes import (
    Process,
    catches,
    children_since,
    end_held_shells,
    find_script,
    hold_shells,
    identify,
    is_alive,
    kill_tree,
    kill_whole,
    resume_shells,
    send_signal,
    session_of,
    workers,
)
from trainer.agent.process.script_supervisor import Exit, Order, Pids, read_exit, read_pids

KILLED_CODE = 128 + signal.SIGKILL


class ScriptState(Enum):
    """How far a script has come."""

    ABSENT = "absent"
    ORDERED = "ordered"  # its keeper was told; the script is about to run
    RUNNING = "running"
    ENDED = "ended"


class Script:
    """`state` is the path before `.ordered`, `.proc` and `.exit`, all in memory.

    `keeper_argv` and `keeper_env` start a keeper. `warm_up` starts it ahead of its order, because
    starting Python takes longer than the hand-over should. `inside`, of a script in a container:
    the file that its shell runs there, and the one that the container's first process does; what
    the keeper started is no more than a client.
    """

    def __init__(
        self,
        state: Path,
        keeper_argv: Sequence[str],
        keeper_env: Mapping[str, str],
    ) -> None:
        self._state = state
        self.inside: tuple[Path, Path] | None = None
        self._argv = list(keeper_argv)
        self._env = dict(keeper_env)
        self._keeper: subprocess.Popen[bytes] | None = None
        self.orders = 0  # how many keepers were told; more than one, because they ended

    def warm_up(self) -> None:
        """Have a keeper wait for its order. Raises OSError when no process can be started."""
        if self._keeper is not None and not self._takes_orders(self._keeper):
            self._keeper = None
        if self._keeper is None and self.state is ScriptState.ABSENT:
            self._keeper = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, cwd="/", env=self._env, start_new_session=True
            )

    def order(self, order: Order) -> None:
        """Have it run. Raises OSError when no process can be started, or memory is full; where the
        state is ABSENT then, or later, it may be ordered again."""
        self.warm_up()
        assert self._keeper is not None  # noqa: S101 - just started
        assert self._keeper.stdin is not None  # noqa: S101 - a pipe was asked for
        # Written first: an agent that is killed here must not start the script a second time.
        keeper = identify(self._keeper.pid)
        mark = None if keeper is None else [keeper.pid, keeper.started]
        write_private(self._state.with_suffix(".ordered"), json.dumps(mark).encode())
        self.orders += 1
        with self._keeper.stdin as pipe:
            pipe.write(order.to_line())

    @property
    def state(self) -> ScriptState:
        if self._keeper is not None:
            self._keeper.poll()  # reaps it
        keeper = self._ordered()
        alive = keeper is not None and is_alive(keeper)
        # Looked at after the keeper: what it left before it ended is there by now.
        if read_exit(self._state) is not None:
            return ScriptState.ENDED
        pids = self.pids
        if pids is not None:
            return ScriptState.RUNNING if is_alive(pids.keeper) else self._lost()
        return ScriptState.ORDERED if alive else ScriptState.ABSENT

    @property
    def pids(self) -> Pids | None:
        return read_pids(self._state)

    @property
    def ended(self) -> Exit:
        """How it ended; one whose keeper was killed ended with it."""
        found = read_exit(self._state)
        text = "the process that keeps the script was killed, and the script with it"
        return found or Exit(KILLED_CODE, text, 0.0)

    def signal_workers(self, number: int, *, only_if_caught: bool = False) -> int:
        """Signal the training processes, never what launched them; returns how many."""
        found = self.workers(number)
        if only_if_caught:
            found = [worker for worker in found if catches(worker.pid, number)]
        return sum(send_signal(worker, number) for worker in found)

    def workers(self, number: int) -> list[Process]:
        """The training processes, as they are to be signalled."""
        root = self._root()
        return workers(root, number) if root else []

    def hold_shells(self, *, end: bool) -> None:
        """Keep its shells from beginning another line, and with `end`, end those that wait for
        nobody any more. `/proc` shows who is held, so a restarted agent goes on with it."""
        root = self._root()
        if root:
            hold_shells(root)
            if end:
                end_held_shells(root)

    def resume_shells(self) -> None:
        """Let the held shells go on."""
        root = self._root()
        if root:
            resume_shells(root)

    def kill(self) -> int:
        """Kill the script and all that came of it; the keeper stays and tells."""
        pids, keeper = self.pids, self._ordered()
        if pids is not None:
            killed = self._kill_inside(pids)
            root = pids.keeper.pid if is_alive(pids.keeper) else 0
            return killed + kill_tree(root, session_of(pids.program))
        if keeper is None or not is_alive(keeper):
            return 0
        # About to start it: without its keeper it does not start.
        killed = kill_tree(keeper.pid)
        return killed + send_signal(keeper, signal.SIGKILL)

    def forget(self) -> None:
        """It has ended, and may be ordered again. Its end is forgotten last: until then it counts
        as ended, whoever looks."""
        for suffix in (".ordered", ".proc", ".exit"):
            self._state.with_suffix(suffix).unlink(missing_ok=True)
        self.orders = 0

    def dismiss(self) -> None:
        """Send an idle keeper home."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with suppress(BrokenPipeError):  # it has gone by itself
                self._keeper.stdin.close()

    @staticmethod
    def _takes_orders(keeper: subprocess.Popen[bytes]) -> bool:
        """One that has died, was told already or was sent home does not."""
        told = keeper.stdin is None or keeper.stdin.closed
        return keeper.poll() is None and not told

    def _root(self) -> int:
        """The process below which all that runs is the script's; 0 when there is none."""
        pids = self.pids
        if pids is None or not is_alive(pids.keeper):
            return 0
        return find_script(self.inside[0]) if self.inside else pids.keeper.pid

    def _kill_inside(self, pids: Pids) -> int:
        """What the script left to the container's first process, too, and nothing of what came
        before it."""
        if self.inside is None:
            return 0
        script, first = self.inside
        killed = kill_whole(root) if (root := find_script(script)) else 0
        keeper = find_script(first)
        while keeper and (left := children_since(keeper, pids.program.started)):
            killed += sum(kill_whole(child) for child in left)
        return killed

    def _ordered(self) -> Process | None:
        try:
            mark = json.loads(self._state.with_suffix(".ordered").read_bytes())
        except FileNotFoundError:
            return None
        return None if mark is None else Process(*mark)

    def _lost(self) -> ScriptState:
        """Nobody writes its output or its exit code any more: what is left of it goes too."""
        if read_exit(self._state) is None:
            self.kill()
        return ScriptState.ENDED
