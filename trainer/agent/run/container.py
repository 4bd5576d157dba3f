"""The container that a job's `setup` and `run` are executed in, where the job names an image.

One container an attempt, kept by `exec`: what `setup` installed is there for `run`, and nothing is
committed, which would take minutes for an image of many gigabytes and serve nobody, for the next
attempt has another machine. Three processes of keepers stand for it: one pulls the image, one holds
the container (its first process ends when its stdin does, so that no container outlives who holds
it), and `setup` or `run` is the client of an `exec`. All are found again by an agent that was
started anew; what is in the container is found in `/proc`, by the scripts that it was told to run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from spotd import wire
from spotd.wire import StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.health_verdict import MACHINE, HealthVerdict
from trainer.agent.base.journal import Journal
from trainer.agent.base.paths import write_private
from trainer.agent.base.redaction import hidden_of
from trainer.agent.process.engines import ContainerRequest, Engine, make_logins
from trainer.agent.process.pull import REFUSED, read_result
from trainer.agent.process.script import Script, ScriptState
from trainer.agent.process.script_supervisor import Order
from trainer.agent.run.container_contents import (
    LOGIN,
    homes,
    inside_script,
    login_of,
    shared_folders,
)
from trainer.agent.run.prepare import build_env, make_order

_LOG = logging.getLogger(__name__)
STREAM = "setup"  # whose log has the pull's progress
PROGRESS_EVERY_S = 15.0
_ORDERS = 3
# The first process of a container: says that it is there, and ends with its stdin, which ends with
# whoever holds it. bash, where the image has it, buries at once what is left to it.
_HOLD = """if [ -z "$HELD" ] && command -v bash >/dev/null 2>&1; then
    HELD=1
    export HELD
    exec bash {own}
fi
: >{up}
read -r _
exit 0
"""
# The client's stdin, and with it the container's, ends with this shell's tree and not before.
_CLIENT = """exec 9< <(exec sleep infinity 2>/dev/null)
held=$!
{run} <&9
code=$?
kill "$held"
exit "$code"
"""
_REMOVE = """i=0
while [ "$i" -lt 20 ]; do
    "$@" >/dev/null 2>&1 && {{ {own}rm -f {mark}; exit 0; }}
    i=$((i + 1)); sleep 1
done
exit 1
"""


class Stage(Enum):
    """How far a container has come."""

    COMING = "coming"
    UP = "up"
    REFUSED = "the job cannot have it"
    UNREACHED = "this machine cannot have it"


@dataclass(frozen=True)
class ContainerStatus:
    """`text` says why not."""

    stage: Stage
    text: str = ""
    code: int = 0
    seconds: float = 0.0

    def unwell(self, journal: Journal) -> HealthVerdict:
        """Why this machine is given up, on record."""
        unwell = HealthVerdict(MACHINE, self.text, again=False)
        journal.append(wire.UNWELL, {**unwell.to_data(), "stacks": 0, "step": 0})
        return unwell


class Container:
    """Belongs to the agent's loop; `look` is called until it is UP, and takes every step."""

    def __init__(self, site: AgentContext, said: Iterable[str]) -> None:
        self._site = site
        memory = site.places.memory
        self._pull = Script(memory / "image", site.keeper_argv, site.keeper_env)
        self._hold = Script(memory / "container", site.keeper_argv, site.keeper_env)
        self._ok_said = wire.IMAGE + ":ok" in said
        self._said = self._ok_said or wire.IMAGE in said
        self._told_at: float | None = None
        self._told = ""
        self._refusal = ""  # why no script could be ordered the last time
        self._removing: subprocess.Popen[bytes] | None = None

    # --- where things are

    @property
    def name(self) -> str:
        """Of the job, the generation and this machine's folder: the same after a restart."""
        config, places = self._site.config, self._site.places
        return f"spotd-{config.job_id}-g{config.generation}-{places.memory.name[:8]}"

    @property
    def begun(self) -> bool:
        """An agent has begun to bring it here."""
        return self._pull.state is not ScriptState.ABSENT

    @property
    def hold_script(self) -> Path:
        return self._site.places.memory / "hold.in"

    def enter(self, **scripts: Script) -> None:
        """They run in it, by these names."""
        for name, script in scripts.items():
            script.inside = self.inside(name)

    def inside(self, name: str) -> tuple[Path, Path]:
        """What the container's shell is told to run for a script, and its first process: in `/proc`
        their arguments tell who they are."""
        return self._site.places.memory / f"{name}.in", self.hold_script

    @property
    def _up(self) -> Path:
        return self._site.places.memory / "container.up"

    @property
    def _result(self) -> Path:
        return self._site.places.memory / "image.found"

    # --- forward

    def look(self, start: StartDocument, now: float) -> ContainerStatus:
        """Take the next step. Raises OSError where the machine has no room for it."""
        match self._pull.state:
            case ScriptState.ABSENT:
                return self._order_pull(start)
            case ScriptState.ORDERED | ScriptState.RUNNING:
                self._tell_progress(now)
                return ContainerStatus(Stage.COMING)
            case ScriptState.ENDED:
                ended = self._pull.ended
        if ended.code:
            self._forget_login()
            stage = Stage.REFUSED if ended.code == REFUSED else Stage.UNREACHED
            text = ended.tail.strip().rpartition("\n")[2] or f"pulling failed: {ended.code}"
            self._say({"status": "failed", "text": text, "image": start.image})
            return ContainerStatus(stage, text, ended.code, ended.seconds)
        return self._look_at_container(start, ended.seconds)

    def _look_at_container(self, start: StartDocument, seconds: float) -> ContainerStatus:
        found = read_result(self._result)
        if not self._ok_said:
            self._ok_said = True
            self._forget_login()
            facts = {name: found[name] for name in ("digest", "engine", "pulled")}
            self._say({"status": "ok", "image": start.image, "seconds": seconds, **facts})
        state = self._hold.state
        if state is ScriptState.ABSENT:
            if self._hold.orders >= _ORDERS:
                return ContainerStatus(
                    Stage.UNREACHED, "the process that holds the container ends at once"
                )
            self._make(start, found)
        elif state is ScriptState.ENDED:
            ended = self._hold.ended
            text = ended.tail.strip()[-500:] or "it ended by itself"
            return ContainerStatus(
                Stage.REFUSED, f"the container cannot be started: {text}", ended.code
            )
        elif self._up.exists():
            return ContainerStatus(Stage.UP)
        return ContainerStatus(Stage.COMING)

    def _order_pull(self, start: StartDocument) -> ContainerStatus:
        if self._pull.orders >= _ORDERS:
            return ContainerStatus(Stage.UNREACHED, "the process that pulls the image ends at once")
        memory = self._site.places.memory
        self._say_once_begun(start.image)
        logins = ""
        login = login_of(start)
        if login:
            folder = memory / "logins"
            folder.mkdir(mode=0o700, exist_ok=True)
            content = json.dumps(make_logins(start.image, login)).encode()
            write_private(folder / "config.json", content)
            logins = str(folder)
        order = {"image": start.image, "logins": logins, "result": str(self._result)}
        path = memory / "image.order"
        write_private(path, json.dumps(order).encode())
        argv = [*self._site.keeper_argv[:-1], "pull", str(path)]
        self._pull.order(self._plain_order("image", argv, self._site.keeper_env, start))
        return ContainerStatus(Stage.COMING)

    def _make(self, start: StartDocument, found: Mapping[str, Any]) -> None:
        """Of the image that was found, by its id. Whatever else of this job still stands on this
        machine, of a generation before this one, goes first: it is fenced, and holds the GPUs."""
        places = self._site.places
        engine = Engine(found["engine"], tuple(found["prefix"]))
        place = hashlib.sha256(str(places.folder.parent).encode()).hexdigest()[:16]
        shared = tuple(shared_folders(places, start, Path.home()))
        hold = _HOLD.format(up=shlex.quote(str(self._up)), own=shlex.quote(str(self.hold_script)))
        write_private(self.hold_script, hold.encode())
        wanted = ContainerRequest(
            self.name, place, found["image_id"], shared, found["gpus"], str(self.hold_script)
        )
        self._up.unlink(missing_ok=True)
        write_private(
            self._site.places.container, json.dumps([found["engine"], *found["prefix"]]).encode()
        )
        remove = shlex.join(engine.remove_argv("")[:-1])
        text = (
            f"old=$({shlex.join(engine.list_argv(place))}) || exit\n"
            f'for one in $old; do {remove} "$one" >/dev/null; done\n'
            f"{_CLIENT.format(run=shlex.join(engine.run_argv(wanted)))}"
        )
        path = places.memory / "container.sh"
        write_private(path, text.encode())
        env = self._site.keeper_env
        self._hold.order(self._plain_order("container", ["bash", str(path)], env, start))

    def _plain_order(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], start: StartDocument
    ) -> Order:
        """Of something that is none of the job's own scripts."""
        places = self._site.places
        return Order(
            argv=list(argv),
            cwd="/",
            env=dict(env),
            log=str(places.logs / f"{STREAM}.log"),
            log_limit_bytes=self._site.log_limit_bytes,
            state=str(places.memory / name),
            wake=str(places.control_socket),
            secrets=hidden_of(start),
            lent=str(places.lent),
        )

    def order(self, name: str, stream: str, text: str, start: StartDocument, until: float) -> Order:
        """An order to run `text`, in the container where the job wants one: its environment goes
        into a private file in memory that both sides see. Raises OSError."""
        site, places = self._site, self._site.places
        if not start.image:
            env = build_env(site.environ, site.config, start, places, until)
            hidden, limit = hidden_of(start), site.log_limit_bytes
            return make_order(name, stream, text, env, places, hidden, limit)
        found = read_result(self._result)
        engine = Engine(found["engine"], tuple(found["prefix"]))
        script, inside = places.memory / f"{name}.sh", self.inside(name)[0]
        write_private(script, text.encode())
        base = {"HOME": str(Path.home())} if Path.home() in homes(Path.home()) else {}
        env = build_env(base, site.config, start, places, until)
        for variable in LOGIN:
            env.pop(variable, None)
        write_private(inside, inside_script(env, script).encode())
        argv = engine.exec_argv(self.name, str(places.workdir), str(inside))
        order = self._plain_order(name, argv, site.keeper_env, start)
        return Order(**{**vars(order), "log": str(places.logs / f"{stream}.log")})

    def try_order(
        self, script: Script, name: str, stream: str, text: str, start: StartDocument, until: float
    ) -> None:
        """Order it, where the machine has room for that; why it has not is on record once."""
        try:
            script.order(self.order(name, stream, text, start, until))
        except OSError as error:
            if str(error) != self._refusal:
                _LOG.warning("%s cannot be ordered: %s", name, error)
            self._refusal = str(error)

    # --- the end

    def kill(self) -> None:
        """What brings it here, or holds it, ends now."""
        self._pull.kill()
        self._hold.kill()

    def remove(self) -> None:
        """Let the engine remove it, if it was made. Nobody waits for it: it goes on when we end."""
        self._pull.kill()
        self._forget_login()
        try:
            kind, *prefix = json.loads(self._site.places.container.read_bytes())
        except FileNotFoundError:
            return
        engine, places = Engine(kind, tuple(prefix)), self._site.places
        own = ""
        if prefix:  # what the container's root wrote is ours to discard
            mine = f"{os.getuid()}:{os.getgid()}"
            find = [*prefix, "find", str(places.workdir), "-xdev", "-user", "0", "-exec"]
            own = f"{shlex.join([*find, 'chown', '-h', mine, '{}', '+'])}; "
        text = _REMOVE.format(own=own, mark=shlex.quote(str(self._site.places.container)))
        self._removing = subprocess.Popen(
            ["sh", "-c", text, "remove", *engine.remove_argv(self.name)],
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=dict(self._site.keeper_env),
            start_new_session=True,
        )

    # --- what is said

    def _say(self, data: Mapping[str, Any]) -> None:
        self._site.journal.append(wire.IMAGE, data)

    def _say_once_begun(self, image: str) -> None:
        if not self._said:
            self._said = True
            self._say({"status": "begin", "image": image})

    def _tell_progress(self, now: float) -> None:
        """The newest line of the pull, now and then."""
        if self._told_at is None:
            self._told_at = now
        if now < self._told_at + PROGRESS_EVERY_S:
            return
        self._told_at = now
        line = _last_line(self._site.places.logs / f"{STREAM}.log")
        if line and line != self._told:
            self._told = line
            self._say({"status": "pulling", "text": line})

    def _forget_login(self) -> None:
        (self._site.places.memory / "logins" / "config.json").unlink(missing_ok=True)


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 500, 0))
            lines = file.read().decode("utf-8", "replace").replace("\r", "\n").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
