"""A machine of another cloud accesses Google's and Azure's stores by federation, without stored
secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from urllib.parse import parse_qs

import botocore.session
import pytest
from google.auth import _helpers
from google.auth import aws as google_aws

from providers.aws.signature import RoleKeys, sign_request
from providers.federation import Endpoints, ExchangeError, azure_token, google_token
from providers.stores import open_store
from providers.stores.base import ConflictError, StoreConfigError, StoreUnavailableError
from tests.fixtures import azurite as azurite_rig
from tests.fixtures.azurite import Azurite
from tests.fixtures.gcs import Gcs
from tests.fixtures.identities import (
    ACCOUNT,
    APPLICATION,
    AUDIENCE,
    ENTRA,
    POOL,
    ROLE,
    SECRETS,
    SUBJECT,
    TENANT,
    Believers,
    believing,
    entra_options,
    google_options,
)

KEYS = RoleKeys("ASIAMACHINE", SECRETS[0], SECRETS[1], "eu-west-1")


@pytest.fixture(scope="module")
def running() -> Iterator[Believers]:
    with believing() as made:
        yield made


@pytest.fixture
def others(running: Believers) -> Believers:
    """As they were made."""
    fresh = Believers(running.issuer, running.url)
    for field in fields(Believers):
        setattr(running, field.name, getattr(fresh, field.name))
    running.issuer.subject, running.issuer.status = SUBJECT, 200
    running.issuer.roles = "spotd-node-d0"
    return running


@pytest.fixture(scope="module")
def azurite_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """An azurite that accepts Entra's tokens, which it does only over TLS."""
    folder = tmp_path_factory.mktemp("azurite")
    with azurite_rig.serving(folder) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
        yield made


def doors(others: Believers) -> Endpoints:
    return Endpoints(others.issuer.url, others.url, others.url, others.url)


def saves(url: str, options: dict[str, str]) -> None:
    """Everything that a saver and retention do."""
    store = open_store(url, options)
    tag = store.put_if("jobs/j1/HEAD", b"1", None)
    store.put_if("jobs/j1/HEAD", b"2", tag)
    with pytest.raises(ConflictError):
        store.put_if("jobs/j1/HEAD", b"3", tag)
    store.put("jobs/j1/large", bytes(17 << 20))  # in parts
    assert store.get("jobs/j1/HEAD")[0] == b"2"
    assert [info.key for info in store.list("jobs/j1/")] == ["jobs/j1/HEAD", "jobs/j1/large"]
    store.delete("jobs/j1/large")
    store.delete("jobs/j1/large")
    assert [info.key for info in store.list("jobs/j1/")] == ["jobs/j1/HEAD"]


@pytest.mark.xdist_group("gcs")
@pytest.mark.parametrize("cloud", ["aws", "azure"])
def test_a_machine_saves_in_google_s_store_as_the_account_that_trusts_it(
    others: Believers, gcs: Gcs, cloud: str
) -> None:
    over = False

    def guard(token: str, method: str, *_: object) -> str:
        return "401 AuthenticationRequired" if over else others.guard(token, method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gcs, "guard", guard)
        patch.setattr(gcs, "folder", f"exchange-{cloud}")
        options = {**gcs.plain, **google_options(others, cloud)}
        saves(gcs.url, options)
        made = [what for what, _ in others.asked]
        once = ["GetCallerIdentity", "token", "account"] if cloud == "aws" else ["token", "account"]
        assert made == once * 2, "once an hour, for writes that are repeated and those that are not"
        store = open_store(gcs.url, options)
        over = True
        with pytest.raises(StoreUnavailableError):
            store.get("jobs/j1/HEAD")


@pytest.mark.xdist_group("azurite")
@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_a_machine_saves_in_azure_s_store_as_the_application_that_trusts_it(
    others: Believers, azurite_tls: Azurite, cloud: str
) -> None:
    """azurite checks issuer, audience and times of the token."""
    line = {"account": "spotd", "endpoint": azurite_tls.endpoint, "allow_http": "true"}
    options = {**line, **entra_options(others, cloud)}
    saves(f"{azurite_tls.url}-{cloud}", options)
    made = [what for what, _ in others.asked]
    assert made == (["GetWebIdentityToken", "entra"] if cloud == "aws" else ["entra"]) * 2


def test_a_request_is_signed_as_google_s_own_library_signs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = datetime(2026, 11, 23, 4, 5, 6, tzinfo=UTC)
    monkeypatch.setattr(_helpers, "utcnow", lambda: now.replace(tzinfo=None))
    url = "https://sts.eu-west-1.amazonaws.com?Action=GetCallerIdentity&Version=2011-06-15"
    more = {"x-goog-cloud-target-resource": f"//iam.googleapis.com/{POOL}/providers/spotd-aws"}
    other = google_aws.RequestSigner("eu-west-1").get_request_options(
        google_aws.AwsSecurityCredentials("ASIAMACHINE", *SECRETS), url, "POST", "", more
    )
    own = sign_request(KEYS, url, now, more)
    assert own == {name.lower(): value for name, value in other["headers"].items()}
    assert SECRETS[0] not in repr(KEYS)
    assert SECRETS[1] not in repr(KEYS)


def test_aws_is_asked_for_a_token_as_its_own_sdk_asks(others: Believers) -> None:
    azure_token("aws", TENANT, APPLICATION, ENTRA, doors(others))
    [own] = [form for what, form in others.asked if what == "GetWebIdentityToken"]
    client = botocore.session.get_session().create_client(
        "sts", "eu-west-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    sent: list[str] = []

    def stop(request: object, **_: object) -> None:
        sent.append(request.body)  # type: ignore[attr-defined]
        raise ConnectionError

    client.meta.events.register("before-send.sts", stop)
    with pytest.raises(ConnectionError):
        client.get_web_identity_token(
            Audience=[ENTRA], SigningAlgorithm="RS256", DurationSeconds=300
        )
    assert own == {name: value[0] for name, value in parse_qs(sent[0]).items()}


@pytest.mark.parametrize("cloud", ["aws", "azure"])
def test_google_s_no_is_told_in_its_words_and_without_secrets(
    others: Believers, cloud: str
) -> None:
    def refused(pool: str = POOL, account: str = ACCOUNT) -> str:
        where = Endpoints(others.issuer.url, others.url, f"{others.url}/v1/token", others.url)
        with pytest.raises(ExchangeError) as caught:
            google_token(cloud, account, pool, AUDIENCE, where)
        text = str(caught.value)
        assert not [word for word in (*SECRETS, "eyJ", "Signature=", "federated-1") if word in text]
        return text

    others.trusts = "arn:aws:sts::123456789012:assumed-role/another/i-1"
    others.issuer.subject = "another machine"
    assert "spotd-d0/providers/spotd-" in refused()
    assert "invalid_grant" in refused()
    others.trusts = Believers.trusts
    others.issuer.subject = SUBJECT
    assert "no such provider" in refused(pool="projects/1/x")
    output = refused(account="other@lab.iam.gserviceaccount.com")
    assert (
        output
        == "other@lab.iam.gserviceaccount.com: PERMISSION_DENIED iam.serviceAccounts.getAccessToken"
    )
    others.down = 503
    assert "503" in refused()


def test_entra_s_no_is_told_in_its_words_and_without_secrets(others: Believers) -> None:
    def refused(cloud: str, audience: str = ENTRA) -> str:
        with pytest.raises(ExchangeError) as caught:
            azure_token(cloud, TENANT, APPLICATION, audience, doors(others))
        assert not [word for word in (*SECRETS, "eyJ") if word in str(caught.value)]
        return str(caught.value)

    output = refused("gcp", "api://other")
    assert output.startswith(f"{APPLICATION}: invalid_client AADSTS700213: No matching")
    assert "Trace" not in output
    others.enabled = False
    assert "OutboundWebIdentityFederationDisabledException" in refused("aws")
    others.enabled = True
    others.issuer.roles = ""
    assert "aws cannot prove this machine's identity: it has no role: see node_role" in refused(
        "aws"
    )
    others.issuer.roles = f'{{"SecretAccessKey": "{SECRETS[0]}"}}'
    assert "not the name of a role" in refused("aws")
    others.issuer.roles = "spotd-node-d0"
    others.issuer.status = 503
    assert "status 503" in refused("aws")


def test_another_machine_s_question_is_good_for_no_other_provider(others: Believers) -> None:
    """A request captured at one provider is not valid for another."""
    received: list[str] = []
    real = others.google
    others.google = lambda form: (received.append(form["subject_token"]), real(form))[1]  # type: ignore[method-assign,func-returns-value]
    where = Endpoints(others.issuer.url, others.url, f"{others.url}/v1/token", others.url)
    google_token("aws", ACCOUNT, POOL, "", where)
    del others.google  # type: ignore[method-assign]
    form = {"audience": f"//iam.googleapis.com/{POOL}/providers/spotd-aws"}
    known = others._asks_aws
    assert known(received[0], form["audience"]) == ""
    assert known(received[0], form["audience"] + "2") == "the signed target is another provider"
    assert ROLE not in json.dumps(form)


@pytest.mark.parametrize(
    ("url", "wrong", "said"),
    [
        ("gs://b", {"identity": "gcp"}, "identity is one of aws, azure, with service_account, po"),
        ("gs://b", {"pool": ""}, "with service_account, pool"),
        ("gs://b", {"identity": "azure", "audience": ""}, "pool, audience"),
        ("gs://b", {"allow_http": "false"}, "is not https"),
        ("az://b", {"identity": "azure"}, "identity is one of aws, gcp, with tenant, application"),
        ("az://b", {"application": ""}, "with tenant, application, audience"),
        ("az://b", {"allow_http": "false"}, "is not https"),
    ],
)
def test_options_that_cannot_be_are_told_when_it_is_opened(
    others: Believers, url: str, wrong: dict[str, str], said: str
) -> None:
    made = google_options if url == "gs://b" else entra_options
    options = {"allow_http": "true", **made(others, "aws")}
    options |= {"account": "runs"} if url == "az://b" else {}
    with pytest.raises(StoreConfigError, match=said):
        open_store(url, {name: value for name, value in (options | wrong).items() if value})
    if url == "gs://b":
        open_store(url, {name: value for name, value in options.items() if name != "audience"})
