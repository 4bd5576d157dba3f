"""A door to azurite for who has a SAS of a directory, which azurite itself does not know."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

from tests.rigs.azurite import ACCOUNT, KEY, Azurite

# (container and blob, the parameters of the SAS, the right) -> "", or why it is refused
Judge = Callable[[str, dict[str, str], str], str]
_RIGHTS = {"GET": "r", "HEAD": "r", "PUT": "w", "DELETE": "d"}
_OURS = {"content-length", "transfer-encoding", "connection", "server", "date"}


@contextmanager
def door(made: Azurite, account: str, judge: Judge) -> Iterator[str]:
    """The endpoint of a door to the container of `made`, as if it were of `account`."""
    handler = type("Handler", (_Door,), {"made": made, "account": account, "judge": (judge,)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{account}"
        finally:
            server.shutdown()
            thread.join()


class _Door(BaseHTTPRequestHandler):
    made: Azurite
    account: str
    judge: tuple[Judge]  # in one, or it would be a method
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        path = unquote(parts.path).removeprefix(f"/{self.account}/")
        lists = query.get("comp") == "list"
        # A listing shows what could have any name that goes on from the prefix.
        where = f"{path.strip('/')}/{query.get('prefix', '')}." if lists else path
        refused = self.judge[0](where, query, "l" if lists else _RIGHTS[self.command])
        if refused:
            text = f"<Error><Code>AuthenticationFailed</Code><Message>{refused}</Message></Error>"
            return self._send(403, {}, text.encode())
        plain = {k: v for k, v in query.items() if k in {"comp", "restype", "prefix", "blockid"}}
        plain |= {k: v for k, v in query.items() if k in {"delimiter", "marker", "maxresults"}}
        rights = AccountSasPermissions(read=True, write=True, create=True, delete=True, list=True)
        kinds = ResourceTypes(container=True, object=True)
        until = datetime.now(UTC) + timedelta(hours=1)
        sas = generate_account_sas(ACCOUNT, KEY, kinds, rights, until)
        onward = http.client.HTTPConnection(urlsplit(self.made.endpoint).netloc, timeout=20)
        kept = {k: v for k, v in self.headers.items() if k.lower() not in {"host", "connection"}}
        try:
            target = parts.path.replace(self.account, ACCOUNT, 1)
            onward.request(self.command, f"{target}?{urlencode(plain)}&{sas}", body, kept)
            reply = onward.getresponse()
            data = reply.read()
        finally:
            onward.close()
        headers = {k: v for k, v in reply.getheaders() if k.lower() not in _OURS}
        if self.command == "HEAD":
            headers["Content-Length"] = reply.getheader("Content-Length") or "0"
        return self._send(reply.status, headers, data)

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = _serve  # noqa: N815
