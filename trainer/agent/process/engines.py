"""Command lines of the container engines podman and docker, and the choice between them.

A container is made from the image's id, never from a tag that may have moved meanwhile. It has the
machine's network, shared memory, GPUs, and the agent's folders at the same paths. The engines'
default limits (processes, locked memory) are lifted to those of a whole machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.agent.process.processes import run_command

PODMAN, DOCKER = "podman", "docker"
HUB = "docker.io"
_HUB_KEY = "https://index.docker.io/v1/"  # docker's name for it in config.json
TIMEOUT_S = 60.0  # an engine that does not answer for so long counts as missing
_CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))
_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk")
_INFINIBAND = Path("/dev/infiniband")

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class ContainerRequest:
    """A container to make.

    `image` is the image's id, `shared` the folders mounted at their own paths, `script` the file
    that the first process, a shell, runs.
    """

    name: str
    label: str  # identifies the job's folder on this machine, which has one container at a time
    image: str
    shared: tuple[str, ...]
    gpus: bool
    script: str


@dataclass(frozen=True)
class Engine:
    """A container engine. `prefix` comes before the program's name: nothing, or sudo."""

    kind: str
    prefix: tuple[str, ...] = ()

    @property
    def program(self) -> list[str]:
        return [*self.prefix, self.kind]

    def pull_argv(self, image: str, logins: str = "") -> list[str]:
        """`logins` is a folder with a `config.json`, or "" for an anonymous pull."""
        if self.kind == PODMAN:
            login = ["--authfile", f"{logins}/config.json"] if logins else []
            return [*self.program, "pull", *login, image]
        login = ["--config", logins] if logins else []
        return [*self.program, *login, "pull", image]

    def inspect_argv(self, image: str) -> list[str]:
        return [*self.program, "image", "inspect", image]

    def run_argv(self, request: ContainerRequest) -> list[str]:
        """The command stays as long as the container, which ends when its stdin does."""
        argv = [*self.program, "run", "--rm", "--interactive", "--pull", "never"]
        argv += ["--name", request.name, "--label", f"spotd-place={request.label}"]
        argv += ["--network", "host", "--ipc", "host", "--user", "0:0", "--workdir", "/"]
        argv += ["--pids-limit", "-1", "--ulimit", "memlock=-1:-1", "--log-driver", "none"]
        argv += ["--security-opt", "label=disable", "--stop-timeout", "0"]
        if request.gpus:
            gpus = ["--gpus", "all"] if self.kind == DOCKER else ["--device", "nvidia.com/gpu=all"]
            argv += gpus
        if _INFINIBAND.is_dir():
            argv += ["--device", str(_INFINIBAND), "--cap-add", "IPC_LOCK"]
        for folder in request.shared:
            argv += ["--mount", f"type=bind,source={folder},target={folder}"]
        return [*argv, "--entrypoint", "sh", request.image, request.script]

    def exec_argv(self, name: str, workdir: str, script: str) -> list[str]:
        """Run the file `script` in the container; the exit code is the script's."""
        argv = [*self.program, "exec", "--user", "0:0", "--workdir", workdir]
        return [*argv, name, "sh", script]

    def remove_argv(self, name: str) -> list[str]:
        """A missing container counts as removed.

        There is no stop timeout here, because podman before 4.0 accepts it only in `run`.
        """
        missing = ["--ignore"] if self.kind == PODMAN else []
        return [*self.program, "rm", "--force", *missing, name]

    def list_argv(self, label: str) -> list[str]:
        return [*self.program, "ps", "--all", "--quiet", "--filter", f"label=spotd-place={label}"]


@dataclass(frozen=True)
class LocalImage:
    """An image on this machine. `digest` is the registry's, or the id of an image that has none."""

    image_id: str
    digest: str


def parse_image_inspect(text: str) -> LocalImage:
    """Parse the output of `image inspect`. Raises ValueError, KeyError."""
    [image] = json.loads(text)
    pushed = [str(name).partition("@")[2] for name in image.get("RepoDigests") or ()]
    image_id = str(image["Id"])
    image_id = image_id if ":" in image_id else f"sha256:{image_id}"
    # podman has a digest for an image that never was in a registry; docker has only the id.
    digest = image.get("Digest") or (pushed[0] if pushed else image_id)
    return LocalImage(image_id, str(digest))


def image_names(image: str) -> list[str]:
    """Return the names by which an image may be found on the machine.

    An image without a registry's digest has its id as its digest.
    """
    digest = image.partition("@")[2]
    return [image, digest] if digest else [image]


def registry_config(image: str, login: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of `config.json`, as both engines read it."""
    import base64  # noqa: PLC0415 - rarely needed

    server = login.get("server") or image.partition("/")[0]
    credentials = f"{login.get('username', '')}:{login.get('password', '')}"
    entry = {"auth": base64.b64encode(credentials.encode()).decode()}
    keys = [server, _HUB_KEY] if server in (HUB, "index.docker.io", _HUB_KEY) else [server]
    return {"auths": dict.fromkeys([HUB, *keys] if len(keys) > 1 else keys, entry)}


def run_engine(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run an engine's command with a timeout."""
    return run_command(argv, TIMEOUT_S)


def has_gpus() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def choose_engine(
    run: Run = run_engine, *, gpus: bool, uid: int | None = None
) -> tuple[Engine | None, str]:
    """Return the engine to use, or None and the reason.

    As root the engines are called directly, else through sudo, because the container's root must be
    the machine's root.
    """
    prefix = () if (os.getuid() if uid is None else uid) == 0 else ("sudo", "-n")
    problems = []
    for engine in (Engine(PODMAN, prefix), Engine(DOCKER, prefix)):
        version_format = "{{.Server.Version}}" if engine.kind == DOCKER else "{{.Client.Version}}"
        answer = run([*engine.program, "version", "--format", version_format])
        if answer.returncode:
            problems.append(f"{engine.kind}: {_last_line(answer.stderr) or answer.returncode}")
        elif gpus and (problem := _gpu_problem(engine, answer.stdout.strip(), run)):
            problems.append(f"{engine.kind}: {problem}")
        else:
            return engine, ""
    return None, "; ".join(problems)


def _gpu_problem(engine: Engine, version: str, run: Run) -> str:
    """Return why this engine's containers would have no GPUs, or ""."""
    if engine.kind == DOCKER:
        info = run([*engine.program, "info", "--format", "{{json .Runtimes}}"])
        if "nvidia" in info.stdout or any(map(shutil.which, _HOOKS)):
            return ""
        return "nvidia-container-toolkit missing"
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < (4, 1):
        return f"{version} hands no GPUs in, 4.1 does"  # by a CDI description
    if any(path for folder in _CDI for path in folder.glob("*nvidia*")):
        return ""
    generated = run(
        [*engine.prefix, "nvidia-ctk", "cdi", "generate", f"--output={_CDI[0]}/nvidia.yaml"]
    )
    text = _last_line(generated.stderr)
    return f"no CDI description of the GPUs, and nvidia-ctk: {text}" if generated.returncode else ""


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300]
