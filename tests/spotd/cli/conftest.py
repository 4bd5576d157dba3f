from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotd.cli.app import run
from spotd.cli.local_time import use_utc
from tests.spotd.api.rig import Rig

Spotctl = Callable[..., int]

# Understands `-L local:remote` as ssh does, and forwards for real.
FAKE_SSH = """#!{python}
import os, socket, sys, threading
open(os.environ["FAKE_SSH_LOG"], "a").write(repr(sys.argv[1:]) + "\\n")
if os.environ.get("FAKE_SSH_FAILS"):
    sys.exit("me@box: Permission denied (publickey).")
if "-N" not in sys.argv:  # a session: show what it was given, and end as the machine would
    options = dict(a.split("=", 1) for a in sys.argv if "=" in a)
    key = options["IdentityFile"]
    print(oct(os.stat(key).st_mode & 0o777), open(key).read().splitlines()[0])
    print(open(options["UserKnownHostsFile"]).read().strip())
    print(options.get("ProxyJump", "no jump"))
    sys.exit(7)
local, remote = sys.argv[sys.argv.index("-L") + 1].split(":")

def copy(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)

listener = socket.socket(socket.AF_UNIX)
listener.bind(local)
listener.listen()
while True:
    near, _ = listener.accept()
    far = socket.socket(socket.AF_UNIX)
    try:
        far.connect(remote)
    except OSError:
        near.close()
        continue
    for pair in ((near, far), (far, near)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A running daemon API of this test's own."""
    rig = Rig().start()
    yield rig
    rig.close()


@pytest.fixture
def spotctl(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Spotctl:
    """A function that runs a command line in this process and returns its exit code.

    The command uses the daemon of `rig` if one is given.
    """
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for name in ("SPOTCTL_HOST", "SPOTCTL_SOCKET"):
        monkeypatch.delenv(name, raising=False)

    def call(rig: Rig | None, *arguments: str) -> int:
        target = ["--socket", str(rig.socket)] if rig else []
        return run([*target, *arguments])

    return call


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time one hour east of UTC."""
    monkeypatch.setenv("TZ", "UTC-1")
    time.tzset()
    use_utc(False)
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def ssh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake ssh first on PATH; returns the file that logs its command lines."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(FAKE_SSH.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SSH_LOG", str(folder / "log"))
    return folder / "log"
