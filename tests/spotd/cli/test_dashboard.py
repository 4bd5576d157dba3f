"""`spotctl dashboard`."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from spotd.base.errors import ExitCode
from spotd.cli.dashboard import _write_redirect
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.api.rig import Rig, story
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.dashboard.reading import ask, read


def test_it_serves_until_it_is_interrupted(rig: Rig) -> None:
    story(rig)
    line = [sys.executable, "-c", "from spotd.cli import main; main()"]
    line += ["--socket", str(rig.socket), "dashboard", "-o", "json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        try:
            data = json.loads("".join(run.stdout.readline() for _ in range(4)))
            assert data["kind"] == "Dashboard"
            assert run.stderr.readline() == "Ctrl-C ends it\n"
            assert "gpt" in read(data["url"]).text
            assert ask(data["url"], "/").status == 403
            arguments = Path(f"/proc/{run.pid}/cmdline").read_bytes()
            assert data["url"].split("/")[3].encode() not in arguments
        finally:
            run.send_signal(signal.SIGINT)
        assert run.wait(LIMIT_S) == 0
        assert run.stderr.read() == ""


def test_missing_daemon_and_taken_port_are_errors(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        assert spotctl(rig, "dashboard", "--port", port) == ExitCode.FAILURE
    assert "another --port" in capsys.readouterr().err
    assert spotctl(rig, "dashboard", "--port", "70000") == ExitCode.USAGE
    rig.stop()
    assert spotctl(rig, "dashboard") == ExitCode.UNREACHABLE
    assert "no daemon answers" in capsys.readouterr().err


def test_redirect_page_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        uri = _write_redirect(tmp_path, "http://127.0.0.1:1/secret/")
    finally:
        os.umask(before)
    path = Path(uri.removeprefix("file://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert 'url=http://127.0.0.1:1/secret/"' in path.read_text()
