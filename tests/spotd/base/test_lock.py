"""One daemon for a state folder, for a socket, and for a SQLite database, wherever it lies."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.base.lock import hold, hold_database
from spotd.demo.box import Box
from tests.fixtures.forked import ForkedBox
from tests.fixtures.waiting import LIMIT_S


def test_a_lock_ends_with_what_holds_it(tmp_path: Path) -> None:
    held = hold(tmp_path / "lock", "busy", "wait")
    with pytest.raises(UserError, match="busy\ntry: wait"):
        hold(tmp_path / "lock", "busy", "wait")
    held.close()
    hold(tmp_path / "lock", "busy", "wait").close()


def test_a_database_is_locked_by_whatever_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.db").symlink_to(tmp_path / "spotd.db")
    with hold_database(tmp_path / "spotd.db"), pytest.raises(UserError, match="PostgreSQL alone"):
        hold_database(tmp_path / "other" / "link.db")


@pytest.fixture
def box() -> Iterator[Box]:
    """With clouds that do not answer; that matters to nobody here."""
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name,
        ForkedBox(Path(name)) as made,
    ):
        made.cloud_url = "http://127.0.0.1:9"
        made.token_file.parent.mkdir(parents=True)
        made.token_file.write_text("t")
        yield made


@pytest.mark.xdist_group("daemon")
def test_a_second_daemon_is_refused(box: Box) -> None:
    box.start_daemon()
    (box.folder / "linked.db").symlink_to(box.folder / "state" / "spotd.db")
    for state, sock, file, text in (
        ("state", "s", "state/spotd.db", "another spotd runs on"),
        ("other", "s", "fresh.db", "another process serves"),
        ("other", "s2", "state/spotd.db", "another spotd uses the database"),
        ("other", "s2", "linked.db", "on PostgreSQL alone"),
    ):
        config = box.folder / "second.toml"
        written = box.config_path.read_text()
        written = written.replace(f"{box.folder}/state", f"{box.folder}/{state}")
        written = written.replace(f'"{box.socket_path}"', f'"{box.folder}/{sock}"')
        database = f'[database]\nurl = "sqlite:///{box.folder}/{file}"\n'
        config.write_text(written + database)
        command = [sys.executable, "-m", "spotd", "run", "--config", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 1
        assert text in done.stderr
        assert "try: " in done.stderr
        assert "Traceback" not in done.stderr
    assert box.client.call(routes.HEALTH()), "the first one is as well as before"
    assert box.daemon is not None
    box.daemon.send_signal(signal.SIGINT)
    assert box.daemon.wait(LIMIT_S) == 0, box.tail("daemon")
