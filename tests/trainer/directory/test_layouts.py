"""The folders of other frameworks come back as they were, under the right step."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from providers.stores.local import LocalStore
from spotd.wire import CHECKPOINT
from tests.trainer.directory.layouts import LAYOUTS, Layout, Save, content, play
from tests.trainer.directory.rig import Generation
from tests.trainer.directory.test_whole_folder import described
from tests.trainer.saver.rig import Gate
from trainer.directory.units import step_number

# Where no name has a number, the saves are counted.
COUNTED = ("keras-weights", "keras-backup")


@pytest.fixture
def store(tmp_path: Path) -> Gate:
    return Gate(LocalStore(tmp_path / "store"))


def write(generation: Generation, save: Save, *, sync_every: int = 1, pause_s: float = 0.0) -> None:
    """Write a save while the folder is synced."""
    for number, _ in enumerate(play(generation.folder, save)):
        if number % sync_every == 0:
            generation.clock.pause(pause_s)
            generation.directory.sync()


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_two_saves_are_restored_as_they_were(tmp_path: Path, store: Gate, layout: Layout) -> None:
    first = Generation(tmp_path, store, keep=1).start()
    for count, save in enumerate(layout.saves, start=1):
        before = first.kinds()
        write(first, save)
        assert first.kinds() == before, "nothing is half-written"
        first.settle()
        assert first.kinds() == [*before, CHECKPOINT]
        # Step 0 would mean that nothing is saved.
        assert first.steps()[-1] == (count if layout.name in COUNTED else max(save.step, 1))
    expected = described(first.folder)
    second = Generation(tmp_path, store, 2).start()
    assert described(second.folder) == expected
    assert {path.relative_to(second.folder).as_posix() for path in second.folder.rglob("*")} >= set(
        layout.saves[-1].files
    )
    second.settle()
    assert second.kinds() == [], "what was restored is not saved again"


@pytest.mark.parametrize("ended", ["killed", "lost"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_wherever_the_machine_is_lost_no_pointer_leads_nowhere(
    tmp_path: Path, store: Gate, layout: Layout, ended: str
) -> None:
    one, two = layout.saves
    chosen = random.Random(layout.name).sample(range(len(two.events)), min(6, len(two.events)))
    for number in sorted({*chosen, len(two.events) - 1}):
        root = tmp_path / f"after-{number}"
        here = Gate(LocalStore(root / "store"))
        first = Generation(root, here, keep=1).start()
        write(first, one, sync_every=len(one.events))
        first.settle()
        assert first.kinds() == [CHECKPOINT]
        calls = play(first.folder, two)
        for _ in range(number + 1):
            next(calls)
            first.clock.pause(1.5)
            first.directory.sync()
        calls.close()
        if ended == "killed":
            first.directory.finish(0.0, clean=False)
        folder = Generation(root, here, 2).start().folder
        check_pointers(folder)
        check_whole(folder, layout)


def check_pointers(folder: Path) -> None:
    for name in ("latest", "latest_checkpointed_iteration.txt"):
        if (folder / name).exists():
            text = (folder / name).read_text()
            names = [path.name for path in folder.iterdir() if path.is_dir()]
            assert text in [*names, *(str(step_number(one)) for one in names)]


def check_whole(folder: Path, layout: Layout) -> None:
    """Each checkpoint has all its files, and each file is as one of the saves wrote it."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).as_posix().startswith(".spotd")
    }
    assert files
    # A hard link has the content of the other name.
    versions = {content(name, save) for save in layout.saves for name in save.files}
    for name, data in files.items():
        assert data in versions or name.endswith(".csv"), f"{name} is half-written"
    for save in layout.saves:
        for top in {name.split("/")[0] for name in save.files if "/" in name}:
            of_it = {name for name in save.files if name.startswith(f"{top}/")}
            if step_number(top) is not None and any(name in files for name in of_it):
                assert of_it <= files.keys(), f"{top} is incomplete"
