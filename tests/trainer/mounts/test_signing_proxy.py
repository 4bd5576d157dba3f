"""The token server for rclone: renewal of tokens and authentication of clients."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from providers.federation import ExchangeError
from spotd.act.bundle import build_bundle
from tests.fixtures.identities import believing, google_options
from tests.fixtures.waiting import LIMIT_S
from trainer.mounts.rights import permission_hint
from trainer.mounts.signing_proxy import (
    KEY_ENV,
    MARGIN_S,
    PAUSE_S,
    REUSE_S,
    SigningProxy,
    TokenCache,
)

HOUR_S = 3600.0
NEW, OLD = (1, 75), (1, 60)


class Maker:
    """Makes a new token per call, valid for `lasts_s`, unless it is `away`."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.lasts_s = HOUR_S
        self.away = False
        self.made = 0
        self.logged: list[str] = []
        self.tokens = TokenCache(self.make, self.logged.append, lambda: self.now)

    def make(self) -> dict[str, Any]:
        if self.away:
            raise ExchangeError("iam: 503")
        self.made += 1
        ends = datetime.fromtimestamp(self.now + self.lasts_s, UTC)
        return {"token": f"t{self.made}", "expires_at": ends}


def test_whoever_asks_gets_a_fresh_one_and_is_told_to_be_back_before_its_end() -> None:
    maker = Maker()
    assert maker.tokens.get() == ("t1", HOUR_S - MARGIN_S)
    maker.now += REUSE_S - 1
    assert maker.tokens.get() == ("t1", HOUR_S - MARGIN_S - REUSE_S + 1)
    maker.now += 1
    assert maker.tokens.get() == ("t2", HOUR_S - MARGIN_S)
    maker.lasts_s = 6  # one that ends soon
    maker.now += HOUR_S
    assert maker.tokens.get() == ("t3", 4.0)
    maker.now += 2
    assert maker.tokens.get()[0] == "t4"


def test_while_none_can_be_made_the_one_before_serves_to_its_end() -> None:
    maker = Maker()
    maker.tokens.get()
    maker.away = True
    maker.now += HOUR_S - 10
    assert maker.tokens.get() == ("t1", PAUSE_S)
    assert maker.tokens.get() == ("t1", PAUSE_S)
    maker.now += 10
    with pytest.raises(ExchangeError, match="503"):
        maker.tokens.get()
    assert maker.logged == [
        "NOTICE: spotd: no new token, and the one before lasts for 10 s more: iam: 503",
        "ERROR : spotd: no new token, and the one before has ended: iam: 503",
    ]
    assert maker.tokens.get(allow_expired=True) == ("t1", PAUSE_S), "for who would never ask again"
    maker.away = False
    assert maker.tokens.get() == ("t2", HOUR_S - MARGIN_S)


def test_without_a_first_one_there_is_none() -> None:
    maker = Maker()
    maker.away = True
    for _ in range(2):
        with pytest.raises(ExchangeError):
            maker.tokens.get(allow_expired=True)
    assert maker.logged == []


@contextmanager
def token_server(scheme: str, version: tuple[int, int], maker: Maker) -> Iterator[dict[str, str]]:
    """Run a token server; yield the environment of its client."""
    with SigningProxy(scheme, version, "the-word", maker.tokens) as made:
        thread = Thread(target=made.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield made.env({"PATH": "/bin", "GOOGLE_APPLICATION_CREDENTIALS": "/k"}, "/home")
        made.shutdown()
        thread.join()


def get(url: str, proxy: str = "", **headers: str) -> tuple[int, dict[str, Any]]:
    handler = urllib.request.ProxyHandler({"http": proxy} if proxy else {})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, headers=named)
    try:
        with urllib.request.build_opener(handler).open(request, timeout=LIMIT_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_it_speaks_as_googles_metadata_service_and_of_a_token_alone() -> None:
    maker = Maker()
    with token_server("gs", OLD, maker) as env:
        at = env["GCE_METADATA_HOST"]
        assert env == {"PATH": "/bin", "HOME": "/home", "GCE_METADATA_HOST": at}
        root = f"http://{at}/computeMetadata/v1"
        token = "instance/service-accounts/default/token"
        status, body = get(f"{root}/{token}?scopes=x", Metadata_Flavor="Google")
        assert status == 200
        assert body == {"access_token": "t1", "expires_in": 3300, "token_type": "Bearer"}
        assert get(f"{root}/project/project-id") == (404, {})
        assert get(f"{root.replace('the-word', 'a-word')}/{token}") == (403, {})
        assert get(f"{root.replace('/the-word', '')}/{token}") == (403, {})
        maker.away, maker.now = True, maker.now + HOUR_S
        status, body = get(f"{root}/{token}")
        assert (status, body["error_description"]) == (403, "iam: 503")


def test_it_speaks_as_app_service_to_an_rclone_that_can_be_told_where() -> None:
    with token_server("az", NEW, Maker()) as env:
        assert "HTTP_PROXY" not in env
        url, secret = env["IDENTITY_ENDPOINT"], env["IDENTITY_HEADER"]
        status, body = get(f"{url}?resource=x&api-version=2019-08-01", X_IDENTITY_HEADER=secret)
        assert (status, body["access_token"], body["expires_in"]) == (200, "t1", "3300")
        assert get(url, X_IDENTITY_HEADER="another") == (403, {})
        assert get(url) == (403, {})


def test_it_is_azures_metadata_service_to_an_older_one_and_nothing_else() -> None:
    maker = Maker()
    with token_server("az", OLD, maker) as env:
        proxy = env["HTTP_PROXY"]
        url = "http://169.254.169.254/metadata/identity/oauth2/token"
        status, body = get(f"{url}?resource=x", proxy, Metadata="true")
        assert (status, body["access_token"], body["expires_in"]) == (200, "t1", "3360")
        assert get("http://169.254.169.254/metadata/instance", proxy) == (404, {})
        assert get("http://elsewhere.example/metadata/identity/oauth2/token", proxy) == (404, {})
        assert get(url, proxy.replace("the-word", "a-word"))[0] == 407
        assert get(url, f"http://{proxy.partition('@')[2]}")[0] == 407
        maker.away, maker.now = True, maker.now + HOUR_S
        assert get(url, proxy)[1]["access_token"] == "t1"


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"http_proxy": "http://p", "HTTPS_PROXY": "http://p"}, {"HTTPS_PROXY": "http://p"}),
        ({"NO_PROXY": "169.254.169.254, a.b,169.254.0.0/16"}, {"NO_PROXY": " a.b"}),
        ({"no_proxy": "169.254.169.254"}, {}),
        ({"no_proxy": "x, *", "HTTPS_PROXY": "http://p", "https_proxy": "http://p"}, {}),
    ],
)
def test_an_older_one_asks_there_whatever_proxies_its_machine_has(
    given: dict[str, str], left: dict[str, str]
) -> None:
    with SigningProxy("az", OLD, "w", Maker().tokens) as made:
        env = made.env(given, "/home")
        assert env == {**left, "HTTP_PROXY": f"http://spotd:w@127.0.0.1:{made.server_port}"}


@pytest.mark.parametrize("known", [True, False])
def test_it_runs_as_it_travels_and_no_program_begins_without_a_token(
    tmp_path: Path, known: bool
) -> None:
    """By the system's Python, out of the agent's one file."""
    bundle, order = tmp_path / "spot-node.pyz", tmp_path / "options"
    bundle.write_bytes(build_bundle().data)
    with believing() as issuer:
        issuer.trusts = issuer.trusts if known else "another"
        options = {**google_options(issuer, "aws"), "allow_http": "true"}
        order.write_text(json.dumps(options))
        program = ["sh", "-c", "echo $GCE_METADATA_HOST $SPOTD_MOUNT_WORD; exit 7"]
        done = subprocess.run(
            [
                "/usr/bin/python3",
                "-m",
                "trainer.mounts.signing_proxy",
                str(order),
                "gs",
                "1.60",
                *program,
            ],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(bundle), KEY_ENV: "the-word"},
            capture_output=True,
            text=True,
            check=False,
        )
    if known:
        assert done.returncode == 7, done.stderr
        assert re.fullmatch(r"127\.0\.0\.1:\d+/the-word\n", done.stdout)
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert re.match(r"[\d/]{10} [\d:]{8} ERROR : spotd: .*invalid_grant", done.stderr)


def test_who_is_refused_is_named_with_the_right_that_it_lacks() -> None:
    options = {"identity": "gcp", "application": "app-1"}
    assert permission_hint("az://c", options) == (
        "the machine acts as app-1: grant it the role Storage Blob Data Reader there"
    )
    assert "Contributor" in permission_hint("az://c", options, writing=True)
    assert "s3:GetObject there" in permission_hint("s3://b", {"identity": "gcp", "role": "r"})
    assert (
        permission_hint("s3://b", {})
        == "a [stores.NAME] section with that url can give the job's machines access"
    )
