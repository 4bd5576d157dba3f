"""`spotctl doctor --live` on fake AWS, through the real SDK: a machine that cloud-init sets up, SSH
by the pinned key, the agent, IMDS, its end; and the report. Needs root; without it, a failure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.cli.app import run
from tests.clouds.aws.serving import PROFILE, StandIn, serving
from tests.clouds.machines import Machines, machines_on
from tests.fixtures import netns

pytestmark = pytest.mark.root


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StandIn, Machines]]:
    with (
        netns.network() as network,
        machines_on(network, tmp_path / "machines") as machines,
        serving(tmp_path, machines=machines) as running,
    ):
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running, machines


@pytest.mark.e2e
def test_the_way_to_a_cloud_is_proven_and_nothing_is_left(
    aws: tuple[StandIn, Machines], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    standin, machines = aws
    config = tmp_path / "config.toml"
    config.write_text(
        f'state_dir = "{tmp_path / "state"}"\n'
        f'[checkpoint]\nstore = "s3://runs/team"\n'
        "[limits]\nmax_nodes = 4\nmax_usd_per_hour = 2.0\n"
        f'[providers.aws]\nkind = "aws"\nregions = ["us-east-1"]\nprofile = "{PROFILE}"\n'
    )
    words = ("doctor", "--live", "--cloud", "aws", "--config", str(config))
    words += ("--deployment", "0123456789ab", "--report", str(tmp_path / "reports"))
    assert run([*words, "--spend-up-to", "0.001usd"]) == 4
    assert "0.0010 may be spent" in capsys.readouterr().err
    assert not standin.ec2.fleet.books, "nothing was launched"
    code = run([*words, "--spend-up-to", "2usd"])
    said = capsys.readouterr()
    assert code == 0, said.err
    [written] = (tmp_path / "reports").glob("aws-2*.json")
    assert str(written) in said.out
    report = json.loads(written.read_text())
    assert report["ok"]
    assert {step["name"]: step["ok"] for step in report["steps"]} == dict.fromkeys(
        (
            "launch",
            "listed",
            "ssh, by the pinned host key",
            "prepared",
            "agent",
            "hello",
            "notices",
            "terminate",
            "gone",
        ),
        True,
    )
    assert written.with_suffix(".md").read_text().startswith("# aws, live, ")
    [entry] = standin.ec2.fleet.books.values()
    assert entry.ended_at_us
    assert machines.running() == []
