"""`python -m trainer.mounts.signing_proxy FILE SCHEME VERSION PROGRAM ...`: run rclone with a token
server beside it, so that it can read Google's or Azure's stores from a machine of another cloud.

PROGRAM is an rclone of VERSION, SCHEME is gs or az, and FILE has the options of the store in the
form `open_store` takes. The tokens come from exchanging this machine's identity.

On machines of these clouds rclone gets tokens from the metadata service and renews them there. The
server imitates that service on loopback, for clients that know the secret in SPOTD_MOUNT_WORD. It
and PROGRAM end together. Standard library only.

Sources: Go's `compute/metadata` for Google; for Azure the documentation of managed identities (VM
and App Service), and rclone's azureblob backend.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import json
import os
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from providers.federation import ExchangeError
from providers.stores import credential_provider
from providers.stores.base import StoreConfigError

KEY_ENV = "SPOTD_MOUNT_WORD"
CONFIGURABLE_SINCE = (1, 61)  # first rclone version with a configurable Azure identity endpoint
FIRST_TOKEN_S = 30.0  # how long to try to get the first token during an outage
PAUSE_S = 3.0  # between attempts
REUSE_S = 60.0  # a token up to this age is handed out again
MARGIN_S = 300.0  # before its expiry a token is not used any more
LOG_EVERY_S = 60.0
_PR_SET_PDEATHSIG = 1
_LINK_LOCAL = "169.254.169.254"
_RESOURCE = "https://storage.azure.com"
# Variables that would make the clouds' libraries, or Go's, use something else than this server.
_REMOVED_ENV = frozenset(
    {"GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_IP", "REQUEST_METHOD", "PYTHONPATH"}
    | {"MSI_ENDPOINT", "MSI_SECRET", "IDENTITY_SERVER_THUMBPRINT", "IMDS_ENDPOINT"}
    | {"AZURE_POD_IDENTITY_AUTHORITY_HOST"}
)


class TokenCache:
    """Caches the token that `make` returns, for at most REUSE_S. While `make` fails, the previous
    token is handed out until it expires."""

    def __init__(
        self,
        make: Callable[[], Mapping[str, Any]],
        log: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._make, self._log, self._now = make, log, now
        self._lock = threading.Lock()
        self._token, self._made_at, self._expires_at = "", 0.0, 0.0
        self._try_at, self._logged = 0.0, (False, 0.0)

    def get(self, *, allow_expired: bool = False) -> tuple[str, float]:
        """Return a token and the seconds it may be used, less than its remaining lifetime.

        With `allow_expired` return an expired token rather than none. Raises ExchangeError.
        """
        with self._lock:
            now = self._now()
            reuse_s = min(REUSE_S, (self._expires_at - self._made_at) / 4)
            if now >= min(max(self._try_at, self._made_at + reuse_s), self._expires_at):
                self._renew(now, allow_expired=allow_expired)
            margin_s = min(MARGIN_S, (self._expires_at - self._made_at) / 3)
            return self._token, max(PAUSE_S, self._expires_at - margin_s - self._now())

    def _renew(self, now: float, *, allow_expired: bool) -> None:
        try:
            made = self._make()
        except ExchangeError as error:
            if not self._token:
                raise
            self._try_at = now + PAUSE_S
            ended = now >= self._expires_at
            self._log_failure(error, now, ended=ended)
            if ended and not allow_expired:
                raise
            return
        self._token, self._expires_at = made["token"], made["expires_at"].timestamp()
        self._made_at = now

    def _log_failure(self, error: ExchangeError, now: float, *, ended: bool) -> None:
        """Log a failed renewal: once a minute, and at once when the token has expired."""
        logged_ended, logged_at = self._logged
        if logged_ended == ended and now < logged_at + LOG_EVERY_S:
            return
        self._logged = ended, now
        valid = f"and the one before lasts for {self._expires_at - now:.0f} s more"
        state = "and the one before has ended" if ended else valid
        self._log(f"{'ERROR ' if ended else 'NOTICE'}: spotd: no new token, {state}: {error}")


class SigningProxy(ThreadingHTTPServer):
    """The token server for an rclone of `version`; clients authenticate with `secret`."""

    daemon_threads = True

    def __init__(
        self, scheme: str, version: tuple[int, int], secret: str, tokens: TokenCache
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._scheme, self._secret, self._tokens = scheme, secret, tokens
        self._uses_proxy = scheme == "az" and version < CONFIGURABLE_SINCE

    def env(self, environ: Mapping[str, str], home: str) -> dict[str, str]:
        """The environment that makes the program use this server only.

        Google's library first looks for a user's credentials in the home folder, so `home` should
        be one without any.
        """
        at, secret = f"127.0.0.1:{self.server_port}", self._secret
        cleaned = {name: value for name, value in environ.items() if name not in _REMOVED_ENV}
        if self._scheme == "gs":
            return {**cleaned, "HOME": home, "GCE_METADATA_HOST": f"{at}/{secret}"}
        if not self._uses_proxy:
            return {
                **cleaned,
                "IDENTITY_ENDPOINT": f"http://{at}/{secret}",
                "IDENTITY_HEADER": secret,
            }
        # These versions always ask the link-local address. It is their only plain HTTP request.
        return {**_without_proxy_exceptions(cleaned), "HTTP_PROXY": f"http://spotd:{secret}@{at}"}

    def answer(self, path: str, headers: Message) -> tuple[int, dict[str, Any]]:
        """Return an HTTP status and a JSON document. Raises ExchangeError."""
        if self._scheme == "gs":
            return self._google(path)
        return self._azure_proxied(path, headers) if self._uses_proxy else self._azure(headers)

    def _google(self, path: str) -> tuple[int, dict[str, Any]]:
        root = f"/{self._secret}/computeMetadata/v1"
        if not path.startswith("/") or not _equal(path[: len(root)], root):
            return 403, {}
        if urlsplit(path).path != f"{root}/instance/service-accounts/default/token":
            return 404, {}
        token, lifetime_s = self._tokens.get()
        return 200, {"access_token": token, "expires_in": int(lifetime_s), "token_type": "Bearer"}

    def _azure(self, headers: Message) -> tuple[int, dict[str, Any]]:
        if not _equal(headers.get("X-IDENTITY-HEADER", ""), self._secret):
            return 403, {}
        return 200, _identity(*self._tokens.get())

    def _azure_proxied(self, path: str, headers: Message) -> tuple[int, dict[str, Any]]:
        """For older versions, which renew one minute before expiry and never after a failure."""
        expected = b64encode(f"spotd:{self._secret}".encode()).decode()
        if not _equal(headers.get("Proxy-Authorization", ""), f"Basic {expected}"):
            return 407, {}
        if urlsplit(path)[1:3] != (_LINK_LOCAL, "/metadata/identity/oauth2/token"):
            return 404, {}
        token, lifetime_s = self._tokens.get(allow_expired=True)
        return 200, _identity(token, lifetime_s + 60)


def _identity(token: str, lifetime_s: float) -> dict[str, Any]:
    lifetime = {
        "expires_in": str(int(lifetime_s)),
        "expires_on": str(int(time.time() + lifetime_s)),
    }
    return {"access_token": token, **lifetime, "resource": _RESOURCE, "token_type": "Bearer"}


def _without_proxy_exceptions(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without settings that keep the link-local address from using a proxy."""
    cleaned = {name: value for name, value in environ.items() if name != "http_proxy"}
    for name in ("NO_PROXY", "no_proxy"):
        hosts = cleaned.pop(name, "").split(",")
        if "*" in map(str.strip, hosts):
            return {
                n: v for n, v in cleaned.items() if n.upper() not in {"HTTPS_PROXY", "NO_PROXY"}
            }
        if remaining := [
            host for host in hosts if host and not host.strip().startswith("169.254.")
        ]:
            cleaned[name] = ",".join(remaining)
    return cleaned


def _equal(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode(), right.encode())


class _Handler(BaseHTTPRequestHandler):
    server: SigningProxy
    timeout = 10.0  # for clients that connect and send nothing

    def log_message(self, *_: object) -> None:
        """Log nothing: the path contains the secret."""

    def do_GET(self) -> None:
        try:
            status, document = self.server.answer(self.path, self.headers)
        except ExchangeError as error:
            # A status that clients do not retry at once; the next read asks again.
            status, document = 403, {"error": "no token", "error_description": str(error)}
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(file: str, scheme: str, version: str, *program: str) -> int:
    """Run the program; returns its exit code, or 1 if there is no first token."""
    secret = os.environ.pop(KEY_ENV)
    try:
        make = credential_provider(f"{scheme}://", json.loads(Path(file).read_bytes()))
        if make is None:
            raise StoreConfigError("store option identity is not given")
        tokens = TokenCache(make, _log)
        _wait_for_first(tokens)
    except (StoreConfigError, ExchangeError, OSError, ValueError) as error:
        _log(f"ERROR : spotd: {error}")
        return 1
    major, minor = version.split(".")
    with SigningProxy(scheme, (int(major), int(minor)), secret, tokens) as proxy:
        env = proxy.env(os.environ, str(Path(file).parent))
        with subprocess.Popen(program, env=env, preexec_fn=_die_with_parent) as child:  # noqa: PLW1509 - there is no other thread yet
            threading.Thread(target=proxy.serve_forever, args=(0.5,), daemon=True).start()
            code = child.wait()
        proxy.shutdown()
    return code if code >= 0 else 128 - code


def _wait_for_first(tokens: TokenCache) -> None:
    """Wait until a first token can be had. Raises ExchangeError after FIRST_TOKEN_S."""
    deadline_s = time.monotonic() + FIRST_TOKEN_S
    while (error := _try_get(tokens)) is not None:
        if error.refused or time.monotonic() > deadline_s:
            raise error
        time.sleep(PAUSE_S)


def _try_get(tokens: TokenCache) -> ExchangeError | None:
    try:
        tokens.get()
    except ExchangeError as error:
        return error
    return None


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _log(text: str) -> None:
    """Write to the mount's log in the format of rclone."""
    sys.stderr.write(f"{time.strftime('%Y/%m/%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
