"""A real machine trains on what it is lent of Google's and of Azure's store, over real SSH: what it
has ends while it trains, is renewed, and its program, begun anew, goes on from what it had saved.
A lifetime of hours is seven seconds here. (Of AWS's, and with a box that is dead for half of it:
test_lending.py.)"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from providers.azure.credential_leases import AzureCredentialIssuer
from providers.credential_leases import CredentialIssuer
from providers.stores import open_store
from providers.stores.base import ObjectStore
from spotd import wire
from spotd.act.credential_leases import CredentialLeases
from spotd.domain.job import CheckpointSpec
from spotd.planner.core.credential_lease import StoreAccess
from tests.clouds.azure.serving import serving as entra
from tests.fixtures import azurite, gcs, lent_azure, lent_gcs
from tests.fixtures.sas import door
from tests.fixtures.search import files_with
from tests.fixtures.station import NODE, Station, station
from tests.fixtures.waiting import wait_until
from tests.spotd.store import build

LASTS_S = 7
DEAD_S = 2.0  # of the box, in the middle

# What it computes in a step depends on all steps before. Each is saved; a program that begins goes
# on from HEAD. It never looks at a clock, or for anything but the store's own options.
TRAIN = """
import hashlib, json, os, sys, time
sys.path.insert(0, {root!r})
from providers.stores import open_store
from providers.stores.base import NotFoundError
store = open_store(os.environ["SPOTD_STORE_URL"], json.loads(os.environ["SPOTD_STORE_OPTIONS"]))
try:
    data, tag = store.get("jobs/j1/HEAD")
    head = json.loads(data)
except NotFoundError:
    head, tag = {{"step": 0, "state": ""}}, None
print("BEGINS AT", "0" if head["step"] == 0 else "A SAVED STEP", flush=True)
while not os.path.exists("stop"):
    step = head["step"] + 1
    state = hashlib.sha256((head["state"] + str(step)).encode()).hexdigest()
    head = {{"step": step, "state": state}}
    try:
        tag = store.put_if("jobs/j1/HEAD", json.dumps(head).encode(), tag)
    except Exception as error:
        print("FAILED", repr(error), flush=True)
        break
    time.sleep(0.05)
    if os.path.exists("again") and len(sys.argv) == 1:
        os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
try:
    store.put("jobs/j2/HEAD", b"x")
    print("GOT IN", flush=True)
except Exception as error:
    print("DENIED", type(error).__name__, flush=True)
"""


@dataclass
class Elsewhere:
    """A store of another cloud: `plain` is what a machine opens it with beside what it is lent,
    `box` the same store as its owner sees it, `used()` how many credentials were shown there."""

    cloud: str
    url: str
    plain: Mapping[str, str]
    lender: CredentialIssuer
    box: ObjectStore
    used: Callable[[], int]
    secret: str  # in each that is lent


@contextmanager
def of_google(folder: Path) -> Iterator[Elsewhere]:
    with gcs.serving() as bucket, lent_gcs.serving() as service:
        shown: set[str] = set()

        def guard(token: str, method: str, key: str, listing: bool) -> str:
            shown.update({token} & service.limits.keys())
            return service.guard(token, method, key, listing)

        bucket.guard = guard
        service.expires_in = LASTS_S
        box = open_store(bucket.url, bucket.options)
        lender = service.lender(folder / "key.json")
        yield Elsewhere("gcp", bucket.url, bucket.plain, lender, box, lambda: len(shown), "limited")


@contextmanager
def of_azure(folder: Path) -> Iterator[Elsewhere]:
    with ExitStack() as stack:
        running = stack.enter_context(entra(folder))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in running.environ.items():
            patch.setenv(name, value)
        both = folder / "both.pem"
        trusted = Path(running.environ["REQUESTS_CA_BUNDLE"])
        account = stack.enter_context(lent_azure.serving(trusted, both))
        patch.setenv("REQUESTS_CA_BUNDLE", str(both))
        made = stack.enter_context(azurite.serving())
        shown: set[str] = set()

        def judge(where: str, sas: dict[str, str], right: str) -> str:
            shown.add(sas.get("sig", ""))
            return "" if account.file(where, sas, right) == 200 else "no permission"

        endpoint = stack.enter_context(door(made, lent_azure.ACCOUNT, judge))
        line = {"account": lent_azure.ACCOUNT, "endpoint": endpoint, "allow_http": "true"}
        lender = AzureCredentialIssuer(
            lent_azure.ACCOUNT, LASTS_S, account.endpoint, running.arm.endpoint
        )
        box = open_store(made.url, made.options)
        yield Elsewhere("azure", made.url, line, lender, box, lambda: len(shown), "sig=")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Station]:
    with station(tmp_path) as found:
        yield found


def live(loans: CredentialLeases, here: Station, seconds: float) -> None:
    """The box, looking more often than it does where an hour is an hour."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        loans.renew(here.store)
        time.sleep(0.2)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", [of_google, of_azure])
def test_a_machine_trains_on_what_it_is_lent_and_goes_on_from_what_it_saved(
    here: Station, tmp_path: Path, kind: Callable[[Path], AbstractContextManager[Elsewhere]]
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with kind(folder) as store:
        _tell(store, here, tmp_path)


def _tell(store: Elsewhere, here: Station, folder: Path) -> None:
    here.spec = {"checkpoint": CheckpointSpec(store.url, "spotd")}
    node = here.boot()
    job = here.store.jobs.find("j1")
    assert job is not None
    access = StoreAccess(store.url, store.cloud, lends="others")
    options = (lambda _url: access), (lambda _url: store.lender), (lambda _url: store.plain)
    loans = CredentialLeases(*options, here.link, lambda _job: here.keys, here.clock)
    loan = loans.begin(here.store, job, node, 30.0)
    assert loan is not None, "its machine is one of AWS"
    here.store.nodes.record_credential_lease(NODE, loan.at_us, loan.until_us)
    script = folder / "train.py"
    script.write_text(TRAIN.format(root=str(Path(__file__).parents[2])))
    run = f"exec {sys.executable} {script}"
    here.train(run, store_url=store.url, store_options=dict(loan.options), engine="spotd")
    follower = here.follow()
    live(loans, here, LASTS_S)
    time.sleep(DEAD_S)
    workdir = here.machine.home / ".spotd" / "j1" / "g1" / "workdir"
    (workdir / "again").touch()
    live(loans, here, LASTS_S / 2)
    (workdir / "stop").touch()
    wait_until("the end", lambda: wire.EXITED in here.journal())
    wait_until("its words", lambda: b"DENIED" in here.log() or b"GOT IN" in here.log())
    said = here.log().decode().splitlines()
    assert said == ["BEGINS AT 0", "BEGINS AT A SAVED STEP", "DENIED StoreDeniedError"]
    follower.stop()
    assert store.used() >= 3, "one after the other was used"
    _is_as_if_undisturbed(store.box)
    assert files_with(store.secret.encode(), here.machine.home) == [], "on no disk"
    assert store.secret not in str(build.kinds(here.store))


def _is_as_if_undisturbed(box: ObjectStore) -> None:
    """Every step was computed once, from the one before."""
    head = json.loads(box.get("jobs/j1/HEAD")[0])
    state = ""
    for step in range(1, head["step"] + 1):
        state = hashlib.sha256((state + str(step)).encode()).hexdigest()
    assert head["step"] > 50
    assert head["state"] == state
