"""Mounting buckets with the real rclone from real servers of each kind of store."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store
from providers.stores.dataset_copy import MARKER
from spotd import wire
from spotd.demo.bucket import Bucket
from spotd.demo.s3 import serving
from spotd.wire import MountMode
from tests.fixtures import azurite, gcs
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node
from trainer.agent.data.fuse import is_disconnected, is_mounted
from trainer.agent.process.processes import is_alive
from trainer.agent.process.script_supervisor import read_pids

BLOB = os.urandom(3 << 20)
SMALL = b"words\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with serving() as made:
        yield made


@pytest.fixture
def bucket(server: Bucket) -> Bucket:
    return filled(Bucket(server.endpoint))


def filled(made: Any) -> Any:
    store = open_store(made.url, made.options)
    store.put("x/blob.bin", BLOB)
    store.put("small", SMALL)
    return made


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node; what a test leaves mounted is unmounted afterwards."""
    with Node(tmp_path / "home") as machine:
        yield machine
        machine.kill_agent()
        for number in range(3):
            pids = read_pids(machine.paths.memory / f"mount-{number}")
            if pids is not None and is_alive(pids.program):
                os.kill(pids.program.pid, signal.SIGKILL)
        for folder in (machine.home / "data", machine.home / "more"):
            if is_mounted(folder):
                subprocess.run(["fusermount3", "-uz", str(folder)], check=True)


def mount(made: Any, mode: MountMode = MountMode.MOUNT, **more: Any) -> wire.Bucket:
    return wire.Bucket("~/data", made.url, made.options, mode=mode, **more)


def rclone_pid(node: Node, number: int = 0) -> int:
    pids = read_pids(node.paths.memory / f"mount-{number}")
    assert pids is not None
    return pids.program.pid


def test_a_bucket_is_there_to_read_from_setup_to_the_end(node: Node, bucket: Bucket) -> None:
    node.run()
    node.start(
        setup="cmp ~/data/small <(echo words); touch ~/data/new 2>&1 || echo refused",
        run="sha256sum ~/data/x/blob.bin; touch up; while [ ! -e stop ]; do sleep 0.05; done",
        buckets=(mount(bucket),),
    )
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    pid = rclone_pid(node)
    argv = [*Path(f"/proc/{pid}/cmdline").read_text().split("\0")]
    assert "--read-only" in argv
    assert not [word for word in argv if "secret" in word.lower() or word == "test"]
    node.kill_agent()  # a restarted agent finds the mount, and takes it away at the end
    node.run()
    (node.paths.workdir / "stop").touch()
    assert node.wait_for(wire.EXITED).data["code"] == 0
    assert "refused" in node.log("setup")
    wait_until("the mount to be gone", lambda: not is_mounted(node.home / "data"))
    wait_until("its process to be gone", lambda: not Path(f"/proc/{pid}").exists())
    assert list((node.home / "data").iterdir()) == []


@pytest.mark.parametrize("rig", [gcs, azurite])
def test_googles_and_azures_stores_too(node: Node, rig: Any) -> None:
    with rig.serving() as made:
        filled(made)
        node.run()
        node.start(
            run="cmp ~/data/small <(echo words) && wc -c < ~/data/x/blob.bin",
            buckets=(mount(made),),
        )
        ended = node.wait_for(wire.EXITED).data
    assert ended["code"] == 0, node.log("mount-0")
    assert node.log().strip() == str(len(BLOB))


def test_a_cache_is_read_twice_for_one_time_within_its_bound_and_gone_at_the_end(
    node: Node, bucket: Bucket
) -> None:
    other = filled(Bucket(bucket.endpoint))
    bounded = replace(mount(other, MountMode.MOUNT_CACHED, cache_bytes=1 << 20), target="~/more")
    node.run()
    wait = "while [ ! -e gone ]; do sleep 0.05; done"
    read = "sha256sum < ~/data/x/blob.bin"
    node.start(
        run=f"cat ~/more/x/blob.bin > /dev/null; {read}; touch read; {wait}; {read}",
        buckets=(mount(bucket, MountMode.MOUNT_CACHED), bounded),
    )
    wait_until("it was read", (node.paths.workdir / "read").exists)
    cache = node.paths.folder / "mounts"
    sizes = lambda: sorted(_taken(path) for path in cache.glob("*/vfs/**/blob.bin"))  # noqa: E731
    wait_until("one to be within its bound", lambda: sum(sizes()) < len(BLOB) + (1 << 20) + 4096)
    assert sizes()[-1] >= len(BLOB), "of the other all is on the disk"
    open_store(bucket.url, bucket.options).delete("x/blob.bin")
    (node.paths.workdir / "gone").touch()
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log()
    assert len(set(node.log().split())) == 2, "the same sum twice"
    wait_until("the caches to be gone", lambda: not any(files for *_, files in os.walk(cache)))


def test_a_data_set_is_mounted_from_its_regions_copy_which_is_made_first(
    node: Node, bucket: Bucket
) -> None:
    """The mount does not show the copy's marker. (For mounts during the copy see test_stage.)"""
    near = Bucket(bucket.endpoint)
    more = {"near": near.url, "near_options": near.options, "microusd_per_gb": 9, "max_microusd": 9}
    node.run()
    node.start(
        run="cd ~/data; find . -type f | sort; sha256sum < x/blob.bin",
        buckets=(mount(bucket, **more),),
    )
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log("mount-0")
    [*names, digest] = node.log().splitlines()
    assert names == ["./small", "./x/blob.bin"]
    assert digest.split()[0] == hashlib.sha256(BLOB).hexdigest()
    marker = json.loads(open_store(near.url, near.options).get(MARKER)[0])
    assert marker == {"from": bucket.url, "objects": 2, "bytes": len(BLOB) + len(SMALL)}


@pytest.mark.parametrize("mode", [MountMode.MOUNT, MountMode.MOUNT_CACHED])
def test_how_much_was_read_is_told_each_byte_once(
    node: Node, bucket: Bucket, mode: MountMode
) -> None:
    """Bytes read as counted by rclone, across restarts of a killed agent and rclone."""
    node.environ = {**node.environ, "SPOTD_MOUNTS_COUNT_S": "1"}
    node.run()
    read = "cat ~/data/x/blob.bin ~/data/x/blob.bin ~/data/small | wc -c; sleep 1.4"
    wait = "touch up; while [ ! -e go ]; do sleep 0.05; done"
    wait += "; until cat ~/data/small > /dev/null 2>&1; do sleep 0.05; done"
    node.start(run=f"{read}; {wait}; {read}", buckets=(mount(bucket, mode),))
    wait_until("it was read", (node.paths.workdir / "up").exists)
    if mode is MountMode.MOUNT_CACHED:  # rclone records what is in its cache a while after
        wait_until("both files are known to be in the cache", lambda: _in_cache(node) == 2)
    node.kill_agent()
    node.run()
    os.kill(rclone_pid(node), signal.SIGKILL)
    node.wait_for(wire.WARNING)
    (node.paths.workdir / "go").touch()
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log()
    lines = node.entries(wire.MOUNT_READ)
    assert {entry.data["target"] for entry in lines} == {"~/data"}
    read_bytes = (4 if mode is MountMode.MOUNT else 1) * len(BLOB)  # a cache outlives its rclone
    read_total = sum(entry.data["bytes"] for entry in lines)
    # To the thousandth of a MiB; a read may be of a few KiB more than was asked for.
    assert read_bytes - 4096 <= read_total <= read_bytes + (64 << 10)


def _in_cache(node: Node) -> int:
    """The number of files that rclone's records call whole in the cache."""
    whole = 0
    for path in node.home.glob("**/vfsMeta/**/*"):
        with suppress(OSError, ValueError):  # a folder, or just being written
            record = json.loads(path.read_text())
            whole += sum(piece["Size"] for piece in record["Rs"] or ()) == record["Size"]
    return whole


def _can_read(path: Path) -> bool:
    with suppress(OSError):  # a mount that is lost
        return path.read_bytes() == SMALL
    return False


def _taken(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_mount_that_dies_is_told_and_made_anew_and_a_program_goes_on(
    node: Node, bucket: Bucket
) -> None:
    node.run()
    node.start(run=_PATIENT, buckets=(mount(bucket),))
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    os.kill(rclone_pid(node), signal.SIGKILL)
    data = node.wait_for(wire.WARNING).data
    assert data["verdict"] == "mount_lost"
    assert f"{bucket.url} at ~/data was lost" in data["text"]
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log()
    assert not node.entries(wire.UNWELL)


# Goes on where it can read again, as a loader that tries again does.
_PATIENT = """
touch up
while cat ~/data/small > /dev/null 2>&1; do sleep 0.02; done
until cat ~/data/small > /dev/null 2>&1; do sleep 0.02; done
"""


def test_a_program_that_fails_of_its_mount_begins_again_and_is_not_charged(
    node: Node, bucket: Bucket
) -> None:
    node.run()
    node.start(run=_STRICT, buckets=(mount(bucket),))
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    os.kill(rclone_pid(node), signal.SIGKILL)
    unwell = node.wait_for(wire.UNWELL).data
    assert (unwell["what"], unwell["again"]) == ("mount", True)
    assert unwell["text"].endswith("and the program failed")
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log()
    assert len(node.entries(wire.STARTED)) == 2


def test_a_program_fails_of_its_mount_although_the_mounts_process_has_not_quite_ended(
    node: Node, bucket: Bucket
) -> None:
    """rclone is dead, but what waits for it, like the proxy that signs its requests, is not."""
    real = shutil.which("rclone")
    _wrap_rclone(node, f'[ $1 = mount ] || exec {real} "$@"\n{real} "$@"\nsleep 600\n')
    node.run()
    node.start(run=_STRICT, buckets=(mount(bucket),))
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    wrapper = rclone_pid(node)
    [real_pid] = Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text().split()
    os.kill(int(real_pid), signal.SIGKILL)
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log()
    [unwell] = node.entries(wire.UNWELL)
    assert (unwell.data["what"], unwell.data["again"]) == ("mount", True)
    assert "its process is ending" in node.wait_for(wire.WARNING).data["text"]
    assert not Path(f"/proc/{wrapper}").exists(), "nothing of the lost mount is left"


def test_mounts_that_die_at_the_same_time_are_each_mounted_again_once(
    node: Node, bucket: Bucket
) -> None:
    """The second takes longer: it is not taken for lost again once the first is there."""
    slow = f"while [ -e {node.home}/slow ]; do sleep 0.05; done"
    _wrap_rclone(
        node,
        f'case "$*" in *"{node.home}/more"*) {slow};; esac\nexec {shutil.which("rclone")} "$@"\n',
    )
    node.run()
    second = replace(mount(bucket), target="~/more")
    read = "while cat ~/data/small ~/more/small > /dev/null; do sleep 0.02; done; exit 3"
    again = "[ -e up ] && { cat ~/data/small ~/more/small; exit; }"
    node.start(run=f"{again}; touch up; {read}", buckets=(mount(bucket), second))
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    (node.home / "slow").touch()
    for number in range(2):
        os.kill(rclone_pid(node, number), signal.SIGKILL)
    wait_until("the first to serve again", lambda: _can_read(node.home / "data" / "small"))
    node.live_on(2.5)  # it checks its mounts every second
    (node.home / "slow").unlink()
    assert node.wait_for(wire.EXITED).data["code"] == 0, node.log()
    texts = sorted(entry.data["text"] for entry in node.entries(wire.WARNING))
    assert len(texts) == 2, texts
    assert ["at ~/data was" in texts[0], "at ~/more was" in texts[1]] == [True, True]


def test_a_mount_that_only_does_not_answer_is_not_lost(node: Node, bucket: Bucket) -> None:
    node.run()
    node.start(run=_PATIENT, buckets=(mount(bucket),))
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    os.kill(rclone_pid(node), signal.SIGSTOP)
    assert not is_disconnected(node.home / "data", wait_s=0.1)
    node.kill_agent()  # which would mount it again
    os.kill(rclone_pid(node), signal.SIGKILL)
    wait_until("it to be lost", lambda: is_disconnected(node.home / "data", wait_s=0.1))


# The first time it reads until it cannot, and fails of it; the second time it can.
_STRICT = """
[ -e up ] && { cat ~/data/small; exit; }
touch up
while cat ~/data/small > /dev/null; do sleep 0.02; done
exit 3
"""


def test_a_mount_that_does_not_stay_is_the_end_of_this_machine(node: Node, bucket: Bucket) -> None:
    _break_later(node)
    node.run()
    node.start(run="touch up; sleep 60", buckets=(mount(bucket),))
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    (node.home / "broken").touch()
    os.kill(rclone_pid(node), signal.SIGKILL)
    ended = node.wait_for(wire.EXITED).data
    assert ended["code"] == wire.EXIT_UNFIT
    text = node.entries(wire.UNWELL)[-1].data["text"]
    assert "cannot be mounted again: no more today" in text


def _break_later(node: Node) -> None:
    """Give the node an rclone that works until the file `broken` exists."""
    _wrap_rclone(
        node,
        f"[ -e {node.home}/broken ] && [ $1 = mount ] && "
        f'{{ echo "no more today" >&2; exit 1; }}\nexec {shutil.which("rclone")} "$@"\n',
    )


def _wrap_rclone(node: Node, script: str) -> None:
    """Let the node find this shell script as its rclone."""
    folder = node.home / "bin"
    folder.mkdir()
    program = folder / "rclone"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o700)
    node.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def test_a_bucket_that_does_not_answer_is_told_and_the_read_fails(
    node: Node, bucket: Bucket
) -> None:
    """The server answers 404 for a listed object: reading it fails and does not hang."""
    node.run()
    wait = "while [ ! -e gone ]; do sleep 0.05; done"
    node.start(
        run=f"ls ~/data/x; touch up; {wait}; cat ~/data/x/blob.bin", buckets=(mount(bucket),)
    )
    wait_until("the program to be up", (node.paths.workdir / "up").exists)
    open_store(bucket.url, bucket.options).delete("x/blob.bin")
    (node.paths.workdir / "gone").touch()
    data = node.wait_for(wire.WARNING).data
    assert data["verdict"] == "mount_failing"
    assert f"{bucket.url} at ~/data cannot be read: " in data["text"]
    assert node.wait_for(wire.EXITED).data["code"] == 1, "charged to the program"
    assert not node.entries(wire.UNWELL)


def test_a_place_with_something_in_it_is_refused(node: Node, bucket: Bucket) -> None:
    (node.home / "data").mkdir()
    (node.home / "data" / "mine").touch()
    node.run()
    node.start(buckets=(mount(bucket),))
    assert "is not empty: name another folder" in node.wait_for(wire.SETUP).data["tail"]


def test_an_address_with_nothing_below_it_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    wrong = wire.Bucket("~/data", f"{bucket.url}/none", bucket.options, mode=MountMode.MOUNT)
    order = json.dumps([asdict(wrong)]).encode() + b"\n"
    command = [sys.executable, "-m", "trainer.mounts", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(order)
        process.stdin.flush()
        error = json.loads(process.stdout.readline())["error"]
    assert error.startswith(f"file_mounts.~/data: {wrong.url} cannot be read: there is nothing")


def test_what_is_mounted_is_in_the_document_as_it_was(node: Node) -> None:
    cached = wire.Bucket("/d", "s3://b", mode=MountMode.MOUNT_CACHED, cache_bytes=5)
    data = json.loads(json.dumps(node.start_document(buckets=(cached,)).to_data()))
    assert wire.parse_start(data).files.buckets == (cached,)
    data["buckets"][0]["mode"] = "NFS"
    with pytest.raises(wire.WireError, match="mode"):
        wire.parse_start(data)
