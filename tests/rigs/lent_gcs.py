"""Google's IAM and token service, as far as lending needs them: it takes a token of the account
alone, keeps what it is asked, and knows what its limited tokens open, and for how long."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from providers.gcp.lending import GcpLender
from tests.clouds.gcp.identity import Identity
from tests.providers.evaluate import gcp_allows
from tests.rigs.gcs import BUCKET

ACCOUNT = "spotd-node-d0@lab.iam.gserviceaccount.com"
_BUCKET = f"projects/_/buckets/{BUCKET}"
_RIGHTS = {"GET": "get", "HEAD": "get", "PUT": "create", "POST": "create", "DELETE": "delete"}


class Service(ThreadingHTTPServer):
    """IAM credentials and the token service; `longest_s` is what the organisation allows."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.identity = Identity()
        self.longest_s = 43_200
        self.down = 0
        self.expires_in = 0  # what the token service says of what it made, where it says so
        self.lifetimes: list[int] = []
        self.exchanged: list[dict[str, str]] = []
        self.limits: dict[str, tuple[dict[str, Any], float]] = {}  # token -> (rule, monotonic end)
        self.denied: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def lender(self, key_file: Path) -> GcpLender:
        """As the box has it, whose own key is written there."""
        self.identity.write_key(key_file, self.endpoint)
        endpoints = {"iam": self.endpoint, "tokens": f"{self.endpoint}/v1/token"}
        return GcpLender(ACCOUNT, key_file, endpoints=endpoints)

    def guard(self, token: str, method: str, key: str, listing: bool) -> str:
        """Of the store (tests.rigs.gcs): what is no token of ours is the box's own."""
        if token not in self.limits:
            return ""
        rule, ends_s = self.limits[token]
        if time.monotonic() > ends_s:
            self.denied.append(f"{token} has ended")
            return "401 AuthenticationRequired"
        right = f"storage.objects.{'list' if listing else _RIGHTS[method]}"
        grant = {"includedPermissions": [right], "condition": rule["availabilityCondition"]}
        name, prefix = (_BUCKET, key) if listing else (f"{_BUCKET}/objects/{key}", "")
        if gcp_allows({"grants": [grant]}, right, name, prefix):
            return ""
        self.denied.append(f"{right} {key}")
        return "403 AccessDenied"


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"])).decode()
        status, answer = self.server.down or 200, {}
        if not self.server.down and self.path.endswith(":generateAccessToken"):
            status, answer = self._account(json.loads(raw))
        elif not self.server.down:
            status, answer = self._limited({k: v[0] for k, v in parse_qs(raw).items()})
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _account(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        server = self.server
        if not server.identity.knows(self.headers.get("Authorization", "")):
            return 403, {"error": {"code": 403, "message": "IAM_PERMISSION_DENIED"}}
        assert self.path == f"/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"
        assert asked["scope"] == ["https://www.googleapis.com/auth/devstorage.read_write"]
        seconds = int(asked["lifetime"].rstrip("s"))
        server.lifetimes.append(seconds)
        if seconds > server.longest_s:
            text = "The access token lifetime cannot exceed 3600 seconds."
            return 400, {"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}}
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        moment = until.strftime("%Y-%m-%dT%H:%M:%SZ")
        return 200, {"accessToken": f"whole-{seconds}", "expireTime": moment}

    def _limited(self, asked: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.server.exchanged.append(asked)
        if not asked["subject_token"].startswith("whole-"):
            return 400, {"error": "invalid_grant"}
        kind = "urn:ietf:params:oauth:token-type:access_token"
        told = {"expires_in": self.server.expires_in} if self.server.expires_in else {}
        told |= {"issued_token_type": kind, "token_type": "Bearer"}
        token = f"limited-{len(self.server.exchanged)}"
        [rule] = json.loads(unquote(asked["options"]))["accessBoundary"]["accessBoundaryRules"]
        ends_s = time.monotonic() + (self.server.expires_in or 3600)
        self.server.limits[token] = rule, ends_s
        return 200, {"access_token": token, **told}


@contextmanager
def serving() -> Iterator[Service]:
    """One for the length of the block."""
    server = Service()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
