"""An account of Azure storage, as far as lending needs it: it makes keys for who has a token of
Entra's, and checks a SAS that is signed with one field by field."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree as ET

import trustme

from tests.clouds.azure.arm import TOKEN

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


@contextmanager
def serving(entra: Path, both: Path) -> Iterator[Account]:
    """One for the length of the block. Its certificate, and that of the stand-in of Entra at
    `entra`, are written to `both`, for who is to trust them."""
    made, authority = Account(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    handler = type("Handler", (_Handler,), {"account": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made.endpoint = f"https://127.0.0.1:{server.server_port}"
    both.write_bytes(entra.read_bytes() + authority.cert_pem.bytes())
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
