"""Who is lent what, by the configuration in force."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.api_routes import routes
from spotd.base.clock import SystemClock
from spotd.config.config import Config
from spotd.config.load import load_config
from spotd.daemon.wiring import credential_leases, store_reaches
from spotd.demo.box import Box, wait_for
from spotd.planner.core.credential_lease import AccessMethod, StoreReach
from tests.fixtures import lending as rig
from tests.fixtures.lending import PROFILE, ROLE, Lending
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.fake_world import job_keys

PROVIDERS = """
[limits]
max_nodes = 2
max_usd_per_hour = 9
unattended_h = 6
[providers.aws]
kind = "aws"
regions = ["us-east-1"]
node_role = "spotd-node"
[providers.gcp]
kind = "gcp"
project = "p"
regions = ["us-central1"]
[providers.here]
kind = "local"
url = "http://127.0.0.1:8700"
personality = "azure"
token_file = "/nowhere/token"
[checkpoint]
store = "s3://plain"
[stores.folder]
url = "file:///data"
"""


@pytest.fixture
def lending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lending]:
    with rig.serving(tmp_path) as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running


def test_each_pair_is_tried(lending: Lending, tmp_path: Path) -> None:
    lending.rules.longest_s = 3600
    lend = f'{{kind = "aws", role = "{ROLE}", profile = "{PROFILE}"}}'
    file = tmp_path / "config.toml"
    file.write_text(f'{PROVIDERS}[stores.runs]\nurl = "s3://runs/x"\nlend = {lend}\n')
    config = load_config(file, {})
    made: list[Config] = [config]
    loans = credential_leases(lambda: made[0], _NoLink(), lambda _job: job_keys(), SystemClock())
    six_s = 6 * 3600.0
    found = store_reaches(config, loans)
    assert [(r.provider, r.url, r.way) for r in found] == [
        ("aws", "s3://plain", AccessMethod.ROLE),
        ("gcp", "s3://plain", AccessMethod.NONE),
        ("aws", "s3://runs/x", AccessMethod.ROLE),
        ("gcp", "s3://runs/x", AccessMethod.LENT),
        ("here", "s3://runs/x", AccessMethod.LENT),
    ]
    own, gcp = found[2], found[3]
    assert own == StoreReach(
        "aws", "aws", "s3://runs/x", "aws", AccessMethod.ROLE, six_s, roled=True
    )
    assert (gcp.cloud, gcp.store_cloud, gcp.limit_s, gcp.error) == ("gcp", "aws", six_s, "")
    # An hour less what the call took: what was found, not what was hoped for.
    assert 3600 - LIMIT_S < gcp.lasts_s <= 3600
    assert '"arn:aws:s3:::runs/x/jobs/doctor/*"' in lending.rules.asked[-1]["Policy"]
    asked = len(lending.rules.asked)
    store_reaches(config, loans)
    assert len(lending.rules.asked) == asked + 1, "once for each store, by the same lender"
    lending.rules.down = "403|AccessDenied|not authorized to perform: sts:AssumeRole"
    broken = store_reaches(config, loans)
    assert [bool(r.error) for r in broken] == [False, False, False, True, True]
    assert "sts:AssumeRole" in broken[3].error
    lending.rules.down = ""
    file.write_text(file.read_text().replace(f', profile = "{PROFILE}"', ', lifetime = "15m"'))
    made[0] = load_config(file, {})
    lending.rules.asked.clear()
    assert loans.way("s3://runs/x", "gcp") is AccessMethod.LENT
    assert store_reaches(made[0], loans)[3].error, "of others settings another one is made"
    assert lending.rules.asked == [], "which has no profile, and no keys"


class _NoLink:
    """No machine is asked for anything."""

    def lend(self, *_: object) -> str:
        raise AssertionError


class LendingBox(Box):
    """A daemon that finds the keys of its own where the SDK looks for them."""

    def __init__(self, folder: Path, settings: str, more: dict[str, str]) -> None:
        super().__init__(folder, settings=settings)
        self._more = more

    def environ(self) -> dict[str, str]:
        return super().environ() | self._more


def test_a_daemon_lends_before_the_program_starts_and_says_so(
    lending: Lending, tmp_path: Path
) -> None:
    """The whole of it, as a process; what comes after is in tests/e2e/test_lending.py."""
    url = lending.bucket.url
    options = f'region = "us-east-1"\nendpoint = "{lending.bucket.endpoint}"\nallow_http = true\n'
    keys = tmp_path / "key"
    keys.write_text("test")
    options += f'access_key_id_file = "{keys}"\nsecret_access_key_file = "{keys}"\n'
    settings = f"""
[stores.runs]
url = "{url}"
[stores.runs.options]
{options}
[stores.runs.lend]
kind = "aws"
to = "all"
role = "{ROLE}"
profile = "{PROFILE}"
"""
    text = f"""
name: borrower
resources:
  accelerators: H100:8
run: |
  echo "$SPOTD_STORE_OPTIONS" > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/options
  while [ ! -e {tmp_path}/finish ]; do sleep 0.05; done
spotd:
  checkpoint: {{engine: spotd, store: "{url}"}}
"""
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as short,
        LendingBox(Path(short), settings, lending.environ) as box,
    ):
        box.start()
        job_id = box.submit(text, "r1")
        wait_for("the program", (tmp_path / "options").exists, LIMIT_S)
        given = json.loads((tmp_path / "options").read_text())
        assert given.keys() == {"region", "endpoint", "allow_http", "credentials_file"}
        session = rig.session_of(
            json.loads(Path(given["credentials_file"]).read_text())["AccessKeyId"]
        )
        folder = f"{lending.bucket.folder}/jobs/{job_id}/*"
        assert f"arn:aws:s3:::{lending.bucket.name}/{folder}" in session.policy
        checks = box.client.call(routes.DOCTOR())["checks"]
        pairs = {c["name"]: c["text"] for c in checks if c["name"].startswith("unattended ")}
        assert pairs.keys() == {f"unattended local-{cloud}" for cloud in ("aws", "gcp", "azure")}
        assert all("saves for 8 h without spotd" in text for text in pairs.values())
        logs = box.tail("daemon", 1000)
        assert session.secret_access_key not in logs
        assert session.session_token not in logs
        (tmp_path / "finish").touch()
