"""`python -m trainer.mounts.signing_proxy FILE SCHEME VERSION PROGRAM ...`: PROGRAM, an rclone of
VERSION, with a door beside it where it gets tokens of Google's or Azure's store (SCHEME gs or az)
for who this machine is. FILE has the options of the store, as `open_store` takes them.

rclone gets tokens from the metadata services of these clouds' own machines, and asks them anew
before they end: the door speaks as they do, on the loopback, to whoever knows the word in
SPOTD_MOUNT_WORD. It is there for as long as PROGRAM, and PROGRAM for as long as it. Standard
library only. (How it is asked: Go's `compute/metadata` for Google; for Azure the pages on managed
identities of machines and of App Service, and rclone's azureblob.)
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
from providers.stores import proof_of
from providers.stores.base import StoreConfigError

WORD = "SPOTD_MOUNT_WORD"
BY_NAME = (1, 61)  # the first rclone that can be told where its Azure identity is asked for
FIRST_S = 30.0  # that the first token is tried for, where somebody is away
PAUSE_S = 3.0  # between two tries
FRESH_S = 60.0  # so old a token may be that is given
MARGIN_S = 300.0  # before its end, from which on it is not to be used
SAY_EVERY_S = 60.0
_PR_SET_PDEATHSIG = 1
_LINK_LOCAL = "169.254.169.254"
_RESOURCE = "https://storage.azure.com"
# By which these clouds' libraries, and Go's, would find something else than the door.
_ASIDE = frozenset(
    {"GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_IP", "REQUEST_METHOD", "PYTHONPATH"}
    | {"MSI_ENDPOINT", "MSI_SECRET", "IDENTITY_SERVER_THUMBPRINT", "IMDS_ENDPOINT"}
    | {"AZURE_POD_IDENTITY_AUTHORITY_HOST"}
)


class Tokens:
    """Made by `make` for whoever asks, and not twice in a minute. While none can be made the one
    before is given, for as long as it lasts."""

    def __init__(
        self,
        make: Callable[[], Mapping[str, Any]],
        say: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._make, self._say, self._now = make, say, now
        self._lock = threading.Lock()
        self._token, self._made_at, self._ends_at = "", 0.0, 0.0
        self._try_at, self._said = 0.0, (False, 0.0)

    def get(self, *, over: bool = False) -> tuple[str, float]:
        """One, and for how many seconds it may be used: less than it lasts. With `over` one that
        has ended is better than none. Raises ExchangeError."""
        with self._lock:
            now = self._now()
            fresh_s = min(FRESH_S, (self._ends_at - self._made_at) / 4)
            if now >= min(max(self._try_at, self._made_at + fresh_s), self._ends_at):
                self._renew(now, over=over)
            margin_s = min(MARGIN_S, (self._ends_at - self._made_at) / 3)
            return self._token, max(PAUSE_S, self._ends_at - margin_s - self._now())

    def _renew(self, now: float, *, over: bool) -> None:
        try:
            made = self._make()
        except ExchangeError as error:
            if not self._token:
                raise
            self._try_at = now + PAUSE_S
            ended = now >= self._ends_at
            self._tell(error, now, ended=ended)
            if ended and not over:
                raise
            return
        self._token, self._ends_at = made["token"], made["expires_at"].timestamp()
        self._made_at = now

    def _tell(self, error: ExchangeError, now: float, *, ended: bool) -> None:
        """Once a minute; and at once when it begins to hurt."""
        said, at = self._said
        if said == ended and now < at + SAY_EVERY_S:
            return
        self._said = ended, now
        left = f"and the one before lasts for {self._ends_at - now:.0f} s more"
        was = "and the one before has ended" if ended else left
        self._say(f"{'ERROR ' if ended else 'NOTICE'}: spotd: no new token, {was}: {error}")


class SigningProxy(ThreadingHTTPServer):
    """Where an rclone of `version` asks; `word` is what it has to know."""

    daemon_threads = True

    def __init__(self, scheme: str, version: tuple[int, int], word: str, tokens: Tokens) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._scheme, self._word, self._tokens = scheme, word, tokens
        self._proxied = scheme == "az" and version < BY_NAME

    def env(self, environ: Mapping[str, str], home: str) -> dict[str, str]:
        """The program's: that it comes here, and to nobody else. Google's library looks in `home`
        for a person's credentials first: it has none there."""
        at, word = f"127.0.0.1:{self.server_port}", self._word
        kept = {name: value for name, value in environ.items() if name not in _ASIDE}
        if self._scheme == "gs":
            return {**kept, "HOME": home, "GCE_METADATA_HOST": f"{at}/{word}"}
        if not self._proxied:
            return {**kept, "IDENTITY_ENDPOINT": f"http://{at}/{word}", "IDENTITY_HEADER": word}
        # These ask one address alone, which is not this machine's; over http, as nothing else is.
        return {**_proxied(kept), "HTTP_PROXY": f"http://spotd:{word}@{at}"}

    def answer(self, path: str, headers: Message) -> tuple[int, dict[str, Any]]:
        """A status and a document. Raises ExchangeError."""
        if self._scheme == "gs":
            return self._google(path)
        return self._azure_proxied(path, headers) if self._proxied else self._azure(headers)

    def _google(self, path: str) -> tuple[int, dict[str, Any]]:
        root = f"/{self._word}/computeMetadata/v1"
        if not path.startswith("/") or not _same(path[: len(root)], root):
            return 403, {}
        if urlsplit(path).path != f"{root}/instance/service-accounts/default/token":
            return 404, {}
        token, lasts_s = self._tokens.get()
        return 200, {"access_token": token, "expires_in": int(lasts_s), "token_type": "Bearer"}

    def _azure(self, headers: Message) -> tuple[int, dict[str, Any]]:
        if not _same(headers.get("X-IDENTITY-HEADER", ""), self._word):
            return 403, {}
        return 200, _identity(*self._tokens.get())

    def _azure_proxied(self, path: str, headers: Message) -> tuple[int, dict[str, Any]]:
        """These renew a minute before the end, and never again once it did not work."""
        known = b64encode(f"spotd:{self._word}".encode()).decode()
        if not _same(headers.get("Proxy-Authorization", ""), f"Basic {known}"):
            return 407, {}
        if urlsplit(path)[1:3] != (_LINK_LOCAL, "/metadata/identity/oauth2/token"):
            return 404, {}
        token, lasts_s = self._tokens.get(over=True)
        return 200, _identity(token, lasts_s + 60)


def _identity(token: str, lasts_s: float) -> dict[str, Any]:
    lasts = {"expires_in": str(int(lasts_s)), "expires_on": str(int(time.time() + lasts_s))}
    return {"access_token": token, **lasts, "resource": _RESOURCE, "token_type": "Bearer"}


def _proxied(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what would keep the one address from being asked for at a proxy."""
    kept = {name: value for name, value in environ.items() if name != "http_proxy"}
    for name in ("NO_PROXY", "no_proxy"):
        words = kept.pop(name, "").split(",")
        if "*" in map(str.strip, words):
            return {n: v for n, v in kept.items() if n.upper() not in {"HTTPS_PROXY", "NO_PROXY"}}
        if left := [word for word in words if word and not word.strip().startswith("169.254.")]:
            kept[name] = ",".join(left)
    return kept


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


class _Handler(BaseHTTPRequestHandler):
    server: SigningProxy
    timeout = 10.0  # of one who connects and says nothing

    def log_message(self, *_: object) -> None:
        """Nothing: the path has the word."""

    def do_GET(self) -> None:
        try:
            status, said = self.server.answer(self.path, self.headers)
        except ExchangeError as error:
            # None of those that are asked again at once: the next read asks again.
            status, said = 403, {"error": "no token", "error_description": str(error)}
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(file: str, scheme: str, version: str, *program: str) -> int:
    """The program's exit code; 1 where no first token comes."""
    word = os.environ.pop(WORD)
    try:
        make = proof_of(f"{scheme}://", json.loads(Path(file).read_bytes()))
        if make is None:
            raise StoreConfigError("store option identity is not given")
        tokens = Tokens(make, _say)
        _have_first(tokens)
    except (StoreConfigError, ExchangeError, OSError, ValueError) as error:
        _say(f"ERROR : spotd: {error}")
        return 1
    major, minor = version.split(".")
    with SigningProxy(scheme, (int(major), int(minor)), word, tokens) as door:
        env = door.env(os.environ, str(Path(file).parent))
        with subprocess.Popen(program, env=env, preexec_fn=_end_with_us) as child:  # noqa: PLW1509 - there is no other thread yet
            threading.Thread(target=door.serve_forever, args=(0.5,), daemon=True).start()
            code = child.wait()
        door.shutdown()
    return code if code >= 0 else 128 - code


def _have_first(tokens: Tokens) -> None:
    """Raises ExchangeError."""
    until = time.monotonic() + FIRST_S
    while (error := _failed(tokens)) is not None:
        if error.refused or time.monotonic() > until:
            raise error
        time.sleep(PAUSE_S)


def _failed(tokens: Tokens) -> ExchangeError | None:
    try:
        tokens.get()
    except ExchangeError as error:
        return error
    return None


def _end_with_us() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _say(text: str) -> None:
    """In the log of the mount, as rclone says things."""
    sys.stderr.write(f"{time.strftime('%Y/%m/%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
