"""The job's buckets that are mounted: before its caches and its `setup`, and until its end.

One `rclone mount` each, kept as a script is: it outlives an agent that dies, and a restarted one
finds it again. A mount whose process ends is told and made anew; a program that fails beside that
has not failed by itself (`trouble`).
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotd.wire import Bucket, MountMode, StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.paths import AgentPaths, write_private
from trainer.agent.base.phase import Phase
from trainer.agent.base.redaction import hidden_of
from trainer.agent.base.warnings import HealthWarning
from trainer.agent.data import read_meter
from trainer.agent.data.fuse import FuseError, Programs, find_programs, is_mounted, unmount
from trainer.agent.data.rclone import (
    UnmountableError,
    aws_profile,
    mount_argv,
    plain_env,
    remote_env,
    with_door,
)
from trainer.agent.data.read_meter import COUNT, ReadMeter
from trainer.agent.process.processes import is_alive
from trainer.agent.process.script import Script, ScriptState
from trainer.agent.process.script_supervisor import Order
from trainer.mounts.signing_proxy import WORD

UP_S = 60.0  # for a mount to stand
LOOK_S = 0.05
LOOK_EVERY_S = 1.0
AGAIN = 3  # that a mount is made anew, before the machine is given up
GRACE_S = 120.0  # after trouble: a program that fails so soon has failed of that
TELL_EVERY_S = 60.0
_UP = {Phase.SETUP, Phase.CLAIMING, Phase.RUNNING, Phase.SETTLING}
_TAIL_BYTES = 1 << 16
LOST, FAILING = "mount_lost", "mount_failing"  # as spotd/domain/health.py calls them


@dataclass(frozen=True)
class Mount:
    """One of the job's. `name` is of its script, its log and its cache."""

    bucket: Bucket
    name: str
    folder: Path

    @property
    def url(self) -> str:
        """Of the store that is mounted: of a data set, its region's."""
        return self.bucket.near or self.bucket.url

    @property
    def options(self) -> Mapping[str, str]:
        return self.bucket.near_options if self.bucket.near else self.bucket.options

    @property
    def text(self) -> str:
        return f"{self.url} at {self.bucket.target}"


def mounts_of(places: AgentPaths, start: StartDocument) -> list[Mount]:
    """In the job file's order."""
    found = [one for one in start.buckets if one.mode is not MountMode.COPY]
    return [
        Mount(one, f"mount-{number}", places.below_workdir(str(Path(one.target).expanduser())))
        for number, one in enumerate(found)
    ]


def mount_buckets(site: AgentContext, start: StartDocument, given_up: Callable[[], bool]) -> str:
    """Why they are not all there; or nothing. Waits, in a thread of its own."""
    mounts = mounts_of(site.places, start)
    if not mounts:
        return ""
    try:
        programs = find_programs(site.environ, container=bool(start.image))
    except FuseError as error:
        return f"file_mounts.{mounts[0].bucket.target}: {error}"
    for mount in mounts:
        try:
            error_text = _MountAttempts(site, start, programs).bring_up(mount, given_up)
        except (OSError, UnmountableError) as error:
            error_text = str(error)
        if error_text:
            return f"file_mounts.{mount.bucket.target}: {mount.url}: {error_text}"
    return ""


class _MountAttempts:
    """Making mounts, first and anew."""

    def __init__(self, site: AgentContext, start: StartDocument, programs: Programs) -> None:
        self._site, self._start, self._programs = site, start, programs

    def bring_up(self, mount: Mount, given_up: Callable[[], bool]) -> str:
        """Why it does not stand. Raises OSError, UnmountableError."""
        script = script_of(self._site, mount)
        if script.state is not ScriptState.RUNNING or not is_mounted(mount.folder):
            self.order(mount, script)
        until = time.monotonic() + UP_S
        while not is_mounted(mount.folder):
            if script.state is ScriptState.ENDED:
                return _reason(script.ended.tail)
            if given_up() or time.monotonic() > until:
                script.kill()
                return f"not mounted within {UP_S:.0f} s: see {mount.name}.log"
            time.sleep(LOOK_S)
        return ""

    def order(self, mount: Mount, script: Script) -> None:
        """Begin it, on a place that is free. Raises OSError, UnmountableError."""
        if (text := unmount(self._programs.fusermount, mount.folder)) != "":
            raise OSError(f"what was mounted there before stays: {text}")
        script.kill()
        script.forget()
        places, bucket = self._site.places, mount.bucket
        mount.folder.mkdir(parents=True, exist_ok=True)
        if any(mount.folder.iterdir()):
            raise OSError(f"{mount.folder} is not empty: name another folder")
        reading_of(places, mount).begin()
        order = places.memory / f"{mount.name}.options"
        env, more = plain_env(self._site.environ)
        version = self._programs.version
        env |= remote_env(mount.url, mount.options, order, version=version)
        cache = cache_of(places, mount)
        argv = mount_argv(
            self._programs.rclone,
            mount.url,
            mount.folder,
            bucket.mode,
            cache,
            self._cache_bytes(bucket, cache),
            others=self._programs.others,
            count_s=int(self._site.environ.get("SPOTD_MOUNTS_COUNT_S", read_meter.EVERY_S)),
        )
        argv += more
        if mount.options.get("identity"):
            write_private(order, json.dumps(dict(mount.options)).encode())
            if mount.url.startswith("s3://"):
                write_private(order.with_suffix(".aws"), aws_profile(order).encode())
            else:
                argv = with_door(argv, mount.url, order, version)
                env[WORD] = secrets.token_urlsafe(24)
        hidden = [value for name, value in env.items() if name.endswith(("SAS_URL", WORD))]
        script.order(
            Order(
                argv=argv,
                cwd="/",
                env=env,
                log=str(places.logs / f"{mount.name}.log"),
                log_limit_bytes=self._site.log_limit_bytes,
                state=str(places.memory / mount.name),
                wake=str(places.control_socket),
                secrets=[*hidden_of(self._start), *hidden],
            )
        )

    def _cache_bytes(self, bucket: Bucket, cache: Path) -> int:
        """How much of the disk it may take. Raises OSError where there is less."""
        if bucket.mode is not MountMode.MOUNT_CACHED:
            return 0
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(cache).free
        if bucket.cache_bytes > free:
            raise OSError(
                f"vfs_cache_max_size is {bucket.cache_bytes} bytes, and the disk has room for "
                f"{free}: ask for less, or for more with disk_size"
            )
        cached = sum(one.mode is MountMode.MOUNT_CACHED for one in self._start.buckets)
        return bucket.cache_bytes or free // 2 // cached


class Mounts:
    """Belongs to the agent's loop: watches them, and takes them away at the end."""

    def __init__(self, site: AgentContext, demands: DesiredState) -> None:
        self._site, self._demands = site, demands
        self._look_at = 0.0
        self._again: dict[str, int] = {}
        self._told_at: dict[str, float] = {}
        self._read: dict[str, int] = {}  # of its log, in bytes
        self._readings: dict[str, ReadMeter] = {}
        self._trouble = ("", 0.0)
        self._working = False  # a thread makes one anew
        self._over = False
        self.gone = ""  # why this machine cannot have one any more

    def trouble(self, now: float) -> str:
        """What a program that fails now has failed of; or nothing."""
        for mount in self._fallen():
            self._note(f"the mount of {mount.text} was lost", now)
        text, at = self._trouble
        return text if text and now < at + GRACE_S else ""

    def stand(self) -> bool:
        """Whether a program may begin: what it wants to read is there."""
        return bool(self.gone) or not (self._working or self._fallen())

    def errors(self, now: float) -> Iterator[HealthWarning]:
        """What rclone says that it could not read. A program that fails of that is charged for it,
        as for any data that is not there: another machine would come to the same end."""
        for mount in self._mounts():
            error = self._last_error(mount)
            if error and now >= self._told_at.get(mount.name, now - TELL_EVERY_S) + TELL_EVERY_S:
                self._told_at[mount.name] = now
                yield HealthWarning(FAILING, f"{mount.text} cannot be read: {error}")

    def read(self, now: float, *, last: bool = False) -> Iterator[dict[str, Any]]:
        """What the journal is to have of what was read; with `last` all that is known."""
        for mount in self._mounts():
            count = reading_of(self._site.places, mount, self._readings)
            if size := count.news(now, last=last):
                yield {"target": mount.bucket.target, "bytes": size}
                count.tell(size)

    def _mounts(self) -> list[Mount]:
        start = self._demands.start
        return mounts_of(self._site.places, start) if start is not None else []

    def _fallen(self) -> list[Mount]:
        return [one for one in self._mounts() if not _serves(script_of(self._site, one))]

    def _note(self, text: str, now: float) -> None:
        self._trouble = (text, now)

    def look(self, phase: Phase, now: float) -> Iterator[HealthWarning]:
        """What there is to say. Raises OSError."""
        start = self._demands.start
        if start is None or self._over or now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        mounts = self._mounts()
        if phase is Phase.ENDED:
            self._over = True
            self._take_away(mounts)
        elif phase in _UP and not self._working:
            for mount in mounts:
                yield from self._look_at_one(mount, start, now)

    def _look_at_one(
        self, mount: Mount, start: StartDocument, now: float
    ) -> Iterator[HealthWarning]:
        if script_of(self._site, mount).state is ScriptState.RUNNING:
            yield from self.errors(now)
            return
        if self.gone:
            return
        times = self._again[mount.name] = self._again.get(mount.name, 0) + 1
        why = _reason(script_of(self._site, mount).ended.tail)
        self._note(f"the mount of {mount.text} was lost ({why})", now)
        # A container has the mount that was there when it began, and gets no other.
        if start.image or times > AGAIN:
            self.gone = f"{self._trouble[0]}, {times} times on this machine"
            return
        yield HealthWarning(LOST, f"{self._trouble[0]}; it is made anew", {"times": times})
        self._working = True
        threading.Thread(target=self._renew, args=(mount, start), name="mount", daemon=True).start()

    def _renew(self, mount: Mount, start: StartDocument) -> None:
        """In a thread: what it waits for may take long."""
        try:
            programs = find_programs(self._site.environ, container=bool(start.image))
            why = _MountAttempts(self._site, start, programs).bring_up(mount, lambda: self._over)
        except (OSError, UnmountableError, FuseError) as error:
            why = str(error)

        def done() -> None:
            self._working = False
            if why and not self._over:
                self.gone = f"the mount of {mount.text} was lost, and cannot be made anew: {why}"

        self._site.post(done)

    def _last_error(self, mount: Mount) -> str:
        """The newest line of rclone's that is one, since the last look."""
        log = self._site.places.logs / f"{mount.name}.log"
        try:
            with log.open("rb") as file:
                end = file.seek(0, 2)
                begin = self._read.get(mount.name, 0)
                file.seek(max(begin if begin <= end else 0, end - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        self._read[mount.name] = end
        return next((_words(line) for line in reversed(lines) if " ERROR " in line), "")

    def _take_away(self, mounts: Sequence[Mount]) -> None:
        fusermount = shutil.which("fusermount3") or shutil.which("fusermount") or ""
        for mount in mounts:
            script_of(self._site, mount).kill()
            unmount(fusermount, mount.folder)
            for suffix in (".options", ".aws"):
                (self._site.places.memory / f"{mount.name}{suffix}").unlink(missing_ok=True)
        caches = [cache_of(self._site.places, mount) for mount in mounts]

        def discard() -> None:
            for cache in caches:
                shutil.rmtree(cache, ignore_errors=True)

        if mounts:
            threading.Thread(target=discard, name="mounts", daemon=True).start()


def script_of(site: AgentContext, mount: Mount) -> Script:
    """That runs it, whoever ordered it."""
    return Script(site.places.memory / mount.name, site.keeper_argv, site.keeper_env)


def reading_of(
    places: AgentPaths, mount: Mount, known: dict[str, ReadMeter] | None = None
) -> ReadMeter:
    """What is read over it."""
    known = {} if known is None else known
    if mount.name not in known:
        log, state = places.logs / f"{mount.name}.log", places.memory / f"{mount.name}.read"
        known[mount.name] = ReadMeter(log, state)
    return known[mount.name]


def _serves(script: Script) -> bool:
    """Whether rclone itself is alive; its keeper has a little to do after it."""
    pids = script.pids
    return pids is not None and is_alive(pids.program)


def cache_of(places: AgentPaths, mount: Mount) -> Path:
    """Of the generation: what a cache has may be half written when its process is killed."""
    name = hashlib.sha256(str(mount.folder).encode()).hexdigest()[:16]
    return places.folder / "mounts" / name


def _reason(tail: str) -> str:
    """Of rclone's last words, the last that is a line."""
    lines = [line for line in tail.splitlines() if line.strip() and not COUNT.search(line)]
    return _words(lines[-1]) if lines else "it says nothing"


def _words(line: str) -> str:
    """Without the time."""
    return line[20:].strip()[:300] if line[:4].isdigit() and line[10:11] == " " else line[:300]
