"""The command lines of the two container engines, podman and docker, and which of them to use.

A container is made of the image by its id, never by a name that may have moved meanwhile. It has
the machine's network, shared memory, GPUs and the agent's folders at the same paths; limits that
the engines set by themselves (processes, locked memory) are those of a machine of one's own.
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

from trainer.agent.process.commands import asked

PODMAN, DOCKER = "podman", "docker"
HUB = "docker.io"
_HUB_KEY = "https://index.docker.io/v1/"  # what docker calls it in its file of logins
_ASK_S = 60.0  # an engine that does not answer for so long is none
_CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))
_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk")
_INFINIBAND = Path("/dev/infiniband")

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class ContainerRequest:
    """A container to be made. `image` is the image's id, `shared` the folders that it sees at their
    own paths, `script` the file that its first process, a shell, runs."""

    name: str
    place: str  # names this machine's folder of the job: one container at a time is its own
    image: str
    shared: tuple[str, ...]
    gpus: bool
    script: str


@dataclass(frozen=True)
class Engine:
    """`prefix` is what the program's name comes after: nothing, or sudo's words."""

    kind: str
    prefix: tuple[str, ...] = ()

    @property
    def program(self) -> list[str]:
        return [*self.prefix, self.kind]

    def pull_argv(self, image: str, logins: str = "") -> list[str]:
        """`logins` is a folder with a `config.json`, "" for nobody's."""
        if self.kind == PODMAN:
            login = ["--authfile", f"{logins}/config.json"] if logins else []
            return [*self.program, "pull", *login, image]
        login = ["--config", logins] if logins else []
        return [*self.program, *login, "pull", image]

    def inspect_argv(self, image: str) -> list[str]:
        return [*self.program, "image", "inspect", image]

    def run_argv(self, wanted: ContainerRequest) -> list[str]:
        """Stays for as long as the container does, which ends when its stdin does."""
        argv = [*self.program, "run", "--rm", "--interactive", "--pull", "never"]
        argv += ["--name", wanted.name, "--label", f"spotd-place={wanted.place}"]
        argv += ["--network", "host", "--ipc", "host", "--user", "0:0", "--workdir", "/"]
        argv += ["--pids-limit", "-1", "--ulimit", "memlock=-1:-1", "--log-driver", "none"]
        argv += ["--security-opt", "label=disable", "--stop-timeout", "0"]
        if wanted.gpus:
            gpus = ["--gpus", "all"] if self.kind == DOCKER else ["--device", "nvidia.com/gpu=all"]
            argv += gpus
        if _INFINIBAND.is_dir():
            argv += ["--device", str(_INFINIBAND), "--cap-add", "IPC_LOCK"]
        for folder in wanted.shared:
            argv += ["--mount", f"type=bind,source={folder},target={folder}"]
        return [*argv, "--entrypoint", "sh", wanted.image, wanted.script]

    def exec_argv(self, name: str, workdir: str, script: str) -> list[str]:
        """Runs the file `script` in the container; its exit code is the script's."""
        argv = [*self.program, "exec", "--user", "0:0", "--workdir", workdir]
        return [*argv, name, "sh", script]

    def remove_argv(self, name: str) -> list[str]:
        """One that is not there is as good as removed. (How long it may take to end, podman before
        4.0 does not let itself be told here, but in `run`.)"""
        missing = ["--ignore"] if self.kind == PODMAN else []
        return [*self.program, "rm", "--force", *missing, name]

    def list_argv(self, place: str) -> list[str]:
        return [*self.program, "ps", "--all", "--quiet", "--filter", f"label=spotd-place={place}"]


@dataclass(frozen=True)
class LocalImage:
    """An image that the machine has. `digest` is the registry's, or the id of one that none has."""

    image_id: str
    digest: str


def parse_inspected(text: str) -> LocalImage:
    """What `image inspect` prints. Raises ValueError, KeyError."""
    [image] = json.loads(text)
    pushed = [str(name).partition("@")[2] for name in image.get("RepoDigests") or ()]
    image_id = str(image["Id"])
    image_id = image_id if ":" in image_id else f"sha256:{image_id}"
    # podman knows the digest of what never saw a registry; docker has the id alone.
    digest = image.get("Digest") or (pushed[0] if pushed else image_id)
    return LocalImage(image_id, str(digest))


def names_of(image: str) -> list[str]:
    """By which names an image may be found on the machine: one without a registry's digest has its
    id for one."""
    digest = image.partition("@")[2]
    return [image, digest] if digest else [image]


def make_logins(image: str, login: Mapping[str, str]) -> dict[str, Any]:
    """The content of `config.json`, as both engines read it."""
    import base64  # noqa: PLC0415 - rarely needed

    server = login.get("server") or image.partition("/")[0]
    word = f"{login.get('username', '')}:{login.get('password', '')}"
    entry = {"auth": base64.b64encode(word.encode()).decode()}
    keys = [server, _HUB_KEY] if server in (HUB, "index.docker.io", _HUB_KEY) else [server]
    return {"auths": dict.fromkeys([HUB, *keys] if len(keys) > 1 else keys, entry)}


def ask(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """As `asked`, of an engine."""
    return asked(argv, _ASK_S)


def has_gpus() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def choose(run: Run = ask, *, gpus: bool, uid: int | None = None) -> tuple[Engine | None, str]:
    """The engine to use, or why there is none. As root the engines are asked for themselves, else
    through sudo: a container's root has to be the machine's, whoever we are."""
    prefix = () if (os.getuid() if uid is None else uid) == 0 else ("sudo", "-n")
    troubles = []
    for engine in (Engine(PODMAN, prefix), Engine(DOCKER, prefix)):
        asked = "{{.Server.Version}}" if engine.kind == DOCKER else "{{.Client.Version}}"
        answer = run([*engine.program, "version", "--format", asked])
        if answer.returncode:
            troubles.append(f"{engine.kind}: {_last_line(answer.stderr) or answer.returncode}")
        elif gpus and (trouble := _no_gpus(engine, answer.stdout.strip(), run)):
            troubles.append(f"{engine.kind}: {trouble}")
        else:
            return engine, ""
    return None, "; ".join(troubles)


def _no_gpus(engine: Engine, version: str, run: Run) -> str:
    """Why containers of this engine would have no GPUs."""
    if engine.kind == DOCKER:
        known = "nvidia" in run([*engine.program, "info", "--format", "{{json .Runtimes}}"]).stdout
        return "" if known or any(map(shutil.which, _HOOKS)) else "nvidia-container-toolkit missing"
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < (4, 1):
        return f"{version} hands no GPUs in, 4.1 does"  # by a CDI description
    if any(path for folder in _CDI for path in folder.glob("*nvidia*")):
        return ""
    made = run([*engine.prefix, "nvidia-ctk", "cdi", "generate", f"--output={_CDI[0]}/nvidia.yaml"])
    text = _last_line(made.stderr)
    return f"no CDI description of the GPUs, and nvidia-ctk: {text}" if made.returncode else ""


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300]
