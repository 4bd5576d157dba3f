"""What a script of the job finds in its container: environment, folders; the login to pull."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spotd.wire import StartDocument
from trainer.agent.base.paths import AgentPaths, in_memory

LOGIN = {  # as SkyPilot names them
    "SKYPILOT_DOCKER_USERNAME": "username",
    "SKYPILOT_DOCKER_PASSWORD": "password",
    "SKYPILOT_DOCKER_SERVER": "server",
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DATA = Path("/var/lib/spotd")  # a machine's local disks, where it has any


def inside_script(env: Mapping[str, str], script: Path) -> str:
    """The environment, and the job's own text by the best shell that the image has. What is left of
    it in `/proc` shows which file it runs, so it stays until the text has ended."""
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(env.items())
        if _VARIABLE.fullmatch(name)
    ]
    path = shlex.quote(str(script))
    shell = f"if command -v bash >/dev/null 2>&1; then bash {path}; else sh {path}; fi"
    return "\n".join([*lines, shell, "exit $?", ""])


def login_of(start: StartDocument) -> dict[str, str]:
    """The registry's login among the job's secrets and variables; empty without a user's name."""
    known = {**start.envs, **start.secrets}
    found = {field: known[name] for name, field in LOGIN.items() if known.get(name)}
    return found if "username" in found else {}


def shared_folders(places: AgentPaths, start: StartDocument, home: Path) -> list[str]:
    """What the container sees at the same paths: ours, the user's (the caches in it too), the
    machine's local disks, the job's files, and its checkpoints where they are on this machine."""
    wanted = [places.home, *homes(home)]
    if not in_memory(places):
        wanted.append(places.memory)  # else in the shared memory, which every container has
    if _DATA.is_dir():
        wanted.append(_DATA)
    taken = [one.target for one in start.packages] + [one.target for one in start.buckets]
    wanted += [places.workdir / Path(target).expanduser() for target in taken]
    for store in map(urlsplit, (start.store_url, *start.other_stores)):
        if store.scheme != "file":
            continue
        folder = Path(unquote(store.path))
        folder.mkdir(parents=True, exist_ok=True)
        wanted.append(folder)
    chosen: list[Path] = []
    for path in sorted({Path(os.path.normpath(path)) for path in wanted}):
        if not any(path.is_relative_to(other) for other in chosen):
            chosen.append(path)
    return [str(path) for path in chosen]


def homes(home: Path) -> list[Path]:
    """Root's home is left as the image has it: images keep programs there."""
    return [] if home in (Path("/root"), Path("/")) else [home]
