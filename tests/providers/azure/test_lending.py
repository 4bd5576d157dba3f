"""What is lent of Azure storage is a SAS of one directory, for seven days, signed with a key of
Entra's. The account is a stand-in that checks the signature field by field.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree as ET

import pytest
import requests
import trustme

from providers.azure.lending import AzureLender
from providers.base import AuthError, UnknownOutcome
from providers.policy import Place
from providers.stores import open_store
from providers.stores.base import StoreUnavailableError
from tests.clouds.azure.arm import TOKEN
from tests.clouds.azure.serving import StandIn
from tests.providers.lent import keeps_to_its_folder
from tests.rigs.azurite import CONTAINER, Azurite
from tests.rigs.sas import door

ACCOUNT = "spotdruns"
KEY = base64.b64encode(b"k" * 32).decode()
OWNER, TENANT = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"
MOMENT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass
class Account:
    """A storage account: keys for who has a token, files for who has a SAS."""

    endpoint: str = ""
    refuse: int = 0
    asked: list[tuple[datetime, datetime]] = field(default_factory=list)

    def user_key(self, body: bytes, token: str) -> tuple[int, bytes]:
        if self.refuse or token != f"Bearer {TOKEN}":
            return self.refuse or 401, b""
        root = ET.fromstring(body)
        start, end = (root.findtext(name) or "" for name in ("Start", "Expiry"))
        times = [datetime.strptime(t, MOMENT).replace(tzinfo=UTC) for t in (start, end)]
        self.asked.append((times[0], times[1]))
        if times[1] - times[0] > timedelta(days=7):
            return 400, b""
        fields = {"Oid": OWNER, "Tid": TENANT, "Start": start, "Expiry": end, "Service": "b"}
        text = "".join(f"<Signed{name}>{value}</Signed{name}>" for name, value in fields.items())
        text += f"<SignedVersion>2026-04-06</SignedVersion><Value>{KEY}</Value>"
        return 200, f"<UserDelegationKey>{text}</UserDelegationKey>".encode()

    def file(self, path: str, sas: dict[str, str], right: str) -> int:
        """By the fields of version 2020-12-06 and later, in the order that they are signed in."""
        container, _, blob = path.strip("/").partition("/")
        parts = blob.split("/")
        depth = int(sas.get("sdd", "-1"))
        if sas.get("sr") != "d" or depth < 1 or len(parts) <= depth:
            return 403
        resource = f"/blob/{ACCOUNT}/{container}/{'/'.join(parts[:depth])}"
        names = ("sp", "st", "se", resource, "skoid", "sktid", "skt", "ske", "sks", "skv")
        names += ("saoid", "suoid", "scid", "sip", "spr", "sv", "sr", "", "ses")
        names += ("rscc", "rscd", "rsce", "rscl", "rsct")
        said = [name if name == resource else sas.get(name, "") for name in names]
        if sas["sv"] >= "2025-07-05":  # whose tenant and who it is for came in between
            said[13:13] = [sas.get("skdutid", ""), sas.get("sduoid", "")]
        if sas["sv"] >= "2026-04-06":  # and which headers and parameters a request has to have
            said[-5:-5] = ["", ""]
        signed = hmac.new(base64.b64decode(KEY), "\n".join(said).encode(), hashlib.sha256)
        good = base64.b64encode(signed.digest()).decode() == sas.get("sig")
        now = datetime.now(UTC).strftime(MOMENT)
        return 200 if good and sas["st"] <= now < sas["se"] and right in sas["sp"] else 403


class _Handler(BaseHTTPRequestHandler):
    account: Account

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts, account = urlsplit(self.path), self.account
        query, answer = dict(parse_qsl(parts.query)), b""
        if query.get("comp") == "userdelegationkey":
            token = self.headers.get("Authorization", "")
            status, answer = account.user_key(body, token)
        else:
            right = {"GET": "r", "PUT": "w", "DELETE": "d"}[self.command]
            status = account.file(parts.path, query, right)
        self.send_response(status)
        if status == 403:
            self.send_header("x-ms-error-code", "AuthorizationPermissionMismatch")
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_DELETE = do_POST = _serve  # noqa: N815 - http.server's names


@pytest.fixture(scope="module")
def account(running: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """Beside Entra, which `running` is; both certificates are trusted."""
    made = Account()
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    handler = type("Handler", (_Handler,), {"account": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made.endpoint = f"https://127.0.0.1:{server.server_port}"
    both = tmp_path_factory.mktemp("trust") / "both.pem"
    entra = Path(running.environ["REQUESTS_CA_BUNDLE"]).read_bytes()
    both.write_bytes(entra + authority.cert_pem.bytes())
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", str(both))
        yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def lender(account: Account, running: StandIn) -> AzureLender:
    account.asked.clear()
    account.refuse = 0
    return AzureLender(ACCOUNT, endpoint=account.endpoint, authority=running.arm.endpoint)


PLACE = Place("runs", "exp/jobs/j1/")


def test_a_job_reaches_its_own_directory_and_no_other(
    account: Account, lender: AzureLender
) -> None:
    sas = lender.lend(PLACE, "j1").text

    def status(method: str, path: str, token: str = sas) -> int:
        url = f"{account.endpoint}/runs/{path}?{token}"
        return requests.request(method, url, timeout=10).status_code

    for method in ("GET", "PUT", "DELETE"):
        assert status(method, "exp/jobs/j1/g1/HEAD") == 200
        for other in ("exp/jobs/j2/HEAD", "exp/jobs/j10/HEAD", "exp/jobs/HEAD", "HEAD"):
            assert status(method, other) == 403
    assert status("GET", "exp/jobs/j1/HEAD", sas.replace("sp=r", "sp=ra")) == 403, "it is signed"
    assert status("GET", "exp/jobs/j2/HEAD", sas.replace("sdd=3", "sdd=2")) == 403


@pytest.mark.xdist_group("azurite")
def test_a_machine_saves_with_it_below_its_directory_and_nowhere_else(
    account: Account, lender: AzureLender, azurite: Azurite, tmp_path: Path
) -> None:
    file = tmp_path / "store-credentials"
    file.write_text(lender.lend(Place(CONTAINER, f"{azurite.folder}/jobs/j1/"), "j1").text)
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
    account: Account, lender: AzureLender
) -> None:
    lent = lender.lend(PLACE, "j1")
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
    AzureLender(ACCOUNT, lifetime_s=3600.0, **settings).lend(PLACE, "j1")
    start, end = account.asked[-1]
    assert end - start == timedelta(hours=1, minutes=15)


def test_a_refusal_is_one_of_our_errors(account: Account, lender: AzureLender) -> None:
    account.refuse = 403
    with pytest.raises(AuthError):
        lender.lend(PLACE, "j1")
    account.refuse = 503
    with pytest.raises(UnknownOutcome):
        lender.lend(PLACE, "j1")
