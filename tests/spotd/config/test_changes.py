"""What another configuration changes, and what of it a running daemon refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotd.config.changes import changed_keys, check_change
from spotd.config.config import Config, ConfigError
from spotd.config.load import load_config

BEFORE = """\
state_dir = "/var/lib/spotd"
[deployment]
store = "s3://ours/own"
[stores.ours]
url = "s3://ours"
options = {region = "a"}
[limits]
max_nodes = 4
[providers.here]
kind = "local"
url = "http://127.0.0.1:8700"
personality = "aws"
[alerts.routes.team]
kind = "log"
"""


def load(folder: Path, text: str) -> Config:
    (folder / "config.toml").write_text(text)
    return load_config(folder / "config.toml", {"RUNTIME_DIRECTORY": "/run/spotd"})


@pytest.fixture
def before(tmp_path: Path) -> Config:
    return load(tmp_path, BEFORE)


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("", "", []),
        ("max_nodes = 4", "max_nodes = 5\nunattended_h = 3", ["max_nodes", "unattended_h"]),
        ("[limits]", "[timing]\nlease_s = 9\n[limits]", ["timing.lease_s"]),
        ('kind = "log"', 'kind = "log"\nmin_severity = "error"', ["routes.team.min_severity"]),
        ("[alerts.routes.team]", "[alerts.routes.other]", ["routes.team", "routes.other"]),
        (
            "[limits]",
            '[providers.aws]\nkind = "aws"\nregions = ["a"]\n[limits]\nmax_usd_per_hour = 1',
            ["limits.max_usd_per_hour", "providers.aws"],
        ),
        ("[limits]", '[checkpoint]\nstore = "s3://ours/c"\n[limits]', ["checkpoint.store"]),
        ("[limits]", '[stores.more]\nurl = "s3://more"\n[limits]', ["stores.more"]),
    ],
)
def test_what_changes_is_named(
    before: Config, tmp_path: Path, old: str, new: str, keys: list[str]
) -> None:
    after = load(tmp_path, BEFORE.replace(old, new) if old else BEFORE)
    check_change(before, after, {"region": "a"})
    found = changed_keys(before, after)
    assert len(found) == len(keys)
    assert all(key.endswith(end) for key, end in zip(found, keys, strict=True))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("/var/lib/spotd", "/var/lib/other", "state_dir"),
        ("[limits]", '[database]\nurl = "postgresql:///x"\n[limits]', "database.url"),
        ("s3://ours/own", "s3://ours/other", "deployment.store"),
        ("[deployment]", '[deployment]\nid = "5f1c09a2b7de"', "deployment.id"),
        ('region = "a"', 'region = "b"', "stores"),
        ('state_dir = "', 'socket = "/run/x"\nstate_dir = "', "socket"),
        ("[limits]", "[safe_mode]\nafter_crashes = 9\n[limits]", "safe_mode"),
        (
            "[limits]",
            '[metrics]\nlisten = "127.0.0.1:9464"\ntoken_file = "/etc/os-release"\n[limits]',
            "metrics",
        ),
        ("[limits]", '[dashboard]\nurl = "https://s.example.org"\n[limits]', "dashboard"),
        ("[limits]", "[timing]\nclaim_every_s = 99\n[limits]", "timing.claim_every_s"),
    ],
)
def test_what_a_restart_alone_can_change(
    before: Config, tmp_path: Path, old: str, new: str, key: str
) -> None:
    assert old in BEFORE
    after = load(tmp_path, BEFORE.replace(old, new))
    with pytest.raises(ConfigError, match="restart") as caught:
        check_change(before, after, {"region": "a"})
    assert key in [problem.where for problem in caught.value.problems]


def test_all_of_it_is_named_at_once(before: Config, tmp_path: Path) -> None:
    after = load(tmp_path, BEFORE.replace("/var/lib/spotd", "/x").replace("ours/own", "ours/o"))
    with pytest.raises(ConfigError) as caught:
        check_change(before, after, {"region": "a"})
    where = [problem.where for problem in caught.value.problems]
    assert where == ["state_dir", "database.url", "deployment.store"]


@pytest.mark.parametrize("new", ["http://127.0.0.1:8701", "http://localhost:8700"])
def test_a_name_stays_that_of_its_account(before: Config, tmp_path: Path, new: str) -> None:
    """Its machines would not be listed any more, and given up."""
    after = load(tmp_path, BEFORE.replace("http://127.0.0.1:8700", new))
    with pytest.raises(ConfigError, match=r"providers\.here: is not the account that spotd knows"):
        check_change(before, after, {"region": "a"})
