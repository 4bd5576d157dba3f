"""Property tests of the fence: several writers, lost responses, and arbitrary interleavings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from providers.stores.base import (
    ConflictError,
    NotFoundError,
    ObjectInfo,
    StoreUnavailableError,
)
from spotd.wire import Head, Manifest, head_key, parse_head
from tests.fixtures.examples import examples
from trainer.fence import PREDECESSORS, Fence, FencedError, StaleCommitError

FAULTS = ["none", "none", "none", "lost answer", "lost request", "late", "twice", "outage"]
OUTAGE = 12  # calls that fail after one whose request stays on the way: longer than a Fence tries


class LyingStore:
    """An in-memory store. `draw` decides what happens before and after each call."""

    url = "memory:"

    def __init__(self, draw: Callable[[list[str]], str], meanwhile: Callable[[], None]) -> None:
        self._draw = draw
        self._meanwhile = meanwhile
        self._objects: dict[str, tuple[bytes, str]] = {}
        self._late: list[tuple[str, bytes, str | None]] = []
        self._versions = 0
        self._down = 0
        self.heads: list[Head] = []  # every version of HEAD there ever was

    def get(self, key: str) -> tuple[bytes, str]:
        self._meanwhile()
        self._check_up()
        if self._draw(["none", "none", "none", "down"]) == "down":
            raise StoreUnavailableError("read")
        if key not in self._objects:
            raise NotFoundError(key)
        return self._objects[key]

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        self._meanwhile()
        self._check_up()
        fault = self._draw(FAULTS)
        if fault == "lost request":
            raise StoreUnavailableError("request")
        if fault in ("late", "outage"):
            self._down = OUTAGE if fault == "outage" else 0
            self._late.append((key, data, tag))
            raise StoreUnavailableError("late")
        new = self._apply(key, data, tag)
        if fault == "twice":  # as when a library repeats what had succeeded
            self._apply(key, data, tag)
        self._meanwhile()
        if fault == "lost answer":
            raise StoreUnavailableError("answer")
        return new

    def _check_up(self) -> None:
        if self._down:
            self._down -= 1
            raise StoreUnavailableError("down")

    def let_late_write_land(self) -> None:
        if self._late:
            try:
                self._apply(*self._late.pop(0))
            except ConflictError:
                return

    def _apply(self, key: str, data: bytes, tag: str | None) -> str:
        if self._objects.get(key, (b"", None))[1] != tag:
            raise ConflictError(key)
        self._versions += 1
        new = str(self._versions)
        self._objects[key] = (data, new)
        if key == head_key("job"):
            self.heads.append(parse_head(data))
        return new

    def get_range(self, key: str, start: int, length: int) -> bytes:
        raise NotImplementedError

    def put(self, key: str, data: object) -> None:
        raise NotImplementedError

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError


class Writers:
    """The writers and the results they saw. Calls of one writer run inside calls of others."""

    GENERATIONS = ((1, "a"), (1, "b"), (2, "c"), (2, "c"), (3, "d"))
    CALLS = ("claim", "commit", "commit", "commit", "last", "final", "release", "resume")

    def __init__(self, draw: Callable[[list[str]], str]) -> None:
        self._draw = draw
        self.store = LyingStore(draw, self.meanwhile)
        self.nonces: dict[str, tuple[int, str]] = {}  # the writer, and what it was doing
        self.fences = [self._fence(number) for number in range(len(self.GENERATIONS))]
        self.doing: dict[int, str] = {}
        self.told: list[tuple[int, int]] = []  # writer, step: commits reported as done

    def _fence(self, number: int) -> Fence:
        def make_nonce() -> str:
            nonce = f"n{len(self.nonces)}"
            self.nonces[nonce] = (number, self.doing[number])
            return nonce

        generation, owner = self.GENERATIONS[number]
        return Fence(
            self.store,
            "job",
            generation,
            owner,
            make_nonce=make_nonce,
            sleep=lambda _: None,
        )

    def meanwhile(self) -> None:
        match self._draw(["nothing", "nothing", "nothing", "late", "other"]):
            case "late":
                self.store.let_late_write_land()
            case "other":
                self.act()

    def act(self) -> None:
        number = int(self._draw([str(n) for n in range(len(self.fences))]))
        if number in self.doing:
            return
        fence = self.fences[number]
        call = "claim" if fence.head is None else self._draw(list(self.CALLS))
        self.doing[number] = call
        try:
            self._call(number, call)
        except StoreUnavailableError:
            pass
        except StaleCommitError:
            assert fence.head in self.store.heads, "what landed late is what the caller sees"
        except FencedError:
            # The last word on HEAD, when we are told that it is a stranger's, must not be our own.
            if self.store.heads:
                newest = self.store.heads[-1]
                assert self.nonces[newest.nonce][0] != number
        finally:
            del self.doing[number]

    def _call(self, number: int, call: str) -> None:
        fence = self.fences[number]
        generation = self.GENERATIONS[number][0]
        head = fence.head
        if head is None or call == "claim":
            claimed = fence.claim()
            assert claimed.generation == generation
            return
        if head.released or head.final:
            return
        if call == "release":
            fence.release()
            return
        refs = [ref for ref in (head.current, *head.previous) if ref]
        if call == "resume":
            if self._claimed(head):
                fence.resume_from(refs[int(self._draw(["0", "1"]))] if len(refs) > 1 else None)
            return
        # As far back as a caller may go who knows HEAD as this one does.
        floor = refs[0].step if refs else 0
        step = floor + int(self._draw(["0", "1", "2"]))
        manifest = Manifest("job", generation, step, 0, 1, final=call == "final")
        fence.commit(manifest, released=call == "last", keep=int(self._draw(["0", "12"])))
        self.told.append((number, step))

    def _claimed(self, head: Head) -> bool:
        """Resuming comes right after the claim, before anything is committed."""
        return self.nonces[head.nonce][1] == "claim"

    def check_history(self) -> None:
        """Invariants over the sequence of all versions of HEAD."""
        for before, after in itertools.pairwise(self.store.heads):
            claimed = self._claimed(after)
            assert after.generation >= before.generation, "a lower generation wrote after a claim"
            assert after.seq == before.seq + 1
            assert after.nonce != before.nonce
            if after.generation == before.generation:
                assert after.owner == before.owner, "two owners of one generation"
            if not claimed:
                assert after.released >= before.released, "what was given away was taken back"
            assert after.final >= before.final, "a job that had ended went on"
            self._check_chain(before, after)

    def _check_chain(self, before: Head, after: Head) -> None:
        old = [ref for ref in (before.current, *before.previous) if ref]
        new = [ref for ref in (after.current, *after.previous) if ref]
        if new != old:
            assert self.nonces[after.nonce][1] in ("commit", "last", "final")
            rest = new[1:]
            if self._claimed(before):  # and perhaps gone on from an older one
                old = old[old.index(rest[0]) :] if rest and rest[0] in old else old
                old = old if rest else []
            assert rest[:PREDECESSORS] == old[:PREDECESSORS], "a committed checkpoint was lost"
        steps = [ref.step for ref in new]
        assert steps == sorted(steps, reverse=True), "a checkpoint follows a later step"


@pytest.mark.req("RPV-16")
@settings(
    max_examples=examples(120),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_no_interleaving_breaks_the_fence(data: st.DataObject) -> None:
    draws = 0

    def draw(options: list[str]) -> str:
        nonlocal draws
        draws += 1
        if draws > 300:  # then nothing goes wrong any more
            return options[0]
        return data.draw(st.sampled_from(options))

    writers = Writers(draw)
    for _ in range(data.draw(st.integers(3, 15))):
        writers.act()
    heads = writers.store.heads
    writers.check_history()
    for number, step in writers.told:
        generation = Writers.GENERATIONS[number][0]
        assert any(
            head.current
            and (head.current.generation, head.current.step) == (generation, step)
            and writers.nonces[head.nonce][0] == number
            for head in heads
        ), "a commit was reported that never was"
