"""A real machine saves into another cloud's bucket with what it was lent, over real SSH, while the
box that lends is dead for half of the time that it lasts. Twelve hours are eight seconds here."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.aws.credential_leases import AwsCredentialIssuer
from spotd import wire
from spotd.act.credential_leases import CredentialLeases
from spotd.domain.job import CheckpointSpec
from spotd.planner.core.credential_lease import StoreAccess
from tests.fixtures import lending as rig
from tests.fixtures.lending import PROFILE, ROLE, Lending
from tests.fixtures.search import files_with
from tests.fixtures.station import NODE, Station, station
from tests.fixtures.waiting import wait_until
from tests.spotd.store import build

LASTS_S = 8.0
CANARIES = ("SecretAccessKey", "SessionToken")

# Saves under a new name ten times a second; what fails is written down, and so is where the
# credentials came from. It never looks at a clock, or for anything but the store's own options.
SAVE = """
import json, os, sys, time
sys.path.insert(0, {root!r})
from providers.stores import open_store
options = json.loads(os.environ["SPOTD_STORE_OPTIONS"])
store, number = open_store(os.environ["SPOTD_STORE_URL"], options), 0
while not os.path.exists("stop"):
    try:
        store.put(f"jobs/j1/s{{number:05d}}", b"x")
        number += 1
    except Exception as error:
        print("FAILED", repr(error), flush=True)
    time.sleep(0.1)
try:
    store.put("jobs/j2/HEAD", b"x")
    print("GOT IN", flush=True)
except Exception as error:
    print("DENIED", type(error).__name__, flush=True)
"""


@pytest.fixture
def lending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lending]:
    with rig.serving(tmp_path) as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        running.rules.scale = LASTS_S / 43_200
        yield running


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Station]:
    with station(tmp_path) as found:
        yield found


def loans_of(lending: Lending, here: Station) -> CredentialLeases:
    """A new daemon's: it remembers nothing."""
    bucket, lender = lending.bucket, AwsCredentialIssuer("us-east-1", ROLE, PROFILE)
    access = StoreAccess(bucket.url, "aws", lends="all")
    options = (lambda _url: access), (lambda _url: lender), (lambda _url: bucket.options)
    return CredentialLeases(*options, here.link, lambda _job: here.keys, here.clock)


def live(loans: CredentialLeases, here: Station, seconds: float) -> None:
    """The box, looking more often than it does where an hour is an hour."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        loans.renew(here.store)
        time.sleep(0.2)


@pytest.mark.e2e
def test_a_box_dead_for_half_of_the_time_loses_no_save(
    lending: Lending, here: Station, tmp_path: Path
) -> None:
    store_url = lending.bucket.url
    here.spec = {"checkpoint": CheckpointSpec(store_url, "spotd")}
    node = here.boot()
    job = here.store.jobs.find("j1")
    assert job is not None
    assert job.spec.checkpoint.store == store_url
    loans = loans_of(lending, here)
    loan = loans.begin(here.store, job, node, 30.0)
    assert loan is not None
    here.store.nodes.record_credential_lease(NODE, loan.at_us, loan.until_us)
    script = tmp_path / "save.py"
    script.write_text(SAVE.format(root=str(Path(__file__).parents[2])))
    run = f"exec {sys.executable} {script}"
    here.train(run, store_url=store_url, store_options=dict(loan.options), engine="spotd")
    follower = here.follow()
    live(loans, here, LASTS_S)
    asked = len(lending.rules.asked)
    assert asked >= 3, "renewed at a third"
    time.sleep(LASTS_S / 2)  # the box is dead
    assert len(lending.rules.asked) == asked
    live(loans_of(lending, here), here, LASTS_S)
    (here.machine.home / ".spotd" / "j1" / "g1" / "workdir" / "stop").touch()
    wait_until("the end", lambda: wire.EXITED in here.journal())
    wait_until("its words", lambda: b"DENIED" in here.log() or b"GOT IN" in here.log())
    assert here.log() == b"DENIED StoreDeniedError\n", "no save failed, and no other job is open"
    follower.stop()
    assert lending.rules.denied == [
        f"s3:PutObject arn:aws:s3:::spotd/{_folder(lending)}jobs/j2/HEAD"
    ]
    assert len(lending.rules.used) >= 3, "one after the other was used"
    for canary in CANARIES:
        assert files_with(canary.encode(), here.machine.home) == [], "on no disk"
    assert not any(canary in str(build.kinds(here.store)) for canary in CANARIES)


def _folder(lending: Lending) -> str:
    return f"{lending.bucket.folder}/"
