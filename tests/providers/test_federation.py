"""A machine of another cloud accesses S3 by federation, without stored secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from providers.aws.policy import policies
from providers.federation import Endpoints, ExchangeError, aws_session, identity_token
from providers.iam.policy import PolicyFacts
from providers.stores import credential_provider, open_store
from providers.stores.base import (
    ObjectStore,
    StoreConfigError,
    StoreDeniedError,
    StoreUnavailableError,
)
from tests.fixtures import lending as rig
from tests.fixtures.identities import AUDIENCE, Issuer
from tests.fixtures.lending import ROLE, Lending
from tests.fixtures.metadata import serve_script


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lending]:
    with rig.serving(tmp_path_factory.mktemp("federation")) as running:
        yield running


@pytest.fixture
def issuer(server: Lending) -> Iterator[Issuer]:
    made = Issuer()
    with serve_script(made.reply) as (url, _):
        made.url = url
        server.rules.__init__()  # type: ignore[misc] - as it was made
        server.rules.distrust = made.distrust
        facts = PolicyFacts("d0", ["us-east-1"], "s3://ours", server.bucket.url)
        server.rules.role_policy = policies(facts)["spotd-node-d0"]
        yield made


def doors(server: Lending, issuer: Issuer) -> Endpoints:
    return Endpoints(issuer.url, server.bucket.endpoint)


def options(server: Lending, issuer: Issuer, cloud: str, **more: str) -> dict[str, str]:
    plain = {"region": "us-east-1", "endpoint": server.bucket.endpoint, "allow_http": "true"}
    own = {"identity": cloud, "role": ROLE, "audience": AUDIENCE, "session": "spotd-j1"}
    result = {**plain, **own, "sts": server.bucket.endpoint, "metadata": issuer.url, **more}
    return {name: value for name, value in result.items() if value}


@pytest.mark.parametrize("cloud", ["gcp", "azure"])
def test_a_machine_saves_as_what_it_is_and_in_the_folder_of_jobs_alone(
    server: Lending, issuer: Issuer, cloud: str
) -> None:
    store = open_store(server.bucket.url, options(server, issuer, cloud))
    tag = store.put_if(f"jobs/j1/HEAD-{cloud}", b"1", None)
    store.put_if(f"jobs/j1/HEAD-{cloud}", b"2", tag)
    assert store.get(f"jobs/j1/HEAD-{cloud}")[0] == b"2"
    with pytest.raises(StoreDeniedError):
        store.get("packages/digest")
    received = server.rules.asked
    assert len(received) == 2, (
        "once an hour, for writes that are repeated and for those that are not"
    )
    assert {row["Action"] for row in received} == {"AssumeRoleWithWebIdentity"}
    assert {(row["RoleArn"], row["RoleSessionName"]) for row in received} == {(ROLE, "spotd-j1")}


def test_what_a_machine_mounts_with_cannot_write(server: Lending, issuer: Issuer) -> None:
    """Whatever its role permits."""
    own = options(server, issuer, "gcp")
    open_store(server.bucket.url, own).put("jobs/j1/data", b"1")
    prove = credential_provider(server.bucket.url, own)
    assert prove is not None
    made = prove()
    keys = {name: made[name] for name in ("access_key_id", "secret_access_key")}
    keys["session_token"] = made["token"]
    plain = {name: own[name] for name in ("region", "endpoint", "allow_http")}
    store = open_store(server.bucket.url, {**plain, **keys})
    assert store.get("jobs/j1/data")[0] == b"1"
    assert [item.key for item in store.list("jobs/j1/")]
    for write in (lambda: store.put("jobs/j1/data", b"2"), lambda: store.delete("jobs/j1/data")):
        with pytest.raises(StoreDeniedError):
            write()


def test_a_session_is_called_what_aws_takes_for_a_name(server: Lending, issuer: Issuer) -> None:
    aws_session("gcp", ROLE, AUDIENCE, "spotd/j 1" * 20, doors(server, issuer))
    [received] = server.rules.asked
    assert re.fullmatch(r"[A-Za-z0-9_+=,.@-]{64}", received["RoleSessionName"])


def test_who_is_somebody_else_gets_nothing_and_is_told_by_aws_s_words(
    server: Lending, issuer: Issuer
) -> None:
    issuer.subject = "another machine"
    with pytest.raises(ExchangeError, match=f"{ROLE}: InvalidIdentityToken Not authorized"):
        aws_session("gcp", ROLE, AUDIENCE, "j1", doors(server, issuer))
    issuer.subject = "the machine's account"
    with pytest.raises(ExchangeError, match="audience"):
        aws_session("gcp", ROLE, "others", "j1", doors(server, issuer))


def opened(server: Lending, issuer: Issuer) -> ObjectStore:
    return open_store(server.bucket.url, options(server, issuer, "gcp"))


def test_what_is_away_for_a_while_is_waited_for(server: Lending, issuer: Issuer) -> None:
    """A job must not end because a metadata service or STS does not answer for a moment."""
    issuer.status = 503
    store = opened(server, issuer)
    with pytest.raises(StoreUnavailableError, match="status 503"):
        store.put("jobs/j1/x", b"")
    issuer.status = 200
    server.rules.down = "500|InternalFailure|try again"
    with pytest.raises(StoreUnavailableError, match="InternalFailure"):
        store.put("jobs/j1/x", b"")
    server.rules.down = ""
    store.put("jobs/j1/x", b"1")
    assert store.get("jobs/j1/x")[0] == b"1"


def test_nobody_there_and_nonsense_are_errors_without_the_token(
    server: Lending, issuer: Issuer
) -> None:
    with pytest.raises(ExchangeError, match="gcp cannot prove this machine's identity"):
        identity_token("gcp", AUDIENCE, Endpoints("http://127.0.0.1:9"))
    with pytest.raises(ExchangeError, match="azure cannot prove"):
        identity_token("azure", AUDIENCE, Endpoints(server.bucket.endpoint))
    with pytest.raises(ExchangeError) as caught:
        aws_session("gcp", ROLE, AUDIENCE, "j1", Endpoints(issuer.url, "http://127.0.0.1:9"))
    assert "eyJ" not in str(caught.value), "how every token begins"
    with pytest.raises(ExchangeError, match="has no credentials"):
        aws_session("gcp", ROLE, AUDIENCE, "j1", Endpoints(issuer.url, f"{issuer.url}/"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"identity": "aws"}, "identity is one of gcp, azure, with role, audience"),
        ({"role": ""}, "with role, audience"),
        ({"audience": ""}, "with role, audience"),
        ({"allow_http": "false", "endpoint": ""}, "is not https"),
    ],
)
def test_options_that_cannot_be_are_told_when_it_is_opened(
    server: Lending, issuer: Issuer, wrong: dict[str, str], said: str
) -> None:
    with pytest.raises(StoreConfigError, match=said):
        open_store("s3://b", options(server, issuer, "gcp", **wrong))
