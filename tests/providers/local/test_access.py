"""The API refuses requests without the token: other users of the machine can reach it."""

from __future__ import annotations

import http.client
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from providers.base import AuthError, OfferRequest
from providers.local.access import (
    NoTokenError,
    auth_header,
    is_authorized,
    load_or_create_token,
    token_file,
)
from providers.local.cloud import LocalCloud
from providers.local.control import Control, ControlError, RunningCloud
from tests.fixtures.local_cloud import attach
from tests.fixtures.waiting import LIMIT_S

CALLS = [
    ("GET", "/v1/aws/offers"),
    ("GET", "/v1/aws/instances?deployment=d"),
    ("GET", "/v1/aws/notices?deployment=d"),
    ("POST", "/v1/aws/launch"),
    ("POST", "/v1/aws/terminate"),
    ("GET", "/control/state"),
    ("GET", "/control/meter"),
    ("POST", "/control/preempt"),
    ("POST", "/control/fault"),
    ("POST", "/control/shutdown"),
    ("GET", "/nonsense"),
]


def send_request(url: str, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
    """Send a request, as any program of any user or a page in a browser can."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=LIMIT_S)
    try:
        body = b"{}" if method == "POST" else None
        connection.request(method, path, body=body, headers=dict(headers))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path"), CALLS)
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer "}, {"Authorization": "Bearer 0" * 8}, {"Authorization": "é"}],
    ids=["none", "empty", "wrong", "garbage"],
)
def test_strangers_are_refused(
    local: RunningCloud, method: str, path: str, headers: Mapping[str, str]
) -> None:
    status, document = send_request(local.url, method, path, headers)
    assert (status, document["error"]["code"]) == (401, "unauthorized")
    assert "token_file" in document["error"]["text"]


def test_the_owner_is_let_in(local: RunningCloud) -> None:
    shown = auth_header(local.token_file)
    assert send_request(local.url, "GET", "/control/meter", shown)[0] == 200
    assert send_request(local.url, "GET", "/nonsense", shown)[0] == 404
    folder = local.token_file.parent
    assert attach(folder).meter() == local.control.meter()
    assert json.loads((folder / "server.json").read_text())["token_file"] == str(local.token_file)


def test_the_token_is_its_owners_alone_and_stays(tmp_path: Path) -> None:
    token = load_or_create_token(tmp_path)
    path = token_file(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) == 64
    path.chmod(0o644)
    assert load_or_create_token(tmp_path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("")
    assert len(load_or_create_token(tmp_path)) == 64
    assert auth_header(path) == {"Authorization": f"Bearer {path.read_text().strip()}"}


def test_an_empty_token_admits_nobody() -> None:
    assert is_authorized("abc", "Bearer abc")
    for shown in (None, "", "abc", "Bearer", "Bearer ", "Bearer abcd", "Bearer \xff"):
        assert not is_authorized("abc", shown)


def test_a_wrong_or_missing_token_is_an_auth_error_in_words(
    local: RunningCloud, tmp_path: Path
) -> None:
    wrong, missing = tmp_path / "wrong", tmp_path / "missing"
    wrong.write_text("0" * 64)
    for path, text in (
        (wrong, "spotctl cloud up"),
        (missing, f"cannot be read.*{missing}"),
        (None, "no token_file is given"),
    ):
        cloud = LocalCloud("x", local.url, "aws", "d", token_file=path)
        with pytest.raises(AuthError, match=text):
            cloud.offers(OfferRequest())
    for path, text in ((wrong, "not this cloud's"), (missing, "cannot be read")):
        with pytest.raises(ControlError, match=text):
            Control(local.url, path).meter()
    with pytest.raises(NoTokenError):
        auth_header(None)
