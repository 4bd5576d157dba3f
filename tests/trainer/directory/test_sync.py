"""Checkpoints of an unmodified program: saved when complete, restored when verified."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from providers.stores.base import StoreUnavailableError
from providers.stores.local import LocalStore
from providers.stores.multi_store import MultiStore
from spotd.wire import (
    CHECKPOINT,
    CHECKPOINT_FAILED,
    CHECKPOINT_SKIPPED,
    WARNING,
    Manifest,
    SavedFile,
    SavedFolder,
    Stream,
    parse_manifest,
)
from tests.fixtures.late import LateStore
from tests.trainer.directory.rig import Generation, torch_file, write_hf
from tests.trainer.saver.rig import Gate
from trainer.directory import archive
from trainer.directory.resume_check import NOT_RESUMED
from trainer.directory.sync import OPEN_WITHIN_S
from trainer.directory.units import STATE
from trainer.fence import FencedError, read_head
from trainer.saver.reader import CorruptError
from trainer.saver.shard_store_choice import MAX_FAILURES


@pytest.fixture
def store(tmp_path: Path) -> Gate:
    return Gate(LocalStore(tmp_path / "store"))


def contents(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }


def steps(store: Gate) -> list[int]:
    """The checkpoints whose data is in the store, oldest first."""
    keys = [info.key for info in store.list("jobs/job/g") if info.key.endswith("MANIFEST.json")]
    return sorted(parse_manifest(store.get(key)[0]).step for key in keys)


def shards(tmp_path: Path, name: str = "r*") -> list[Path]:
    return sorted((tmp_path / "store").glob(f"jobs/job/g*/s*/{name}"))


@pytest.mark.behaviour("the program's own checkpoints, byte for byte", way="directory mode")
def test_what_has_settled_is_there_on_the_next_machine(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store).start()
    path = write_hf(first.folder, 50)
    first.directory.sync()
    assert first.kinds() == []
    first.clock.pause(2.0)
    first.directory.sync()
    assert first.kinds() == [CHECKPOINT]
    report = first.reports[0][1]
    assert (report["step"], report["bytes"], report["final"]) == (
        50,
        sum(map(len, contents(path).values())),
        False,
    )
    first.settle()
    assert first.kinds() == [CHECKPOINT], "and not once more"
    second = Generation(tmp_path, store, 2).start()
    assert second.units() == ["checkpoint-50"]
    assert contents(second.folder / "checkpoint-50") == contents(path)
    second.settle()
    assert second.kinds() == [], "what was restored is not saved again"


def test_what_is_written_to_is_left_alone(tmp_path: Path, store: Gate) -> None:
    generation = Generation(tmp_path, store).start()
    path = write_hf(generation.folder, 50, complete=False)
    generation.settle(19.0)
    assert generation.kinds() == []
    (path / "more").write_text("x")
    generation.settle(19.0)
    assert generation.kinds() == [], "each change begins a new wait"
    with (path / "more").open("a"):
        generation.settle()
        assert generation.kinds() == [], "somebody has it open"
    generation.settle()
    assert generation.kinds() == [CHECKPOINT]


def test_a_file_that_changes_while_it_is_saved_is_no_checkpoint(
    tmp_path: Path, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = Generation(tmp_path, store).start()
    path = write_hf(generation.folder, 50)
    digest = archive.digest_file

    def and_then_change(file: Path, size: int) -> Stream:
        stream = digest(file, size)
        if file.name == STATE:  # the last one
            was = (path / "optimizer.pt").stat()
            (path / "optimizer.pt").write_text("other text 50"[: was.st_size])
            os.utime(path / "optimizer.pt", ns=(was.st_mtime_ns, was.st_mtime_ns))  # as if not
        return stream

    monkeypatch.setattr(archive, "digest_file", and_then_change)
    generation.settle()
    assert generation.kinds() == []
    assert (generation.fence.head and generation.fence.head.current) is None
    monkeypatch.setattr(archive, "digest_file", digest)
    generation.settle()
    assert generation.kinds() == [CHECKPOINT]


def test_one_that_is_removed_while_it_is_saved_is_reported(
    tmp_path: Path, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = Generation(tmp_path, store).start()
    path, digest = write_hf(generation.folder, 50), archive.digest_file

    def and_then_remove(file: Path, size: int) -> Stream:
        stream = digest(file, size)
        if file.name == STATE:
            shutil.rmtree(path)
        return stream

    monkeypatch.setattr(archive, "digest_file", and_then_remove)
    generation.settle()
    assert "keep more of its checkpoints" in generation.errors()[0]


def test_what_the_program_removes_stays_until_retention_takes_it(
    tmp_path: Path, store: Gate
) -> None:
    generation = Generation(tmp_path, store, keep=2).start()
    for step in (10, 20, 30, 40):
        shutil.rmtree(generation.folder)
        write_hf(generation.folder, step)
        generation.settle()
    assert steps(store) == [30, 40]
    shutil.rmtree(generation.folder / "checkpoint-40")
    generation.settle()
    assert steps(store) == [30, 40]
    assert Generation(tmp_path, store, 2).start().units() == ["checkpoint-40"]


@pytest.mark.behaviour(
    "a damaged checkpoint is passed over for the one before it",
    way="directory mode",
)
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, store: Gate, damage: str) -> None:
    first = Generation(tmp_path, store).start()
    for step in (10, 20):
        write_hf(first.folder, step)
        first.settle()
    name = "MANIFEST.json" if damage == "manifest" else "r00000-00000"
    path = shards(tmp_path, name)[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data[:-7] if damage == "cut" else data)
    if damage == "gone":
        path.unlink()
    second = Generation(tmp_path, store, 2).start()
    assert second.units() == ["checkpoint-10"]
    assert second.kinds() == [CHECKPOINT_SKIPPED]
    write_hf(second.folder, 15)
    second.settle()
    assert second.kinds() == [CHECKPOINT_SKIPPED, CHECKPOINT], "it goes on behind what is good"
    assert Generation(tmp_path, store, 3).start().units() == ["checkpoint-10", "checkpoint-15"]


@pytest.mark.behaviour("no usable checkpoint is an error, not a fresh start", way="directory mode")
def test_where_none_is_good_nothing_begins_afresh(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store).start()
    write_hf(first.folder, 10)
    first.settle()
    shards(tmp_path)[0].write_bytes(b"")
    with pytest.raises(CorruptError, match="no checkpoint of the job can be read"):
        Generation(tmp_path, store, 2).start()


def test_a_zombie_saves_nothing(tmp_path: Path, store: Gate) -> None:
    old = Generation(tmp_path, store).start()
    write_hf(old.folder, 10)
    old.settle()
    new = Generation(tmp_path, store, 2).start()
    for step in range(20, 70):
        write_hf(old.folder, step)
        with pytest.raises(FencedError):
            old.settle()
    with pytest.raises(FencedError):
        old.directory.finish()
    entry = read_head(store, "job")
    assert entry is not None
    assert (entry[0].generation, entry[0].current) == (2, new.fence.head.current)  # type: ignore[union-attr]
    assert old.kinds() == [CHECKPOINT]


def test_the_whole_folder_is_restored_and_the_newest_of_all_is_the_youngest(
    tmp_path: Path, store: Gate
) -> None:
    first = Generation(tmp_path, store, keep=4).start()
    for step in (10, 20):
        (first.folder / f"epoch=0-step={step}.ckpt").write_bytes(torch_file(f"at {step}"))
        first.settle()
        if step == 10:
            (first.folder / "last.ckpt").write_bytes(torch_file("at 10"))
            first.settle()
    second = Generation(tmp_path, store, 2).start()
    assert second.units() == ["epoch=0-step=10.ckpt", "epoch=0-step=20.ckpt", "last.ckpt"]
    at = [(second.folder / name).stat().st_mtime for name in second.units()]
    assert at[0] < at[2] < at[1]
    assert second.clock.now_s == 0
    (second.folder / "last.ckpt").write_bytes(torch_file("at 20"))
    second.settle()
    third = Generation(tmp_path, store, 3).start()
    assert (third.folder / "last.ckpt").read_bytes() == torch_file("at 20")


def test_a_name_that_is_written_again_is_saved_again(tmp_path: Path, store: Gate) -> None:
    generation = Generation(tmp_path, store, keep=1).start()
    for number in range(3):
        (generation.folder / "last.ckpt").write_bytes(torch_file(f"number {number}"))
        generation.settle()
    assert generation.kinds() == [CHECKPOINT] * 3
    assert steps(store) == [3], "the older ones went"


@pytest.mark.behaviour("a torn file is not saved", way="directory mode")
def test_a_torn_file_is_not_saved_however_long_it_lies_there(tmp_path: Path, store: Gate) -> None:
    generation = Generation(tmp_path, store).start()
    (generation.folder / "last.ckpt").write_bytes(torch_file("whole")[:-9])
    generation.settle(1e6)
    assert generation.reports == []
    generation.directory.finish()
    ((kind, warning),) = generation.reports
    assert kind == WARNING
    assert (
        "not complete when the program had ended, so not saved as it is: last.ckpt"
        in (warning["text"])
    )


def test_at_the_end_everything_is_saved_at_once(tmp_path: Path, store: Gate) -> None:
    generation = Generation(tmp_path, store).start()
    write_hf(generation.folder, 10)
    write_hf(generation.folder, 11, complete=False)
    generation.directory.finish(0.0)
    assert generation.steps() == [11]
    write_hf(generation.folder, 12)
    generation.directory.sync()
    generation.directory.finish(0.0)
    assert len(generation.reports) == 1, "nothing after that"


@pytest.mark.behaviour(
    "a checkpoint that a killed program was writing is left out",
    way="directory mode",
)
def test_what_a_killed_program_was_writing_stays_out(tmp_path: Path, store: Gate) -> None:
    generation = Generation(tmp_path, store).start()
    write_hf(generation.folder, 10, complete=False)
    generation.settle(5.0)
    write_hf(generation.folder, 11)
    half = write_hf(generation.folder, 12, complete=False)
    (generation.folder / "latest").write_text("something")
    generation.directory.finish(0.0, clean=False)
    assert generation.steps() == [11]
    again = Generation(tmp_path, store, 2).start()
    assert again.units() == ["checkpoint-10", "checkpoint-11"], "nor what may refer to it"
    assert half.exists()


def test_while_the_store_is_away_the_newest_waits_and_it_is_told_in_peace(
    tmp_path: Path, store: Gate
) -> None:
    generation = Generation(tmp_path, store).start()
    store.refusing = 10**9
    for step in (10, 20):
        write_hf(generation.folder, step)
        generation.settle()
    for _ in range(100):
        generation.clock.pause(1.0)
        generation.directory.sync()
    assert set(generation.kinds()) == {CHECKPOINT_FAILED}
    assert 5 <= len(generation.errors()) <= 12, "further and further apart"
    assert "the line is down" in generation.errors()[0]
    with pytest.raises(StoreUnavailableError):
        generation.directory.finish()
    store.refusing = 0
    generation.directory.finish()
    assert generation.reports[-1][1]["step"] == 20
    assert steps(store) == [20], "the older one was overtaken"


def test_another_agent_on_the_machine_knows_what_was_saved(tmp_path: Path, store: Gate) -> None:
    generation = Generation(tmp_path, store).start()
    write_hf(generation.folder, 10)
    generation.settle()
    generation.restart()
    generation.settle()
    assert generation.kinds() == [CHECKPOINT]
    write_hf(generation.folder, 20)
    generation.settle()
    assert generation.kinds() == [CHECKPOINT] * 2


def test_a_program_that_begins_afresh_is_told_of_and_overwrites_nothing(
    tmp_path: Path, store: Gate
) -> None:
    first = Generation(tmp_path, store).start()
    write_hf(first.folder, 100)
    first.settle()
    second = Generation(tmp_path, store, 2).start()
    write_hf(second.folder, 50)
    second.settle()
    second.settle()
    ((kind, warning),) = second.reports
    assert (kind, warning["verdict"]) == (WARNING, NOT_RESUMED)
    assert "it writes checkpoint-50, and 100 was restored" in warning["text"]
    write_hf(second.folder, 150)
    second.settle()
    third = Generation(tmp_path, store, 3).start()
    assert third.units() == ["checkpoint-100", "checkpoint-150", "checkpoint-50"]


def test_a_program_that_opens_nothing_of_what_was_restored_is_reported_once(
    tmp_path: Path, store: Gate
) -> None:
    first = Generation(tmp_path, store).start()
    write_hf(first.folder, 100)
    first.settle()
    second = Generation(tmp_path, store, 2, open_within_s=OPEN_WITHIN_S).start()
    second.settle(OPEN_WITHIN_S - 1)
    assert second.reports == [], "its imports may take long"
    second.settle(1)
    second.settle()
    ((kind, warning),) = second.reports
    assert (kind, warning["verdict"]) == (WARNING, NOT_RESUMED)
    assert "60 s after its start the program has opened none" in warning["text"]
    assert "the newest is checkpoint-100" in warning["text"]
    (second.folder / "checkpoint-100" / "optimizer.pt").read_bytes()
    second.settle()
    ((_, late),) = second.reports[1:]
    assert (late["verdict"], late["about"]) == (NOT_RESUMED, {"opened": True})


def test_a_program_that_overwrites_what_was_restored_is_reported_once(
    tmp_path: Path, store: Gate
) -> None:
    first = Generation(tmp_path, store).start()
    for step in (20, 40, 60):
        write_hf(first.folder, step)
        first.settle()
    second = Generation(tmp_path, store, 2).start()
    for step in (20, 40):
        write_hf(second.folder, step, text=f"anew {step}")
        second.settle()
    assert second.kinds() == [WARNING, CHECKPOINT, CHECKPOINT]
    warning = second.reports[0][1]
    assert warning["verdict"] == NOT_RESUMED
    assert "it writes checkpoint-20 again, and 60 was restored" in warning["text"]
    write_hf(second.folder, 60, text="anew 60")
    second.settle()
    assert second.kinds()[3:] == [CHECKPOINT], "it has caught up"


def test_a_program_that_opens_it_is_not_reported(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store).start()
    write_hf(first.folder, 100)
    first.settle()
    second = Generation(tmp_path, store, 2, open_within_s=OPEN_WITHIN_S).start()
    (second.folder / "checkpoint-100" / "optimizer.pt").read_bytes()
    second.settle(2 * OPEN_WITHIN_S)
    assert second.reports == []


def test_a_program_that_begins_is_not_asked_to_resume(tmp_path: Path, store: Gate) -> None:
    first = Generation(tmp_path, store, open_within_s=OPEN_WITHIN_S).start()
    first.settle(2 * OPEN_WITHIN_S)
    assert first.reports == []


def test_what_an_earlier_program_wrote_and_nobody_verified_is_set_aside(
    tmp_path: Path, store: Gate
) -> None:
    first = Generation(tmp_path, store).start()
    write_hf(first.folder, 10)
    first.settle()
    write_hf(first.folder, 10, text="half")
    write_hf(first.folder, 20, complete=False)
    second = Generation(tmp_path, store, 2)
    second.folder = first.folder  # the same machine
    second.settings = replace(second.settings, folder=first.folder)
    second.restart()
    second.start()
    assert second.units() == ["checkpoint-10"]
    assert (second.folder / "checkpoint-10" / "optimizer.pt").read_text() == "moments at 10"
    assert (second.folder / ".spotd-aside" / "checkpoint-20" / "optimizer.pt").exists()


def test_what_packages_and_setup_brought_stays_and_is_not_saved(
    tmp_path: Path, store: Gate
) -> None:
    first = Generation(tmp_path, store)
    for generation in (first, Generation(tmp_path, store, 2)):
        write_hf(generation.folder, 5, text="base model")
        (generation.folder / "train.py").write_text("the program")
    first.start()
    write_hf(first.folder, 10)
    first.settle()
    assert first.reports[0][1]["bytes"] == first.size("checkpoint-10")
    second = Generation(tmp_path, store, 2).start()
    assert second.units() == ["checkpoint-10", "checkpoint-5", "train.py"]
    assert (second.folder / "checkpoint-5" / "optimizer.pt").read_text() == "base model"


def test_a_first_generation_leaves_what_the_user_brought(tmp_path: Path, store: Gate) -> None:
    generation = Generation(tmp_path, store)
    write_hf(generation.folder, 5)
    assert generation.start().units() == ["checkpoint-5"]


@pytest.mark.parametrize(
    "path", ["checkpoint-1/../../x", "/etc/x", "checkpoint-2/x", "checkpoint-1//x", "../x"]
)
def test_a_manifest_leads_nowhere_else(tmp_path: Path, store: Gate, path: str) -> None:
    first = Generation(tmp_path, store).start()
    write_hf(first.folder, 1)
    first.settle()
    streams, _ = first.directory.final_content()
    saved = SavedFolder("checkpoint-1", 1, (SavedFile(path, "checkpoint-1", 0),) * len(streams))
    manifest = Manifest("job", 1, 2, 0, 1, streams, state=saved.to_state())
    first.fence.commit(manifest)
    second = Generation(tmp_path, store, 2).start()
    assert len(second.skipped()) == 1
    assert second.units() == ["checkpoint-1"]
    assert not list(tmp_path.glob("**/x"))


def test_one_of_so_many_steps_is_pinned(tmp_path: Path, store: Gate) -> None:
    generation = Generation(tmp_path, store, keep=1, every=25).start()
    for step in (10, 30, 40, 60, 70):
        write_hf(generation.folder, step)
        generation.settle()
    assert steps(store) == [30, 60, 70]
    second = Generation(tmp_path, store, 2).start()
    assert [path.name for path in second.checkpoints()] == [
        f"checkpoint-{n}" for n in (10, 30, 40, 60, 70)
    ]
    for path in second.checkpoints():
        assert contents(path) == contents(generation.folder / path.name)


def test_a_half_written_state_is_waited_for(tmp_path: Path, store: Gate) -> None:
    generation = Generation(tmp_path, store).start()
    path = write_hf(generation.folder, 10)
    (path / STATE).write_text("{")
    generation.settle(1e6)
    assert generation.reports == []
    (path / STATE).write_text("{}")
    generation.settle(2.0)
    assert generation.kinds() == [CHECKPOINT]


def test_files_go_to_the_store_beside_the_machine(tmp_path: Path, store: Gate) -> None:
    """Shards go to the authority while the regional store is away; manifests name the store."""
    east = Gate(LocalStore(tmp_path / "east"))
    both = MultiStore(store, {east.url: lambda: east}, east.url)
    first = Generation(tmp_path, both).start()
    path = write_hf(first.folder, 50)
    first.settle()
    report = first.reports[0][1]
    assert report["near_bytes"] == report["bytes"] == sum(map(len, contents(path).values()))
    assert shards(tmp_path) == []
    second = Generation(tmp_path, MultiStore(store, {east.url: lambda: east}), 2).start()
    assert contents(second.folder / "checkpoint-50") == contents(path)
    write_hf(second.folder, 60)
    second.settle()
    report = second.reports[0][1]
    own = [second.folder / "checkpoint-60" / name for name in ("optimizer.pt", STATE)]
    assert report["near_bytes"] == 0, "it has no store beside it"
    assert report["new_bytes"] == sum(path.stat().st_size for path in own), "the model is stored"
    third = Generation(tmp_path, both, 3).start()
    east.refusing = 10**6
    write_hf(third.folder, 70)
    for _ in range(MAX_FAILURES):
        third.settle(60.0)
    assert any(f"they go to {store.url}" in error for error in third.errors())
    assert third.reports[-1][1]["near_bytes"] == 0


def test_a_save_that_landed_late_is_followed_by_the_next(tmp_path: Path) -> None:
    """The one of another series has a lower number; HEAD may not go back to it."""
    late = LateStore(LocalStore(tmp_path / "store"))
    generation = Generation(tmp_path, late, keep=8).start()
    write_hf(generation.folder, 60)
    with late.losing():
        generation.settle()
    assert generation.kinds() == [CHECKPOINT_FAILED]
    shutil.rmtree(generation.folder / "checkpoint-60")  # which is not saved again
    (generation.folder / "step_55.pt").write_bytes(torch_file("best"))
    generation.directory.finish()
    entry = read_head(late, "job")
    assert entry is not None
    refs = [ref for ref in (entry[0].current, *entry[0].previous) if ref]
    assert [ref.step for ref in refs] == [60, 60]
    second = Generation(tmp_path, late, 2).start()
    assert second.units() == ["step_55.pt"]
