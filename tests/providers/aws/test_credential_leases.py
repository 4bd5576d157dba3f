"""Leased S3 credentials reach one prefix, for as long as AWS allows, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from providers.aws.credential_leases import AwsCredentialIssuer
from providers.base import AuthError, UnknownOutcome
from providers.credential_leases import LeasedCredentials, parse_credentials
from providers.iam.policy import StorePrefix
from providers.stores import open_store
from providers.stores.base import ObjectStore, StoreDeniedError, StoreUnavailableError
from tests.fixtures import lending as rig
from tests.fixtures.lending import PROFILE, ROLE, Lending
from tests.providers.evaluate import aws_allows
from tests.providers.leased_credentials import lasts
from trainer.agent.base.leased_credentials import aws_config, store_credentials
from trainer.agent.base.paths import AgentPaths

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lending]:
    with rig.serving(tmp_path_factory.mktemp("lending")) as running:
        yield running


@pytest.fixture
def lending(server: Lending, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lending]:
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    server.rules.__init__()  # type: ignore[misc] - as it was made
    return server


def job_of(lending: Lending, job: str) -> StorePrefix:
    return StorePrefix(lending.bucket.name, f"{lending.bucket.folder}/jobs/{job}/")


def opened(lending: Lending, lent: LeasedCredentials, folder: Path) -> ObjectStore:
    """Open the store like a machine that has no other credentials."""
    file = folder / "store-credentials"
    file.write_text(lent.text)
    plain = {k: v for k, v in lending.bucket.options.items() if not k.endswith("key_id")}
    del plain["secret_access_key"]
    return open_store(lending.bucket.url, {**plain, "credentials_file": str(file)})


def test_a_job_reaches_its_own_folder_and_no_other(lending: Lending, tmp_path: Path) -> None:
    lender = AwsCredentialIssuer("us-east-1", ROLE, PROFILE)
    store = opened(lending, lender.issue(job_of(lending, "j1"), "j1"), tmp_path)
    box = open_store(lending.bucket.url, lending.bucket.options)
    for job in ("j1", "j10", "j2"):
        box.put(f"jobs/{job}/HEAD", b"{}")
    tag = store.put_if("jobs/j1/new", b"1", None)
    store.put_if("jobs/j1/new", b"2", tag)
    store.put("jobs/j1/large", bytes(17 * MIB))  # in parts
    assert store.get("jobs/j1/HEAD")[0] == b"{}"
    assert [info.key for info in store.list("jobs/j1/")] == [
        "jobs/j1/HEAD",
        "jobs/j1/large",
        "jobs/j1/new",
    ]
    store.delete("jobs/j1/large")
    for forbidden in (
        lambda: store.get("jobs/j2/HEAD"),
        lambda: store.get("jobs/j10/HEAD"),
        lambda: store.put("jobs/j2/g1/shard", b""),
        lambda: store.put_if("jobs/j2/HEAD", b"", None),
        lambda: store.delete("jobs/j2/HEAD"),
        lambda: list(store.list("jobs/")),
        lambda: list(store.list("jobs/j2/")),
    ):
        with pytest.raises(StoreDeniedError):
            forbidden()
    assert box.get("jobs/j2/HEAD")[0] == b"{}"


def test_what_is_asked_of_sts(lending: Lending) -> None:
    before_us = time.time_ns() // 1000
    lent = AwsCredentialIssuer("us-east-1", ROLE, PROFILE).issue(
        StorePrefix("b", "runs/jobs/j1/"), "a job/1"
    )
    [received] = lending.rules.asked
    assert (received["Action"], received["RoleArn"]) == ("AssumeRole", ROLE)
    assert (received["RoleSessionName"], received["DurationSeconds"]) == ("spotd-a-job-1", "43200")
    policy = json.loads(received["Policy"])
    assert len(received["Policy"]) < 2048, "AWS takes no longer one"
    assert {row["Effect"] for row in policy["Statement"]} == {"Allow"}
    objects = "arn:aws:s3:::b/runs/jobs/"
    for action in ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload"):
        assert aws_allows(policy, f"s3:{action}", f"{objects}j1/HEAD")
        assert not aws_allows(policy, f"s3:{action}", f"{objects}j10/HEAD")
        assert not aws_allows(policy, f"s3:{action}", "arn:aws:s3:::b/packages/1")
    for prefix, listed in (("runs/jobs/j1/", True), ("runs/jobs/", False), ("", False)):
        assert aws_allows(policy, "s3:ListBucket", "arn:aws:s3:::b", s3__prefix=prefix) is listed
    assert not aws_allows(policy, "sts:AssumeRole", ROLE)
    assert lent == parse_credentials(lent.to_data())
    assert lasts(lent, 43_200, before_us)
    keys = json.loads(lent.text)
    assert keys.keys() == {
        "Version",
        "AccessKeyId",
        "SecretAccessKey",
        "SessionToken",
        "Expiration",
    }
    assert keys["SecretAccessKey"] not in repr(lent)


def test_the_longest_that_the_role_allows_is_found_once(lending: Lending) -> None:
    lending.rules.longest_s = 3600  # the default of a role, and the limit of a chain
    lender, before_us = AwsCredentialIssuer("us-east-1", ROLE, PROFILE), time.time_ns() // 1000
    lent = lender.issue(job_of(lending, "j1"), "j1")
    assert lasts(lent, 3600, before_us)
    assert [int(row["DurationSeconds"]) for row in lending.rules.asked] == [
        43_200,
        28_800,
        14_400,
        7_200,
        3_600,
    ]
    lender.issue(job_of(lending, "j1"), "j1")
    assert lending.rules.asked[5:][0]["DurationSeconds"] == "3600"
    assert len(lending.rules.asked) == 6


def test_a_time_that_is_too_long_for_any_role_is_an_error(lending: Lending) -> None:
    lending.rules.longest_s = 100
    with pytest.raises(Exception, match="MaxSessionDuration"):
        AwsCredentialIssuer("us-east-1", ROLE, PROFILE).issue(job_of(lending, "j1"), "j1")


def test_no_longer_than_the_configuration_wants(lending: Lending) -> None:
    AwsCredentialIssuer("us-east-1", ROLE, PROFILE, lifetime_s=7000.0).issue(
        job_of(lending, "j1"), "j1"
    )
    assert lending.rules.asked[0]["DurationSeconds"] == "7000"


def test_a_user_s_keys_are_federated_where_there_is_no_role(lending: Lending) -> None:
    before_us = time.time_ns() // 1000
    lent = AwsCredentialIssuer("us-east-1", "", PROFILE).issue(
        job_of(lending, "j1"), "job-" + "x" * 40
    )
    [received] = lending.rules.asked
    assert (received["Action"], received["DurationSeconds"]) == ("GetFederationToken", "129600")
    assert 2 <= len(received["Name"]) <= 32
    assert json.loads(received["Policy"])["Statement"]
    assert lasts(lent, 129_600, before_us)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("403|AccessDenied|not authorized to perform: sts:AssumeRole", AuthError),
        ("403|ExpiredToken|The security token included in the request is expired", AuthError),
        ("500|InternalFailure|try again", UnknownOutcome),
    ],
)
def test_a_refusal_is_one_of_our_errors(
    lending: Lending, answer: str, error: type[Exception]
) -> None:
    lending.rules.down = answer
    with pytest.raises(error):
        AwsCredentialIssuer("us-east-1", ROLE, PROFILE).issue(job_of(lending, "j1"), "j1")


def test_what_has_ended_is_of_no_use_until_there_is_more(lending: Lending, tmp_path: Path) -> None:
    lending.rules.scale = 1 / 3600
    lender = AwsCredentialIssuer("us-east-1", ROLE, PROFILE, lifetime_s=3600.0)
    store = opened(lending, lender.issue(job_of(lending, "j1"), "j1"), tmp_path)
    store.put("jobs/j1/x", b"1")
    time.sleep(1.1)
    with pytest.raises(StoreUnavailableError, match="ExpiredToken"):
        store.put("jobs/j1/x", b"2")
    lending.rules.scale = 1.0
    (tmp_path / "store-credentials").write_text(lender.issue(job_of(lending, "j1"), "j1").text)
    store.put("jobs/j1/x", b"3")
    assert store.get("jobs/j1/x")[0] == b"3"


def test_the_sdk_of_aws_reads_the_file_by_its_own_chain(
    lending: Lending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lender = AwsCredentialIssuer("us-east-1", ROLE, PROFILE)
    paths = AgentPaths(tmp_path, tmp_path, tmp_path / "a folder")
    paths.memory.mkdir()
    assert store_credentials(paths, lender.issue(job_of(lending, "j1"), "j1"))
    assert paths.aws_config.read_text() == aws_config(paths)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(paths.aws_config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    session = boto3.Session(profile_name="spotd-store", region_name="us-east-1")
    client = session.client("s3", endpoint_url=lending.bucket.endpoint)
    key = f"{lending.bucket.folder}/jobs/j1/by-boto"
    client.put_object(Bucket=lending.bucket.name, Key=key, Body=b"1")
    with pytest.raises(client.exceptions.ClientError, match="AccessDenied"):
        client.get_object(Bucket=lending.bucket.name, Key=f"{lending.bucket.folder}/jobs/j2/HEAD")
    client.close()
