"""Test the ignore rules against a table and against git itself."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from spotd.packaging.archive import find_files
from spotd.packaging.ignore import ignore_file_name, is_ignored, parse_rule


def judge(lines: str, path: str, *, folder: bool = False) -> bool:
    rules = [rule for line in lines.split("\n") if (rule := parse_rule(line))]
    return is_ignored(path, folder, [("", rules)])


@pytest.mark.parametrize(
    ("lines", "path", "expected"),
    [
        ("*.log", "a.log", True),
        ("*.log", "deep/er/a.log", True),
        ("/a.log", "deep/a.log", False),
        ("deep/*.log", "deep/a.log", True),
        ("deep/*.log", "deep/er/a.log", False),
        ("deep/**/a.log", "deep/a.log", True),
        ("deep/**/a.log", "deep/x/y/a.log", True),
        ("**/cache", "x/cache", True),
        ("out/**", "out/x/y", True),
        ("out/**", "out", False),
        ("*.log\n!keep.log", "keep.log", False),
        ("!keep.log\n*.log", "keep.log", True),
        ("# note", "# note", False),
        ("\\# note", "# note", True),
        ("\\!odd", "!odd", True),
        ("data/", "data", False),
        ("[ab].txt", "a.txt", True),
        ("[!ab].txt", "a.txt", False),
        ("[!ab].txt", "c.txt", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a*c", "a/c", False),
        ("trail  ", "trail", True),
        ("un[finished", "un[finished", False),
        ("", "anything", False),
        ("/", "anything", False),
    ],
)
def test_table(lines: str, path: str, expected: bool) -> None:
    assert judge(lines, path) is expected


def test_folder_rules_match_folders_only() -> None:
    assert judge("data/", "x/data", folder=True)
    assert not judge("data/", "x/data", folder=False)


def test_skyignore_replaces_gitignore(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.bin\n")
    assert ignore_file_name(tmp_path) == ".gitignore"
    (tmp_path / ".skyignore").write_text("*.txt\n")
    (tmp_path / "a.bin").write_text("x")
    (tmp_path / "a.txt").write_text("x")
    names = [item.name for item in find_files(tmp_path, pytest.fail)]
    assert names == [".gitignore", ".skyignore", "a.bin"]


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_git(tmp_path: Path, seed: int) -> None:
    """Random trees with random ignore files: the packed files are those that git would add.

    Checked inside a repository, and by spotd's own rules outside of one.
    """
    rng = random.Random(seed)
    names = ["a", "b", "ab", "a.log", "b.txt", "data", "x y"]
    patterns = ["a", "*.log", "/b", "data/", "!a.log", "a/**", "**/ab", "[a-b]", "x\\ y", "!data"]
    patterns += ["?b", "/a/b", "*", "!*/", "data/*", "!b.txt", "**/data/**", "a/*/b"]
    for _ in range(25):
        folder = tmp_path.joinpath(*rng.choices(names[:3] + ["data"], k=rng.randint(0, 3)))
        if folder.is_dir() or not any(parent.is_file() for parent in [folder, *folder.parents]):
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / rng.choice(names)
            if not file.exists():
                file.write_text("content")
    for folder in [tmp_path, tmp_path / "a"]:
        if folder.is_dir():
            lines = rng.sample(patterns, k=rng.randint(1, 4))
            (folder / ".gitignore").write_text("\n".join(lines) + "\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    result = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "-z", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
    )
    expected = sorted(name for name in result.stdout.decode().split("\0") if name)
    in_git = [item.name for item in find_files(tmp_path, pytest.fail) if item.path.is_file()]
    assert in_git == expected
    shutil.rmtree(tmp_path / ".git")
    by_rules = [item.name for item in find_files(tmp_path, pytest.fail) if item.path.is_file()]
    assert by_rules == expected
