"""The agent's folders: one on disk and a private one in memory.

On disk, `$SPOTD_HOME/<job>/g<generation>/` holds the files that must outlive the agent: the journal
and the logs. In memory, a folder of mode 0700 below `/dev/shm` holds the files that must not touch
a disk or must work when the disk is full: the start document with its secrets, the sockets (whose
paths are limited to 107 bytes), and the exit records of the processes.
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
    """An error that `spot-node` prints, with its fix."""


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
    def sent_logs(self) -> Path:
        """How much of each log was sent to the daemon, by stream, as last noted."""
        return self.memory / "logs.sent"

    def stored_log(self, stream: str) -> Path:
        """Which bytes of a log were uploaded to the job's store, once they were."""
        return self.logs / f"{stream}.stored"

    @property
    def workdir(self) -> Path:
        return self.folder / "workdir"

    @property
    def inherits_workdir(self) -> bool:
        """Whether the workdir is an earlier generation's: already set up, under its old name."""
        if not self.workdir.is_symlink():
            return False
        there = Path(os.path.realpath(self.workdir))
        return there.parents[1] == Path(os.path.realpath(self.folder.parent))

    def in_workdir(self, path: str) -> Path:
        """Resolve a folder of the job file against the workdir, unless it is absolute."""
        return self.workdir / path

    @property
    def control_socket(self) -> Path:
        return self.memory / "control.sock"

    @property
    def worker_socket(self) -> Path:
        return self.memory / "worker.sock"

    @property
    def container(self) -> Path:
        """Marker file from before a container is made until it is removed; holds how to call its
        engine."""
        return self.memory / "container.made"

    @property
    def saver_socket(self) -> Path:
        return self.memory / "saver.sock"

    @property
    def credentials_file(self) -> Path:
        """Leased credentials of the job's checkpoint store."""
        return self.memory / "store-credentials"

    def credentials_file_of(self, store: str) -> Path:
        """Leased credentials of the store with this URL; "" is the job's own."""
        if not store:
            return self.credentials_file
        name = hashlib.sha256(store.encode()).hexdigest()[:16]
        return self.memory / f"{self.credentials_file.name}-{name}"

    @property
    def credentials_files(self) -> list[Path]:
        """The credentials files of all stores, existing or not for the job's own."""
        try:
            others = [*self.memory.glob(f"{self.credentials_file.name}-{'[0-9a-f]' * 16}")]
        except FileNotFoundError:  # the folder was deleted meanwhile: no credentials are left
            others = []
        return [self.credentials_file, *others]

    @property
    def aws_config(self) -> Path:
        return self.memory / "store-aws-config"

    @property
    def state(self) -> Path:
        return self.memory / "state.json"


def find_home(environ: Mapping[str, str]) -> Path:
    """Return `$SPOTD_HOME`, or `~/.spotd`."""
    path = environ.get("SPOTD_HOME")
    return Path(path).absolute() if path else Path.home() / ".spotd"


def find_paths(environ: Mapping[str, str], job_id: str, generation: int) -> AgentPaths:
    """Return the paths of a generation without creating them. Raises FolderError for an unusable
    job id."""
    if not SAFE_NAME.fullmatch(job_id) or generation < 0:
        raise FolderError(f"job id {job_id!r} or generation {generation} cannot name a folder")
    return _paths_of(find_home(environ), job_id, generation)


def paths_of_generation(paths: AgentPaths, job_id: str, generation: int) -> AgentPaths:
    """Return the paths of another generation of the job."""
    return _paths_of(paths.home, job_id, generation)


def _paths_of(home: Path, job_id: str, generation: int) -> AgentPaths:
    folder = home / job_id / f"g{generation}"
    short = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return AgentPaths(home, folder, _memory_root() / f"spotd-{os.getuid()}" / short)


def secrets_in_memory(paths: AgentPaths) -> bool:
    """Whether the folder for secrets is in `/dev/shm`, which is never written to a disk."""
    return paths.memory.is_relative_to("/dev/shm")  # noqa: S108 - the point of it


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically, readable by this user only.

    Raises OSError, and then leaves none of `data` behind.
    """
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
