"""A registry for images, on this computer: what pulling one asks for, with or without a login."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_OCI = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class Registry:
    """`tags` maps NAME:TAG to the digest of a manifest; `login` is "user:password" or "";
    `unwell` is how many requests are still to fail."""

    port: int = 0
    login: str = ""
    unwell: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def name(self, image: str) -> str:
        """The full name of an image here."""
        return f"127.0.0.1:{self.port}/{image}"

    def add(self, image: str, folder: Path) -> str:
        """Publish what an engine pushed to a `dir:` folder; the manifest's digest."""
        for path in folder.iterdir():
            if path.name != "version":
                data = path.read_bytes()
                kind = json.loads(data).get("mediaType", _OCI) if path.suffix == ".json" else ""
                digest = f"sha256:{sha256(data).hexdigest()}"
                self.blobs[digest] = (data, kind or "application/octet-stream")
                if path.suffix == ".json":
                    self.tags[image] = digest
        return self.tags[image]


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry that answers, over plain HTTP."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            registry.asked.append(self.path)
            known = f"Basic {base64.b64encode(registry.login.encode()).decode()}"
            if registry.unwell:
                registry.unwell -= 1
                self._answer(503, b"")
            elif registry.login and self.headers.get("Authorization") != known:
                self._answer(401, _error("UNAUTHORIZED", "authentication required"))
            elif self.path == "/v2/":
                self._answer(200, b"{}")
            else:
                _, _, *name, kind, what = self.path.split("/")
                digest = registry.tags.get(f"{'/'.join(name)}:{what}", what)
                data, media = registry.blobs.get(digest, (b"", ""))
                if data:
                    self._answer(200, data, media, digest)
                else:
                    code = "MANIFEST_UNKNOWN" if kind == "manifests" else "BLOB_UNKNOWN"
                    self._answer(404, _error(code, "manifest unknown"))

        def _answer(
            self, code: int, data: bytes, kind: str = "application/json", digest: str = ""
        ) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            if code == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="here"')
            if digest:
                self.send_header("Docker-Content-Digest", digest)
            self.end_headers()
            self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815 - the name that is called

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()


def _error(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()
