"""`spotctl secret`: values come from stdin or a prompt and never appear in argv or output."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys

import pytest

from spotd.base.errors import ExitCode
from spotd.security.master_key import NEXT_KEY_NAME
from spotd.security.secrets import open_secrets
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]
VALUE = "canary-of-a-kept-secret"


def stored_value(rig: Rig, name: str) -> str:
    return open_secrets(rig.vault, "", rig.store.secrets.values([name]))[name]


@pytest.mark.parametrize("written", [VALUE, f"{VALUE}\n", f"{VALUE}\r\n"])
def test_value_is_read_from_stdin(
    rig: Rig,
    spotctl: Spotctl,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    written: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written.encode())))
    assert spotctl(rig, "secret", "set", "HF_TOKEN") == 0
    assert stored_value(rig, "HF_TOKEN") == VALUE
    assert spotctl(rig, "secret", "ls") == 0
    assert spotctl(rig, "secret", "ls", "-o", "json") == 0
    captured = capsys.readouterr()
    assert "HF_TOKEN" in captured.out
    assert VALUE not in captured.out + captured.err


def test_terminal_prompt_hides_the_value(rig: Rig) -> None:
    controller, terminal = pty.openpty()
    code = "from spotd.cli import main; main()"
    command = [sys.executable, "-c", code, "--socket", str(rig.socket), "secret", "set", "PW"]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    ) as child:
        os.close(terminal)
        shown = b""
        while b"PW: " not in shown:
            shown += os.read(controller, 1024)
        os.write(controller, f"{VALUE}\n".encode())
        assert child.wait(LIMIT_S) == 0
    try:
        while more := os.read(controller, 1024):
            shown += more
    except OSError:  # the other end is closed
        pass
    os.close(controller)
    assert VALUE.encode() not in shown
    assert stored_value(rig, "PW") == VALUE


def test_value_on_the_command_line_is_refused(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    assert spotctl(rig, "secret", "set", "A", VALUE) == ExitCode.USAGE
    assert rig.store.secrets.rows() == []


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\xfe", b"x" * (1 << 17)])
def test_invalid_value_is_refused(
    rig: Rig, spotctl: Spotctl, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert spotctl(rig, "secret", "set", "A") == ExitCode.USAGE
    assert rig.store.secrets.rows() == []


def test_remove_and_rotate(
    rig: Rig, spotctl: Spotctl, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(VALUE.encode())))
    assert spotctl(rig, "secret", "set", "A") == 0
    assert spotctl(rig, "secret", "rotate") == ExitCode.FAILURE
    assert "no key to take over" in capsys.readouterr().err
    (rig.folder / NEXT_KEY_NAME).write_bytes(b"n" * 32)
    (rig.folder / NEXT_KEY_NAME).chmod(0o600)
    assert spotctl(rig, "secret", "rotate", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 1
    assert stored_value(rig, "A") == VALUE
    assert spotctl(rig, "secret", "rm", "A") == 0
    assert spotctl(rig, "secret", "rm", "A") == ExitCode.NOT_FOUND
    actions = {row.action for row in rig.store.audit.rows(0)}
    assert actions == {"secret set", "secret rm", "key rotate"}
