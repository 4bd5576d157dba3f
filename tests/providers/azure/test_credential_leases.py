"""Leased Azure storage credentials are a SAS of one directory, for seven days, signed with a key of
Entra's.

The account is a stand-in that checks the signature field by field.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
import requests

from providers.azure.credential_leases import AzureCredentialIssuer
from providers.base import AuthError, UnknownOutcome
from providers.iam.policy import StorePrefix
from providers.stores import open_store
from providers.stores.base import StoreUnavailableError
from tests.clouds.azure.serving import StandIn
from tests.fixtures.azurite import CONTAINER, Azurite
from tests.fixtures.lent_azure import ACCOUNT, Account, serving
from tests.fixtures.sas import door
from tests.fixtures.waiting import LIMIT_S
from tests.providers.leased_credentials import keeps_to_its_folder


@pytest.fixture(scope="module")
def account(running: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """In addition to Entra, which `running` is; both certificates are trusted."""
    entra = Path(running.environ["REQUESTS_CA_BUNDLE"])
    both = tmp_path_factory.mktemp("trust") / "both.pem"
    with serving(entra, both) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", str(both))
        yield made


@pytest.fixture
def lender(account: Account, running: StandIn) -> AzureCredentialIssuer:
    account.asked.clear()
    account.refuse = 0
    return AzureCredentialIssuer(ACCOUNT, endpoint=account.endpoint, authority=running.arm.endpoint)


PLACE = StorePrefix("runs", "exp/jobs/j1/")


def test_a_job_reaches_its_own_directory_and_no_other(
    account: Account, lender: AzureCredentialIssuer
) -> None:
    sas = lender.issue(PLACE, "j1").text

    def status(method: str, path: str, token: str = sas) -> int:
        url = f"{account.endpoint}/runs/{path}?{token}"
        return requests.request(method, url, timeout=LIMIT_S).status_code

    for method in ("GET", "PUT", "DELETE"):
        assert status(method, "exp/jobs/j1/g1/HEAD") == 200
        for other in ("exp/jobs/j2/HEAD", "exp/jobs/j10/HEAD", "exp/jobs/HEAD", "HEAD"):
            assert status(method, other) == 403
    assert status("GET", "exp/jobs/j1/HEAD", sas.replace("sp=r", "sp=ra")) == 403, "it is signed"
    assert status("GET", "exp/jobs/j2/HEAD", sas.replace("sdd=3", "sdd=2")) == 403


@pytest.mark.xdist_group("azurite")
def test_a_machine_saves_with_it_below_its_directory_and_nowhere_else(
    account: Account, lender: AzureCredentialIssuer, azurite: Azurite, tmp_path: Path
) -> None:
    file = tmp_path / "store-credentials"
    file.write_text(lender.issue(StorePrefix(CONTAINER, f"{azurite.folder}/jobs/j1/"), "j1").text)
    over = False

    def judge(where: str, sas: dict[str, str], right: str) -> str:
        if over:
            return "Signature not valid in the specified time frame"
        return "" if account.file(where, sas, right) == 200 else "no permission"

    box = open_store(azurite.url, azurite.options)
    box.put("jobs/j2/HEAD", b"{}")
    with door(azurite, ACCOUNT, judge) as endpoint:
        line = {"account": ACCOUNT, "endpoint": endpoint, "allow_http": "true"}
        store = open_store(azurite.url, {**line, "credentials_file": str(file)})
        keeps_to_its_folder(store)
        over = True
        with pytest.raises(StoreUnavailableError):
            store.get("jobs/j1/HEAD")
        over = False
        assert store.get("jobs/j1/HEAD")[0] == b"2"
    assert box.get("jobs/j1/HEAD")[0] == b"2", "it is in the container itself"


def test_it_is_signed_for_the_longest_that_azure_allows(
    account: Account, lender: AzureCredentialIssuer
) -> None:
    lent = lender.issue(PLACE, "j1")
    [(start, end)] = account.asked
    assert end - start == timedelta(days=7)
    assert lent.expires_at_us / 1e6 == end.timestamp()
    left = end - datetime.now(UTC)
    assert timedelta(days=6, hours=23, minutes=40) < left < timedelta(days=7)
    sas = dict(parse_qsl(lent.text))
    assert (lent.kind, sas["sr"], sas["sdd"], sas["spr"]) == ("azure", "d", "3", "https")
    assert set(sas["sp"]) == set("rcwdl")
    assert sas["sig"] not in repr(lent)


def test_no_longer_than_the_configuration_wants(account: Account, running: StandIn) -> None:
    settings = {"endpoint": account.endpoint, "authority": running.arm.endpoint}
    AzureCredentialIssuer(ACCOUNT, lifetime_s=3600.0, **settings).issue(PLACE, "j1")
    start, end = account.asked[-1]
    assert end - start == timedelta(hours=1, minutes=15)


def test_a_refusal_is_one_of_our_errors(account: Account, lender: AzureCredentialIssuer) -> None:
    account.refuse = 403
    with pytest.raises(AuthError):
        lender.issue(PLACE, "j1")
    account.refuse = 503
    with pytest.raises(UnknownOutcome):
        lender.issue(PLACE, "j1")
