"""Test the ignore rules against a table and against git itself."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from spotd.base.errors import ExitCode, UserError
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


def git(folder: Path, *arguments: str) -> None:
    options = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "-c",
        "protocol.file.allow=always",
    ]
    subprocess.run(
        ["git", "-C", str(folder), *options, *arguments], check=True, capture_output=True
    )


def fill(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that ignores *.bin, with one such file tracked all the same."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    root = tmp_path / "repository"
    fill(root, "top.py", "sub/train.py", "sub/tok.bin", "sub/.env", "sub/data/x", "sub/big.bin")
    (root / ".gitignore").write_text(".env\ndata/\n*.bin\n")
    git(root, "init", "-q")
    git(root, "add", "-f", "sub/tok.bin", "sub/train.py", ".gitignore")
    git(root, "commit", "-qm", "first")
    return root


def names(root: Path) -> list[str]:
    return [item.name for item in find_files(root, pytest.fail)]


def test_a_folder_of_a_repository_follows_the_rules_above_it(repository: Path) -> None:
    assert names(repository / "sub") == ["tok.bin", "train.py"]


def test_the_repository_itself_goes_without_its_git_folder(repository: Path) -> None:
    assert names(repository) == [".gitignore", "sub", "sub/tok.bin", "sub/train.py", "top.py"]


def test_rules_that_are_no_gitignore_file_count(repository: Path, tmp_path: Path) -> None:
    fill(repository, "sub/private.key", "sub/notes.txt")
    (repository / ".git/info/exclude").write_text("*.key\n")
    (tmp_path / "home/.config/git").mkdir(parents=True)
    (tmp_path / "home/.config/git/ignore").write_text("notes.txt\n")
    assert names(repository / "sub") == ["tok.bin", "train.py"]


def test_a_hooks_repository_is_ignored(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    assert names(repository / "sub") == ["tok.bin", "train.py"]


def test_a_submodule_has_its_own_rules(repository: Path, tmp_path: Path) -> None:
    module = tmp_path / "module"
    fill(module, "code.py", "kept.bin")
    (module / ".gitignore").write_text("*.tmp\n")
    git(module, "init", "-q")
    git(module, "add", ".")
    git(module, "commit", "-qm", "first")
    git(repository, "submodule", "add", "-q", str(module), "module")
    fill(repository, "module/scratch.tmp")
    packed = [name for name in names(repository) if name.startswith("module")]
    assert packed == ["module", "module/.gitignore", "module/code.py", "module/kept.bin"]


def test_the_rules_around_a_repository_hold_inside_it(repository: Path, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("secrets/\nhome\n")
    fill(repository, "secrets/key", "sub/secrets/key")
    packed = [name for name in names(tmp_path) if name.startswith("repository/sub")]
    assert packed == ["repository/sub", "repository/sub/tok.bin", "repository/sub/train.py"]
    assert "repository/secrets" not in names(tmp_path)


def test_skyignore_wins_over_git_but_not_over_the_git_folder(repository: Path) -> None:
    fill(repository, "sub/.git/config")
    (repository / "sub/.skyignore").write_text("data/\n")
    assert names(repository / "sub") == [".env", ".skyignore", "big.bin", "tok.bin", "train.py"]


@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_folder_that_git_ignores_as_a_whole_is_packed(repository: Path, below: str) -> None:
    """As in SkyPilot, a workdir is packed even if git ignores all of it, with a warning."""
    root = repository / f"sub/data{below}"
    fill(root, "words.txt", "old.log")
    (root / ".gitignore").write_text("*.log\n")
    warnings: list[str] = []
    names = {item.name for item in find_files(root, warnings.append)}
    assert names == {".gitignore", "words.txt", *({"x"} if not below else ())}
    assert warnings == [f"git ignores all of {root}: only the .gitignore files in it count"]


def test_without_git_the_ignore_files_count_with_a_warning(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    warnings: list[str] = []
    names = [item.name for item in find_files(repository, warnings.append)]
    assert names == [".gitignore", "sub", "sub/train.py", "top.py"]
    assert len(warnings) == 1
    assert "git is not installed" in warnings[0]


def test_a_bare_repository_is_a_folder_like_any_other(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "bare")], check=True)
    assert "HEAD" in names(tmp_path / "bare")


def test_an_error_of_git_is_quoted(repository: Path) -> None:
    """Continuing would pack files that git ignores."""
    (repository / ".git/index").write_text("not an index")
    with pytest.raises(UserError, match="index") as caught:
        find_files(repository / "sub", pytest.fail)
    assert ".skyignore" in caught.value.try_
    assert caught.value.exit_code is ExitCode.USAGE
