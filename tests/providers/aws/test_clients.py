"""Calls to AWS: credentials, the meaning of failures, and the number of calls."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from providers.aws.clients import Clients
from providers.base import (
    AuthError,
    ProviderError,
    RejectedError,
    Scope,
    ThrottledError,
    UnknownOutcome,
    UnpreparedError,
)
from tests.clouds.aws.serving import PROFILE
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented

FIX = "check that `aws sts get-caller-identity` works as the user that runs spotd"
KEYS = "aws_access_key_id = AKIDONE\naws_secret_access_key = s\n"


@pytest.fixture
def profiles(rented: Rented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of the SDK with profiles of many kinds, all for the stand-in."""
    at = f"endpoint_url = {rented.aws.endpoint}\n"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    config = tmp_path / "config"
    config.write_text(
        f"[profile good]\n{at}"
        f"[profile bare]\n{at}"
        f"[profile half]\n{at}aws_access_key_id = AKIDHALF\n"
        f"[profile broken]\n{at}credential_process = /bin/false\n"
        f"[profile sso]\n{at}sso_session = s\nsso_account_id = 123456789012\nsso_role_name = r\n"
        "[sso-session s]\nsso_start_url = https://127.0.0.1:9/start\nsso_region = us-east-1\n"
        f"[profile away]\nendpoint_url = {nobody}\n{KEYS}"
    )
    credentials = tmp_path / "credentials"
    credentials.write_text(f"[good]\n{KEYS}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    return credentials


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("bare", "Unable to locate credentials"),
        ("nobodys", "The config profile (nobodys) could not be found"),
        ("half", "Partial credentials found"),
        ("broken", "Error when retrieving credentials"),
        ("sso", "Error loading SSO Token"),
    ],
)
def test_without_credentials_it_says_what_to_try(profiles: Path, profile: str, said: str) -> None:
    with pytest.raises(AuthError) as caught:
        Clients(profile).call("us-east-1", "describe_instances")
    text = str(caught.value)
    assert text.startswith("no credentials for AWS: ")
    assert said in text
    assert text.endswith(f"; {FIX}")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("what", "fix"),
    [
        ("expired", FIX),
        ("not_enabled", f"{FIX}, and that us-east-1 is enabled: `aws account list-regions`"),
        ("unauthorized", "`spotctl doctor --policy aws` prints the rights that it needs"),
    ],
)
def test_credentials_that_are_refused(rented: Rented, profiles: Path, what: str, fix: str) -> None:
    rented.aws.ec2.faults.arm(Fault(what, ("DescribeInstances",)))
    with pytest.raises(AuthError) as caught:
        Clients("good").call("us-east-1", "describe_instances")
    assert str(caught.value).endswith(f"; {fix}")
    assert caught.value.code in ("RequestExpired", "UnauthorizedOperation", "AuthFailure")


def test_a_region_that_is_not_enabled_is_out_by_itself(rented: Rented, profiles: Path) -> None:
    """EC2 gives the same error for wrong credentials: those are refused in other regions too, and
    are loaded again."""
    clients = Clients("good")
    rented.aws.ec2.faults.arm(Fault("not_enabled", ("DescribeInstances in us-west-2",)))
    with pytest.raises(UnpreparedError, match="check that us-west-2 is enabled") as caught:
        clients.call("us-west-2", "describe_instances")
    assert caught.value.scope is Scope.REGION
    profiles.write_text("[good]\n" + KEYS.replace("AKIDONE", "AKIDTWO"))
    clients.call("us-west-2", "describe_instances")
    assert {item.key for item in rented.aws.ec2.seen} == {"AKIDONE"}
    rented.aws.ec2.faults.arm(Fault("not_enabled", ("DescribeInstances in us-west-2",)))
    rented.aws.ec2.faults.arm(Fault("not_enabled", ("GetCallerIdentity",)))
    with pytest.raises(AuthError, match="us-west-2 is enabled"):
        clients.call("us-west-2", "describe_instances")
    clients.call("us-west-2", "describe_instances")
    assert rented.aws.ec2.seen[-1].key == "AKIDTWO"


def test_credentials_that_were_changed_are_used_after_a_refusal(
    rented: Rented, profiles: Path
) -> None:
    """Somebody rotates the keys in the file: no restart is needed."""
    clients = Clients("good")
    clients.call("us-east-1", "describe_instances")
    profiles.write_text("[good]\n" + KEYS.replace("AKIDONE", "AKIDTWO"))
    clients.call("us-east-1", "describe_instances")
    rented.aws.ec2.faults.arm(Fault("expired", ("DescribeInstances",)))
    with pytest.raises(AuthError):
        clients.call("us-east-1", "describe_instances")
    clients.call("us-east-1", "describe_instances")
    used = [item.key for item in rented.aws.ec2.seen]
    assert used == ["AKIDONE", "AKIDONE", "AKIDONE", "AKIDTWO"]


def test_credentials_that_were_missing_are_found_when_they_are_there(
    rented: Rented, profiles: Path
) -> None:
    clients = Clients("bare")
    with pytest.raises(AuthError):
        clients.call("us-east-1", "describe_instances")
    profiles.write_text("[bare]\n" + KEYS)
    assert clients.call("us-east-1", "describe_instances")["Reservations"] is not None


def test_a_missing_right_is_no_reason_to_begin_anew(rented: Rented, profiles: Path) -> None:
    clients = Clients("good")
    clients.call("us-east-1", "describe_instances")
    profiles.write_text("[good]\n" + KEYS.replace("AKIDONE", "AKIDTWO"))
    rented.aws.ec2.faults.arm(Fault("unauthorized", ("DescribeInstances",)))
    with pytest.raises(AuthError):
        clients.call("us-east-1", "describe_instances")
    clients.call("us-east-1", "describe_instances")
    assert {item.key for item in rented.aws.ec2.seen} == {"AKIDONE"}


@pytest.mark.parametrize("region", ["us-est-1", "us east 1!"])
def test_a_region_that_does_not_exist(profiles: Path, region: str) -> None:
    with pytest.raises(UnpreparedError) as caught:
        Clients("away").call(region, "describe_instances")
    assert str(caught.value) == (
        f"AWS has no region {region!r} that can be reached: see `aws ec2 describe-regions`"
    )


def test_a_region_that_cannot_be_reached_may_come_back(profiles: Path) -> None:
    with pytest.raises(UnknownOutcome, match="us-east-1"):
        Clients("away").call("us-east-1", "describe_instances")


@pytest.mark.parametrize("what", ["no_capacity", "throttled", "http_500", "garbage", "lost_reply"])
@pytest.mark.parametrize(
    ("action", "operation"),
    [("DescribeInstances", "describe_instances"), ("CreateTags", "create_tags")],
)
def test_nothing_is_tried_twice_down_here(
    rented: Rented, what: str, action: str, operation: str
) -> None:
    rented.aws.ec2.faults.arm(Fault(what, (action,)))
    body = {"Resources": ["i-1"], "Tags": []} if action == "CreateTags" else {}
    with pytest.raises(ProviderError):
        Clients(PROFILE).call("us-east-1", operation, **body)
    assert rented.actions() == [action]


def test_what_the_sdk_itself_refuses_is_rejected(rented: Rented) -> None:
    with pytest.raises(RejectedError, match="MinCount"):
        Clients(PROFILE).call("us-east-1", "run_instances", MinCount="one", MaxCount=1)
    assert rented.actions() == []


def test_throttling_is_told(rented: Rented) -> None:
    rented.aws.ec2.faults.arm(Fault("throttled", ("DescribeInstances",)))
    with pytest.raises(ThrottledError, match="RequestLimitExceeded: us-east-1: Request limit"):
        Clients(PROFILE).call("us-east-1", "describe_instances")


def test_a_code_that_nobody_knows_is_an_unknown_outcome(rented: Rented) -> None:
    rented.aws.ec2.faults.arm(Fault("unheard_of", ("RunInstances",)))
    with pytest.raises(UnknownOutcome, match="SomethingNew: us-east-1: Nobody has seen this code"):
        rented.cloud().launch(rented.request("new"))


class Paged(Clients):
    """Answers in three pages, of which the last may fail."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__(PROFILE)
        self.tokens: list[object] = []
        self._fails = fails

    def call(
        self, region: str, operation: str, service: str = "ec2", **parameters: Any
    ) -> dict[str, Any]:
        self.tokens.append(parameters.get("NextToken"))
        page = len(self.tokens)
        if page == 3 and self._fails:
            raise UnknownOutcome("the third")
        rows = [{"n": page}] if page != 2 else None  # an empty page is not the last one
        return {"Rows": rows, "NextToken": f"t{page}" if page < 3 else None}


def test_all_pages_or_none() -> None:
    clients = Paged()
    assert clients.pages("us-east-1", "describe_x", "Rows") == [{"n": 1}, {"n": 3}]
    assert clients.tokens == [None, "t1", "t2"]
    with pytest.raises(UnknownOutcome):
        Paged(fails=True).pages("us-east-1", "describe_x", "Rows")


def test_each_service_and_region_has_one_client(rented: Rented) -> None:
    clients = Clients(PROFILE)
    for region in ("us-east-1", "us-west-2", "us-east-1"):
        clients.call(region, "describe_instances")
    assert [item.region for item in rented.aws.ec2.seen] == ["us-east-1", "us-west-2", "us-east-1"]
    assert len(clients._clients) == 2
