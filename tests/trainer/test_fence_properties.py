"""Several writers, a store that lies about outcomes, and whatever interleaving can be found."""

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
from tests.rigs.examples import examples
from trainer.fence import PREDECESSORS, Fence, FencedError

FAULTS = ["none", "none", "none", "lost answer", "lost request", "late", "twice"]


class LyingStore:
    """In memory. Before and after every call anything else may happen, as `draw` decides."""

    url = "memory:"

    def __init__(self, draw: Callable[[list[str]], str], meanwhile: Callable[[], None]) -> None:
        self._draw = draw
        self._meanwhile = meanwhile
        self._objects: dict[str, tuple[bytes, str]] = {}
        self._late: list[tuple[str, bytes, str | None]] = []
        self._versions = 0
        self.heads: list[Head] = []  # every version of HEAD there ever was

    def get(self, key: str) -> tuple[bytes, str]:
        self._meanwhile()
        if self._draw(["none", "none", "none", "down"]) == "down":
            raise StoreUnavailableError("read")
        if key not in self._objects:
            raise NotFoundError(key)
        return self._objects[key]

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        self._meanwhile()
        fault = self._draw(FAULTS)
        if fault == "lost request":
            raise StoreUnavailableError("request")
        if fault == "late":
            self._late.append((key, data, tag))
            raise StoreUnavailableError("late")
        new = self._apply(key, data, tag)
        if fault == "twice":  # as when a library repeats what had succeeded
            self._apply(key, data, tag)
        self._meanwhile()
        if fault == "lost answer":
            raise StoreUnavailableError("answer")
        return new

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
    """The writers and what they were told; each runs one call at a time, inside others' calls."""

    GENERATIONS = ((1, "a"), (1, "b"), (2, "c"), (2, "c"), (3, "d"))

    def __init__(self, draw: Callable[[list[str]], str]) -> None:
        self._draw = draw
        self.store = LyingStore(draw, self.meanwhile)
        self.nonces: dict[str, int] = {}
        self.fences = [self._fence(number) for number in range(len(self.GENERATIONS))]
        self.busy: set[int] = set()
        self.told: list[tuple[int, int]] = []  # writer, step: commits reported as done

    def _fence(self, number: int) -> Fence:
        def make_nonce() -> str:
            nonce = f"n{len(self.nonces)}"
            self.nonces[nonce] = number
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
        if number in self.busy:
            return
        self.busy.add(number)
        try:
            self._call(number)
        except StoreUnavailableError:
            pass
        except FencedError:
            # The last word on HEAD, when we are told that it is a stranger's, must not be our own.
            if self.store.heads:
                newest = self.store.heads[-1]
                assert self.nonces[newest.nonce] != number
        finally:
            self.busy.discard(number)

    def _call(self, number: int) -> None:
        fence = self.fences[number]
        generation = self.GENERATIONS[number][0]
        what = self._draw(["claim", "commit", "commit", "commit", "release"])
        head = fence.head
        if head is None or what == "claim":
            claimed = fence.claim()
            assert claimed.generation == generation
            return
        if head.released:
            return
        if what == "release":
            fence.release()
            return
        floor = max((h.current.step for h in self.store.heads if h.current), default=0)
        step = floor + int(self._draw(["0", "1", "2"]))
        fence.commit(Manifest("job", generation, step, 0, 1))
        self.told.append((number, step))


def check_history(heads: list[Head]) -> None:
    """What must hold for the sequence of all versions of HEAD."""
    for before, after in itertools.pairwise(heads):
        assert after.generation >= before.generation, "a lower generation wrote after a claim"
        assert after.seq == before.seq + 1
        assert after.nonce != before.nonce
        if after.generation == before.generation:
            assert after.owner == before.owner, "two owners of one generation"
        old_chain = tuple(ref for ref in (before.current, *before.previous) if ref)
        new_chain = tuple(ref for ref in (after.current, *after.previous) if ref)
        if new_chain != old_chain:
            assert after.previous == old_chain[:PREDECESSORS], "a committed checkpoint was lost"
        if before.current:
            assert after.current
            assert after.current.step >= before.current.step


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
    check_history(heads)
    for number, step in writers.told:
        generation = Writers.GENERATIONS[number][0]
        assert any(
            head.current
            and (head.current.generation, head.current.step) == (generation, step)
            and writers.nonces[head.nonce] == number
            for head in heads
        ), "a commit was reported that never was"
