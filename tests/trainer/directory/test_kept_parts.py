"""Housekeeping never deletes a part that a kept manifest names, whatever the program does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from providers.stores.base import NotFoundError
from providers.stores.local import LocalStore
from spotd.act import checkpoints
from spotd.wire import HeadRef, Pin, parse_manifest, parse_pin, pin_folder, pin_key
from tests.fixtures.examples import examples
from tests.trainer.directory.rig import Generation, torch_file
from tests.trainer.directory.test_whole_folder import described
from tests.trainer.saver.rig import Gate
from trainer.fence import read_head

NAMES = ("best.pt", "last.pt", "weights/last.pt", "model_7.pt", "checkpoint-{}/w.pt", "epoch_{}.pt")
written = st.tuples(st.just("write"), st.sampled_from(NAMES), st.integers(0, 3))
deleted = st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just(0))
others = st.tuples(
    st.sampled_from(("nothing", "nothing", "restart", "move", "pin", "unpin", "remove")),
    st.just(""),
    st.integers(0, 3),
)
rounds = st.tuples(st.lists(st.one_of(written, written, deleted), min_size=1, max_size=3), others)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


class Program:
    """A program that writes the same and other contents, on one machine after the other."""

    def __init__(self, root: Path, keep: int, every: int) -> None:
        self.root, self.keep, self.every = root, keep, every
        self.store = Gate(LocalStore(root / "store"))
        self.number, self.step = 1, 1
        self.generation = self._generation()

    def _generation(self) -> Generation:
        return Generation(
            self.root, self.store, self.number, keep=self.keep, every=self.every
        ).start()

    def do(self, what: str, name: str, value: int) -> None:
        path = self.generation.folder / name.format(self.step)
        if what == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(torch_file(f"content {value}"))
        elif what == "delete":
            path.unlink(missing_ok=True)
            if path.parent != self.generation.folder:
                shutil.rmtree(path.parent, ignore_errors=True)
        elif what == "save":
            self.generation.settle()
            self.step += 5
        elif what == "restart":
            self.generation.restart()
        elif what == "move":
            self.generation.directory.finish()
            before = described(self.generation.folder)
            self.number += 1
            self.generation = self._generation()
            if before:  # if nothing is left, the last save stays
                assert described(self.generation.folder) == before
        elif what != "nothing":
            self._change_kept(what, value)

    def _change_kept(self, what: str, value: int) -> None:
        refs, pins = self.refs(), self.pins()
        if what == "pin" and len(refs) > value and self._is_there(refs[value]):
            pin = Pin(f"mine-{value}", refs[value], 0, "test")
            self.store.put(pin_key("job", pin.name), pin.to_bytes())
        elif what == "unpin" and len(pins) > value:
            self.store.delete(pin_key("job", pins[value].name))
        elif what == "remove":
            kept = checkpoints.read_kept(self.store, "job")
            others = [saved for saved in kept.saved if saved != kept.newest and not saved.pins]
            if len(others) > value:
                saved = others[value]
                checkpoints.remove(self.store, "job", saved, kept.shards_except(saved))

    def refs(self) -> list[HeadRef]:
        entry = read_head(self.store, "job")
        assert entry is not None
        return [ref for ref in (entry[0].current, *entry[0].previous) if ref]

    def pins(self) -> list[Pin]:
        keys = [info.key for info in self.store.list(pin_folder("job"))]
        return [parse_pin(self.store.get(key)[0]) for key in keys]

    def _is_there(self, ref: HeadRef) -> bool:
        try:
            self.store.get(ref.manifest)
        except NotFoundError:
            return False
        return True

    def check(self) -> None:
        """Every manifest that is there has all its parts, and the newest and the pins are there."""
        there = {info.key: info.size for info in self.store.list("jobs/job/g")}
        for key in there:
            if key.endswith("/MANIFEST.json"):
                for shard in parse_manifest(self.store.get(key)[0]).shards:
                    assert there.get(shard.key) == shard.size, f"{key} lacks {shard.key}"
        for ref in [*self.refs()[:1], *(pin.ref for pin in self.pins())]:
            assert ref.manifest in there


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    keep=st.integers(1, 3),
    every=st.sampled_from((0, 10)),
    played=st.lists(rounds, min_size=6, max_size=14),
)
def test_no_part_of_a_kept_manifest_is_deleted(keep: int, every: int, played: list[Any]) -> None:
    with folder() as root:
        program = Program(root, keep, every)
        for changes, other in played:
            for change in changes:
                program.do(*change)
            program.do("save", "", 0)
            program.check()
            program.do(*other)
            program.check()
        program.do("move", "", 0)
        program.check()
