"""Where the agent keeps things: a folder on disk, and a short one in memory.

On disk, `$SPOTD_HOME/<job>/g<generation>/` holds what must outlive the agent: the journal and the
logs. In memory (`/dev/shm`), a folder of mode 0700 holds what must not touch a disk, or must work
when the disk is full: the start document with its secrets, the sockets (whose paths may not exceed
107 bytes), and what became of the processes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class NodeError(Exception):
    """What a user of `spot-node` reads: what happened, and what to try."""


class FolderError(NodeError):
    """A folder cannot be used."""


@dataclass(frozen=True)
class AgentPaths:
    """The paths of one generation of one job on this machine."""

    home: Path
    folder: Path
    memory: Path

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def overflow(self) -> Path:
        return self.memory / "journal.jsonl"

    @property
    def lock(self) -> Path:
        return self.folder / "agent.lock"

    @property
    def pid(self) -> Path:
        return self.folder / "agent.pid"

    @property
    def agent_log(self) -> Path:
        return self.folder / "agent.log"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def workdir(self) -> Path:
        return self.folder / "workdir"

    @property
    def inherits(self) -> bool:
        """Whether the workdir is that of an earlier generation: set up, and under its old name."""
        if not self.workdir.is_symlink():
            return False
        there = Path(os.path.realpath(self.workdir))
        return there.parents[1] == Path(os.path.realpath(self.folder.parent))

    def below_workdir(self, named: str) -> Path:
        """A folder as the job names it: below its workdir, unless it is absolute."""
        return self.workdir / named

    @property
    def control_socket(self) -> Path:
        return self.memory / "control.sock"

    @property
    def worker_socket(self) -> Path:
        return self.memory / "worker.sock"

    @property
    def container(self) -> Path:
        """There from before a container is made until it is gone: how to ask for its engine."""
        return self.memory / "container.made"

    @property
    def saver_socket(self) -> Path:
        return self.memory / "saver.sock"

    @property
    def lent(self) -> Path:
        """Credentials of the checkpoint store."""
        return self.memory / "store-credentials"

    def lent_of(self, store: str) -> Path:
        """Those of another store, by its URL; "" is the job's own."""
        name = hashlib.sha256(store.encode()).hexdigest()[:16]
        return self.memory / f"{self.lent.name}-{name}" if store else self.lent

    @property
    def all_lent(self) -> list[Path]:
        """Of all stores, whatever is there."""
        try:
            others = [*self.memory.glob(f"{self.lent.name}-{'[0-9a-f]' * 16}")]
        except FileNotFoundError:  # the folder went while it was read: then nothing is lent
            others = []
        return [self.lent, *others]

    @property
    def aws_config(self) -> Path:
        return self.memory / "store-aws-config"

    @property
    def state(self) -> Path:
        return self.memory / "state.json"


def find_home(environ: Mapping[str, str]) -> Path:
    """`$SPOTD_HOME`, else `~/.spotd`."""
    named = environ.get("SPOTD_HOME")
    return Path(named).absolute() if named else Path.home() / ".spotd"


def find_places(environ: Mapping[str, str], job_id: str, generation: int) -> AgentPaths:
    """The paths of a generation; nothing is created. Raises PlaceError for an unusable job id."""
    if not SAFE_NAME.fullmatch(job_id) or generation < 0:
        raise FolderError(f"job id {job_id!r} or generation {generation} cannot name a folder")
    return _places(find_home(environ), job_id, generation)


def same_job(places: AgentPaths, job_id: str, generation: int) -> AgentPaths:
    """Those of another generation of the job."""
    return _places(places.home, job_id, generation)


def _places(home: Path, job_id: str, generation: int) -> AgentPaths:
    folder = home / job_id / f"g{generation}"
    short = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return AgentPaths(home, folder, _memory_root() / f"spotd-{os.getuid()}" / short)


def in_memory(places: AgentPaths) -> bool:
    """Whether the folder for secrets is one that no disk ever sees."""
    return places.memory.is_relative_to("/dev/shm")  # noqa: S108 - the point of it


def write_private(path: Path, data: bytes) -> None:
    """Replace a file in one step; nobody else can read it at any moment. Raises OSError, and then
    leaves nothing of `data` behind."""
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _memory_root() -> Path:
    shared = Path("/dev/shm")  # noqa: S108 - made private below
    return shared if os.access(shared, os.W_OK) else Path("/tmp")  # noqa: S108 - likewise
