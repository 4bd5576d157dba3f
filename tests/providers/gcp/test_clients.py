"""Calls to Google's APIs: only at the configured addresses, within the time limit, and without
loading an SDK before the first call."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from google.api_core import exceptions

from providers.base import (
    AuthError,
    OfferRequest,
    Pending,
    ProviderError,
    ThrottledError,
    UnknownOutcome,
)
from providers.gcp import cloud as adapter
from providers.gcp.clients import _translate_error
from tests.fixtures.waiting import LIMIT_S
from tests.providers.gcp.conftest import Lab, request


def test_an_adapter_that_is_not_used_loads_no_sdk() -> None:
    code = (
        "import sys; from providers.gcp.cloud import GcpCloud; "
        "GcpCloud('gcp', 'd0', project='p', regions=['r']); "
        "print(sorted(m for m in sys.modules if m.startswith(('google', 'requests', 'grpc'))))"
    )
    reported = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert reported.strip() == "[]"


CHAIN = """
import os, sys
from providers.base import AuthError
from providers.gcp.cloud import GcpCloud
def cloud():
    return GcpCloud("gcp", "d0", project="p", regions=["r"], compute_endpoint=sys.argv[1])
try:
    cloud().list()
except AuthError as error:
    print(error)
os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = sys.argv[2]
print(cloud().list())
"""


def test_without_a_file_the_sdks_own_chain_is_asked(lab: Lab, tmp_path: Path) -> None:
    """In a separate process: the SDK decides at import whether to query the metadata server."""
    passed = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
    nothing = {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path), "NO_GCE_CHECK": "true"}
    reported = subprocess.run(
        [sys.executable, "-c", CHAIN, lab.standin.endpoint, str(lab.standin.credentials_file)],
        check=True,
        capture_output=True,
        text=True,
        env=passed | nothing,
    ).stdout.splitlines()
    assert "no credentials for Google Cloud" in reported[0]
    assert "gcloud auth application-default" in reported[0]
    assert reported[-1] == "[]"


def test_nobody_else_is_looked_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK derives addresses by itself: of tokens, of operations, of an account's regions."""
    received: list[str] = []
    look_up = socket.getaddrinfo

    def watch(host: Any, *args: Any, **more: Any) -> Any:
        received.append(str(host))
        return look_up(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", watch)
    cloud = lab.cloud()
    cloud.offers(OfferRequest())
    cloud.launch(request("spotd-j1"))
    cloud.list()
    cloud.notices()
    cloud.terminate("us-central1-a/spotd-j1")
    assert set(received) == {"127.0.0.1"}


def test_a_launch_is_back_in_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "LAUNCH_TIMEOUT_S", 0.8)
    cloud = lab.cloud(timeout_s=2 * LIMIT_S, patience_s=2 * LIMIT_S)
    cloud.list()  # the SDK is loaded
    for what, call in (
        ("hang", "instances.insert"),
        ("hang", "zoneOperations.get"),
        ("fails_later", "instances.insert"),
    ):
        lab.fault(what, call, 2 * LIMIT_S)
        lab.gce.machines.delay_s = 0.3
        began_s = time.monotonic()
        try:
            answer: object = cloud.launch(request(f"spotd-{what.replace('_', '-')}-{call[:4]}"))
        except ProviderError as error:
            answer = error
        assert time.monotonic() - began_s < LIMIT_S
        assert isinstance(answer, Pending | UnknownOutcome)


def answered(status: int, body: str, **headers: str) -> Any:
    """Return the SDK's exception for an answer."""
    answer = requests.Response()
    answer.status_code, answer._content = status, body.encode()
    answer.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    answer.request = requests.Request("GET", "https://compute.googleapis.com/x").prepare()
    return exceptions.from_http_response(answer)  # type: ignore[no-untyped-call]


def body(reason: str, words: str = "slowly") -> str:
    one = {"reason": reason, "message": words, "domain": "global"}
    return json.dumps({"error": {"code": 0, "message": words, "errors": [one]}})


def test_an_answer_says_when_to_come_back() -> None:
    error = _translate_error(answered(429, body("rateLimitExceeded"), Retry_After="17"))
    assert isinstance(error, ThrottledError)
    assert error.retry_after_s == 17.0
    for odd in ("", "Sun, 22 Nov 2026 18:00:00 GMT", "-1"):
        error = _translate_error(answered(429, body("rateLimitExceeded"), Retry_After=odd))
        assert isinstance(error, ThrottledError)
        assert error.retry_after_s == 2.0


@pytest.mark.parametrize(
    ("status", "text", "kind", "words"),
    [
        (502, "<html>a proxy's page", UnknownOutcome, "a proxy's page"),
        (503, "", UnknownOutcome, "HTTP 503"),
        (403, "", AuthError, "HTTP 403"),
        (401, body("authError", "who: are you"), AuthError, "authError: who: are you"),
        (400, json.dumps([{"error": {"message": "odd"}}]), UnknownOutcome, "odd"),
    ],
)
def test_an_answer_that_is_none_of_the_apis(status: int, text: str, kind: type, words: str) -> None:
    error = _translate_error(answered(status, text))
    assert type(error) is kind
    assert words in str(error)
    assert "https://" not in str(error)


def test_the_reason_of_newer_apis_is_read_as_well() -> None:
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "SERVICE_DISABLED",
        "domain": "googleapis.com",
    }
    text = json.dumps({"error": {"message": "API is disabled", "details": [info]}})
    error = _translate_error(answered(403, text))
    assert (type(error), error.code) == (AuthError, "SERVICE_DISABLED")
