"""rclone gets its credentials by its environment only, and mounts read-only."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from providers.aws.policy import policies
from providers.iam.policy import PolicyFacts
from providers.stores import open_store
from spotd.wire import MountMode
from tests.fixtures import lending
from tests.fixtures.identities import AUDIENCE, Issuer
from tests.fixtures.metadata import serve_script
from trainer.agent.data.rclone import (
    SAS_DAYS,
    UnmountableError,
    aws_profile,
    mount_argv,
    rclone_env,
    read_only_sas,
    remote_env,
    with_signing_proxy,
)

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
KEY = "c3BvdGQtdGVzdHM="
ORDER = Path("/dev/shm/o.options")


def remote(url: str, **options: str) -> dict[str, str]:
    found = remote_env(url, options, ORDER, NOW)
    mark = "RCLONE_CONFIG_SPOTD_"
    return {n.removeprefix(mark).lower(): v for n, v in found.items() if n.startswith(mark)}


def test_keys_go_where_there_are_some_and_else_the_machine_comes_as_itself() -> None:
    keys = {"access_key_id": "A", "secret_access_key": "S", "region": "us-east-1"}
    assert remote("s3://b/p", **keys) == {
        "type": "s3",
        "provider": "AWS",
        "no_check_bucket": "true",
        **keys,
    }
    assert remote("s3://b", region="eu-west-1")["env_auth"] == "true"
    assert remote("s3://b", endpoint="https://r2.example")["provider"] == "Other"
    key = json.dumps({"type": "service_account"})
    assert remote("gs://b", service_account_key=key)["service_account_credentials"] == key
    assert remote("gs://b")["env_auth"] == "true"
    own = remote("az://c/p", account="acc", client_id="id")
    assert own == {
        "type": "azureblob",
        "account": "acc",
        "use_msi": "true",
        "msi_client_id": "id",
    }


def test_of_an_accounts_key_rclone_has_a_right_to_read_one_container_alone() -> None:
    """Signed as Microsoft's own SDK signs it."""
    url = remote("az://c/p", account="acc", account_key=KEY)["sas_url"]
    parts = urlsplit(url)
    assert (parts.netloc, parts.path) == ("acc.blob.core.windows.net", "/c")
    said = {name: value for name, [value] in parse_qs(parts.query).items()}
    assert (said["sp"], said["sr"]) == ("rl", "c")
    theirs = generate_container_sas(
        "acc",
        "c",
        account_key=KEY,
        permission=ContainerSasPermissions(read=True, list=True),
        start=NOW - timedelta(minutes=15),
        expiry=NOW + timedelta(days=SAS_DAYS),
        version="2021-12-02",
    )
    ours = read_only_sas("acc", "c", key=KEY, now=NOW)
    found = {name: value for name, [value] in parse_qs(theirs).items()}
    if found["sv"] == "2021-12-02":  # an SDK that signs another version signs other fields
        assert parse_qs(ours)["sig"] == [found["sig"]]
    assert KEY not in url


def test_a_machine_that_shows_who_it_is_comes_as_one_of_that_cloud() -> None:
    """The proxy supplies its tokens (tests/trainer/mounts/test_federated.py)."""
    own = {"identity": "aws", "client_id": "of a machine there"}
    assert remote("gs://b", **own)["env_auth"] == "true"
    assert remote("az://c", account="acc", **own) == {
        "type": "azureblob",
        "account": "acc",
        "use_msi": "true",
    }
    argv = with_signing_proxy(["rclone", "mount"], "az://c/p", ORDER, version=(1, 60))
    assert argv[-6:] == [
        "trainer.mounts.signing_proxy",
        str(ORDER),
        "az",
        "1.60",
        "rclone",
        "mount",
    ]


def test_what_an_older_rclone_cannot_do_at_azures_is_said() -> None:
    def named(version: tuple[int, int], endpoint: str = "") -> str:
        options = {"account": "acc", "identity": "aws", "endpoint": endpoint}
        found = remote_env("az://c", options, ORDER, version=version)
        return found.get("RCLONE_CONFIG_SPOTD_ENDPOINT", "")

    assert named((1, 54)) == ""
    with pytest.raises(
        UnmountableError, match=r"1\.53 cannot use an Azure identity.*1\.54 or newer.*COPY"
    ):
        named((1, 53))
    there = "https://acc.blob.core.chinacloudapi.cn"
    assert named((1, 60), f"{there}/") == "blob.core.chinacloudapi.cn"
    assert named((1, 61), there) == there
    with pytest.raises(UnmountableError, match=r"https://acc\.DOMAIN, but.*1\.61 or newer"):
        named((1, 60), "https://10.0.0.1/acc")


def test_a_machine_that_shows_who_it_is_lists_a_bucket_by_credentials_made_for_it(
    tmp_path: Path,
) -> None:
    """The real rclone runs our program for credentials, as its AWS SDK does."""
    issuer = Issuer()
    with lending.serving(tmp_path) as server, serve_script(issuer.reply) as (url, _):
        server.rules.distrust = issuer.distrust
        facts = PolicyFacts("d0", ["us-east-1"], "s3://ours", server.bucket.url)
        server.rules.role_policy = policies(facts)["spotd-node-d0"]
        open_store(server.bucket.url, server.bucket.options).put("jobs/j1/a", b"words")
        options = {
            "region": "us-east-1",
            "endpoint": server.bucket.endpoint,
            "allow_http": "true",
            "identity": "gcp",
            "role": lending.ROLE,
            "audience": AUDIENCE,
            "session": "j1",
            "metadata": url,
            "sts": server.bucket.endpoint,
        }
        order = tmp_path / "mount-0.options"
        order.write_text(json.dumps(options))
        order.with_suffix(".aws").write_text(aws_profile(order))
        env = {"PATH": os.environ["PATH"], **remote_env(server.bucket.url, options, order)}
        place = f"spotd:{server.bucket.url.removeprefix('s3://')}/jobs/j1"
        done = subprocess.run(
            ["rclone", "--config=", "lsf", place], env=env, capture_output=True, check=False
        )
    assert done.stdout == b"a\n", done.stderr.decode()
    assert [asked["RoleSessionName"] for asked in server.rules.asked][:1] == ["j1"]
    [allowed] = json.loads(server.rules.asked[0]["Policy"])["Statement"]
    assert {"s3:Get*", "s3:List*"} <= {*allowed["Action"]}, "of what the role may, what reads"
    assert not [action for action in allowed["Action"] if "Put" in action or "Delete" in action]


def test_it_reads_alone_and_caches_where_that_is_asked_for() -> None:
    argv = mount_argv(
        "rclone",
        "s3://b/p/q",
        Path("/d"),
        mode=MountMode.MOUNT,
        cache=Path("/c"),
        cache_bytes=0,
        allow_other=False,
    )
    assert argv[:4] == ["rclone", "mount", "spotd:b/p/q", "/d"]
    assert "--read-only" in argv
    assert not [word for word in argv if "cache-dir" in word or "other" in word]
    argv = mount_argv(
        "rclone",
        "gs://b",
        Path("/d"),
        mode=MountMode.MOUNT_CACHED,
        cache=Path("/c"),
        cache_bytes=7,
        allow_other=True,
    )
    assert {"--cache-dir=/c", "--vfs-cache-max-size=7B", "--allow-other"} <= {*argv}
    assert argv[argv.index("--vfs-cache-mode") + 1] == "full"


def test_certificates_that_awss_sdk_cannot_take_are_given_to_rclone_itself() -> None:
    env, more = rclone_env({"AWS_CA_BUNDLE": "/ca.pem", "RCLONE_S3_ENDPOINT": "x", "PATH": "/bin"})
    assert (env, more) == ({"PATH": "/bin"}, ["--ca-cert=/ca.pem"])
