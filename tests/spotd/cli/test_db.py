"""`spotctl db backup` of a running daemon."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from spotd.api.routes import backup
from spotd.store.backup import restore
from spotd.store.errors import StoreError
from spotd.store.sql_store import open_store
from tests.spotd.api.rig import Rig, story
from tests.spotd.cli.conftest import Spotctl


def test_backup_can_be_restored(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job_id = story(rig)
    file = tmp_path / "spotd.backup"
    assert spotctl(rig, "db", "backup", str(file), "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] == "Backup"
    assert data["bytes"] == file.stat().st_size
    assert data["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert file.stat().st_mode & 0o777 == 0o600
    assert list((rig.folder / "spool").iterdir()) == [], "nothing is left with the daemon"
    url = f"sqlite:///{tmp_path}/restored.db"
    restore(url, file, rig.clock.now_us())
    store = open_store(url, now=lambda: 0, notify=lambda: None, deployment_factory=str)
    assert store.nodes.of_job(job_id) == rig.store.nodes.of_job(job_id)
    store.close()


def test_existing_file_is_not_overwritten(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "spotd.backup"
    file.write_text("precious")
    assert spotctl(rig, "db", "backup", str(file)) == 1
    assert "exists already\ntry: name a new file" in capsys.readouterr().err
    assert file.read_text() == "precious"
    assert spotctl(rig, "db", "backup", str(tmp_path / "no" / "such")) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_failed_backup_leaves_no_file(
    rig: Rig,
    spotctl: Spotctl,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("pg_dump is missing: apt-get install postgresql-client")

    monkeypatch.setattr("spotd.store.backup._copy_sqlite", fail)
    assert spotctl(rig, "db", "backup", str(tmp_path / "x")) == 1
    assert "apt-get install postgresql-client" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_truncated_backup_is_detected(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chunks = backup.BackupFile.chunks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            backup.BackupFile, "chunks", lambda self: [b"x" * len(c) for c in chunks(self)]
        )
        assert spotctl(rig, "db", "backup", str(tmp_path / "x")) == 1
    assert "the backup does not match its digest" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
