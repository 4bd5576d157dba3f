"""Which files on a machine are the outputs of a job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fixtures.waiting import wait_until
from trainer.outputs.files import Selection, select_changed, select_matching

LARGE = 10**12


def write(path: Path, size: int = 5) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def moment(folder: Path) -> int:
    """A time by the file system's clock: what is written later has a later one."""
    mark = folder.parent / "mark"
    mark.write_text("")
    began_ns = mark.stat().st_mtime_ns

    def has_passed() -> bool:
        mark.write_text("")
        return mark.stat().st_mtime_ns > began_ns

    wait_until("the file system's clock ticks", has_passed, every_s=0.001)
    return began_ns


def paths(selection: Selection) -> list[str]:
    return [file.path for file in selection.files]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "workdir"
    folder.mkdir()
    return folder


def test_what_changed_since_the_program_started(workdir: Path) -> None:
    write(workdir / "train.py")
    write(workdir / "data" / "old.bin")
    since_ns = moment(workdir)
    write(workdir / "final" / "model.safetensors", 100)
    write(workdir / "final" / "sub" / "config.json")
    write(workdir / "loss.png", 7)
    write(workdir / "data" / "new.bin")
    selection = select_changed(workdir, since_ns=since_ns, max_bytes=LARGE)
    assert sorted(paths(selection)) == [
        "data/new.bin",
        "final/model.safetensors",
        "final/sub/config.json",
        "loss.png",
    ]
    assert (selection.size, selection.problems) == (117, ())


def test_a_copy_with_an_old_time_has_changed(workdir: Path) -> None:
    """As `cp -p`, `tar` and `shutil.copy2` make."""
    since_ns = moment(workdir)
    os.utime(write(workdir / "copy.bin"), (100, 100))
    assert paths(select_changed(workdir, since_ns=since_ns, max_bytes=LARGE)) == ["copy.bin"]


@pytest.mark.parametrize(
    "path",
    [
        ".bashrc",
        ".cache/huggingface/model",
        "__pycache__/a.pyc",
        "lib/__pycache__/a.pyc",
        "venv/bin/python",
        "wandb/run",
        "x/.git/HEAD",
    ],
)
def test_caches_and_hidden_names_are_left_out(workdir: Path, path: str) -> None:
    write(workdir / path)
    assert paths(select_changed(workdir, since_ns=0, max_bytes=LARGE)) == []


def test_a_hidden_folder_deeper_down_is_taken(workdir: Path) -> None:
    write(workdir / "outputs" / "2026" / ".hydra" / "config.yaml")
    expected = ["outputs/2026/.hydra/config.yaml"]
    assert paths(select_changed(workdir, since_ns=0, max_bytes=LARGE)) == expected


def test_folders_are_taken_whole_or_not_at_all_the_smallest_first(workdir: Path) -> None:
    for number in range(3):
        write(workdir / "model" / f"shard-{number}", 40)
    write(workdir / "results" / "a.json", 30)
    write(workdir / "log.txt", 20)
    selection = select_changed(workdir, since_ns=0, max_bytes=100)
    assert paths(selection) == ["log.txt", "results/a.json"]
    (problem,) = selection.problems
    assert problem == (
        "model (120 B): more than the 100 B that are uploaded unless the job file names them in "
        "spotd: {outputs: [...]}"
    )
    assert len(select_changed(workdir, since_ns=0, max_bytes=170).files) == 5


def test_what_is_saved_elsewhere_is_skipped(workdir: Path) -> None:
    write(workdir / "out" / "checkpoint-1" / "x")
    write(workdir / "y")
    skip = (workdir / "out").__eq__
    assert paths(
        select_changed(
            workdir, since_ns=0, max_bytes=LARGE, skip=lambda path: any(map(skip, path.parents))
        )
    ) == ["y"]


def test_links(workdir: Path, tmp_path: Path) -> None:
    model = write(workdir / "model_50.bin", 9)
    (workdir / "best.bin").symlink_to(model.name)
    (workdir / "secret").symlink_to(write(tmp_path / "elsewhere"))
    (workdir / "dataset").symlink_to(tmp_path, target_is_directory=True)
    (workdir / "dangling").symlink_to("nothing")
    os.mkfifo(workdir / "pipe")
    selection = select_changed(workdir, since_ns=0, max_bytes=LARGE)
    assert sorted(paths(selection)) == ["best.bin", "model_50.bin"]
    assert {file.size for file in selection.files} == {9}


def test_a_missing_workdir_has_no_outputs(tmp_path: Path) -> None:
    assert select_changed(tmp_path / "nowhere", since_ns=0, max_bytes=LARGE) == Selection()


def test_patterns_in_their_order(workdir: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(workdir / "results" / "deep" / "b.json")
    write(workdir / "results" / "a.json")
    write(workdir / "x.png")
    write(workdir / "sub" / "y.png")
    write(workdir / ".hidden" / "z")
    write(home / "models" / "m.bin")
    absolute = write(tmp_path / "data" / "out.bin")
    selection = select_matching(
        workdir,
        home=home,
        patterns=("**/*.png", "./results/", "~/models", str(absolute), ".hidden", "x.png"),
    )
    assert paths(selection) == [
        "sub/y.png",
        "x.png",
        "results/a.json",
        "results/deep/b.json",
        "models/m.bin",
        str(absolute).lstrip("/"),
        ".hidden/z",
    ]
    assert selection.problems == ()


def test_a_pattern_that_matches_nothing_is_named(workdir: Path, tmp_path: Path) -> None:
    (workdir / "empty").mkdir()
    selection = select_matching(workdir, home=tmp_path, patterns=("*.onnx", "empty"))
    assert selection.files == ()
    assert selection.problems == (
        "'*.onnx' in outputs matches no file",
        "'empty' in outputs matches no file",
    )


def test_two_files_of_one_name_are_reported(workdir: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(workdir / "models" / "m")
    other = write(home / "models" / "m")
    selection = select_matching(workdir, home=home, patterns=("models", "~/models"))
    assert paths(selection) == ["models/m"]
    assert selection.problems == (f"{other}: another output has the name models/m",)


def test_the_workdir_itself(workdir: Path, tmp_path: Path) -> None:
    write(workdir / "__pycache__" / "a")
    write(workdir / "b")
    selection = select_matching(workdir, home=tmp_path, patterns=(".",))
    assert sorted(paths(selection)) == ["__pycache__/a", "b"]


def test_a_link_that_a_pattern_names_is_followed(workdir: Path, tmp_path: Path) -> None:
    write(tmp_path / "runs" / "7" / "model.bin")
    (workdir / "latest").symlink_to(tmp_path / "runs" / "7")
    assert paths(select_matching(workdir, home=tmp_path, patterns=("latest",))) == [
        "latest/model.bin"
    ]


def test_a_workdir_of_countless_files_is_not_looked_through(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.outputs.files.MAX_LOOKED_AT", 3)
    for number in range(5):
        write(workdir / "data" / str(number))
    selection = select_changed(workdir, since_ns=0, max_bytes=LARGE)
    assert len(selection.files) == 3
    (problem,) = selection.problems
    assert problem.startswith("more than 3 files are below the workdir: name those to upload")


def test_too_many_files_are_not_all_taken(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.outputs.files.MAX_FILES", 3)
    for number in range(5):
        write(workdir / "many" / str(number))
    changed = select_changed(workdir, since_ns=0, max_bytes=LARGE)
    assert "more than 3 files changed" in changed.problems[0]
    matching = select_matching(workdir, home=tmp_path, patterns=("many",))
    assert len(matching.files) == 3
    assert matching.problems == ("5 files match outputs, of which the first 3 are uploaded",)
