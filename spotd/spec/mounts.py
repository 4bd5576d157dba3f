"""File mounts of a job file: local paths and buckets to copy, and buckets to mount."""

from __future__ import annotations

from typing import Annotated, Any

from spotd.spec.block import Block, Ignored
from spotd.spec.quantities import Bytes, check_store_url
from spotd.wire import MountMode

_RCLONE = Ignored("rclone's own default is used")


class MountCached(Block):
    """SkyPilot's settings of a cached mount."""

    vfs_cache_max_size: Bytes | None = None
    transfers: Annotated[Any, _RCLONE] = None
    multi_thread_streams: Annotated[Any, _RCLONE] = None
    buffer_size: Annotated[Any, _RCLONE] = None
    vfs_cache_max_age: Annotated[Any, _RCLONE] = None
    vfs_read_ahead: Annotated[Any, _RCLONE] = None
    vfs_read_chunk_size: Annotated[Any, _RCLONE] = None
    vfs_read_chunk_streams: Annotated[Any, _RCLONE] = None
    fast_list: Annotated[Any, _RCLONE] = None
    vfs_write_back: Annotated[Any, Ignored("spotd mounts read-only")] = None
    read_only: Annotated[Any, Ignored("spotd mounts read-only")] = None


class MountConfig(Block):
    """`config` of a mount."""

    mount_cached: MountCached = MountCached()


class Storage(Block):
    """The long form of a file mount."""

    source: str | None = None
    mode: str = "MOUNT"
    config: MountConfig = MountConfig()
    name: Any = None
    store: Any = None
    persistent: Any = None
    type: Any = None
    mount_options: Annotated[Any, Ignored("spotd uses its own mount options")] = None

    @property
    def mount_mode(self) -> MountMode:
        """The mode as an enum; `parse_mount` has checked that it is valid."""
        return MountMode(self.mode.upper())


def parse_mount(value: Any) -> Any:
    """Expand a plain path to a mount with mode COPY, and check the mount.

    Raises ValueError for a mount that spotd does not support: running the job without its data, or
    losing its output, would be worse than not running it.
    """
    block = {"source": value, "mode": "COPY"} if isinstance(value, str) else value
    if not isinstance(block, dict):
        raise ValueError("a file mount is a path, or a block with source and mode")
    source, mode = block.get("source"), str(block.get("mode", "MOUNT")).upper()
    if isinstance(source, list):
        raise ValueError("several sources in one mount are not supported; write a mount for each")
    if mode not in {item.value for item in MountMode}:
        raise ValueError(f"mode is {mode}; write COPY, MOUNT or MOUNT_CACHED")
    if mode != "MOUNT_CACHED" and block.get("config"):
        raise ValueError("config needs mode: MOUNT_CACHED; leave it out")
    if isinstance(source, str) and "://" in source:
        if source.startswith("dataset://"):
            return block
        if check_store_url(source).startswith("file:"):
            raise ValueError("file:// is not a bucket; write the path alone")
        return block
    if not source:
        raise ValueError(
            "has no source, and spotd creates no bucket; name an existing bucket as source "
            "(spotd.checkpoint stores what a job writes)"
        )
    if mode != "COPY":
        raise ValueError("a local source is copied; write mode: COPY")
    return block
