"""Test that git's ignore rules apply in a repository, and that tracked files are packed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spotd.base.errors import ExitCode, UserError
from spotd.packaging.archive import find_files


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
