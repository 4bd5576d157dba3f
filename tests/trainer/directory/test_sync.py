"""Checkpoints of a program that knows nothing of us: saved when whole, restored when verified."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from providers.stores.base import StoreUnavailableError
from providers.stores.local import LocalStore
from providers.stores.several import SeveralStores
from spotd.wire import CHECKPOINT, CHECKPOINT_FAILED, CHECKPOINT_SKIPPED, parse_manifest
from tests.fixtures.late import LateStore
from tests.trainer.directory.rig import Keeper, torch_file, write_hf
from tests.trainer.saver.rig import Gate
from trainer.directory import archive
from trainer.directory.units import STATE
from trainer.fence import FencedError, read_head
from trainer.saver.reader import CorruptError
from trainer.saver.shard_store import TRIES


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
    """Whose bytes are there, oldest first."""
    keys = [info.key for info in store.list("jobs/job/g") if info.key.endswith("MANIFEST.json")]
    return sorted(parse_manifest(store.get(key)[0]).step for key in keys)


def shards(tmp_path: Path, name: str = "r*") -> list[Path]:
    return sorted((tmp_path / "store").glob(f"jobs/job/g*/s*/{name}"))


def test_what_has_settled_is_there_on_the_next_machine(tmp_path: Path, store: Gate) -> None:
    first = Keeper(tmp_path, store).start()
    path = write_hf(first.folder, 50)
    first.directory.sync()
    assert first.kinds() == []
    first.clock.pause(2.0)
    first.directory.sync()
    assert first.kinds() == [CHECKPOINT]
    told = first.told[0][1]
    assert (told["step"], told["bytes"], told["final"]) == (
        50,
        sum(map(len, contents(path).values())),
        False,
    )
    first.settle()
    assert first.kinds() == [CHECKPOINT], "and not once more"
    second = Keeper(tmp_path, store, 2).start()
    assert second.units() == ["checkpoint-50"]
    assert contents(second.folder / "checkpoint-50") == contents(path)
    second.settle()
    assert second.kinds() == [], "what was restored is not saved again"


def test_what_is_written_to_is_left_alone(tmp_path: Path, store: Gate) -> None:
    keeper = Keeper(tmp_path, store).start()
    path = write_hf(keeper.folder, 50, whole=False)
    keeper.settle(19.0)
    assert keeper.kinds() == []
    (path / "more").write_text("x")
    keeper.settle(19.0)
    assert keeper.kinds() == [], "each change begins a new wait"
    with (path / "more").open("a"):
        keeper.settle()
        assert keeper.kinds() == [], "somebody has it open"
    keeper.settle()
    assert keeper.kinds() == [CHECKPOINT]


def test_a_file_that_changes_while_it_is_saved_is_no_checkpoint(
    tmp_path: Path, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(tmp_path, store).start()
    path = write_hf(keeper.folder, 50)
    digest = archive.digest

    def and_then_change(*args: object) -> object:
        found = digest(*args)  # type: ignore[arg-type]
        was = (path / "optimizer.pt").stat()
        (path / "optimizer.pt").write_text("other text 50"[: was.st_size])
        os.utime(path / "optimizer.pt", ns=(was.st_mtime_ns, was.st_mtime_ns))  # as if not
        return found

    monkeypatch.setattr(archive, "digest", and_then_change)
    keeper.settle()
    assert keeper.kinds() == []
    assert (keeper.fence.head and keeper.fence.head.current) is None
    monkeypatch.setattr(archive, "digest", digest)
    keeper.settle()
    assert keeper.kinds() == [CHECKPOINT]


def test_one_that_is_removed_while_it_is_saved_is_told_of(
    tmp_path: Path, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(tmp_path, store).start()
    path, digest = write_hf(keeper.folder, 50), archive.digest

    def and_then_remove(*args: object) -> object:
        found = digest(*args)  # type: ignore[arg-type]
        shutil.rmtree(path)
        return found

    monkeypatch.setattr(archive, "digest", and_then_remove)
    keeper.settle()
    assert "keep more of its checkpoints" in keeper.errors()[0]


def test_what_the_program_removes_stays_until_retention_takes_it(
    tmp_path: Path, store: Gate
) -> None:
    keeper = Keeper(tmp_path, store, keep=2).start()
    for step in (10, 20, 30, 40):
        shutil.rmtree(keeper.folder)
        write_hf(keeper.folder, step)
        keeper.settle()
    assert steps(store) == [30, 40]
    shutil.rmtree(keeper.folder / "checkpoint-40")
    keeper.settle()
    assert steps(store) == [30, 40]
    assert Keeper(tmp_path, store, 2).start().units() == ["checkpoint-40"]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, store: Gate, damage: str) -> None:
    first = Keeper(tmp_path, store).start()
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
    second = Keeper(tmp_path, store, 2).start()
    assert second.units() == ["checkpoint-10"]
    assert second.kinds() == [CHECKPOINT_SKIPPED]
    write_hf(second.folder, 15)
    second.settle()
    assert second.kinds() == [CHECKPOINT_SKIPPED, CHECKPOINT], "it goes on behind what is good"
    assert Keeper(tmp_path, store, 3).start().units() == ["checkpoint-15"]


def test_where_none_is_good_nothing_begins_afresh(tmp_path: Path, store: Gate) -> None:
    first = Keeper(tmp_path, store).start()
    write_hf(first.folder, 10)
    first.settle()
    shards(tmp_path)[0].write_bytes(b"")
    with pytest.raises(CorruptError, match="no checkpoint of the job can be read"):
        Keeper(tmp_path, store, 2).start()


def test_a_zombie_saves_nothing(tmp_path: Path, store: Gate) -> None:
    old = Keeper(tmp_path, store).start()
    write_hf(old.folder, 10)
    old.settle()
    new = Keeper(tmp_path, store, 2).start()
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


def test_of_each_series_the_newest_is_restored_and_the_newest_of_all_is_the_youngest(
    tmp_path: Path, store: Gate
) -> None:
    first = Keeper(tmp_path, store, keep=4).start()
    for step in (10, 20):
        (first.folder / f"epoch=0-step={step}.ckpt").write_bytes(torch_file(f"at {step}"))
        first.settle()
        if step == 10:
            (first.folder / "last.ckpt").write_bytes(torch_file("at 10"))
            first.settle()
    second = Keeper(tmp_path, store, 2).start()
    assert second.units() == ["epoch=0-step=20.ckpt", "last.ckpt"]
    at = [(second.folder / name).stat().st_mtime for name in second.units()]
    assert at[0] > at[1]
    (second.folder / "last.ckpt").write_bytes(torch_file("at 20"))
    second.settle()
    third = Keeper(tmp_path, store, 3).start()
    assert (third.folder / "last.ckpt").read_bytes() == torch_file("at 20")


def test_a_name_that_is_written_again_is_saved_again(tmp_path: Path, store: Gate) -> None:
    keeper = Keeper(tmp_path, store, keep=1).start()
    for number in range(3):
        (keeper.folder / "last.ckpt").write_bytes(torch_file(f"number {number}"))
        keeper.settle()
    assert keeper.kinds() == [CHECKPOINT] * 3
    assert steps(store) == [3], "the older ones went"


def test_a_torn_file_is_not_saved_however_long_it_lies_there(tmp_path: Path, store: Gate) -> None:
    keeper = Keeper(tmp_path, store).start()
    (keeper.folder / "last.ckpt").write_bytes(torch_file("whole")[:-9])
    keeper.settle(1e6)
    keeper.directory.finish()
    assert keeper.told == []


def test_at_the_end_what_is_whole_is_saved_at_once(tmp_path: Path, store: Gate) -> None:
    keeper = Keeper(tmp_path, store).start()
    write_hf(keeper.folder, 10)
    write_hf(keeper.folder, 11, whole=False)
    keeper.directory.finish(0.0)
    assert [data["step"] for _, data in keeper.told] == [10]
    write_hf(keeper.folder, 12)
    keeper.directory.sync()
    keeper.directory.finish(0.0)
    assert len(keeper.told) == 1, "nothing after that"
    patient = Keeper(tmp_path, store, 2).start()
    write_hf(patient.folder, 20, whole=False)
    patient.directory.finish()
    assert [data["step"] for _, data in patient.told] == [20], "there is time: nobody waits"


def test_while_the_store_is_away_the_newest_waits_and_it_is_told_in_peace(
    tmp_path: Path, store: Gate
) -> None:
    keeper = Keeper(tmp_path, store).start()
    store.refusing = 10**9
    for step in (10, 20):
        write_hf(keeper.folder, step)
        keeper.settle()
    for _ in range(100):
        keeper.clock.pause(1.0)
        keeper.directory.sync()
    assert set(keeper.kinds()) == {CHECKPOINT_FAILED}
    assert 5 <= len(keeper.errors()) <= 12, "further and further apart"
    assert "the line is down" in keeper.errors()[0]
    with pytest.raises(StoreUnavailableError):
        keeper.directory.finish()
    store.refusing = 0
    keeper.directory.finish()
    assert keeper.told[-1][1]["step"] == 20
    assert steps(store) == [20], "the older one was overtaken"


def test_another_agent_on_the_machine_knows_what_was_saved(tmp_path: Path, store: Gate) -> None:
    keeper = Keeper(tmp_path, store).start()
    write_hf(keeper.folder, 10)
    keeper.settle()
    keeper.restart()
    keeper.settle()
    assert keeper.kinds() == [CHECKPOINT]
    write_hf(keeper.folder, 20)
    keeper.settle()
    assert keeper.kinds() == [CHECKPOINT] * 2


def test_a_program_that_begins_afresh_is_told_of_and_overwrites_nothing(
    tmp_path: Path, store: Gate
) -> None:
    first = Keeper(tmp_path, store).start()
    write_hf(first.folder, 100)
    first.settle()
    second = Keeper(tmp_path, store, 2).start()
    write_hf(second.folder, 50)
    second.settle()
    second.settle()
    assert second.kinds() == [CHECKPOINT_FAILED], "once"
    assert "SPOTD_RESUME" in second.errors()[0]
    write_hf(second.folder, 150)
    second.settle()
    assert Keeper(tmp_path, store, 3).start().units() == ["checkpoint-150"]


def test_what_nobody_verified_is_set_aside(tmp_path: Path, store: Gate) -> None:
    first = Keeper(tmp_path, store).start()
    write_hf(first.folder, 10)
    first.settle()
    second = Keeper(tmp_path, store, 2)
    write_hf(second.folder, 10, text="half")
    write_hf(second.folder, 20, whole=False)
    (second.folder / "notes.txt").write_text("mine")
    second.start()
    assert second.units() == ["checkpoint-10", "notes.txt"]
    assert (second.folder / "checkpoint-10" / "optimizer.pt").read_text() == "moments at 10"
    assert (second.folder / ".spotd-aside" / "checkpoint-20" / "optimizer.pt").exists()


def test_a_first_generation_leaves_what_the_user_brought(tmp_path: Path, store: Gate) -> None:
    keeper = Keeper(tmp_path, store)
    write_hf(keeper.folder, 5)
    assert keeper.start().units() == ["checkpoint-5"]


@pytest.mark.parametrize(
    "path", ["checkpoint-1/../../x", "/etc/x", "checkpoint-2/x", "checkpoint-1//x", "../x"]
)
def test_a_manifest_leads_nowhere_else(tmp_path: Path, store: Gate, path: str) -> None:
    first = Keeper(tmp_path, store).start()
    write_hf(first.folder, 1)
    state_of = archive.state_of
    with pytest.MonkeyPatch.context() as patch:

        def lie(unit: object, number: object) -> dict[str, object]:
            body = state_of(unit, number)[archive.STATE]  # type: ignore[arg-type]
            assert isinstance(body, dict)
            return {archive.STATE: {**body, "paths": [path] * len(body["paths"])}}

        patch.setattr(archive, "state_of", lie)
        patch.setattr(archive, "read_saved", lambda _: None)
        first.settle()
    assert first.kinds() == [CHECKPOINT]
    with pytest.raises(CorruptError):
        Keeper(tmp_path, store, 2).start()
    assert not list(tmp_path.glob("**/x"))


def test_one_of_so_many_steps_is_pinned(tmp_path: Path, store: Gate) -> None:
    keeper = Keeper(tmp_path, store, keep=1, every=25).start()
    for step in (10, 30, 40, 60, 70):
        write_hf(keeper.folder, step)
        keeper.settle()
    assert steps(store) == [30, 60, 70]


def test_a_half_written_state_is_waited_for(tmp_path: Path, store: Gate) -> None:
    keeper = Keeper(tmp_path, store).start()
    path = write_hf(keeper.folder, 10)
    (path / STATE).write_text("{")
    keeper.settle(1e6)
    assert keeper.told == []
    (path / STATE).write_text("{}")
    keeper.settle(2.0)
    assert keeper.kinds() == [CHECKPOINT]


def test_files_go_to_the_store_beside_the_machine(tmp_path: Path, store: Gate) -> None:
    """And to the job's own while that one is away; a manifest says where each is."""
    east = Gate(LocalStore(tmp_path / "east"))
    both = SeveralStores(store, {east.url: lambda: east}, east.url)
    first = Keeper(tmp_path, both).start()
    path = write_hf(first.folder, 50)
    first.settle()
    told = first.told[0][1]
    assert told["near_bytes"] == told["bytes"] == sum(map(len, contents(path).values()))
    assert shards(tmp_path) == []
    second = Keeper(tmp_path, SeveralStores(store, {east.url: lambda: east}), 2).start()
    assert contents(second.folder / "checkpoint-50") == contents(path)
    write_hf(second.folder, 60)
    second.settle()
    assert second.told[0][1]["near_bytes"] == 0, "it has no store beside it"
    third = Keeper(tmp_path, both, 3).start()
    east.refusing = 10**6
    write_hf(third.folder, 70)
    for _ in range(TRIES):
        third.settle(60.0)
    assert any(f"they go to {store.url}" in error for error in third.errors())
    assert third.told[-1][1]["near_bytes"] == 0


def test_a_save_that_landed_late_is_followed_by_the_next(tmp_path: Path) -> None:
    """The one of another series has a lower number; HEAD may not go back to it."""
    late = LateStore(LocalStore(tmp_path / "store"))
    keeper = Keeper(tmp_path, late, keep=8).start()
    write_hf(keeper.folder, 60)
    with late.losing():
        keeper.settle()
    assert keeper.kinds() == [CHECKPOINT_FAILED]
    shutil.rmtree(keeper.folder / "checkpoint-60")  # which is not saved again
    (keeper.folder / "step_55.pt").write_bytes(torch_file("best"))
    keeper.directory.finish()
    entry = read_head(late, "job")
    assert entry is not None
    refs = [ref for ref in (entry[0].current, *entry[0].previous) if ref]
    assert [ref.step for ref in refs] == [60, 60]
    second = Keeper(tmp_path, late, 2).start()
    assert second.units() == ["checkpoint-60", "step_55.pt"]
