"""A restored folder is as it was: files, links, directories, modes and times."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from providers.stores.local import LocalStore
from spotd.wire import CHECKPOINT, WARNING, parse_manifest
from tests.trainer.directory.rig import Generation, torch_file, write_hf
from tests.trainer.saver.rig import Gate


@pytest.fixture
def store(tmp_path: Path) -> Gate:
    return Gate(LocalStore(tmp_path / "store"))


def described(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that a program can see of a folder, without what spotd keeps there."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if relative.startswith(".spotd"):
            continue
        stat = path.lstat()
        time_us = stat.st_mtime_ns // 1000
        if path.is_symlink():
            found[relative] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[relative] = ("folder", stat.st_mode & 0o777, time_us)
        else:
            found[relative] = ("file", stat.st_mode & 0o777, time_us, path.read_bytes())
    return found


def stored_bytes(tmp_path: Path) -> int:
    """Bytes of all shards in the store, other than manifests and HEAD."""
    return sum(path.stat().st_size for path in (tmp_path / "store").glob("jobs/job/g*/s*/r*"))


def age(folder: Path, seconds: float) -> None:
    """Make everything in the folder older, as if it had been written before."""
    for path in [*folder.rglob("*"), folder]:
        stat = path.lstat()
        times = (stat.st_atime_ns, stat.st_mtime_ns - int(seconds * 1e9))
        os.utime(path, ns=times, follow_symlinks=False)


def test_best_is_there_after_nine_others(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store, keep=1).start()
    weights = first.folder / "weights"
    weights.mkdir()
    (weights / "best.pt").write_bytes(torch_file("best"))
    first.settle()
    for number in range(9):
        (weights / "last.pt").write_bytes(torch_file(f"epoch {number}"))
        first.settle()
    assert first.kinds() == [CHECKPOINT] * 10
    expected = described(first.folder)
    assert expected["weights/best.pt"][3] == torch_file("best")
    assert described(Generation(tmp_path, store, 2).start().folder) == expected


def test_everything_a_folder_can_have(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store).start()
    out = first.folder
    path = write_hf(out, 5)
    (path / "nothing").mkdir()
    (out / "runs" / "a" / "plots").mkdir(parents=True)
    (out / "latest").symlink_to("checkpoint-5")
    (out / "absolute").symlink_to(path / "optimizer.pt")
    (out / "runs" / "a" / "best").symlink_to("../../checkpoint-5/model.safetensors")
    (out / "dangling").symlink_to("checkpoint-99")
    (out / "convert.sh").write_text("#!/bin/sh\n")
    (out / "convert.sh").chmod(0o755)
    (path / "optimizer.pt").chmod(0o600)
    (out / "runs").chmod(0o750)
    (out / ".state").write_text("hidden")
    (out / "name with spaces, é\nand a line").write_text("x")
    (out / os.fsdecode(b"latin-\xe9.txt")).write_text("not UTF-8")
    age(out, 1000)
    (out / "checkpoint-5" / "sub").touch()
    first.settle()
    expected = described(out)
    expected["absolute"] = ("link", "checkpoint-5/optimizer.pt")
    second = Generation(tmp_path, store, 2).start()
    assert described(second.folder) == expected
    assert second.units().count("latest") == 1
    second.settle()
    assert second.kinds() == [], "nothing has changed"
    write_hf(second.folder, 6)
    second.settle()
    third = Generation(tmp_path, store, 3).start()
    assert {name: found for name, found in described(third.folder).items() if name in expected} == (
        expected
    )


def test_hard_links_are_hard_links_again_and_stored_once(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store).start()
    (first.folder / "last.pth.tar").write_bytes(torch_file("epoch 11"))
    for name in ("checkpoint-11.pth.tar", "model_best.pth.tar"):
        os.link(first.folder / "last.pth.tar", first.folder / name)
    (first.folder / "other.pt").write_bytes(torch_file("epoch 11"))
    first.settle()
    assert stored_bytes(tmp_path) == len(torch_file("epoch 11"))
    for number in (2, 3):
        generation = Generation(tmp_path, store, number).start()
        folder = generation.folder
        inodes = {path.name: path.stat().st_ino for path in folder.glob("[!.]*")}
        copy = inodes.pop("other.pt")
        names = {inodes[name] for name in inodes if name.endswith(".tar")}
        assert len(names) == 1, "three names of one file"
        assert copy not in names
        (folder / f"added-{number}.pt").write_bytes(torch_file(f"{number}"))
        generation.settle()


def test_a_link_out_of_the_folder_is_kept_and_reported_once(tmp_path: Path, store: Gate) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "base.pt").write_text("base")
    first = Generation(tmp_path, store).start()
    (first.folder / "base").symlink_to("../data")
    write_hf(first.folder, 5)
    first.settle()
    write_hf(first.folder, 6)
    first.settle()
    warnings = [data["text"] for kind, data in first.reports if kind == WARNING]
    assert warnings == [
        "base is a link out of the folder, to ../data: the link is saved, but not what it points to"
    ]
    second = Generation(tmp_path, store, 2).start()
    assert str((second.folder / "base").readlink()) == "../data"
    assert not any(b"base" in path.read_bytes() for path in (tmp_path / "store").rglob("r*"))


def test_what_the_program_deletes_does_not_come_back(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store).start()
    for step in (10, 20, 30):
        write_hf(first.folder, step)
        for old in first.checkpoints()[:-1]:
            shutil.rmtree(old)
        first.settle()
    second = Generation(tmp_path, store, 2).start()
    assert second.units() == ["checkpoint-30"]
    write_hf(second.folder, 40)
    second.settle()
    shutil.rmtree(second.folder / "checkpoint-30")
    second.directory.finish()
    assert Generation(tmp_path, store, 3).start().units() == ["checkpoint-40"], (
        "neither what it deleted as the last thing"
    )


def test_a_deleted_one_leaves_the_save_while_another_file_is_always_written(
    tmp_path: Path, store: Gate
) -> None:
    first = Generation(tmp_path, store).start()
    with (first.folder / "progress.txt").open("a") as progress:
        for step in (10, 20, 30):
            write_hf(first.folder, step)
            for old in first.checkpoints()[:-1]:
                shutil.rmtree(old)
            for _ in range(30):
                progress.write("step\n")
                progress.flush()
                first.clock.pause(1.0)
                first.directory.sync()
    assert first.steps() == [10, 20, 30]
    assert Generation(tmp_path, store, 2).start().units() == ["checkpoint-30"]


def test_the_old_one_stays_until_its_successor_is_saved(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store).start()
    (first.folder / "best-1.bin").write_bytes(bytes(9000))
    (first.folder / "last.pt").write_bytes(torch_file("1"))
    first.settle()
    (first.folder / "best-1.bin").unlink()
    (first.folder / "last.pt").write_bytes(torch_file("2"))
    with (first.folder / "best-2.bin").open("wb") as file:
        file.write(bytes(100))
        file.flush()
        first.settle(3.0)
        assert first.kinds() == [CHECKPOINT] * 2
        assert Generation(tmp_path, store, 2).start().units() == ["best-1.bin", "last.pt"]


def test_the_only_checkpoint_stays_until_there_is_another(tmp_path: Path, store: Gate) -> None:
    """torchtune deletes the old one before it writes the new one."""
    first = Generation(tmp_path, store).start()
    step = first.folder / "step_50"
    step.mkdir()
    (step / "model.bin").write_bytes(bytes(9000))
    (first.folder / "config.yaml").write_text("a")
    first.settle()
    shutil.rmtree(step)
    (first.folder / "config.yaml").write_text("b")
    first.settle()
    assert first.kinds() == [CHECKPOINT] * 2
    (first.folder / "step_100").mkdir()
    first.directory.finish(0.0, clean=False)
    second = Generation(tmp_path, store, 2).start()
    assert second.units() == ["config.yaml", "step_50"]
    assert (second.folder / "config.yaml").read_text() == "b"


def test_a_file_that_is_kept_open_blocks_nothing(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store).start()
    with (first.folder / "events.db").open("ab") as log:
        log.write(b"begun")
        log.flush()
        first.settle(21.0)
        for step in (10, 20):
            write_hf(first.folder, step)
            first.settle(3.0)
    assert first.steps() == [10, 20]


def test_a_model_waits_for_its_optimizer(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store).start()
    last = first.folder / "last"
    last.mkdir()

    def write(content: str) -> None:
        (last / "model.bin").write_bytes(torch_file(f"model {content}"))
        with (last / "optimizer.bin").open("wb") as file:
            data = torch_file(f"optimizer {content}")
            file.write(data[:100])
            file.flush()
            for _ in range(5):
                first.clock.pause(5.0)
                first.directory.sync()
            file.write(data[100:])

    write("1")
    assert first.kinds() == []
    first.settle()
    write("2")
    assert first.kinds() == [CHECKPOINT]
    second = Generation(tmp_path, store, 2).start()
    assert (second.folder / "last" / "model.bin").read_bytes() == torch_file("model 1")


def test_a_pointer_waits_for_what_it_names(tmp_path: Path, store: Gate) -> None:
    """However often the checkpoint is found broken."""
    first = Generation(tmp_path, store).start()
    for name in ("last-1.pt", "last-2.pt"):
        whole = name == "last-1.pt"
        data = torch_file(name)
        (first.folder / name).write_bytes(data if whole else data[:-9])
        (first.folder / "latest.txt").write_text(f"{name}\n")
        (first.folder / "latest.json").write_text(f'{{"path": "{name}"}}')
        (first.folder / "latest").unlink(missing_ok=True)
        (first.folder / "latest").symlink_to(name)
        first.settle()
    write_hf(first.folder, 3)
    first.settle()
    folder = Generation(tmp_path, store, 2).start().folder
    assert sorted(path.name for path in folder.glob("[!.]*")) == [
        "checkpoint-3",
        "last-1.pt",
        "latest",
        "latest.json",
        "latest.txt",
    ]
    assert str((folder / "latest").readlink()) == "last-1.pt"
    assert (folder / "latest.txt").read_text() == "last-1.pt\n"
    assert (folder / "latest.json").read_text() == '{"path": "last-1.pt"}'


def test_a_big_file_that_does_not_change_is_uploaded_once(tmp_path: Path, store: Gate) -> None:
    big = os.urandom(5 << 20)
    first = Generation(tmp_path, store, keep=1).start()
    (first.folder / "base.bin").write_bytes(big)
    first.settle()
    for number in range(4):
        (first.folder / "last.pt").write_bytes(torch_file(f"epoch {number}"))
        (first.folder / "base.bin").touch()
        first.settle()
    (first.folder / "base.bin").rename(first.folder / "renamed.bin")
    first.settle()
    uploaded = sum(data["new_bytes"] for kind, data in first.reports if kind == CHECKPOINT)
    assert uploaded == len(big) + sum(len(torch_file(f"epoch {n}")) for n in range(4))
    assert stored_bytes(tmp_path) == len(big) + len(torch_file("epoch 3"))
    second = Generation(tmp_path, store, 2).start()
    assert (second.folder / "renamed.bin").read_bytes() == big
    (second.folder / "last.pt").write_bytes(torch_file("epoch 5"))
    second.settle()
    assert second.reports[-1][1]["new_bytes"] == len(torch_file("epoch 5"))


def test_a_mode_is_content_and_a_time_is_kept_at_the_end(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store).start()
    write_hf(first.folder, 5)
    script = first.folder / "run.sh"
    script.write_text("echo")
    first.settle()
    script.chmod(0o700)
    first.settle()
    assert first.kinds() == [CHECKPOINT] * 2
    script.touch()
    first.settle()
    assert first.kinds() == [CHECKPOINT] * 2, "a time alone is no checkpoint"
    first.directory.finish()
    assert described(Generation(tmp_path, store, 2).start().folder) == described(first.folder)


def test_a_folder_that_is_about_to_be_written_to_is_not_restored_empty(
    tmp_path: Path, store: Gate
) -> None:
    """transformers would resume from the empty checkpoint."""
    first = Generation(tmp_path, store).start()
    write_hf(first.folder, 5)
    (first.folder / "checkpoint-6").mkdir()
    first.settle()
    first.directory.finish()
    assert Generation(tmp_path, store, 2).start().units() == ["checkpoint-5"]


def test_a_folder_that_is_divided_otherwise_later(tmp_path: Path, store: Gate) -> None:
    """Files that were saved one by one become one checkpoint, and the other way round."""
    first = Generation(tmp_path, store).start()
    final = first.folder / "final"
    final.mkdir()
    (final / "model.safetensors").write_bytes(b"x" * 100)
    (first.folder / "epoch_1" / "step_1").mkdir(parents=True)
    (first.folder / "epoch_1" / "step_1" / "w.bin").write_bytes(b"1")
    first.settle()
    (final / "config.json").write_text("{}")
    (first.folder / "epoch_1" / "step_2").mkdir()
    (first.folder / "epoch_1" / "step_2" / "w.bin").write_bytes(b"2")
    first.settle()
    first.settle()
    expected = described(first.folder)
    second = Generation(tmp_path, store, 2).start()
    assert second.skipped() == []
    assert described(second.folder) == expected


def test_equal_steps_do_not_pile_up_in_the_store(tmp_path: Path, store: Gate) -> None:
    """Where only the oldest file has a number, every save has the same step."""
    first = Generation(tmp_path, store, keep=2).start()
    (first.folder / "model_5.pt").write_bytes(torch_file("5"))
    for number in range(6):
        (first.folder / "last.pt").write_bytes(torch_file(f"{number}"))
        first.settle()
    manifests = list((tmp_path / "store").glob("jobs/job/g*/s*/MANIFEST.json"))
    assert [parse_manifest(path.read_bytes()).step for path in manifests] == [5, 5]
    kept = [torch_file(text) for text in ("5", "4", "5")]
    assert stored_bytes(tmp_path) <= sum(map(len, kept))
