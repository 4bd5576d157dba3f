"""A real browser, spoken to by Chromium's own protocol over a pair of pipes: nothing to install
beside it, and no port."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMEOUT_S = 30.0
# No network but the loopback's, whatever a page or the browser itself would like.
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


class BrowserError(Exception):
    """The browser is missing, ended, or refused; the text says what."""


def find_browser() -> str:
    """Chromium's program. Raises BrowserError: tests fail without it, they do not pass it over."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise BrowserError("there is no Chromium: tests/system-packages installs it")
    return found


class Page:
    """One tab. `console` is what it complained of: errors of scripts and of the security policy."""

    def __init__(self, out: int, into: int) -> None:
        self._out, self._into = out, into
        self._ids = itertools.count(1)
        self._rest = b""
        self._session = ""
        self.console: list[str] = []
        self.asked: list[str] = []  # every address that it requested
        made = self._ask("Target.createTarget", url="about:blank")
        attached = self._ask("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, url: str) -> None:
        told = self._ask("Page.navigate", url=url)
        if told.get("errorText"):
            raise BrowserError(f"{url}: {told['errorText']}")
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """How wide, and in which colours."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def js(self, expression: str) -> Any:
        """What an expression comes to, awaited."""
        told = self._ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in told:
            raise BrowserError(f"{expression}: {json.dumps(told['exceptionDetails'])[:500]}")
        return told["result"].get("value")

    def wait(self, expression: str, timeout_s: float = TIMEOUT_S) -> Any:
        """The first true value of an expression. Raises BrowserError."""
        end = time.monotonic() + timeout_s
        while True:
            value = self.js(expression)
            if value:
                return value
            if time.monotonic() > end:
                raise BrowserError(f"waited {timeout_s:g} s in vain for {expression}")
            time.sleep(0.05)

    def press(self, key: str, code: int) -> None:
        """A key, as a hand presses it."""
        for kind in ("keyDown", "keyUp"):
            self._ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=code,
            )  # fmt: skip

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """What one sees, or all of it, as PNG."""
        told = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole,
                         **({"clip": self._whole()} if whole else {}))  # fmt: skip
        path.write_bytes(base64.b64decode(told["data"]))

    def _whole(self) -> dict[str, float]:
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def _ask(self, method: str, /, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        order = {"id": number, "method": method, "params": params}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._into, json.dumps(order).encode() + b"\0")
        while True:
            told = self._read()
            self._note(told)
            if told.get("id") == number:
                if "error" in told:
                    raise BrowserError(f"{method}: {told['error']}")
                return dict(told["result"])

    def _note(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        match told.get("method"):
            case "Log.entryAdded":
                self.console.append(str(params["entry"]["text"]))
            case "Runtime.exceptionThrown":
                self.console.append(json.dumps(params["exceptionDetails"])[:500])
            case "Network.requestWillBeSent":
                self.asked.append(str(params["request"]["url"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._out, 1 << 16)
            if not data:
                raise BrowserError("the browser ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))


@contextlib.contextmanager
def open_page() -> Iterator[Page]:
    """A tab of a browser of its own, which ends with the block. Raises BrowserError."""
    program = find_browser()
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as home:
        # It reads its orders from 3 and writes to 4, whatever numbers the pipes have here.
        shell = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        line = ["bash", "-c", shell, "bash", program, *_OPTIONS, f"--user-data-dir={home}"]
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
            env={**os.environ, "HOME": home},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Page(ours_in, ours_out)
        finally:
            os.close(ours_out)  # which ends it
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(ours_in)
