"""Login at an OpenID Connect provider, which answers as the specification says, or wrongly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pytest
from joserfc.jwk import RSAKey

from spotd.dashboard import oidc
from spotd.dashboard.session import ATTEMPTS, STARTS
from tests.fixtures.oidc_provider import CLIENT, SECRET, OidcProvider
from tests.spotd.api.rig import Rig, story
from tests.spotd.dashboard.reading import Reply
from tests.spotd.dashboard.team import Team, Visit


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> Request | None:
        return None


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    running = OidcProvider().start()
    yield running
    running.stop()


def make_team(rig: Rig, provider: OidcProvider, secret: str = SECRET, **settings: Any) -> Team:
    who: dict[str, Any] = {"admins": ("ada@example.org",), "viewers": ("viola@example.org",)}
    who |= settings
    section = {"issuer": provider.issuer, "client_id": CLIENT, **who}
    return Team(rig, secret, oidc=section)


@pytest.fixture
def team(rig: Rig, provider: OidcProvider) -> Iterator[Team]:
    running = make_team(rig, provider)
    yield running
    running.stop()


def at_the_provider(address: str) -> str:
    """Where the provider sends the browser back to, as a path of the dashboard."""
    try:
        build_opener(_NoRedirect).open(address)
    except Exception as error:  # noqa: BLE001 - the redirect
        parts = urlsplit(error.headers["Location"])  # type: ignore[attr-defined]
        return f"{parts.path}?{parts.query}"
    raise AssertionError("the provider redirects")


def log_in(visit: Visit, then: str = "") -> Reply:
    started = visit.get(f"/login/oidc?next={then}")
    assert started.status == 303, started.text
    back = at_the_provider(started.headers["location"])
    # A navigation that another site caused.
    return visit.get(back, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")


def test_a_person_logs_in_with_the_role_of_the_configuration(team: Team) -> None:
    job_id = story(team.rig)
    visit = team.visit()
    assert "/login/oidc" in visit.get("/login").text
    reply = log_in(visit, f"/job/{job_id}")
    assert (reply.status, reply.headers["location"]) == (303, f"/job/{job_id}")
    page = visit.get(f"/job/{job_id}").text
    assert "ada@example.org" in page
    assert f"/job/{job_id}/cancel" in page
    assert visit.post(f"/job/{job_id}/cancel", {"csrf": visit.csrf()}).status == 303
    lines = [(row.user, row.action, row.text) for row in team.rig.store.audit.rows(0)]
    assert lines[0][:2] == ("ada@example.org", "login")
    assert lines[0][2].startswith("dashboard: identity provider, from ")
    assert ("ada@example.org", "cancel", f"dashboard: id={job_id}") in lines


def test_a_viewer_is_one(team: Team, provider: OidcProvider) -> None:
    job_id = story(team.rig)
    provider.claims = {"email": "viola@example.org"}
    visit = team.visit()
    assert log_in(visit).status == 303
    assert visit.get("/").status == 200
    assert visit.post(f"/job/{job_id}/cancel", {"csrf": visit.csrf()}).status == 403


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"iss": "https://evil.example"}, "iss"),
        ({"iss": None}, "iss"),
        ({"aud": "another-client"}, "aud"),
        ({"aud": "another-client", "azp": CLIENT}, "aud"),
        ({"aud": None}, "aud"),
        ({"exp": int(time.time()) - 3600}, "expired"),
        ({"exp": None}, "exp"),
        ({"nbf": int(time.time()) + 3600}, "not valid"),
        ({"email": "stranger@example.org"}, "stranger@example.org may not log in here"),
        ({"email": None}, "gives no email"),
        ({"email_verified": False}, "has not verified"),
        ({"email_verified": None}, "has not verified"),
        ({"email_verified": "yes"}, "has not verified"),
        ({"email": "spotd"}, "is not possible"),
        ({"email": "root"}, "is not possible"),
        ({"email": "root/systemd"}, "is not possible"),
        ({"email": "ro\x00ot"}, "is not possible"),
        ({"email": "\u202eadmin"}, "is not possible"),
        ({"email": ["ada@example.org"]}, "is not possible"),
        ({"email": 7}, "is not possible"),
    ],
)
def test_an_answer_that_is_not_right_lets_nobody_in(
    team: Team, provider: OidcProvider, claims: dict[str, Any], said: str
) -> None:
    provider.claims = claims
    visit = team.visit()
    reply = log_in(visit)
    assert reply.status == 403
    assert said in reply.text
    assert visit.get("/").status == 303


def test_a_signature_of_another_key_lets_nobody_in(team: Team, provider: OidcProvider) -> None:
    provider.published = RSAKey.generate_key(2048, {"kid": "k1"})
    assert log_in(team.visit()).status == 403


def test_a_key_that_the_provider_has_rotated_is_fetched(team: Team, provider: OidcProvider) -> None:
    assert log_in(team.visit()).status == 303
    provider.key = RSAKey.generate_key(2048, {"kid": "k2"})
    assert log_in(team.visit()).status == 303


def test_a_login_ends_in_the_browser_that_began_it_once_and_in_time(team: Team) -> None:
    visit = team.visit()
    back = at_the_provider(visit.get("/login/oidc").headers["location"])
    reply = team.visit().get(back)
    assert (reply.status, "did not start in this browser" in reply.text) == (403, True)
    assert visit.get(back).status == 403, "the login is over"
    back = at_the_provider(visit.get("/login/oidc").headers["location"])
    state = parse_qs(urlsplit(back).query)["state"][0]
    assert visit.get(back.replace(state, "another")).status == 403
    assert visit.get(back).status == 303
    assert visit.get(back).status == 403, "a state is good once"


def test_a_login_that_takes_too_long_has_ended(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "PENDING_S", 0.0)
    assert "this login has expired" in log_in(team.visit()).text


def test_the_verifier_is_sent(team: Team, provider: OidcProvider) -> None:
    """PKCE: a code that somebody has caught is of no use without it."""
    visit = team.visit()
    back = at_the_provider(visit.get("/login/oidc").headers["location"])
    for query in provider.codes.values():
        query["code_challenge"] = "of another login"
    assert visit.get(back).status == 403


def test_the_provider_refuses(team: Team, provider: OidcProvider) -> None:
    provider.error = "access_denied"
    assert "access_denied" in log_in(team.visit()).text


def test_a_provider_that_is_away_or_calls_itself_otherwise(
    rig: Rig, provider: OidcProvider
) -> None:
    provider.issuer_in_metadata = "https://evil.example"
    team = make_team(rig, provider)
    reply = team.visit().get("/login/oidc")
    assert (reply.status, "calls itself https://evil.example" in reply.text) == (502, True)
    provider.issuer_in_metadata = ""
    provider.stop()
    reply = team.visit().get("/login/oidc")
    assert (reply.status, "does not answer" in reply.text) == (502, True)
    team.stop()


def test_a_wrong_client_secret(rig: Rig, provider: OidcProvider) -> None:
    team = make_team(rig, provider, secret="another")
    assert "invalid_client" in log_in(team.visit()).text
    team.stop()


def test_groups_give_roles(rig: Rig, provider: OidcProvider) -> None:
    team = make_team(
        rig, provider, role_claim="groups", admins=("ml-ops",), viewers=("research", "ml-ops")
    )
    job_id = story(rig)
    for groups, status in ((["x", "ml-ops"], 200), (["research"], 403)):
        provider.claims = {"groups": groups}
        visit = team.visit()
        assert log_in(visit).status == 303
        assert visit.get(f"/job/{job_id}/cancel").status == status
    provider.claims = {"groups": ["x"]}
    assert log_in(team.visit()).status == 403
    team.stop()


def test_a_user_of_the_box_comes_by_mapping_alone(rig: Rig, provider: OidcProvider) -> None:
    """A name at the provider that is also one of the box gives no right of that user."""
    names = {"name_claim": "preferred_username", "role_claim": "email"}
    team = make_team(rig, provider, **names, users={"ada": "daemon", "eve": "root"})
    provider.claims = {"preferred_username": "daemon"}
    assert "is also the name of a user of the box" in log_in(team.visit()).text
    provider.claims = {"preferred_username": "ada", "email": "nobody@example.org"}
    visit = team.visit()
    assert log_in(visit).status == 303
    assert "daemon" in visit.get("/").text
    assert team.rig.store.audit.rows(0)[-1].user == "daemon"
    provider.claims = {"preferred_username": "eve", "email": "nobody@example.org"}
    assert "may not log in as root" in log_in(team.visit()).text
    team.stop()


def test_a_provider_whose_addresses_are_trusted(rig: Rig, provider: OidcProvider) -> None:
    team = make_team(rig, provider, trust_email=True)
    provider.claims = {"email_verified": None}
    assert log_in(team.visit()).status == 303
    team.stop()


def test_no_role_is_no_word(rig: Rig, provider: OidcProvider) -> None:
    team = make_team(rig, provider, role_claim="groups", admins=("admins",), viewers=("None",))
    for groups in (None, [None], [["admins"]], {"admins": 1}):
        provider.claims = {"groups": groups}
        assert "may not log in here" in log_in(team.visit()).text
    team.stop()


def test_starts_of_one_address_are_limited(team: Team) -> None:
    visit = team.visit()
    for _ in range(STARTS):
        assert visit.get("/login/oidc").status == 303
    reply = visit.get("/login/oidc")
    assert reply.status == 429
    assert 0 < int(reply.headers["retry-after"]) <= 61
    assert visit.login(team.token("ada@example.org", "viewer")).status == 303


def test_another_site_cannot_use_up_the_attempts(team: Team, provider: OidcProvider) -> None:
    """An unknown state, or another browser's, is not a failure of the person who was sent there."""
    others = at_the_provider(team.visit().get("/login/oidc").headers["location"])
    for path in [others, *["/login/oidc/callback?state=x"] * (2 * ATTEMPTS)]:
        assert team.visit().get(path).status == 403
    assert log_in(team.visit()).status == 303
    provider.claims = {"email": "stranger@example.org"}
    for _ in range(ATTEMPTS):
        assert log_in(team.visit()).status == 403
    assert log_in(team.visit()).status == 429


@pytest.mark.parametrize("dest", ["iframe", "image", "embed"])
def test_only_a_page_of_its_own_comes_back_from_the_provider(team: Team, dest: str) -> None:
    visit = team.visit()
    back = at_the_provider(visit.get("/login/oidc").headers["location"])
    navigation = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert visit.get(back, **navigation, Sec_Fetch_Dest=dest).status == 403
    assert visit.get(back, **navigation, Sec_Fetch_Dest="document").status == 303


def test_a_cookie_that_is_no_ascii_is_another(team: Team) -> None:
    visit = team.visit()
    back = at_the_provider(visit.get("/login/oidc").headers["location"])
    visit.cookies = {"spotd-oidc": "\xe9"}
    assert "did not start in this browser" in visit.get(back).text


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri"])
@pytest.mark.parametrize("url", [None, 7, "", "http://provider.example/x", "ftp://x", "//["])
def test_metadata_without_a_private_endpoint(
    team: Team, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch, name: str, url: object
) -> None:
    metadata = {**provider.metadata(), name: url}
    monkeypatch.setattr(provider, "metadata", lambda: metadata)
    reply = team.visit().get("/login/oidc")
    assert reply.status == 502
    assert f"gives no https address as {name}" in reply.text


def test_a_new_start_asks_for_a_new_login(rig: Rig, provider: OidcProvider) -> None:
    """The configuration may say by now that this person has another role, or none."""
    team = make_team(rig, provider)
    visit = team.visit()
    log_in(visit)
    assert visit.get("/").status == 200
    team.stop()
    team = make_team(rig, provider)
    again = team.visit()
    again.cookies = visit.cookies
    assert again.get("/").status == 303
    team.stop()
