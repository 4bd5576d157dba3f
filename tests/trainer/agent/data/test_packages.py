"""Archives must not write outside their folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from spotd.wire import Package
from trainer.agent.data.packages import PackageError, has_package, put_package, unpack_packages


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, link, 0o4777
    entry.uid = entry.gid = 12345
    return entry


def unpack(folder: Path, *entries: tarfile.TarInfo) -> Path:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,  # the same bytes at any time
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for entry in entries:
            if entry.type == tarfile.REGTYPE:
                entry.size = 4
                archive.addfile(entry, io.BytesIO(b"text"))
            else:
                archive.addfile(entry)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    put_package(folder, digest, io.BytesIO(buffer.getvalue()))
    assert has_package(folder, digest)
    unpack_packages(folder, folder / "work", (Package(digest, ""),))
    return folder / "work"


def test_files_folders_and_links_inside(tmp_path: Path) -> None:
    work = unpack(
        tmp_path,
        member("a", tarfile.DIRTYPE),
        member("a/file"),
        member("a/link", tarfile.SYMTYPE, "../b"),
        member("a/hard", tarfile.LNKTYPE, "a/file"),
        member("b"),
    )
    assert (work / "a/link").read_bytes() == (work / "a/hard").read_bytes() == b"text"
    status = (work / "a/file").stat()
    assert status.st_mode & 0o7777 == 0o755, "no set-uid bit, and nobody else writes"
    assert status.st_uid == os.getuid()


@pytest.mark.parametrize(
    "entries",
    [
        [member("../out")],
        [member("a/../../out")],
        [member("/tmp/out-of-the-package")],
        [member("link", tarfile.SYMTYPE, "/etc")],
        [member("link", tarfile.SYMTYPE, "../../x")],
        [member("a/link", tarfile.SYMTYPE, "../../x")],
        [member("link", tarfile.SYMTYPE, "inside"), member("link/file")],
        [member("link", tarfile.SYMTYPE, "inside"), member("link")],
        [member("hard", tarfile.LNKTYPE, "../../home")],
        [member("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("disk", tarfile.BLKTYPE)],
        [member("tty", tarfile.CHRTYPE)],
    ],
    ids=lambda entries: "+".join(f"{e.name}>{e.linkname}" for e in entries),
)
def test_what_leads_out_is_refused(tmp_path: Path, entries: list[tarfile.TarInfo]) -> None:
    with pytest.raises(PackageError):
        unpack(tmp_path, *entries)
    assert not (tmp_path / "out").exists()
    assert not Path("/tmp/out-of-the-package").exists()


@pytest.mark.parametrize("digest", ["", "abc", "../" + "0" * 61, "A" * 64])
def test_a_digest_is_not_a_path(tmp_path: Path, digest: str) -> None:
    with pytest.raises(PackageError, match="sha256"):
        has_package(tmp_path, digest)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    data = b"not an archive"
    digest = hashlib.sha256(data).hexdigest()
    put_package(tmp_path, digest, io.BytesIO(data))
    with pytest.raises(PackageError, match="cannot be unpacked"):
        unpack_packages(tmp_path, tmp_path / "work", (Package(digest, ""),))


def _odd_path() -> bytes:
    """A name with a NUL in an extended header."""
    header = b"12 path=a\x00b\n"
    assert len(header) == 12
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = tarfile.XHDTYPE, len(header)
    blocks = entry.tobuf() + header.ljust(512, b"\0") + tarfile.TarInfo("y").tobuf()
    return gzip.compress(blocks + bytes(1024))


def _odd_time() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        entry = tarfile.TarInfo("late")
        entry.pax_headers = {"mtime": "1e30"}
        archive.addfile(entry)
    return buffer.getvalue()


def _damaged() -> bytes:
    whole = bytearray(gzip.compress(os.urandom(4096)))
    whole[10:14] = b"\xff\xff\xff\xff"
    return bytes(whole)


@pytest.mark.parametrize("make", [_odd_path, _odd_time, _damaged])
def test_whatever_an_archive_raises_is_told(tmp_path: Path, make: Callable[[], bytes]) -> None:
    """A machine whose unpacking died unreported would cost money and do nothing."""
    data = make()
    digest = hashlib.sha256(data).hexdigest()
    put_package(tmp_path, digest, io.BytesIO(data))
    with pytest.raises(PackageError, match="cannot be unpacked"):
        unpack_packages(tmp_path, tmp_path / "work", (Package(digest, ""),))


def test_links_that_together_lead_out_are_refused(tmp_path: Path) -> None:
    """Each path is inside by its text, but passes through a link on the disk."""
    (tmp_path / "secret").write_text("of another")
    (tmp_path / "secret").chmod(0o600)
    deep = [member("p/q/r", tarfile.DIRTYPE), member("x", tarfile.DIRTYPE)]
    chain = [
        member("p/q/d", tarfile.SYMTYPE, "../../x"),
        member("p/q/out", tarfile.SYMTYPE, "d/../../.."),
    ]
    work = unpack(tmp_path, *deep, *chain)
    assert (work / "p/q/out").resolve() == work, "as it is written"
    with pytest.raises(PackageError, match="goes through a link"):
        unpack(tmp_path, *deep, *chain, member("hard", tarfile.LNKTYPE, "p/q/out/secret"))
    assert (tmp_path / "secret").read_text() == "of another"
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_link_cannot_be_had_at_another_depth(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    low = member("a/b/low", tarfile.SYMTYPE, "../../jobs")
    with pytest.raises(PackageError, match="goes through a link"):
        unpack(tmp_path, low, member("a/up", tarfile.LNKTYPE, "a/b/low"), member("a/up/file"))
    with pytest.raises(PackageError, match="not a file of the package"):
        unpack(tmp_path, member("hard", tarfile.LNKTYPE, "later"), member("later"))
    assert list((tmp_path / "jobs").iterdir()) == []


def test_links_of_one_package_steer_no_other(tmp_path: Path) -> None:
    """Through links to its own folder, a package could be as deep as it likes."""
    work = unpack(tmp_path, member("self", tarfile.SYMTYPE, "."), member("file"))
    with pytest.raises(PackageError, match=r"self conflicts with the package"):
        unpack(tmp_path, member("self/self/self/out", tarfile.SYMTYPE, "../../../x"))
    assert sorted(path.name for path in work.iterdir()) == ["file", "self"]
    unpack(tmp_path, member("self"))
    assert not (work / "self").is_symlink(), "the link was replaced, not followed"


def test_of_what_fails_nothing_is_left_and_what_was_there_stays(tmp_path: Path) -> None:
    work = unpack(tmp_path, member("a", tarfile.DIRTYPE), member("a/file"), member("b"))
    (work / "a/file").write_text("mine")
    for last in (member("pipe", tarfile.FIFOTYPE), member("b/below")):
        with pytest.raises(PackageError):
            unpack(tmp_path, member("a/file"), member("a/new"), member("new"), last)
        found = sorted(str(path.relative_to(work)) for path in work.rglob("*"))
        assert found == ["a", "a/file", "b"]
        assert (work / "a/file").read_text() == "mine"


def test_what_an_agent_left_that_was_killed_is_cleared_away(tmp_path: Path) -> None:
    work = unpack(tmp_path, member("a"))
    [archive] = (tmp_path / "packages").iterdir()
    left = work / f".{archive.name.removesuffix('.tar.gz')}.new"
    (left / "half").mkdir(parents=True)
    unpack(tmp_path, member("a"))
    assert [path.name for path in work.iterdir()] == ["a"]


def test_folders_without_end_are_refused(tmp_path: Path) -> None:
    """Removing them is recursive."""
    with pytest.raises(PackageError, match="too deep in folders"):
        unpack(
            tmp_path,
            *(member("/".join("a" * depth), tarfile.DIRTYPE) for depth in range(150, 1900, 150)),
        )
    assert list((tmp_path / "work").iterdir()) == []


def _backwards() -> bytes:
    """A sparse file whose size is minus two blocks, so that the next header is its own."""
    entry = tarfile.TarInfo("holes")
    entry.type, entry.size = tarfile.GNUTYPE_SPARSE, -512
    block = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    block[483:495] = b"00000000000\0"  # its size on the disk
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % sum(block)
    return gzip.compress(tarfile.TarInfo("first").tobuf() + block + bytes(1024))


def test_an_archive_that_leads_back_has_an_end(tmp_path: Path) -> None:
    data = _backwards()
    digest = hashlib.sha256(data).hexdigest()
    put_package(tmp_path, digest, io.BytesIO(data))
    with pytest.raises(PackageError, match="points back"):
        unpack_packages(tmp_path, tmp_path / "work", (Package(digest, ""),))
