"""Where messages are sent, and where they are not, whatever a name server says."""

from __future__ import annotations

import datetime as dt
import http.server
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from spotd.alert_sinks.webhook import SLACK_HOSTS, WebhookError, is_webhook, post, reach
from spotd.base.addresses import AddressError, find_address

HOST = "hooks.example"
PATH = "/services/T0/B0/canary-of-a-webhook"


def names(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """A name server for every name that is none of an address; the names that it was asked for."""
    real, asked = socket.getaddrinfo, []

    def getaddrinfo(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            asked.append(host)
            return [info for each in answers for info in real(each, port, *args, **more)]
        return real(host, port, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


NEVER = (
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "::ffff:169.254.169.254",
    "224.0.0.1",
    "0.0.0.0",
)
INSIDE = ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "::1", "fd00::1")
OUTSIDE = ("52.1.2.3", "2600:1f18::1")


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize("address", [*NEVER, *INSIDE, *OUTSIDE])
def test_where_a_host_may_be(monkeypatch: pytest.MonkeyPatch, address: str, public: bool) -> None:
    names(monkeypatch, address)
    if address in OUTSIDE or (address in INSIDE and not public):
        assert find_address(HOST, 443, public=public) == address
    else:
        with pytest.raises(AddressError, match="nothing is sent there"):
            find_address(HOST, 443, public=public)


def test_one_bad_address_among_good_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, "52.1.2.3", "10.0.0.1")
    with pytest.raises(AddressError, match=r"leads to 10\.0\.0\.1"):
        find_address(HOST, 443, public=True)


@pytest.mark.parametrize("host", SLACK_HOSTS)
def test_slacks_own_hosts_are_public(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    names(monkeypatch, "127.0.0.1")
    with pytest.raises(WebhookError, match=r"leads to 127\.0\.0\.1: nothing is sent there"):
        post(f"https://{host}{PATH}", {"text": "x"})


def test_what_is_no_name_is_one_clear_error() -> None:
    with pytest.raises(WebhookError, match="cannot be looked up: it is not a name of a host"):
        post(f"https://{'a' * 64}.example{PATH}", {"text": "x"})


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("https://hooks.slack.com/services/x", True),
        ("https://hooks.slack-gov.com/services/x", True),
        ("http://hooks.slack.com/services/x", False),
        ("https://relay.lan/x", True),
        ("https://other.lan:8443/x", True),
        ("https://other.lan/x", False),
        ("http://relay.lan/x", False),  # whoever is on the way would read it
        ("http://127.0.0.1:8080/x", True),
        ("https://hooks.slack.com.evil.example/x", False),
        ("https://hooks.slack.com@evil.example/x", False),
        ("https://[::1/x", False),
        ("", False),
    ],
)
def test_which_urls_are_webhooks(url: str, is_one: bool) -> None:
    assert is_webhook(url, ["relay.lan", "other.lan:8443", "127.0.0.1:8080"]) is is_one


@contextmanager
def relay(folder: Path, name: str) -> Iterator[tuple[int, list[Any]]]:
    """An https server that proves to be `name`; its port, and what it was told."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    (folder / "ca.pem").write_bytes(certificate.public_bytes(pem))
    text = key.private_bytes(pem, form, serialization.NoEncryption())
    (folder / "both.pem").write_bytes(text + certificate.public_bytes(pem))
    told: list[Any] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.append((self.path, self.headers["Host"], json.loads(body)))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            return

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            return  # a client that hangs up because we are not who it asked for

    server = Server(("127.0.0.1", 0), Receiver)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1], told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(port: int) -> None:
    post(f"https://{HOST}:{port}{PATH}", {"text": "it happened"})


def test_the_address_that_was_judged_is_used_and_has_to_be_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked once: a second answer could be another one."""
    asked = names(monkeypatch, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with relay(tmp_path, HOST) as (port, told):
        send(port)
        [(path, host, body)] = told
        assert (path, host) == (PATH, f"{HOST}:{port}")
        assert "it happened" in body["text"]
        assert asked == [HOST]


@pytest.mark.parametrize("trusted", [True, False])
def test_somebody_else_at_the_address_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    """Of another name, or whom nobody vouches for."""
    names(monkeypatch, "127.0.0.1")
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with relay(tmp_path, "thief.example" if trusted else HOST) as (port, told):
        with pytest.raises(WebhookError, match="cannot be reached") as caught:
            send(port)
        assert told == []
        assert "canary" not in str(caught.value)


def test_an_address_is_reached_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with relay(tmp_path, HOST) as (port, told):
        reach(f"https://{HOST}:{port}{PATH}")
        assert told == []
    with pytest.raises(WebhookError, match="cannot be reached: Connection refused") as caught:
        reach(f"https://{HOST}:{port}{PATH}")
    assert "canary" not in str(caught.value)
    with pytest.raises(WebhookError, match="nothing is sent there"):
        reach(f"https://{SLACK_HOSTS[0]}{PATH}")


def test_one_that_cannot_prove_who_it_is_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with (
        relay(tmp_path, "thief.example") as (port, _),
        pytest.raises(WebhookError, match="cannot be reached"),
    ):
        reach(f"https://{HOST}:{port}{PATH}")
