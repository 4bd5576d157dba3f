"""`spotd db`: backup, restore, upgrade and downgrade, as an operator types them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spotd.base.lock import hold_database
from spotd.cli.app import run as spotctl
from spotd.daemon.command import main
from spotd.store import schema
from spotd.store.errors import SchemaVersionError
from spotd.store.sql_store import open_store
from tests.spotd.daemon.test_command import CONFIG, revision, written

HEAD = schema.REVISIONS[-1]


@pytest.fixture
def config(tmp_path: Path) -> str:
    """The path of a configuration of a box on which no daemon ever ran."""
    return str(written(tmp_path, CONFIG))


def make_database(folder: Path) -> Path:
    (folder / "state").mkdir()
    file = folder / "state" / "spotd.db"
    open_store(
        f"sqlite:///{file}", now=lambda: 1, notify=lambda: None, deployment_factory=lambda: "d7"
    ).close()
    return file


def test_there_and_back(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    file, backup = make_database(tmp_path), tmp_path / "b" / "spotd.backup"
    backup.parent.mkdir()
    assert main(["db", "backup", str(backup), "-c", config, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["apiVersion"], data["kind"]) == ("spotd/v1", "Backup")
    assert data["bytes"] == backup.stat().st_size
    assert main(["db", "restore", str(backup), "-c", config]) == 1
    assert "move it away first, nothing is overwritten" in capsys.readouterr().err
    file.rename(tmp_path / "old.db")
    assert main(["db", "restore", str(backup), "-c", config, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["quarantine"].startswith("this database was restored from the backup of 20")
    store = open_store(
        f"sqlite:///{file}", now=lambda: 1, notify=lambda: None, deployment_factory=str
    )
    assert (store.deployment.id(), store.deployment.quarantine()) == ("d7", data["quarantine"])
    store.close()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_restore_makes_the_state_folder_of_a_fresh_box(tmp_path: Path, config: str) -> None:
    make_database(tmp_path)
    backup = tmp_path / "spotd.backup"
    assert main(["db", "backup", str(backup), "-c", config]) == 0
    (tmp_path / "state").rename(tmp_path / "burned")
    assert main(["db", "restore", str(backup), "-c", config]) == 0
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_the_schema_goes_back_and_forth(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, older = make_database(tmp_path), schema.REVISIONS[-2]
    assert main(["db", "downgrade", older, "-c", config, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["before"], data["after"]) == (HEAD, older)
    assert revision(file) == older
    with pytest.raises(SchemaVersionError, match=rf"has schema {older}, this spotd needs {HEAD}"):
        open_store(f"sqlite:///{file}", now=int, notify=int, deployment_factory=str)
    assert main(["db", "upgrade", "-c", config]) == 0
    assert f"schema {HEAD}" in capsys.readouterr().out
    assert main(["db", "downgrade", "7777", "-c", config]) == 1
    assert f"'7777' is none before it: name one of {schema.REVISIONS[0]}" in capsys.readouterr().err
    assert revision(file) == HEAD


BOTH = pytest.mark.parametrize("program", [main, spotctl], ids=["spotd", "spotctl"])
Program = Callable[[Sequence[str]], int]


@BOTH
def test_both_programs_bring_it_to_the_new_schema(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], program: Program
) -> None:
    file, older = make_database(tmp_path), schema.REVISIONS[-2]
    assert main(["db", "downgrade", older, "-c", config]) == 0
    capsys.readouterr()
    assert program(["db", "upgrade", "-c", config, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == {"apiVersion": "spotd/v1", "kind": "Upgrade", "before": older, "after": HEAD}
    assert revision(file) == HEAD
    assert program(["db", "upgrade", "-c", config]) == 0
    assert capsys.readouterr().out == f"the database is up to date: schema {HEAD}\n"


@BOTH
def test_what_keeps_them_from_it_is_said(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], program: Program
) -> None:
    file = make_database(tmp_path)
    with hold_database(file):
        assert program(["db", "upgrade", "-c", config]) == 1
    assert "another spotd uses the database" in capsys.readouterr().err
    lock = file.with_name(f"{file.name}.lock")
    lock.unlink()
    lock.mkdir()  # a test that may be root's has no file that it must not open
    assert program(["db", "upgrade", "-c", config]) == 1
    assert "cannot be used: Is a directory\ntry: run it as the user" in capsys.readouterr().err
    lock.rmdir()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    assert program(["db", "upgrade", "-c", config]) == 1
    assert "install the newer spotd" in capsys.readouterr().err


def test_an_upgrade_is_made_on_the_box_itself(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotctl(["--host", "me@box", "db", "upgrade", "-c", config]) == 2
    assert "try: ssh me@box spotctl db upgrade" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["table", "json"])
def test_who_goes_back_to_one_that_renews_nothing_is_told_what_it_ends(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    make_database(tmp_path)
    told = "even healthy ones save and end within 24 h"
    assert main(["db", "downgrade", "0004", "-c", config, "-o", output]) == 0
    assert told not in capsys.readouterr().out
    assert main(["db", "downgrade", "0003", "-c", config, "-o", output]) == 0
    assert told in capsys.readouterr().out
    assert main(["db", "downgrade", "--help"]) == 0
    assert "limits.unattended_h" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["upgrade", f"downgrade {schema.REVISIONS[-2]}"])
def test_not_while_a_daemon_has_it(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    file = make_database(tmp_path)
    with hold_database(file):
        assert main(["db", *line.split(), "-c", config]) == 1
    assert "another spotd uses the database" in capsys.readouterr().err
    assert revision(file) == HEAD


@pytest.mark.parametrize("command", ["backup", "restore", "upgrade", "downgrade"])
def test_each_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main(["db", command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"spotd db {command}" in text.split("Example:")[1]
    assert "--output" in text
