"""Data sets are brought to where a job may go next, once, within its cap, and near then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from providers.stores.base import StoreUnavailableError
from providers.stores.dataset_copy import LEASE, LEASE_EXPIRES_S, MARKER, CopyLock, is_data
from spotd.act import dataset_prefetch as ahead_module
from spotd.act.dataset_prefetch import BEGUN, DONE, NOT
from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.demo.s3 import serving
from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired
from spotd.money.focus import month_of
from spotd.observe.budgets import Budgets
from spotd.planner.core.dataset_transfer import freight
from spotd.planner.placement.rank import rank
from spotd.store.budget_queries import carried
from spotd.store.dataset_costs import paid_by_copy
from spotd.store.transfers import DataTransfer
from tests.fixtures.waiting import LIMIT_S, until
from tests.spotd.act.staging_box import NAME, Box, Setting
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig

FILES = {f"part-{n}": os.urandom(1000) for n in range(4)} | {"x/y": os.urandom(500), "empty": b""}
SIZE = 4500
USD = 4.5  # of one way, at GB_MICROUSD
ASKS = JOB_FILE + "  stage_ahead: {regions: 2, max_usd: 100}\nfile_mounts: {/d: dataset://corpus}\n"
GCP = replace(SPOT, provider="gcp", cloud="gcp", region="us-central1", zone="us-central1-a")
AZURE = replace(GCP, provider="azure", cloud="azure", region="eastus", zone="eastus-1")
LATER = replace(GCP, provider="far", cloud="far", region="far-1", zone="far-1a")


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    for number, offer in enumerate((GCP, AZURE, LATER)):
        dearer = replace(offer, price_microusd_per_h=25_000_000 + number)
        made.store.market.record_offers(offer.provider, [dearer], made.clock.now_us())
    yield made
    made.close()


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    names = {"home": ("aws", "us-east-1"), "gcp": ("gcp", "us-central1")}
    names |= {"azure": ("azure", "eastus"), "far": ("far", "far-1")}
    urls = {name: (tmp_path / name).as_uri() for name in names}
    made = Setting(
        urls["home"],
        [urls["gcp"], urls["azure"], urls["far"]],
        {urls[name]: place for name, place in names.items()},
        SIZE,
    )
    fill(made)
    return made


def fill(setting: Setting) -> None:
    store = setting.open(setting.url)
    for key, data in FILES.items():
        store.put(key, data)


@pytest.fixture
def box(rig: Rig, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Looks at once again at what failed; and asks for each object by itself."""
    monkeypatch.setattr(ahead_module, "PAUSE_S", 0.0)
    monkeypatch.setattr("providers.stores.dataset_copy.BATCH_FILES", 1)
    made = Box(setting, rig.store, rig.clock)
    yield made
    made.ahead.stop(LIMIT_S)


def content(setting: Setting, url: str) -> dict[str, bytes]:
    store = setting.open(url)
    return {one.key: store.get(one.key)[0] for one in store.list("") if is_data(one)}


def paid(box: Box, job_id: str) -> dict[str, float]:
    found = paid_by_copy(box.store.transfers.rows(job_id), box.market())
    return {url: microusd / 1e6 for url, microusd in found.items()}


def said(rig: Rig, job_id: str, *kinds: str) -> list[str]:
    return [
        row.event.text for row in rig.store.events.of_kinds(job_id, kinds or (BEGUN, DONE, NOT))
    ]


@pytest.mark.req("DAT-07")
def test_a_data_set_is_brought_to_as_many_regions_as_the_job_says(
    rig: Rig, box: Box, setting: Setting
) -> None:
    """To those that placement ranks first but where it runs, and each of them is near then."""
    job_id = rig.submit(text=ASKS)
    rig.launch(job_id, SPOT, ago_s=60)
    gcp, azure, far = setting.copies
    for _ in range(4):
        box.look()
    assert content(setting, gcp) == content(setting, azure) == FILES
    assert setting.open(gcp).get(MARKER)
    assert not Path(far.removeprefix("file://")).exists(), "the third is one too many"
    assert box.staged == {gcp, azure}
    assert paid(box, job_id) == {url: pytest.approx(USD, abs=0.001) for url in (gcp, azure)}
    job = rig.store.jobs.find(job_id)
    assert job is not None
    ways = {
        offer.provider: freight(job.spec, offer, box.market()).usd for offer in (GCP, AZURE, LATER)
    }
    assert ways == {"gcp": 0.0, "azure": 0.0, "far": pytest.approx(USD)}
    assert "was copied ahead of the job, for $4.50 with a month there" in said(rig, job_id, DONE)[0]
    assert not said(rig, job_id, NOT)
    with pytest.raises(Exception, match=LEASE):
        setting.open(gcp).get(LEASE)


@pytest.mark.req("DAT-07")
def test_near_counts_where_the_job_goes(rig: Rig, box: Box, setting: Setting) -> None:
    """A place that is out for its data's price is the best one when that is there."""
    setting.max_microusd = 5_000_000
    job_id = rig.submit(text=ASKS)
    job = rig.store.jobs.find(job_id)
    assert job is not None
    before = rank(job.spec, changed(box.market(), datasets=_dear(box)), 0)
    assert {row.offer.provider for row in before if row.excluded} == {"gcp", "azure", "far"}
    box.look()
    after = rank(job.spec, changed(box.market(), datasets=_dear(box)), 0)
    assert {row.offer.provider for row in after if row.excluded} == {"azure", "far"}


def _dear(box: Box) -> dict[str, object]:
    return {NAME: replace(box.market().stores.datasets[NAME], max_microusd=1)}


@pytest.mark.req("DAT-07")
@pytest.mark.parametrize(("cap", "brought"), [(4.4, 0), (4.6, 1), (8.9, 1), (9.1, 2)], ids=str)
def test_nothing_is_begun_that_the_cap_does_not_hold(
    rig: Rig, box: Box, setting: Setting, cap: float, brought: int
) -> None:
    job_id = rig.submit(text=ASKS.replace("max_usd: 100", f"max_usd: {cap}"))
    for _ in range(4):
        box.look()
    assert len(box.staged) == brought
    assert sum(paid(box, job_id).values()) <= cap
    refused = said(rig, job_id, NOT)
    assert bool(refused) is (brought < 2)
    assert all(f"exceeds stage_ahead.max_usd of ${cap:.2f}" in text for text in refused)
    read = sum(store.read for url, store in box.opened.items() if url == setting.url)
    assert read == brought * SIZE, "of what is not brought nothing is read"


def test_the_cap_holds_though_there_is_more_than_was_declared(
    rig: Rig, box: Box, setting: Setting
) -> None:
    setting.size_bytes = 100
    job_id = rig.submit(text=ASKS.replace("max_usd: 100", "max_usd: 4"))
    box.look()
    assert paid(box, job_id) == {}
    assert "$4.50 more exceeds stage_ahead.max_usd of $4.00" in said(rig, job_id, NOT)[0]
    setting.max_microusd = 4_000_000
    other = rig.submit("other", text=ASKS)
    rig.store.jobs.set_desired(job_id, Desired.PAUSE, rig.clock.now_us())
    box.look()
    assert "above max_usd of data set corpus" in said(rig, other, NOT)[0]
    assert box.staged == set()


@pytest.mark.req("DAT-07")
@pytest.mark.parametrize("cap", [6.6, 6.4])
def test_a_box_that_is_killed_is_followed_by_one_that_goes_on_within_the_cap(
    rig: Rig, box: Box, setting: Setting, tmp_path: Path, cap: float
) -> None:
    """What was under way when it was killed is paid for twice, and the cap knows."""
    asks = ASKS.replace("regions: 2, max_usd: 100", f"regions: 1, max_usd: {cap}")
    job_id = rig.submit(text=asks)
    [gcp, *_] = setting.copies
    order = tmp_path / "order.json"
    database = f"sqlite:///{rig.folder / 'db.sqlite'}"
    for held in (2, 1):  # objects are sent, and the next one is under way
        told = {"setting": asdict(setting), "database": database, "held": held}
        order.write_text(json.dumps(told))
        words = [sys.executable, "-m", "tests.spotd.act.staging_box", str(order)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "held\n"
            child.send_signal(signal.SIGKILL)
        setting.open(gcp).delete(LEASE)  # as if it had not been heard of for a minute
    assert content(setting, gcp).keys() == {"empty", "part-0", "part-1"}
    assert paid(box, job_id)[gcp] == pytest.approx(4, abs=0.001), "part-1 and part-2 twice"
    box.look()
    whole = cap > 6.5
    assert (content(setting, gcp) == FILES) is whole
    assert (box.staged == {gcp}) is whole
    assert paid(box, job_id)[gcp] == pytest.approx(6.5 if whole else 4, abs=0.001)
    assert ("exceeds stage_ahead.max_usd" in said(rig, job_id)[-1]) is not whole


def test_whoever_goes_on_sends_what_is_missing_alone(
    rig: Rig, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead_module, "PAUSE_S", 0.0)
    monkeypatch.setattr("providers.stores.dataset_copy.BATCH_FILES", 1)
    job_id = rig.submit(text=ASKS.replace("regions: 2", "regions: 1"))
    [gcp, *_] = setting.copies
    puts: list[str] = []

    def breaks(key: str) -> None:
        puts.append(key)
        if len(puts) == 4:
            raise StoreUnavailableError("the line broke")

    box = Box(setting, rig.store, rig.clock, breaks)
    box.look()
    assert "the line broke" in said(rig, job_id, NOT)[0]
    assert box.staged == set()
    spent = paid(box, job_id)[gcp]
    box.ahead = box.again()
    box.look()
    assert box.staged == {gcp}
    assert sorted(puts) == sorted([*FILES, puts[3]]), "each once, but the one that broke"
    sent = paid(box, job_id)[gcp]
    assert sent == pytest.approx(USD + len(FILES[puts[3]]) / 1000, abs=0.001)
    assert spent < sent
    box.look()
    assert paid(box, job_id)[gcp] == sent, "what is there is not paid for again"


def test_a_bucket_of_a_cloud_too(rig: Rig, box: Box, setting: Setting) -> None:
    """Objects of more than one part, through memory."""
    big = os.urandom((16 << 20) + 5)
    setting.open(setting.url).put("big", big)
    setting.size_bytes = len(big) + SIZE
    with serving() as bucket:
        setting.copies = [bucket.url]
        setting.places[bucket.url] = ("gcp", "us-central1")
        setting.options = {bucket.url: bucket.options}
        job_id = rig.submit(text=ASKS.replace("max_usd: 100", "max_usd: 100000"))
        box.look()
        assert content(setting, bucket.url) == {**FILES, "big": big}, said(rig, job_id)
        assert box.staged == {bucket.url}


@pytest.mark.req("DAT-07")
def test_it_is_part_of_the_bill_and_of_every_limit(rig: Rig, box: Box, setting: Setting) -> None:
    job_id = rig.submit(text=ASKS.replace("regions: 2", "regions: 1"))
    box.look()
    rig.clock.go_on(60)
    Budgets(list, rig.clock, places=lambda: setting.places).keep(rig.store)
    [row] = rig.store.storage_costs.rows()
    assert row.microusd / 1e6 == pytest.approx(USD, abs=0.001)
    view = rig.store.load_view(job_id, rig.clock.now_us())
    assert view is not None
    assert view.spent_microusd == row.microusd
    rig.places = setting.places
    rig.start()
    items = Client(rig.socket).call(routes.JOB_COST(job=job_id))
    assert items["carried_usd"] == pytest.approx(USD, abs=0.001)
    [month] = carried(rig.store, month_of(rig.clock.now_us())[0])
    assert (month.user, month.microusd) == ("ada", row.microusd)
    # A month later it lies there still, and that is all that it costs.
    rig.clock.go_on(40 * 86_400)
    Budgets(list, rig.clock, places=lambda: setting.places).keep(rig.store)
    assert sum(one.microusd for one in rig.store.storage_costs.rows()) == pytest.approx(
        row.microusd, abs=9
    )


def test_a_job_that_would_reach_its_own_limit_brings_nothing(rig: Rig, box: Box) -> None:
    job_id = rig.submit(text=ASKS.replace("  stage", "  budget: {max_cost_usd: 4}\n  stage"))
    box.look()
    assert "it would cost $4.50, beyond the job's max_cost_usd" in said(rig, job_id)[0]
    assert box.opened == {}


def test_what_was_just_brought_counts_in_the_jobs_own_limit(rig: Rig, box: Box) -> None:
    """Though nobody has looked at budgets since."""
    job_id = rig.submit(text=ASKS.replace("  stage", "  budget: {max_cost_usd: 6}\n  stage"))
    for _ in range(3):
        box.look()
        rig.clock.go_on(ahead_module.EVERY_S)
    assert sum(paid(box, job_id).values()) == pytest.approx(USD, abs=0.001)
    assert "it would cost $4.50, beyond the job's max_cost_usd" in said(rig, job_id, NOT)[0]


def test_the_jobs_own_limit_holds_though_there_is_more_than_was_declared(
    rig: Rig, box: Box, setting: Setting
) -> None:
    setting.size_bytes = 1000
    job_id = rig.submit(text=ASKS.replace("  stage", "  budget: {max_cost_usd: 4}\n  stage"))
    box.look()
    assert paid(box, job_id) == {}
    assert "it would cost $4.50, beyond the job's max_cost_usd" in said(rig, job_id, NOT)[0]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("why", ["contested", "safe"])
def test_a_box_that_may_buy_nothing_brings_nothing(
    rig: Rig, setting: Setting, monkeypatch: pytest.MonkeyPatch, why: str, when: str
) -> None:
    monkeypatch.setattr("providers.stores.dataset_copy.BATCH_FILES", 1)
    rig.submit(text=ASKS.replace("regions: 2", "regions: 1"))

    def stand_still(_key: str = "") -> None:
        if why == "safe":
            box.safe_until_us = rig.clock.now_us() + 1
        else:
            box.contested = "another spotd has this deployment"

    box = Box(setting, rig.store, rig.clock, stand_still)
    if when == "before":
        stand_still()
    box.look()
    sent = content(setting, setting.copies[0]) if box.opened else {}
    assert len(sent) == (when == "meanwhile"), "the one that was being sent"
    assert box.staged == set()


def test_it_makes_way_for_a_machine_that_wants_the_same(
    rig: Rig, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("providers.stores.dataset_copy.BATCH_FILES", 1)
    job_id = rig.submit(text=ASKS.replace("regions: 2", "regions: 1"))
    [gcp, *_] = setting.copies

    def arrives(_key: str) -> None:
        if not rig.store.nodes.active():
            rig.launch(job_id, GCP, ago_s=0)

    box = Box(setting, rig.store, rig.clock, arrives)
    box.look()
    assert len(content(setting, gcp)) == 1, "the one that was being sent"
    assert box.staged == set()
    assert CopyLock(setting.open(gcp)).acquire(), "and the machine has the turn at once"
    assert not said(rig, job_id, NOT), "nothing is wrong with that"


def test_a_job_that_ends_or_pauses_ends_it(
    rig: Rig, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("providers.stores.dataset_copy.BATCH_FILES", 1)
    job_id = rig.submit(text=ASKS)

    def pause(_key: str) -> None:
        rig.store.jobs.set_desired(job_id, Desired.PAUSE, rig.clock.now_us())

    box = Box(setting, rig.store, rig.clock, pause)
    box.look()
    box.look()
    assert len(content(setting, setting.copies[0])) == 1


def test_nobody_waits_for_a_copy(rig: Rig, setting: Setting) -> None:
    """Looks return while an object is being sent."""
    sent, over = threading.Event(), threading.Event()

    def hold(_key: str) -> None:
        sent.set()
        over.wait(LIMIT_S)
        over.set()  # nobody waits so long for the next one

    box = Box(setting, rig.store, rig.clock, hold)
    rig.submit(text=ASKS)
    try:
        box.ahead.look(rig.store)
        assert sent.wait(LIMIT_S)
        box.ahead.look(rig.store)
        assert box.staged == set()
    finally:
        over.set()
        box.ahead.wait(LIMIT_S)
    assert box.staged == {setting.copies[0]}


def test_a_copy_keeps_to_its_rate(rig: Rig, box: Box, setting: Setting) -> None:
    """Four parts of 1000 bytes at 2000 bytes a second take two seconds."""
    setting.bytes_per_s = 2000
    rig.submit(text=ASKS)
    began_s = time.monotonic()
    box.look()
    assert box.staged == {setting.copies[0]}
    # The first second's worth may come at once.
    assert time.monotonic() - began_s >= SIZE / setting.bytes_per_s - 1.1


def test_one_that_is_stopped_ends_soon(rig: Rig, box: Box, setting: Setting) -> None:
    setting.bytes_per_s = 1
    assert setting.bytes_per_s * LIMIT_S < SIZE
    rig.submit(text=ASKS)
    box.ahead.look(rig.store)
    until(lambda: sum(store.read for store in list(box.opened.values())))  # it is paced now
    box.ahead.stop(LIMIT_S)
    assert not any(thread.name == "ahead" for thread in threading.enumerate())


def test_whose_turn_it_is_not_waits_until_the_other_is_gone(
    rig: Rig, box: Box, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.submit(text=ASKS)
    now_s = [0.0]
    other = CopyLock(setting.open(setting.copies[0]))
    assert other.acquire()
    monkeypatch.setattr(ahead_module, "CopyLock", lambda store: CopyLock(store, lambda: now_s[0]))
    box.look()
    box.look()
    assert box.staged == set()
    now_s[0] = LEASE_EXPIRES_S + 1
    box.look()
    assert box.staged == {setting.copies[0]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda box: setattr(box, "box_microusd_per_gb", None), "[staging] usd_per_gb"),
        (lambda box: setattr(box.setting, "size_bytes", 0), "the size of data set corpus is not"),
        (lambda box: setattr(box.setting, "max_microusd", 1), "above max_usd of data set corpus"),
    ],
)
def test_what_is_not_known_is_told_once_and_not_guessed(
    rig: Rig, box: Box, change: Callable[[Box], None], words: str
) -> None:
    job_id = rig.submit(text=ASKS)
    change(box)
    for _ in range(3):
        box.look()
    assert box.opened.keys() == set()
    told = said(rig, job_id)
    assert words in told[0]
    assert len(told) == len(set(told))


def test_a_copy_that_somebody_deleted_costs_no_more(rig: Rig, box: Box, setting: Setting) -> None:
    job_id = rig.submit(text=ASKS.replace("regions: 2", "regions: 1"))
    box.look()
    [gcp, *_] = setting.copies
    box.again().look(rig.store)
    assert [row.gone_at_us for row in rig.store.transfers.rows(job_id)] == [0]
    store = setting.open(gcp)
    for key in (MARKER, *FILES):
        store.delete(key)
    rig.store.jobs.set_desired(job_id, Desired.PAUSE, rig.clock.now_us())
    box.again().look(rig.store)
    assert [row.gone_at_us for row in rig.store.transfers.rows(job_id)] == [rig.clock.now_us()]


@pytest.mark.parametrize("days", [0, 40], ids=["in the same month", "in another"])
def test_one_that_is_brought_again_costs_again_until_it_is_deleted_again(
    rig: Rig, box: Box, setting: Setting, days: int
) -> None:
    """As after a box that died between the record of what it was to send and the first of that."""
    job_id = rig.submit(text=ASKS.replace("regions: 2", "regions: 1"))
    [gcp, *_] = setting.copies
    month_us, _ = month_of(rig.clock.now_us())
    spent = DataTransfer(job_id, gcp, "", month_us, 1000, 10**6, 0, rig.clock.now_us())
    rig.store.transfers.add(spent)
    rig.store.transfers.end(job_id, gcp, rig.clock.now_us())
    rig.clock.go_on(days * 86_400)
    box.look()
    assert box.staged == {gcp}
    assert [row.gone_at_us for row in rig.store.transfers.rows(job_id)][-1] == 0
    for key in (MARKER, *FILES):
        setting.open(gcp).delete(key)
    rig.store.jobs.set_desired(job_id, Desired.PAUSE, rig.clock.now_us())
    box.again().look(rig.store)
    assert all(row.gone_at_us for row in rig.store.transfers.rows(job_id))
