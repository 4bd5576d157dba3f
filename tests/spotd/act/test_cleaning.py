"""A machine's disk is cleaned over real SSH; what `sudo` would run there is played, because it
would take this machine's own keys."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.act import link
from spotd.act.bundle import Bundle, build_bundle
from spotd.act.image_builder import UncleanDiskError
from spotd.act.node_link import LinkError
from tests.fixtures import processes, sshd
from tests.fixtures.station import Station, station
from tests.fixtures.waiting import wait_until

CALL_S = 30.0
CLEANED = """echo '{"cleaned": {"removed": 9, "failed": []}}'"""
DIRTY = """echo '{"cleaned": {"removed": 8, "failed": ["/root/.ssh: Read-only file system"]}}'"""


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return build_bundle()


@pytest.fixture
def here(tmp_path: Path, bundle: Bundle) -> Iterator[Station]:
    with station(tmp_path, bundle) as found:
        yield found


def play(here: Station, script: str) -> Path:
    """Its `sudo` is this script; what it was called with, one line a call."""
    tools, log = here.machine.home / "bin", here.machine.home / "sudo.log"
    tools.mkdir()
    for name in ("sh", "bash", "cat", "test", "grep", "wc"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    note = f"printf '%s\\n' \"$*\" >> {log}"
    (tools / "sudo").write_text(f"#!/bin/sh\n{note}\n{script}\n")
    for name in ("python3", "sudo"):
        (tools / name).chmod(0o755)
    port = here.machine.port
    here.machine.close()
    here.machine = sshd.start(here.machine.home, port, path=str(tools))
    return log


def test_the_agent_ends_and_then_the_disk_is_cleaned(
    here: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_AGENT_ENDS_S", 0.05)
    at_work = (
        f'[ "$(wc -l < {here.machine.home}/sudo.log)" -gt 2 ] || {{ echo at work >&2; exit 1; }}'
    )
    log = play(here, f"{at_work}\n{CLEANED}")
    node = here.boot()
    here.link.clean(node, here.keys, "/run/spotd/it's prepared", CALL_S)
    lines = log.read_text().splitlines()
    assert len(lines) == 3, "an agent takes a moment to end"
    home = here.machine.home / ".spotd"
    [path] = (home / "bundles").iterdir()
    told = f"-n python3 {path} clean --home {home} --prepared-file /run/spotd/it's prepared"
    assert lines == [told] * 3
    wait_until("the agent is gone", lambda: not _agents(here))


def _agents(here: Station) -> list[int]:
    return [
        pid
        for pid in processes.carrying("HOME", str(here.machine.home))
        if b"pyz\0run" in processes.command_line(pid)
    ]


def test_what_stays_on_the_disk_is_final_and_said(here: Station) -> None:
    play(here, f"{DIRTY}\nexit 1")
    with pytest.raises(
        UncleanDiskError, match=r"stays on the disk: exit 1: .*/root/\.ssh: Read-only"
    ):
        here.link.clean(here.boot(), here.keys, "", CALL_S)


def test_a_machine_that_refuses_is_no_clean_one(
    here: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_AGENT_ENDS_S", 0.01)
    play(here, "echo 'spot-node clean: this machine was not prepared by spotd' >&2\nexit 1")
    with pytest.raises(LinkError, match=r"was not cleaned: exit 1: .*not prepared by spotd"):
        here.link.clean(here.boot(), here.keys, "", CALL_S)


def test_an_answer_that_is_lost_is_no_clean_disk(here: Station) -> None:
    play(here, f"{CLEANED}\nkill -9 $PPID")
    with pytest.raises(LinkError):
        here.link.clean(here.boot(), here.keys, "", CALL_S)
