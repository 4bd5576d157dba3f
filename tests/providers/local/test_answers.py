"""Malformed responses of the local cloud are unknown outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from providers.base import OfferRequest, ThrottledError, UnknownOutcome
from providers.local.cloud import LocalCloud

VERBS: dict[str, Callable[[LocalCloud], object]] = {
    "offers": lambda cloud: cloud.offers(OfferRequest()),
    "instances": lambda cloud: cloud.list(),
    "notices": lambda cloud: cloud.notices(),
}
OFFER = {
    "region": "r",
    "zone": "z",
    "instance_type": "t",
    "capacity_type": "spot",
    "price_microusd_per_h": 1,
    "list_microusd_per_h": 2,
}
ROWS = [1, [], {}, {"region": 1}, {**OFFER, "price_microusd_per_h": 1e400}, {**OFFER, "zone": None}]


class Says:
    """A server that gives the same response to every request."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, b"", {"X-Visibility-S": "3"}
        says = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(says.status)
                for name, value in says.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(says.body)

            def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

        self.server = HTTPServer(("127.0.0.1", 0), Handler)

    def cloud(self, token: Path) -> LocalCloud:
        url = f"http://127.0.0.1:{self.server.server_port}"
        return LocalCloud("aws", url, "aws", "d0", token_file=token)


@pytest.fixture
def says() -> Iterator[Says]:
    says = Says()
    thread = Thread(target=says.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield says
    says.server.shutdown()
    thread.join()
    says.server.server_close()


@pytest.fixture
def cloud(says: Says, tmp_path: Path) -> LocalCloud:
    (tmp_path / "token").write_text("secret")
    return says.cloud(tmp_path / "token")


def test_a_sound_row_is_an_offer(says: Says, cloud: LocalCloud) -> None:
    says.body = json.dumps({"offers": [{**OFFER, "colour": "red"}]}).encode()
    (offer,) = cloud.offers(OfferRequest())
    assert (offer.key, offer.price_microusd_per_h) == ("aws/r/z/t/spot", 1)
    assert cloud.visibility_s == 3.0


@pytest.mark.parametrize("row", ROWS, ids=repr)
@pytest.mark.parametrize("verb", VERBS)
def test_one_row_of_nonsense_spoils_the_answer(
    says: Says, cloud: LocalCloud, verb: str, row: object
) -> None:
    """A listing with an unreadable row counts as incomplete, since machines are judged by it."""
    says.body = json.dumps({verb: [row], "queue": "q"}).encode()
    with pytest.raises(UnknownOutcome, match="cannot be read"):
        VERBS[verb](cloud)


@pytest.mark.parametrize("body", [b"{}", b"[" * 5000, b'{"offers": {}}', b"\xff", b""])
@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_of_nonsense_is_none(
    says: Says, cloud: LocalCloud, status: int, body: bytes
) -> None:
    says.status, says.body = status, body
    with pytest.raises(UnknownOutcome):
        cloud.offers(OfferRequest())


@pytest.mark.parametrize("error", [1, [], {"code": []}, {"text": {}}])
def test_an_error_of_nonsense_is_an_unknown_outcome(
    says: Says, cloud: LocalCloud, error: object
) -> None:
    says.status, says.body = 400, json.dumps({"error": error}).encode()
    with pytest.raises(UnknownOutcome):
        cloud.list()


@pytest.mark.parametrize(
    ("value", "waits_s"), [(7, 7.0), ("x", 1.0), (-5, 1.0), (1e9, 1.0), (None, 1.0), ([], 1.0)]
)
def test_a_pause_of_nonsense_is_a_second(
    says: Says, cloud: LocalCloud, value: object, waits_s: float
) -> None:
    error = {"code": "throttled", "text": "slow", "retry_after_s": value}
    says.status, says.body = 429, json.dumps({"error": error}).encode()
    with pytest.raises(ThrottledError) as caught:
        cloud.list()
    assert caught.value.retry_after_s == waits_s


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon", "9" * 5000])
def test_a_lag_of_nonsense_changes_nothing(says: Says, cloud: LocalCloud, value: str) -> None:
    says.body, says.headers = b'{"offers": []}', {"X-Visibility-S": value}
    cloud.offers(OfferRequest())
    assert cloud.visibility_s == 5.0
