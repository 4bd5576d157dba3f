"""The container in which a job's `setup` and `run` are executed, if the job names an image.

Each attempt has one container, used through `exec`: `run` finds everything that `setup` installed.
Nothing is committed, which would take minutes for a large image, and the next attempt is on another
machine anyway. Three supervised processes belong to it: one pulls the image, one holds the
container (its first process ends when its stdin does, so that no container outlives its holder),
and `setup` or `run` is the client of an `exec`. A restarted agent finds all of them again.
Processes in the container are found in `/proc` by the scripts that they run.
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
from trainer.agent.base.redaction import secret_values
from trainer.agent.process.engines import ContainerRequest, Engine, registry_config
from trainer.agent.process.pull import REFUSED, read_result
from trainer.agent.process.script import Script, ScriptState
from trainer.agent.process.script_supervisor import ScriptSpec
from trainer.agent.run.container_contents import (
    LOGIN_VARIABLES,
    inside_script,
    mounted_homes,
    registry_login,
    shared_folders,
)
from trainer.agent.run.hook_wheel import write_hook_wheel
from trainer.agent.run.prepare import build_env

_LOG = logging.getLogger(__name__)
STREAM = "setup"  # the log that gets the pull's progress
PROGRESS_EVERY_S = 15.0
_MAX_STARTS = 3
# The first process of a container: creates the `up` file and ends with its stdin, and so with its
# holder. bash, if the image has it, reaps orphans at once.
_HOLD = """if [ -z "$HELD" ] && command -v bash >/dev/null 2>&1; then
    HELD=1
    export HELD
    exec bash {script}
fi
: >{up}
read -r _
exit 0
"""
# The client's stdin, and so the container's, ends with this shell's process tree and not before.
_CLIENT = """exec 9< <(exec sleep infinity 2>/dev/null)
held=$!
{run} <&9
code=$?
kill "$held"
exit "$code"
"""
_REMOVE = """i=0
while [ "$i" -lt 20 ]; do
    "$@" >/dev/null 2>&1 && {{ {chown}rm -f {mark}; exit 0; }}
    i=$((i + 1)); sleep 1
done
exit 1
"""


class Stage(Enum):
    """The progress of a container."""

    PENDING = "coming"
    UP = "up"
    REFUSED = "the job cannot have it"
    UNAVAILABLE = "this machine cannot have it"


@dataclass(frozen=True)
class ContainerStatus:
    """The progress, and the reason in `text` if there can be no container."""

    stage: Stage
    text: str = ""
    code: int = 0
    seconds: float = 0.0

    def record_unfit(self, journal: Journal) -> HealthVerdict:
        """Journal the verdict that ends this machine, and return it."""
        verdict = HealthVerdict(MACHINE, self.text, again=False)
        journal.append(wire.UNWELL, {**verdict.to_data(), "stacks": 0, "step": 0})
        return verdict


class Container:
    """The job's container. Belongs to the agent's loop, which calls `advance` until the stage is
    UP."""

    def __init__(self, context: AgentContext, reported: Iterable[str]) -> None:
        self._context = context
        memory = context.paths.memory
        self._pull = Script(memory / "image", context.supervisor_argv, context.supervisor_env)
        self._hold = Script(memory / "container", context.supervisor_argv, context.supervisor_env)
        self._success_reported = wire.IMAGE + ":ok" in reported
        self._begin_reported = self._success_reported or wire.IMAGE in reported
        self._reported_at: float | None = None
        self._reported_line = ""
        self._start_error = ""  # of the last attempt to start a script
        self._removing: subprocess.Popen[bytes] | None = None

    # --- names and paths

    @property
    def name(self) -> str:
        """Built from the job, the generation and this machine's folder: the same after a
        restart."""
        config, paths = self._context.config, self._context.paths
        return f"spotd-{config.job_id}-g{config.generation}-{paths.memory.name[:8]}"

    @property
    def started(self) -> bool:
        """Whether an agent has started to pull the image."""
        return self._pull.state is not ScriptState.ABSENT

    @property
    def hold_script(self) -> Path:
        return self._context.paths.memory / "hold.in"

    def run_scripts_inside(self, **scripts: Script) -> None:
        """Make these scripts run in the container."""
        for name, script in scripts.items():
            script.container_scripts = self.script_paths(name)

    def script_paths(self, name: str) -> tuple[Path, Path]:
        """Return the file that the container's shell runs for a script, and the first process's
        file.

        Their arguments identify both processes in `/proc`.
        """
        return self._context.paths.memory / f"{name}.in", self.hold_script

    @property
    def _up(self) -> Path:
        return self._context.paths.memory / "container.up"

    @property
    def _result(self) -> Path:
        return self._context.paths.memory / "image.found"

    # --- progress

    def advance(self, start: StartDocument, now: float) -> ContainerStatus:
        """Take the next step. Raises OSError if the machine has no memory or disk space for it."""
        match self._pull.state:
            case ScriptState.ABSENT:
                return self._start_pull(start)
            case ScriptState.STARTING | ScriptState.RUNNING:
                self._report_progress(now)
                return ContainerStatus(Stage.PENDING)
            case ScriptState.ENDED:
                script_exit = self._pull.exit
        if script_exit.code:
            self._forget_login()
            stage = Stage.REFUSED if script_exit.code == REFUSED else Stage.UNAVAILABLE
            text = (
                script_exit.tail.strip().rpartition("\n")[2]
                or f"pulling failed: {script_exit.code}"
            )
            self._append({"status": "failed", "text": text, "image": start.program.image})
            return ContainerStatus(stage, text, code=script_exit.code, seconds=script_exit.seconds)
        return self._advance_container(start, script_exit.seconds)

    def _advance_container(self, start: StartDocument, seconds: float) -> ContainerStatus:
        pull_result = read_result(self._result)
        if not self._success_reported:
            self._success_reported = True
            self._forget_login()
            facts = {name: pull_result[name] for name in ("digest", "engine", "pulled")}
            self._append(
                {"status": "ok", "image": start.program.image, "seconds": seconds, **facts}
            )
        state = self._hold.state
        if state is ScriptState.ABSENT:
            if self._hold.start_count >= _MAX_STARTS:
                return ContainerStatus(
                    Stage.UNAVAILABLE, "the process that holds the container ends at once"
                )
            self._create(start, pull_result)
        elif state is ScriptState.ENDED:
            script_exit = self._hold.exit
            text = script_exit.tail.strip()[-500:] or "it ended by itself"
            return ContainerStatus(
                Stage.REFUSED, f"the container cannot be started: {text}", script_exit.code
            )
        elif self._up.exists():
            return ContainerStatus(Stage.UP)
        return ContainerStatus(Stage.PENDING)

    def _start_pull(self, start: StartDocument) -> ContainerStatus:
        if self._pull.start_count >= _MAX_STARTS:
            return ContainerStatus(
                Stage.UNAVAILABLE, "the process that pulls the image ends at once"
            )
        memory = self._context.paths.memory
        self._append_begin(start.program.image)
        logins = ""
        login = registry_login(start)
        if login:
            folder = memory / "logins"
            folder.mkdir(mode=0o700, exist_ok=True)
            content = json.dumps(registry_config(start.program.image, login)).encode()
            write_private(folder / "config.json", content)
            logins = str(folder)
        request = {"image": start.program.image, "logins": logins, "result": str(self._result)}
        path = memory / "image.order"
        write_private(path, json.dumps(request).encode())
        argv = [*self._context.supervisor_argv[:-1], "pull", str(path)]
        self._pull.start(self._spec("image", argv, start))
        return ContainerStatus(Stage.PENDING)

    def _create(self, start: StartDocument, pull_result: Mapping[str, Any]) -> None:
        """Make the container from the pulled image's id.

        Containers that an earlier generation of this job left on this machine are removed first:
        that generation is fenced, and its container holds the GPUs.
        """
        paths = self._context.paths
        engine = Engine(pull_result["engine"], tuple(pull_result["prefix"]))
        label = hashlib.sha256(str(paths.folder.parent).encode()).hexdigest()[:16]
        shared = tuple(shared_folders(paths, start, Path.home()))
        hold = _HOLD.format(
            up=shlex.quote(str(self._up)), script=shlex.quote(str(self.hold_script))
        )
        write_private(self.hold_script, hold.encode())
        request = ContainerRequest(
            name=self.name,
            label=label,
            image=pull_result["image_id"],
            shared=shared,
            gpus=pull_result["gpus"],
            script=str(self.hold_script),
        )
        self._up.unlink(missing_ok=True)
        write_private(
            self._context.paths.container,
            json.dumps([pull_result["engine"], *pull_result["prefix"]]).encode(),
        )
        remove = shlex.join(engine.remove_argv("")[:-1])
        text = (
            f"old=$({shlex.join(engine.list_argv(label))}) || exit\n"
            f'for container in $old; do {remove} "$container" >/dev/null; done\n'
            f"{_CLIENT.format(run=shlex.join(engine.run_argv(request)))}"
        )
        path = paths.memory / "container.sh"
        write_private(path, text.encode())
        self._hold.start(self._spec("container", ["bash", str(path)], start))

    def _spec(
        self,
        name: str,
        argv: Sequence[str],
        start: StartDocument,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stream: str = STREAM,
    ) -> ScriptSpec:
        """The spec of a process with this command; `env` is the supervisor's own by default."""
        paths = self._context.paths
        return ScriptSpec(
            argv=list(argv),
            cwd=cwd,
            env=dict(self._context.supervisor_env if env is None else env),
            log=str(paths.logs / f"{stream}.log"),
            log_limit_bytes=self._context.log_limit_bytes,
            state=str(paths.memory / name),
            wake=str(paths.control_socket),
            secrets=secret_values(start),
            lent=str(paths.credentials_file),
        )

    def script_spec(
        self, name: str, text: str, start: StartDocument, *, stream: str, claim_until: float
    ) -> ScriptSpec:
        """The spec to run the shell script `text`, in the container if the job has one.

        The script and its environment go into private files in memory, never onto a command line.
        Raises OSError.
        """
        context, paths = self._context, self._context.paths
        script, wrapper = paths.memory / f"{name}.sh", self.script_paths(name)[0]
        write_private(script, text.encode())
        write_hook_wheel(paths.folder)
        if not start.program.image:
            env = build_env(context.environ, context.config, start, paths, claim_until=claim_until)
            argv = ["bash", str(script)]
            return self._spec(name, argv, start, env=env, cwd=str(paths.workdir), stream=stream)
        pull_result = read_result(self._result)
        engine = Engine(pull_result["engine"], tuple(pull_result["prefix"]))
        base = {"HOME": str(Path.home())} if Path.home() in mounted_homes(Path.home()) else {}
        env = build_env(base, context.config, start, paths, claim_until=claim_until)
        for variable in LOGIN_VARIABLES:
            env.pop(variable, None)
        write_private(wrapper, inside_script(env, script).encode())
        argv = engine.exec_argv(self.name, str(paths.workdir), str(wrapper))
        return self._spec(name, argv, start, stream=stream)

    def try_start(
        self,
        script: Script,
        name: str,
        text: str,
        start: StartDocument,
        *,
        stream: str,
        claim_until: float,
    ) -> None:
        """Start a script if there is space for it; the reason why not is logged once."""
        try:
            spec = self.script_spec(name, text, start, stream=stream, claim_until=claim_until)
            script.start(spec)
        except OSError as error:
            if str(error) != self._start_error:
                _LOG.warning("%s cannot be started: %s", name, error)
            self._start_error = str(error)

    # --- the end

    def kill(self) -> None:
        """Kill the pull and the holder of the container."""
        self._pull.kill()
        self._hold.kill()

    def remove(self) -> None:
        """Let the engine remove the container, if it was made. This continues when the agent
        ends."""
        self._pull.kill()
        self._forget_login()
        try:
            kind, *prefix = json.loads(self._context.paths.container.read_bytes())
        except FileNotFoundError:
            return
        engine, paths = Engine(kind, tuple(prefix)), self._context.paths
        chown = ""
        if prefix:  # make files of the container's root deletable for us
            owner = f"{os.getuid()}:{os.getgid()}"
            find = [*prefix, "find", str(paths.workdir), "-xdev", "-user", "0", "-exec"]
            chown = f"{shlex.join([*find, 'chown', '-h', owner, '{}', '+'])}; "
        text = _REMOVE.format(chown=chown, mark=shlex.quote(str(self._context.paths.container)))
        self._removing = subprocess.Popen(
            ["sh", "-c", text, "remove", *engine.remove_argv(self.name)],
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=dict(self._context.supervisor_env),
            start_new_session=True,
        )

    # --- journal

    def _append(self, data: Mapping[str, Any]) -> None:
        self._context.journal.append(wire.IMAGE, data)

    def _append_begin(self, image: str) -> None:
        if not self._begin_reported:
            self._begin_reported = True
            self._append({"status": "begin", "image": image})

    def _report_progress(self, now: float) -> None:
        """Journal the pull's newest output line at intervals."""
        if self._reported_at is None:
            self._reported_at = now
        if now < self._reported_at + PROGRESS_EVERY_S:
            return
        self._reported_at = now
        line = _last_line(self._context.paths.logs / f"{STREAM}.log")
        if line and line != self._reported_line:
            self._reported_line = line
            self._append({"status": "pulling", "text": line})

    def _forget_login(self) -> None:
        (self._context.paths.memory / "logins" / "config.json").unlink(missing_ok=True)


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 500, 0))
            lines = file.read().decode("utf-8", "replace").replace("\r", "\n").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
