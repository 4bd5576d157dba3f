"""The folder store with crashes, links, a full disk and a stopped writer."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from providers.stores import open_store
from providers.stores.base import (
    ConflictError,
    NotFoundError,
    StoreConfigError,
    StoreDeniedError,
    StoreUnavailableError,
)
from providers.stores.local import LocalStore
from tests.fixtures.waiting import LIMIT_S


def test_the_same_bytes_are_a_new_version(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, clock_ns=lambda: 1_000_000_000)  # a clock that stands still
    first = store.put_if("HEAD", b"A", None)
    second = store.put_if("HEAD", b"B", first)
    third = store.put_if("HEAD", b"A", second)
    assert len({first, second, third}) == 3
    store.delete("HEAD")
    again = store.put_if("HEAD", b"A", None)
    assert again not in {first, third}
    with pytest.raises(ConflictError):
        store.put_if("HEAD", b"C", first)


def test_links_do_not_lead_out(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    store = LocalStore(tmp_path / "store")
    store.put("a", b"x")
    (tmp_path / "store" / "link").symlink_to(outside)
    (tmp_path / "store" / "file").symlink_to(outside / "secret")
    for call in (
        lambda: store.get("link/secret"),
        lambda: store.put("link/secret", b"x"),
        lambda: store.put_if("link/new", b"x", None),
        lambda: store.delete("link/secret"),
    ):
        with pytest.raises(StoreDeniedError, match="link"):
            call()
    with pytest.raises(NotFoundError):
        store.get("file")
    store.put("file", b"mine")
    assert (outside / "secret").read_text() == "s"
    assert [info.key for info in store.list("")] == ["a", "file"]


def test_a_root_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    LocalStore(tmp_path / "link").put("a/b", b"x")
    assert LocalStore(tmp_path / "real").get("a/b")[0] == b"x"


def test_a_stopped_writer_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, lock_wait_s=0.1)
    store.put_if("HEAD", b"x", None)
    with (tmp_path / ".store" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailableError, match="lock"):
            store.put_if("other", b"x", None)
    store.put_if("other", b"x", None)


def test_a_full_disk_leaves_the_old_object(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys, pathlib\n"
        "from providers.stores.local import LocalStore\n"
        "from providers.stores.base import StoreUnavailableError\n"
        "store = LocalStore(pathlib.Path(sys.argv[1]))\n"
        "tag = store.put_if('HEAD', b'old', None)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for call in (lambda: store.put('x', bytes(5000)), "
        "lambda: store.put_if('HEAD', bytes(5000), tag)):\n"
        "    try: call()\n"
        "    except StoreUnavailableError: continue\n"
        "    sys.exit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=LIMIT_S)
    store = LocalStore(tmp_path)
    assert store.get("HEAD")[0] == b"old"
    assert [info.key for info in store.list("")] == ["HEAD"]
    assert list((tmp_path / ".store" / "tmp").iterdir()) == []


def test_kill_9_leaves_whole_objects_and_a_free_lock(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, itertools\n"
        "from providers.stores.local import LocalStore\n"
        "store = LocalStore(pathlib.Path(sys.argv[1]))\n"
        "tag = store.get('HEAD')[1]\n"
        "print('on', flush=True)\n"
        "for n in itertools.count():\n"
        "    store.put('shard', bytes([n % 251]) * 300_000)\n"
        "    tag = store.put_if('HEAD', bytes([n % 251]) * 5000, tag)\n"
    )
    store = LocalStore(tmp_path, lock_wait_s=2.0)
    store.put_if("HEAD", b"start", None)
    for kill in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"on\n"
            time.sleep(0.004 + 0.0037 * kill)  # somewhere in the loop
            process.send_signal(signal.SIGKILL)
        data, tag = store.get("HEAD")
        assert data == b"start" or (len(data) == 5000 and len(set(data)) == 1)
        assert {info.key for info in store.list("")} <= {"HEAD", "shard"}
        if "shard" in {info.key for info in store.list("")}:
            shard = store.get("shard")[0]
            assert len(shard) == 300_000
            assert len(set(shard)) == 1
        store.put_if("HEAD", data, tag)


def test_what_killed_writers_left_is_swept_later(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"x")
    old, young = (tmp_path / ".store" / "tmp" / name for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    LocalStore(tmp_path)
    assert not old.exists()
    assert young.exists()
    assert [info.key for info in store.list("")] == ["a"]


def test_a_folder_that_cannot_be_written_is_denied() -> None:
    with pytest.raises(StoreDeniedError, match="mode"):
        LocalStore(Path("/sys/spotd")).put("a", b"x")  # refused to root as well


def test_a_key_that_is_a_folder_cannot_be_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"x")
    for call in (lambda: store.put("a", b"x"), lambda: store.put("a/b/c", b"x")):
        with pytest.raises(StoreDeniedError):
            call()
    assert store.get("a/b")[0] == b"x"


@pytest.mark.parametrize(
    ("url", "options", "hint"),
    [
        ("/data", {}, "file:///"),
        ("ftp://x/y", {}, "unknown scheme 'ftp'"),
        ("file://host/x", {}, "absolute path"),
        ("file:///x?a=b", {}, r"\?"),
        ("file:///x", {"region": "r"}, "no options"),
        ("s3:///x", {}, "no bucket"),
        ("s3://b", {"regoin": "r"}, "regoin"),
        ("s3://b", {"allow_http": "yes"}, "true or false"),
        ("s3://b", {"endpoint": "http://127.0.0.1:1"}, "allow_http"),
        ("s3://b", {"timeout_s": "soon"}, "seconds"),
    ],
)
def test_a_wrong_url_says_what_to_write(url: str, options: dict[str, str], hint: str) -> None:
    with pytest.raises(StoreConfigError, match=hint):
        open_store(url, options)
