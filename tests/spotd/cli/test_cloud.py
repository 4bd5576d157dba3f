"""`spotctl cloud` with the real server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from providers.base import CapacityType, LaunchRequest, OfferRequest
from providers.local.cloud import LocalCloud
from spotd.act.bundle import build_bundle
from spotd.act.link import SshLink
from spotd.act.ssh_access import SshAccess
from spotd.config.load import load_config
from spotd.security.secrets import JobKeys, KeyPair, host_key, open_job_keys
from spotd.spec import load
from tests.fixtures.waiting import LIMIT_S, until
from tests.spotd.api.rig import OFFERS, Rig
from tests.spotd.cli.conftest import Spotctl

SPOTCTL = [sys.executable, "-c", "from spotd.cli import main; main()"]


def cloud(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*SPOTCTL, "cloud", *arguments, "--dir", str(folder / "cloud")]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    """A local cloud that is up."""
    done = cloud(folder, "up", "-o", "name")
    assert done.returncode == 0, done.stderr
    yield done.stdout.strip()
    cloud(folder, "down")


def launch(
    folder: Path, url: str, user_key: str = "", host: KeyPair | None = None
) -> tuple[LocalCloud, str, str]:
    """One spot machine; returns its cloud, id and zone."""
    adapter = LocalCloud("toy", url, "aws", "d1", token_file=folder / "cloud" / "token")
    offers = adapter.offers(OfferRequest())
    offer = next(offer for offer in offers if offer.capacity_type is CapacityType.SPOT)
    keys = JobKeys.create(lambda count: b"k" * count)
    request = LaunchRequest(
        token="t1",
        name="n1",
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        capacity_type=offer.capacity_type,
        tags={},
        ssh_user="me",
        ssh_public_key=user_key or keys.user.public,
        host_private_key=(host or keys.user).private,
        host_public_key=(host or keys.user).public,
    )
    launched = adapter.launch(request)
    return adapter, getattr(launched, "instance_id", ""), offer.zone


def test_up_status_preempt_down(folder: Path, url: str) -> None:
    again = cloud(folder, "up")
    assert "it is already running" in again.stderr
    assert f'url = "{url}"' in again.stdout
    _, instance_id, zone = launch(folder, url)
    listed = cloud(folder, "status")
    assert instance_id in listed.stdout
    assert f"aws/{zone} (local)" in listed.stdout
    preempted = cloud(folder, "preempt", instance_id, "--mode", "reset")
    assert (preempted.returncode, preempted.stderr) == (0, "")
    ended = json.loads(cloud(folder, "status", "--all", "-o", "json").stdout)
    assert [row["instance_id"] for row in ended["items"]] == [instance_id]
    down = cloud(folder, "down")
    assert (down.returncode, down.stderr) == (0, "stopped\n")
    assert cloud(folder, "down").stderr == "it is not running\n"
    again = json.loads(cloud(folder, "down", "-o", "json").stdout)
    assert (again["kind"], again["stopped"]) == ("LocalCloud", False)
    gone = cloud(folder, "status")
    assert gone.returncode == 6
    assert "spotctl cloud up" in gone.stderr


ERRORS = (
    (["preempt"], 2, "name one machine, or a zone"),
    (["preempt", "none"], 2, "no running machine"),
    (["preempt", "--zone", "nowhere"], 3, "no spot machine matches"),
    (["preempt", "none", "--notice", "soon"], 2, "is not a duration"),
)


def test_invalid_requests_are_errors(folder: Path, url: str) -> None:
    for arguments, code, text in ERRORS:
        done = cloud(folder, *arguments)
        assert (done.returncode, text in done.stderr) == (code, True), (arguments, done.stderr)
        assert done.stderr.splitlines()[-1].startswith("try: ")


def test_up_prints_a_complete_configuration(folder: Path, url: str) -> None:
    """As in the README: `spotctl cloud up > config.toml`, and spotd runs with it."""
    file = folder / "config.toml"
    file.write_text(cloud(folder, "up").stdout)
    config = load_config(file, {"STATE_DIRECTORY": str(folder / "state")})
    assert {provider.url for provider in config.file.providers.values()} == {url}
    tokens = {getattr(provider, "token_file", None) for provider in config.file.providers.values()}
    assert tokens == {folder / "cloud" / "token"}
    assert config.checkpoint_defaults.store == f"file://{folder}/state/checkpoints"
    example = Path("examples/finetune.yaml").read_text()
    load(example, now_us=0, secrets={"HF_TOKEN": "-"}, known=config.known)


def test_restart_uses_the_port_in_config_toml(folder: Path, url: str) -> None:
    assert cloud(folder, "down").returncode == 0
    again = cloud(folder, "up", "-o", "name")
    assert (again.stdout.strip(), again.stderr) == (url, "")
    assert cloud(folder, "down").returncode == 0
    with socket.socket() as port_holder:
        port_holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port_holder.bind(("127.0.0.1", urlsplit(url).port))
        port_holder.listen()
        refused = cloud(folder, "up")
        assert refused.returncode == 1
        assert f"if port {urlsplit(url).port} is taken" in refused.stderr
        assert "--port 0" in refused.stderr
        moved = cloud(folder, "up", "--port", "0", "-o", "name")
    assert moved.returncode == 0
    assert moved.stdout.strip() != url
    assert f"warning: the address was {url} before: update config.toml" in moved.stderr


def test_commands_without_a_cloud_are_errors(folder: Path) -> None:
    done = cloud(folder, "status")
    assert done.returncode == 3
    assert "no local cloud was started" in done.stderr


def test_invalid_scenario_is_a_clear_error(folder: Path) -> None:
    (folder / "bad.toml").write_text("[[preempt]]\nnonsense = 1\n")
    done = cloud(folder, "up", "--scenario", str(folder / "bad.toml"))
    assert done.returncode == 1
    assert "nonsense" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("try: ")


def test_ssh_to_a_machine_of_the_local_cloud(
    rig: Rig, folder: Path, url: str, capfd: pytest.CaptureFixture[str], spotctl: Spotctl
) -> None:
    """The real ssh client, a real machine, a login key of its own and the pinned host key."""
    job_id = rig.submit()
    node = rig.launch(job_id, OFFERS[2], 0)
    keys = open_job_keys(rig.vault, job_id, rig.store.jobs.key(job_id))
    host = host_key(keys, node.token)
    adapter, instance_id, _ = launch(folder, url, keys.user.public, host)
    listed = until(lambda: next((row for row in adapter.list() if row.host), None))
    rig.address(rig.store.nodes.of_job(job_id)[0], listed.host, listed.port, listed.ssh_user)

    def keys_of(job: str) -> JobKeys:
        return open_job_keys(rig.vault, job, rig.store.jobs.key(job))

    rig.visitors = SshAccess(SshLink(build_bundle()), keys_of, rig.clock)
    command = "echo hello from $SPOTD_LOCAL_INSTANCE; exit 3"
    assert spotctl(rig, "ssh", "gpt", "--", command) == 3
    assert capfd.readouterr().out == f"hello from {instance_id}\n"
    # Another machine behind the same address is not trusted.
    second_node = rig.launch(rig.submit("second"), OFFERS[2], 0)
    rig.address(rig.store.nodes.of_job(second_node.job_id)[0], listed.host, listed.port, "me")
    assert spotctl(rig, "ssh", "second", "--", command) == 1
    assert "another machine has the address" in capfd.readouterr().err
    # By the daemon, and by the user's own ssh.
    rig.visitors = SshAccess(rig.hosts, keys_of, rig.clock)
    assert spotctl(rig, "ssh", "second", "--", command) == 255
    assert "Host key verification failed" in capfd.readouterr().err
