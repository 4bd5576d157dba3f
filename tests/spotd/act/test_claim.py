"""Two databases that say that one deployment is theirs are told apart: one stands still."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.stores.base import StoreUnavailableError as ObjectsAwayError
from providers.stores.local import LocalStore
from spotd.act.claim import GONE_AFTER, NEWER, DeploymentClaim
from spotd.store.backup import back_up, restore
from spotd.store.errors import LostLeaseError
from spotd.store.sql_store import SqlStore, open_store
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.fake_world import NOW, HandClock

EVERY_S = 30.0
WILD = b'{"number": 99999999999999999999999, "holder": "x"}'
_NUMBERS = itertools.count(1)


class Box:
    """A daemon's claim on a database of its own; each is a process by itself."""

    def __init__(self, url: str, objects: LocalStore, clock: HandClock, name: str) -> None:
        self.url = url
        self.objects = objects
        self.clock = clock
        self.name = name
        self.store: SqlStore = open_store(
            url, now=clock.now_us, notify=lambda: None, deployment_factory=lambda: "d0"
        )
        self.restart()

    def restart(self) -> None:
        """What was in memory is gone."""
        number = _NUMBERS.__next__
        self.claim = DeploymentClaim(
            self.store, self.objects, self.clock, self.name, number, EVERY_S
        )

    def round(self) -> str:
        """A look, and the duty; whether it stands still, and why."""
        self.claim.look()
        self.claim.keep(self.duty())
        return self.claim.why()

    def duty(self) -> SqlStore:
        epoch = self.store.leases.take("claim", self.name, self.clock.now_us, 20_000_000)
        assert epoch is not None
        return self.store.fenced("claim", epoch)


Boxes = Callable[..., Box]


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    """Makes boxes that share a bucket and a clock; one `of` another starts with a copy of it."""
    objects, clock, made = LocalStore(tmp_path / "bucket"), HandClock(), list[Box]()

    def make(name: str, of: Box | None = None) -> Box:
        url = f"sqlite:///{tmp_path}/{name}.db"
        if of is not None:
            back_up(of.url, tmp_path / f"{name}.backup", clock.now_us())
            restore(url, tmp_path / f"{name}.backup", clock.now_us())
        made.append(Box(url, objects, clock, name))
        return made[-1]

    yield make
    for box in made:
        box.store.close()


def test_who_is_alone_never_stands_still(boxes: Boxes) -> None:
    box = boxes("one")
    for _ in range(5):
        assert box.round() == ""
        box.restart()
        box.clock.sleep(EVERY_S)


def test_of_a_database_and_its_copy_one_stands_still_as_long_as_the_other_lives(
    boxes: Boxes,
) -> None:
    one = boxes("one")
    one.round()
    copy = boxes("copy", of=one)
    one.round()
    for _ in range(3 * GONE_AFTER):
        assert "one uses another copy of this database" in copy.round()
        assert one.round() == ""
        copy.restart()
        one.clock.sleep(EVERY_S)
        assert copy.round()
        one.clock.sleep(EVERY_S)
    assert NEWER not in copy.store.deployment.quarantine()


def test_when_the_other_is_gone_the_copy_takes_over_and_trusts_nothing_unknown(
    boxes: Boxes,
) -> None:
    one = boxes("one")
    one.round()
    copy = boxes("copy", of=one)
    copy.store.deployment.set_quarantine("", NOW)
    one.round()
    waited_s = 0.0
    while copy.round():
        copy.clock.sleep(EVERY_S / 2)
        waited_s += EVERY_S / 2
    assert waited_s == GONE_AFTER * EVERY_S
    assert copy.store.deployment.quarantine() == NEWER
    assert "copy uses another copy" in one.round(), "when it comes back, it is the other"


def test_of_two_that_begin_at_once_one_goes_on(boxes: Boxes) -> None:
    one = boxes("one")
    one.round()
    copy = boxes("copy", of=one)
    assert copy.round() == "", "nobody has moved since the backup"
    assert one.round()
    assert (copy.round(), bool(one.round())) == ("", True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_who_dies_while_it_writes_knows_its_own_number(
    boxes: Boxes, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    box = boxes("one")
    box.round()
    write = box.objects.put_if

    def die(*arguments: Any) -> str:
        if when == "after":
            write(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(box.objects, "put_if", die)
    with pytest.raises(KeyboardInterrupt):
        box.round()
    monkeypatch.undo()
    box.restart()
    assert box.round() == ""


def test_two_daemons_on_one_database_are_one(boxes: Boxes) -> None:
    """The one that has not the duty looks only."""
    one = boxes("one")
    other = DeploymentClaim(one.store, one.objects, one.clock, "twin", _NUMBERS.__next__, EVERY_S)
    for _ in range(3):
        one.round()
        other.look()
        assert other.why() == ""


def test_two_boxes_with_folders_of_their_own_take_no_old_number_for_another(
    boxes: Boxes, tmp_path: Path
) -> None:
    """On PostgreSQL, with a store that they should share and do not: each has left there what it
    wrote when it last had the duty."""
    one = boxes("one")
    elsewhere = LocalStore(tmp_path / "elsewhere")
    twin = DeploymentClaim(one.store, elsewhere, one.clock, "twin", _NUMBERS.__next__, EVERY_S)
    for _ in range(3):
        for claim, other in ((one.claim, twin), (twin, one.claim)):
            for _ in range(3):
                claim.keep(one.duty())
                other.look()
                assert (claim.why(), other.why()) == ("", "")


def test_who_lost_the_duty_claims_nothing(boxes: Boxes) -> None:
    box = boxes("one")
    box.round()
    ours = box.duty()
    box.clock.sleep(30.0)
    assert box.store.leases.take("claim", "other", box.clock.now_us, 20_000_000)
    before = box.objects.get("claims/d0")
    with pytest.raises(LostLeaseError):
        box.claim.keep(ours)
    assert box.objects.get("claims/d0") == before


def test_a_bucket_that_is_away_proves_nothing(
    boxes: Boxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = boxes("one")
    box.round()

    def away(_key: str) -> Any:
        raise ObjectsAwayError("timed out")

    monkeypatch.setattr(box.objects, "get", away)
    box.claim.keep(box.duty())
    looked = threading.Event()
    watching = threading.Thread(target=box.claim.watch, args=(looked,))
    watching.start()
    assert looked.wait(LIMIT_S)
    box.claim.stop()
    watching.join(LIMIT_S)
    assert box.claim.why() == ""


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"number": "x", "holder": 1}', b"\xff", WILD])
def test_a_claim_that_cannot_be_read_is_nobodys(boxes: Boxes, data: bytes) -> None:
    box = boxes("one")
    box.objects.put("claims/d0", data)
    assert box.round() == ""
    assert box.round() == ""


def test_what_was_deleted_is_written_anew(boxes: Boxes) -> None:
    box = boxes("one")
    box.round()
    box.objects.delete("claims/d0")
    assert box.round() == ""
    assert box.objects.get("claims/d0")
