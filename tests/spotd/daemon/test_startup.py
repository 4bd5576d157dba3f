"""A SQLite database notices that it was moved or copied, and keeps its deployment."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from providers.stores.base import StoreError as ObjectStoreError
from providers.stores.local import LocalStore
from spotd.base.errors import UserError
from spotd.config.load import load_config
from spotd.daemon import startup
from spotd.daemon.startup import MOVED, check_deployment, detect_moved_database, open_claim_store
from spotd.store.backup import back_up, restore
from spotd.store.sql_store import open_store
from tests.spotd.store.build import NOW


@contextmanager
def begun(file: Path) -> Iterator[str]:
    """A daemon begins on it; why the database is in quarantine then."""
    store = open_store(
        f"sqlite:///{file}", now=lambda: NOW, notify=lambda: None, deployment_factory=lambda: "d0"
    )
    detect_moved_database(store, file, NOW)
    yield store.deployment.quarantine()
    store.close()


def test_a_copy_begins_in_quarantine_and_the_original_goes_on(tmp_path: Path) -> None:
    """Nothing else tells them apart where the deployment's store was copied with them."""
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    for _ in range(2):
        with begun(one) as why:
            assert why == ""
    shutil.copy(one, two)
    with begun(two) as why:
        assert why == MOVED
    with begun(one) as why:
        assert why == ""


def test_so_does_one_that_came_to_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, machine = tmp_path / "spotd.db", tmp_path / "machine-id"
    monkeypatch.setattr(startup, "MACHINE_ID", machine)
    with begun(file) as why:
        assert why == ""
    machine.write_text("3c1f\n")
    with begun(file) as why:
        assert why == MOVED


def test_one_that_is_restored_says_of_what(tmp_path: Path) -> None:
    with begun(tmp_path / "one.db"):
        pass
    back_up(f"sqlite:///{tmp_path / 'one.db'}", tmp_path / "backup", NOW)
    restore(f"sqlite:///{tmp_path / 'two.db'}", tmp_path / "backup", NOW)
    with begun(tmp_path / "two.db") as why:
        assert why.startswith("this database was restored from the backup of")


CONFIG = """
[providers.here]
kind = "local"
url = "http://127.0.0.1:8700"
personality = "aws"
"""


def test_a_database_keeps_the_deployment_that_it_was_made_for(tmp_path: Path) -> None:
    """Its machines have that tag: under another one, none of them would be found."""
    file, environ = tmp_path / "config.toml", {"STATE_DIRECTORY": str(tmp_path)}
    ours, other = "5f1c09a2b7de", "0123456789ab"
    store = open_store(
        "sqlite://", now=lambda: NOW, notify=lambda: None, deployment_factory=lambda: ours
    )
    for text in ("", f'[deployment]\nid = "{ours}"\n'):
        file.write_text(CONFIG + text)
        check_deployment(store, load_config(file, environ))
    file.write_text(f'{CONFIG}[deployment]\nid = "{other}"\n')
    with pytest.raises(UserError, match=f"says {other}, .* is that of deployment {ours}") as caught:
        check_deployment(store, load_config(file, environ))
    assert "take deployment.id out" in caught.value.try_
    store.close()


BUCKET = '[checkpoint]\nstore = "s3://runs/jobs"\n'
SHARED = (
    '[checkpoint]\nstore = "file:///mnt/all"\n'
    '[stores.all]\nurl = "file:///mnt/all"\nshared = true\n'
)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ("", ""),
        ('[checkpoint]\nstore = "file:///mnt/mine"\n', ""),
        (SHARED, "/mnt/all"),
        (BUCKET, "s3://runs/jobs"),
        (f'{BUCKET}[deployment]\nstore = "s3://ours/spotd"\n', ""),
        (f"{BUCKET}# broken\n", ""),
    ],
)
def test_what_a_copy_shares_with_its_original_is_where_it_is_claimed(
    tmp_path: Path, settings: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deployment's own store, or a bucket, or a folder that is everywhere; one that cannot be
    opened stops nobody."""
    opened: list[str] = []
    broken = "broken" in settings

    def open_it(url: str, _options: object = None) -> LocalStore:
        opened.append(url)
        if broken:
            raise ObjectStoreError("boto3 is not installed")
        return LocalStore(tmp_path / "other")

    monkeypatch.setattr(startup, "open_store", open_it)
    file = tmp_path / "config.toml"
    local = '[providers.here]\nkind = "local"\nurl = "http://127.0.0.1:1"\npersonality = "aws"\n'
    file.write_text(f"{local}{settings}")
    config = load_config(file, {"HOME": str(tmp_path)})
    own = LocalStore(tmp_path / "own")
    found = open_claim_store(config, own)
    assert (found is own) is (where == "")
    assert broken or [url.removeprefix("file://") for url in opened] == ([where] if where else [])
    assert opened or not broken
