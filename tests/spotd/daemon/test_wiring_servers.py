"""The doors of a whole daemon: Prometheus' own and the team's dashboard beside the socket."""

from __future__ import annotations

import signal
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from spotd.demo.box import Box
from tests.fixtures.forked import ForkedBox
from tests.fixtures.ports import free_port
from tests.fixtures.waiting import LIMIT_S, until
from tests.spotd.api.metrics.test_exposition import Found, read, value

pytestmark = pytest.mark.xdist_group("daemon")
TOKEN = "0123456789abcdef"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name:
        yield Path(name)


def scrape(port: int, token: str) -> Found:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(asked, timeout=LIMIT_S) as reply:
        return read(reply.read())


def test_a_daemon_is_scraped(folder: Path) -> None:
    """Its calls to the cloud are counted; the door closes with it."""
    (folder / "token").write_text(TOKEN)
    port = free_port()
    door = f'[metrics]\nlisten = "127.0.0.1:{port}"\ntoken_file = "{folder}/token"'
    quick = "[timing]\noffers_every_s = 0.5\nsurvey_every_s = 0.5"
    with Box(folder / "cloud") as cloud, ForkedBox(folder, settings=f"{quick}\n{door}") as box:
        cloud.start_cloud()
        box.cloud_url, box.token_file = cloud.cloud_url, cloud.token_file
        box.start_daemon()
        end_s = time.monotonic() + LIMIT_S
        while True:
            found = scrape(port, TOKEN)
            calls = {
                dict(labels)["verb"]
                for (name, labels), count in found.items()
                if name == "spotd_provider_calls_total" and count
            }
            if {"offers", "list"} <= calls:
                break
            assert time.monotonic() < end_s, calls
            time.sleep(0.1)
        assert value(found, "spotd_store_up") == 1
        assert value(found, "spotd_safe_mode") == 0
        assert value(found, "spotd_duties", holder="another") == 0
        with pytest.raises(urllib.error.HTTPError, match="401"):
            scrape(port, "somebody-elses-token")
    with pytest.raises(OSError, match="refused"):
        scrape(port, TOKEN)


def test_a_daemon_serves_the_dashboard_to_a_team(folder: Path) -> None:
    """Over TLS, with a login, and with the new certificate after a reload; it ends with it."""
    ca, renewed, port = trustme.CA(), trustme.CA(), free_port()

    def write_certificate(ca: trustme.CA) -> None:
        issued = ca.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(folder / "key.pem")
        issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")

    def ask(ca: trustme.CA, path: str) -> str:
        trust = ssl.create_default_context()
        ca.configure_trust(trust)
        url = f"https://127.0.0.1:{port}{path}"
        with urllib.request.urlopen(url, timeout=LIMIT_S, context=trust) as reply:
            return str(reply.read().decode())

    def is_renewed() -> bool:
        try:
            return "Log in" in ask(renewed, "/login")
        except urllib.error.URLError:
            return False

    write_certificate(ca)
    section = (
        f'[dashboard]\nlisten = "0.0.0.0:{port}"\nurl = "https://127.0.0.1:{port}"\n'
        f'tls_certificate = "{folder}/cert.pem"\ntls_key = "{folder}/key.pem"'
    )
    with Box(folder / "cloud") as cloud, ForkedBox(folder, settings=section) as box:
        cloud.start_cloud()
        box.cloud_url, box.token_file = cloud.cloud_url, cloud.token_file
        box.start_daemon()
        assert "Log in" in ask(ca, "/"), "the first page leads to the login"
        write_certificate(renewed)
        assert box.daemon is not None
        box.daemon.send_signal(signal.SIGHUP)
        until(is_renewed)
    with pytest.raises(OSError, match="refused"):
        ask(renewed, "/login")
