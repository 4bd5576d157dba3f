"""Mount the job's buckets before its caches and its `setup`, and until its end.

Each has one `rclone mount`, run by a script supervisor, so that it survives the agent's death and a
restarted agent finds it. A mount whose process ends is reported and mounted again. A program that
fails shortly after has failed because of the mount (`failure_cause`).
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
from trainer.agent.base.health_verdict import HealthWarning
from trainer.agent.base.paths import AgentPaths, write_private
from trainer.agent.base.phase import AFTER_PROGRAM, Phase
from trainer.agent.base.redaction import secret_values
from trainer.agent.data import read_meter
from trainer.agent.data.fuse import (
    FuseError,
    Programs,
    ensure_programs,
    is_disconnected,
    is_mounted,
    unmount,
)
from trainer.agent.data.rclone import (
    UnmountableError,
    aws_profile,
    mount_argv,
    rclone_env,
    remote_env,
    with_signing_proxy,
)
from trainer.agent.data.read_meter import STATS_LINE, ReadMeter
from trainer.agent.process.processes import is_alive
from trainer.agent.process.script import Script, ScriptState
from trainer.agent.process.script_supervisor import ScriptSpec
from trainer.mounts.signing_proxy import KEY_ENV

MOUNT_TIMEOUT_S = 60.0
POLL_S = 0.05
CHECK_EVERY_S = 1.0
MAX_REMOUNTS = 3  # then the machine is given up
GRACE_S = 120.0  # a program that fails so soon after a lost mount has failed because of it
REPORT_EVERY_S = 60.0
_ACTIVE = {Phase.SETUP, Phase.CLAIMING, Phase.RUNNING, *AFTER_PROGRAM}
_TAIL_BYTES = 1 << 16
LOST, FAILING = "mount_lost", "mount_failing"  # as spotd/domain/health.py calls them


@dataclass(frozen=True)
class Mount:
    """One of the job's mounted buckets. `name` is the name of its script, log and cache."""

    bucket: Bucket
    name: str
    folder: Path

    @property
    def url(self) -> str:
        """URL of the store that is mounted: for a data set, the copy in this region."""
        return self.bucket.near or self.bucket.url

    @property
    def options(self) -> Mapping[str, str]:
        return self.bucket.near_options if self.bucket.near else self.bucket.options

    @property
    def text(self) -> str:
        return f"{self.url} at {self.bucket.target}"


def mounts_of(paths: AgentPaths, start: StartDocument) -> list[Mount]:
    """Return the job's mounts in the job file's order."""
    mounted = [bucket for bucket in start.files.buckets if bucket.mode is not MountMode.COPY]
    return [
        Mount(bucket, f"mount-{number}", paths.in_workdir(str(Path(bucket.target).expanduser())))
        for number, bucket in enumerate(mounted)
    ]


def mount_buckets(
    context: AgentContext, start: StartDocument, cancelled: Callable[[], bool]
) -> str:
    """Mount all buckets and return the error, or "". Blocks, so call it in a thread."""
    mounts = mounts_of(context.paths, start)
    if not mounts:
        return ""
    try:
        programs = ensure_programs(context.environ, container=bool(start.program.image))
    except FuseError as error:
        return f"file_mounts.{mounts[0].bucket.target}: {error}"
    for mount in mounts:
        try:
            error_text = _Mounter(context, start, programs).mount_and_wait(mount, cancelled)
        except (OSError, UnmountableError) as error:
            error_text = str(error)
        if error_text:
            return f"file_mounts.{mount.bucket.target}: {mount.url}: {error_text}"
    return ""


class _Mounter:
    """Mounts buckets, the first time and again."""

    def __init__(self, context: AgentContext, start: StartDocument, programs: Programs) -> None:
        self._context, self._start, self._programs = context, start, programs

    def mount_and_wait(self, mount: Mount, cancelled: Callable[[], bool]) -> str:
        """Mount a bucket and return the error, or "". Raises OSError, UnmountableError."""
        script = script_of(self._context, mount)
        mounted = is_mounted(mount.folder) and not is_disconnected(mount.folder)
        if script.state is not ScriptState.RUNNING or not mounted:
            self.start(mount, script)
        deadline = time.monotonic() + MOUNT_TIMEOUT_S
        while not is_mounted(mount.folder):
            if script.state is ScriptState.ENDED:
                return _reason(script.exit.tail)
            if cancelled() or time.monotonic() > deadline:
                script.kill()
                return f"not mounted within {MOUNT_TIMEOUT_S:.0f} s: see {mount.name}.log"
            time.sleep(POLL_S)
        return ""

    def start(self, mount: Mount, script: Script) -> None:
        """Start the mount on a free folder. Raises OSError, UnmountableError."""
        if (text := unmount(self._programs.fusermount, mount.folder)) != "":
            raise OSError(f"an earlier mount cannot be removed: {text}")
        script.kill()
        deadline = time.monotonic() + MOUNT_TIMEOUT_S
        # Its supervisor records how it ended, and must not do so after the reset.
        while script.state is ScriptState.RUNNING:
            if time.monotonic() > deadline:
                raise OSError(f"the process of an earlier mount at {mount.folder} does not end")
            time.sleep(POLL_S)
        script.reset()
        paths, bucket = self._context.paths, mount.bucket
        mount.folder.mkdir(parents=True, exist_ok=True)
        if any(mount.folder.iterdir()):
            raise OSError(f"{mount.folder} is not empty: name another folder")
        read_meter_of(paths, mount).begin()
        options_file = paths.memory / f"{mount.name}.options"
        env, arguments = rclone_env(self._context.environ)
        version = self._programs.version
        env |= remote_env(mount.url, mount.options, options_file, version=version)
        cache = cache_folder(paths, mount)
        argv = mount_argv(
            self._programs.rclone,
            mount.url,
            mount.folder,
            mode=bucket.mode,
            cache=cache,
            cache_bytes=self._cache_bytes(bucket, cache),
            allow_other=self._programs.allow_other,
            count_s=int(self._context.environ.get("SPOTD_MOUNTS_COUNT_S", read_meter.EVERY_S)),
        )
        argv += arguments
        if mount.options.get("identity"):
            write_private(options_file, json.dumps(dict(mount.options)).encode())
            if mount.url.startswith("s3://"):
                write_private(options_file.with_suffix(".aws"), aws_profile(options_file).encode())
            else:
                argv = with_signing_proxy(argv, mount.url, options_file, version=version)
                env[KEY_ENV] = secrets.token_urlsafe(24)
        hidden = [value for name, value in env.items() if name.endswith(("SAS_URL", KEY_ENV))]
        script.start(
            ScriptSpec(
                argv=argv,
                cwd="/",
                env=env,
                log=str(paths.logs / f"{mount.name}.log"),
                log_limit_bytes=self._context.log_limit_bytes,
                state=str(paths.memory / mount.name),
                wake=str(paths.control_socket),
                secrets=[*secret_values(self._start), *hidden],
            )
        )

    def _cache_bytes(self, bucket: Bucket, cache: Path) -> int:
        """Return the size of the mount's cache. Raises OSError if the disk has less free space."""
        if bucket.mode is not MountMode.MOUNT_CACHED:
            return 0
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(cache).free
        if bucket.cache_bytes > free:
            raise OSError(
                f"vfs_cache_max_size is {bucket.cache_bytes} bytes, but the disk has only "
                f"{free} free: lower it, or request a larger disk with disk_size"
            )
        cached = sum(bucket.mode is MountMode.MOUNT_CACHED for bucket in self._start.files.buckets)
        return bucket.cache_bytes or free // 2 // cached


class Mounts:
    """Watches the mounts and unmounts them at the end. Belongs to the agent's loop."""

    def __init__(self, context: AgentContext, desired: DesiredState) -> None:
        self._context, self._desired = context, desired
        self._check_at = 0.0
        self._remounts: dict[str, int] = {}
        self._reported_at: dict[str, float] = {}
        self._log_offsets: dict[str, int] = {}  # up to which each log was read, in bytes
        self._meters: dict[str, ReadMeter] = {}
        self._failure = ("", 0.0)
        self._disconnected: set[str] = set()  # names of mounts whose server the kernel has lost
        self._remounting: set[str] = set()  # names of mounts that threads mount again
        self._ended = False
        self.lost = ""  # why a mount is lost for good on this machine

    def failure_cause(self, now: float) -> str:
        """Return the lost mount that a program failing now has failed because of, or ""."""
        self._disconnected |= {
            mount.name for mount in self._mounts() if is_disconnected(mount.folder)
        }
        for mount in self._dead_mounts():
            self._record_failure(f"the mount of {mount.text} was lost", now)
        text, at = self._failure
        return text if text and now < at + GRACE_S else ""

    def all_up(self) -> bool:
        """Whether a program may start: all its mounts are there."""
        return bool(self.lost) or not (self._remounting or self._dead_mounts())

    def read_errors(self, now: float) -> Iterator[HealthWarning]:
        """Yield rclone's read errors.

        A program that fails because of one is charged for it, as for any missing data: another
        machine would end the same way.
        """
        for mount in self._mounts():
            error = self._last_error(mount)
            if (
                error
                and now >= self._reported_at.get(mount.name, now - REPORT_EVERY_S) + REPORT_EVERY_S
            ):
                self._reported_at[mount.name] = now
                yield HealthWarning(FAILING, f"{mount.text} cannot be read: {error}")

    def pending_reads(self, now: float, *, last: bool = False) -> Iterator[dict[str, Any]]:
        """Yield journal data of bytes read; with `last` all that is known."""
        for mount in self._mounts():
            meter = read_meter_of(self._context.paths, mount, self._meters)
            if size := meter.pending_bytes(now, last=last):
                yield {"target": mount.bucket.target, "bytes": size}
                meter.mark_reported(size)

    def _mounts(self) -> list[Mount]:
        start = self._desired.start
        return mounts_of(self._context.paths, start) if start is not None else []

    def _dead_mounts(self) -> list[Mount]:
        return [
            mount
            for mount in self._mounts()
            if mount.name in self._disconnected or not _serves(script_of(self._context, mount))
        ]

    def _record_failure(self, text: str, now: float) -> None:
        self._failure = (text, now)

    def check(self, phase: Phase, now: float) -> Iterator[HealthWarning]:
        """Check all mounts and yield warnings. Raises OSError."""
        start = self._desired.start
        if start is None or self._ended or now < self._check_at:
            return
        self._check_at = now + CHECK_EVERY_S
        mounts = self._mounts()
        if phase is Phase.ENDED:
            self._ended = True
            self._unmount_all(mounts)
        elif phase in _ACTIVE:
            for mount in mounts:
                if mount.name not in self._remounting:
                    yield from self._check_mount(mount, start, now)

    def _check_mount(
        self, mount: Mount, start: StartDocument, now: float
    ) -> Iterator[HealthWarning]:
        script = script_of(self._context, mount)
        running = script.state is ScriptState.RUNNING
        if running and mount.name not in self._disconnected:
            yield from self.read_errors(now)
            return
        if self.lost:
            return
        times = self._remounts[mount.name] = self._remounts.get(mount.name, 0) + 1
        reason = "its process is ending" if running else _reason(script.exit.tail)
        self._record_failure(f"the mount of {mount.text} was lost ({reason})", now)
        # A container sees only the mount that existed when it started.
        if start.program.image or times > MAX_REMOUNTS:
            self.lost = f"{self._failure[0]}, {times} times on this machine"
            return
        yield HealthWarning(LOST, f"{self._failure[0]}; it is mounted again", {"times": times})
        self._remounting.add(mount.name)
        threading.Thread(
            target=self._remount, args=(mount, start), name="mount", daemon=True
        ).start()

    def _remount(self, mount: Mount, start: StartDocument) -> None:
        """Mount again, in a thread because it may take long."""
        try:
            programs = ensure_programs(self._context.environ, container=bool(start.program.image))
            reason = _Mounter(self._context, start, programs).mount_and_wait(
                mount, lambda: self._ended
            )
        except (OSError, UnmountableError, FuseError) as error:
            reason = str(error)

        def finished() -> None:
            self._remounting.discard(mount.name)
            self._disconnected.discard(mount.name)
            if reason and not self._ended:
                self.lost = (
                    f"the mount of {mount.text} was lost, and cannot be mounted again: {reason}"
                )

        self._context.post(finished)

    def _last_error(self, mount: Mount) -> str:
        """Return rclone's newest error since the last check, or ""."""
        log = self._context.paths.logs / f"{mount.name}.log"
        try:
            with log.open("rb") as file:
                end = file.seek(0, 2)
                begin = self._log_offsets.get(mount.name, 0)
                file.seek(max(begin if begin <= end else 0, end - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        self._log_offsets[mount.name] = end
        return next((_message_of(line) for line in reversed(lines) if " ERROR " in line), "")

    def _unmount_all(self, mounts: Sequence[Mount]) -> None:
        fusermount = shutil.which("fusermount3") or shutil.which("fusermount") or ""
        for mount in mounts:
            script_of(self._context, mount).kill()
            unmount(fusermount, mount.folder)
            for suffix in (".options", ".aws"):
                (self._context.paths.memory / f"{mount.name}{suffix}").unlink(missing_ok=True)
        caches = [cache_folder(self._context.paths, mount) for mount in mounts]

        def discard() -> None:
            for cache in caches:
                shutil.rmtree(cache, ignore_errors=True)

        if mounts:
            threading.Thread(target=discard, name="mounts", daemon=True).start()


def script_of(context: AgentContext, mount: Mount) -> Script:
    """The script that runs this mount, whichever agent started it."""
    return Script(
        context.paths.memory / mount.name, context.supervisor_argv, context.supervisor_env
    )


def read_meter_of(
    paths: AgentPaths, mount: Mount, known: dict[str, ReadMeter] | None = None
) -> ReadMeter:
    """The meter of bytes read through this mount."""
    known = {} if known is None else known
    if mount.name not in known:
        log, state = paths.logs / f"{mount.name}.log", paths.memory / f"{mount.name}.read"
        known[mount.name] = ReadMeter(log, state)
    return known[mount.name]


def _serves(script: Script) -> bool:
    """Whether rclone itself is alive; its supervisor lives a little longer."""
    pids = script.pids
    return pids is not None and is_alive(pids.program)


def cache_folder(paths: AgentPaths, mount: Mount) -> Path:
    """A folder per generation: a cache may be half written when its process is killed."""
    name = hashlib.sha256(str(mount.folder).encode()).hexdigest()[:16]
    return paths.folder / "mounts" / name


def _reason(tail: str) -> str:
    """Return the last message in rclone's output."""
    lines = [line for line in tail.splitlines() if line.strip() and not STATS_LINE.search(line)]
    return _message_of(lines[-1]) if lines else "no output"


def _message_of(line: str) -> str:
    """Return a log line without its timestamp."""
    return line[20:].strip()[:300] if line[:4].isdigit() and line[10:11] == " " else line[:300]
