"""The environment and the folders that a job's script finds in its container, and the registry
login."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spotd.wire import StartDocument
from trainer.agent.base.paths import AgentPaths, secrets_in_memory

LOGIN_VARIABLES = {  # as SkyPilot names them
    "SKYPILOT_DOCKER_USERNAME": "username",
    "SKYPILOT_DOCKER_PASSWORD": "password",
    "SKYPILOT_DOCKER_SERVER": "server",
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOCAL_DISKS = Path("/var/lib/spotd")  # mount point of local disks, if the machine has any


def inside_script(env: Mapping[str, str], script: Path) -> str:
    """Return a shell script that sets the environment and runs the job's script.

    It uses the best shell of the image. The process is recognized in `/proc` by the file it runs,
    so it stays until the job's script has ended.
    """
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(env.items())
        if _VARIABLE.fullmatch(name)
    ]
    path = shlex.quote(str(script))
    shell = f"if command -v bash >/dev/null 2>&1; then bash {path}; else sh {path}; fi"
    return "\n".join([*lines, shell, "exit $?", ""])


def registry_login(start: StartDocument) -> dict[str, str]:
    """Return the registry login among the job's secrets and variables; empty without a user
    name."""
    variables = {**start.program.envs, **start.program.secrets}
    login = {
        field: variables[name] for name, field in LOGIN_VARIABLES.items() if variables.get(name)
    }
    return login if "username" in login else {}


def shared_folders(paths: AgentPaths, start: StartDocument, home: Path) -> list[str]:
    """Return the folders that the container sees at the same paths.

    These are the agent's, the user's home (with its caches), the machine's local disks, the job's
    files, and its checkpoints if they are on this machine.
    """
    folders = [paths.home, *mounted_homes(home)]
    if not secrets_in_memory(paths):
        folders.append(paths.memory)  # else it is in the shared memory, which every container has
    if _LOCAL_DISKS.is_dir():
        folders.append(_LOCAL_DISKS)
    targets = [item.target for item in start.files.packages] + [
        item.target for item in start.files.buckets
    ]
    folders += [paths.workdir / Path(target).expanduser() for target in targets]
    for store in map(urlsplit, (start.storage.store_url, *start.storage.others)):
        if store.scheme != "file":
            continue
        folder = Path(unquote(store.path))
        folder.mkdir(parents=True, exist_ok=True)
        folders.append(folder)
    outermost: list[Path] = []
    for path in sorted({Path(os.path.normpath(path)) for path in folders}):
        if not any(path.is_relative_to(other) for other in outermost):
            outermost.append(path)
    return [str(path) for path in outermost]


def mounted_homes(home: Path) -> list[Path]:
    """Return the home to mount. Root's home stays the image's, where images keep programs."""
    return [] if home in (Path("/root"), Path("/")) else [home]
