"""Test archives of workdirs: reproducible bytes, and clear messages about files left out."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import tarfile
from pathlib import Path

import pytest

from spotd.base.errors import ExitCode, UserError
from spotd.packaging import archive
from spotd.packaging.archive import PackedArchive, find_files, write_archive
from spotd.wire import Package
from trainer.agent.data.packages import put_package, unpack_packages


def packed(root: Path, single: str = "") -> tuple[PackedArchive, bytes, list[str]]:
    warnings: list[str] = []
    file = io.BytesIO()
    result = write_archive(find_files(root, warnings.append), file, single)
    return result, file.getvalue(), warnings


def tree(root: Path) -> None:
    (root / "pkg").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "train.py").write_text("print('hello')\n")
    (root / "pkg" / "model.py").write_text("x = 1\n")
    (root / "go.sh").write_text("#!/bin/sh\n")
    (root / "go.sh").chmod(0o755)
    (root / "link").symlink_to("pkg/model.py")


@pytest.mark.req("UX-01")
def test_same_files_give_same_bytes(tmp_path: Path) -> None:
    tree(tmp_path / "one")
    tree(tmp_path / "two")
    os.utime(tmp_path / "two" / "train.py", (1, 1))
    (tmp_path / "two" / "train.py").chmod(0o600)
    first, data, _ = packed(tmp_path / "one")
    second, _, _ = packed(tmp_path / "two")
    assert first == second
    assert first.digest == hashlib.sha256(data).hexdigest()
    assert first.length == len(data)
    (tmp_path / "two" / "train.py").write_text("print('other')\n")
    assert packed(tmp_path / "two")[0].digest != first.digest


def test_the_node_unpacks_it(tmp_path: Path) -> None:
    """Unpack with the agent's own code."""
    tree(tmp_path / "src")
    (tmp_path / "src" / "pkg" / "up").symlink_to("../train.py")
    result, data, warnings = packed(tmp_path / "src")
    out = tmp_path / "out"
    put_package(tmp_path / "home", result.digest, io.BytesIO(data))
    unpack_packages(tmp_path / "home", out, [Package(result.digest, "")])
    assert warnings == []
    assert (out / "link").readlink() == Path("pkg/model.py")
    assert (out / "link").read_text() == "x = 1\n"
    assert os.access(out / "go.sh", os.X_OK)
    assert not os.access(out / "train.py", os.X_OK)
    assert (out / "empty").is_dir()


def test_files_that_cannot_be_packed_are_named(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("../elsewhere")
    (tmp_path / "pkg" / "inside").symlink_to("../train.py")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "sock"))
        _, data, warnings = packed(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        names = set(archive.getnames())
    assert {"pkg/inside", "link"} <= names
    assert not {"out", "up", "pipe", "sock"} & names
    assert len(warnings) == 4
    assert any("/etc/passwd" in text for text in warnings)


def test_too_big_names_the_biggest_and_the_fix(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "corpus.bin").open("wb") as file:
        file.truncate(archive.MAX_BYTES)  # sparse: takes no disk
    with pytest.raises(UserError) as caught:
        find_files(tmp_path, pytest.fail)
    assert "1.0 GiB  data/" in caught.value.text
    assert ".skyignore" in caught.value.try_
    assert caught.value.exit_code is ExitCode.USAGE
    (tmp_path / ".skyignore").write_text("data/\n")
    assert all(item.bytes < 100 for item in find_files(tmp_path, pytest.fail))


def test_a_single_file_takes_the_name_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    _, data, _ = packed(tmp_path / "mine.json", single="config.json")
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        assert archive.getnames() == ["config.json"]


def test_a_file_that_shrinks_meanwhile_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "growing.log").write_text("0123456789")
    files = find_files(tmp_path, pytest.fail)
    (tmp_path / "growing.log").write_text("01")
    with pytest.raises(UserError, match=r"growing\.log"):
        write_archive(files, io.BytesIO())
