"""`spotctl ckpt` on the files that an unmodified program wrote: they come back as they were."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotd import wire
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.cli.test_checkpoints import Saves
from tests.trainer.directory.rig import Generation, torch_file, write_hf


@pytest.fixture
def saves(rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> Iterator[Saves]:
    return Saves(rig, spotctl, capsys)


@pytest.fixture
def program(saves: Saves, tmp_path: Path) -> Generation:
    """A program's folder on the job's machine."""
    return Generation(tmp_path / "machine", saves.store, 2, job=saves.id).start()


def final(saves: Saves, program: Generation) -> None:
    """End the job as the agent does: the final manifest names what the folder has."""
    program.directory.finish()
    streams, state = program.directory.final_content()
    head = program.fence.head
    assert head is not None
    step = head.current.step if head.current else 0
    program.fence.commit(
        wire.Manifest(saves.id, 2, step, 0, 1, streams=streams, state=state, final=True)
    )


def tree(folder: Path) -> dict[str, bytes]:
    """The content of each file by its path in the folder, without what spotd keeps there."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    named = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: data for name, data in named.items() if not name.startswith(".spotd")}


def test_a_job_that_succeeded_gives_its_files_back(
    saves: Saves, program: Generation, tmp_path: Path
) -> None:
    write_hf(program.folder, 100)
    program.settle()
    write_hf(program.folder, 256)
    (program.folder / "model_200.pt").write_bytes(torch_file("weights"))
    (program.folder / "best").symlink_to("checkpoint-100")
    program.settle()
    final(saves, program)
    newest = saves.data("ls", "gpt")["items"][0]
    assert newest["bytes"] == sum(map(len, tree(program.folder).values()))
    assert {unit["name"] for unit in newest["units"]} == {
        "best",
        "checkpoint-100",
        "checkpoint-256",
        "model_200.pt",
    }
    out = tmp_path / "out"
    saves.run("pull", "gpt", "--into", str(out))
    assert tree(out) == tree(program.folder)
    assert str((out / "best").readlink()) == "checkpoint-100"
    for name in ("model_200.pt", "checkpoint-256/optimizer.pt"):
        stat, before = (out / name).stat(), (program.folder / name).stat()
        assert stat.st_mtime_ns // 1000 == before.st_mtime_ns // 1000, "programs sort by age"
        assert stat.st_mode == before.st_mode
    assert not (out / ".spotd-pull").exists()
    assert "every byte as it was saved" in saves.run("verify", "gpt")[1]


def test_links_and_empty_folders_come_back_too(
    saves: Saves, program: Generation, tmp_path: Path
) -> None:
    folder = write_hf(program.folder, 100)
    (folder / "empty").mkdir()
    (program.folder / "logs").mkdir()
    (program.folder / "last.pt").write_bytes(torch_file("weights"))
    os.link(program.folder / "last.pt", program.folder / "best.pt")
    (program.folder / "latest").symlink_to("checkpoint-100")
    (program.folder / "base").symlink_to("../../base")
    for path in (folder, program.folder / "logs"):
        os.utime(path, (1e9, 1e9))
    program.settle()
    out = tmp_path / "out"
    _, text = saves.run("pull", "gpt", "--into", str(out))
    assert tree(out) == tree(program.folder)
    assert (out / "last.pt").stat().st_ino == (out / "best.pt").stat().st_ino
    assert (out / "logs").is_dir()
    assert (out / "checkpoint-100" / "empty").is_dir()
    assert [(out / name).stat().st_mtime for name in ("checkpoint-100", "logs")] == [1e9, 1e9]
    assert str((out / "latest").readlink()) == "checkpoint-100"
    assert not (out / "base").is_symlink(), "it would lead to the user's own files"
    assert "not made, because they lead out of it: base -> ../../base" in text
    saves.run("pull", "gpt", "best.pt", "--into", str(tmp_path / "best"))
    assert tree(tmp_path / "best") == {"best.pt": torch_file("weights")}


def test_one_of_the_program_s_checkpoints_by_its_name(
    saves: Saves, program: Generation, tmp_path: Path
) -> None:
    for step in (100, 256):
        write_hf(program.folder, step)
        program.settle()
    final(saves, program)
    out = tmp_path / "out"
    saves.run("pull", "gpt", "checkpoint-100/", "--into", str(out))
    assert [path.name for path in out.iterdir()] == ["checkpoint-100"]
    assert tree(out / "checkpoint-100") == tree(program.folder / "checkpoint-100")
    _, err = saves.run("pull", "gpt", "checkpoint-7", "--into", str(tmp_path / "x"), code=3)
    assert "checkpoint-7" in err


def test_ls_tells_a_step_from_a_count(saves: Saves, program: Generation) -> None:
    (program.folder / "model.bin").write_bytes(b"x" * 5000)
    program.settle()
    program.settle()
    out, _ = saves.run("ls", "gpt")
    assert out.splitlines()[1].split()[0] == "#1"
    assert out.splitlines()[1].split()[-1] == "model.bin"
    write_hf(program.folder, 40)
    program.settle()
    assert saves.run("ls", "gpt")[0].splitlines()[1].split()[0] == "40"


def test_pull_overwrites_nothing(saves: Saves, program: Generation, tmp_path: Path) -> None:
    write_hf(program.folder, 100)
    program.settle()
    out = tmp_path / "out"
    (out / "checkpoint-100").mkdir(parents=True)
    (out / "checkpoint-100" / "mine").write_text("x")
    _, err = saves.run("pull", "gpt", "--into", str(out), code=2)
    assert f"{out / 'checkpoint-100'} is there already" in err
    assert tree(out) == {"checkpoint-100/mine": b"x"}


def test_a_damaged_file_is_named_and_a_second_pull_goes_on(
    saves: Saves, program: Generation, tmp_path: Path
) -> None:
    for step in (100, 256):
        write_hf(program.folder, step)
        program.settle()
    item = saves.data("ls", "gpt")["items"][0]
    manifest = wire.parse_manifest(saves.store.get(item["manifest"])[0])
    key = manifest.shards[-1].key
    good = saves.store.get(key)[0]
    saves.store.put(key, bytes(len(good)))
    out = tmp_path / "out"
    _, err = saves.run("pull", "gpt", "--into", str(out), code=1)
    assert key in err
    assert tree(out) == {}, "nothing has its own name before all is verified"
    saves.store.put(key, good)
    stored = [path for path in (out / ".spotd-pull" / "files").rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in stored[:-1]}
    saves.run("pull", "gpt", "--into", str(out))
    assert tree(out) == tree(program.folder)
    assert before, "a part was downloaded once"


def test_what_another_checkpoint_shares_survives_rm(
    saves: Saves, program: Generation, tmp_path: Path
) -> None:
    """Each save describes the whole folder; what has not changed is stored once."""
    for step in (100, 256):
        write_hf(program.folder, step, text=f"moments {step}")
        program.settle()
    first, second = (
        wire.parse_manifest(saves.store.get(item["manifest"])[0])
        for item in reversed(saves.data("ls", "gpt")["items"])
    )
    assert {shard.key for shard in first.shards} < {shard.key for shard in second.shards}
    saves.run("rm", "gpt", "100")
    assert saves.steps() == [256]
    assert "every byte as it was saved" in saves.run("verify", "gpt")[1]
    saves.run("pull", "gpt", "--into", str(tmp_path / "out"))
    assert tree(tmp_path / "out") == tree(program.folder)


def test_a_pinned_save_keeps_the_shards_of_an_older_one(
    saves: Saves, program: Generation, tmp_path: Path
) -> None:
    for step in (100, 256, 300, 400, 500):
        write_hf(program.folder, step, text=f"moments {step}")
        program.settle()
        if step == 256:
            saves.run("pin", "gpt", "best", "--step", "256")
            pinned = tree(program.folder)
    program.settle()
    assert 100 not in saves.steps(), "retention removed it"
    saves.run("pull", "gpt", "best", "--into", str(tmp_path / "out"))
    assert tree(tmp_path / "out") == pinned


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"path": "../x"}, "../x"),
        ({"path": "/etc/x"}, "/etc/x"),
        ({"path": ".spotd-pull/x"}, ""),
    ],
)
def test_no_file_is_written_outside_the_folder(
    saves: Saves, tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    """The job's machines write the manifests."""
    folder = f"jobs/{saves.id}/g00000001/s000000000007-x"
    saves.store.put(f"{folder}/r0", b"secret")
    shard = wire.Shard(f"{folder}/r0", 6, 6, (wire.sha256(b"secret"),), "sha256")
    saved = wire.SavedFolder("x", 7, (wire.SavedFile("x", "x", 0),))
    state = json.loads(json.dumps(saved.to_state()))
    state["directory"]["files"][0] |= change
    manifest = wire.Manifest(saves.id, 1, 7, 0, 1, (wire.Stream((shard,)),), state=state)
    saves.fence.commit(manifest, key=f"{folder}/MANIFEST.json")
    saves.run("pull", "gpt", "--into", str(tmp_path / "out"), code=1)
    assert tree(tmp_path) == {} or not [p for p in tmp_path.rglob("x") if p.name == "x"]
