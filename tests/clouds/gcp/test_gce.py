"""The Google Cloud stand-in refuses requests and replies that do not match the API, and forgets
what the cloud forgets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from google.auth.transport.requests import AuthorizedSession
from google.oauth2 import service_account

from tests.clouds.gcp.machines import IMAGE
from tests.clouds.gcp.serving import StandIn, serving
from tests.fixtures.waiting import LIMIT_S

INSTANCES = "/compute/v1/projects/p/zones/us-central1-a/instances"
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


def body(name: str = "n", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "machineType": "zones/us-central1-a/machineTypes/g2-standard-4",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "200"}}],
        "networkInterfaces": [{"subnetwork": "projects/p/regions/us-central1/subnetworks/spotd"}],
        "scheduling": {
            "provisioningModel": "SPOT",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": False,
        },
        "metadata": {"items": []},
        **changes,
    }


class Caller:
    """Calls the stand-in without the SDK, which could not express some of these requests."""

    def __init__(self, gcp: StandIn) -> None:
        self.gcp = gcp
        load = service_account.Credentials.from_service_account_file
        self._session = AuthorizedSession(load(str(gcp.credentials_file), scopes=SCOPES))  # type: ignore[no-untyped-call]

    def ask(self, verb: str, path: str, document: Any = None, **query: str) -> requests.Response:
        text = None if document is None else json.dumps(document)
        result: requests.Response = self._session.request(
            verb, self.gcp.endpoint + path, data=text, params=query
        )
        return result


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    with serving(tmp_path) as gcp:
        yield Caller(gcp)
        gcp.gce.problems.clear()


@pytest.mark.parametrize(
    ("verb", "path", "document", "query", "says"),
    [
        ("POST", INSTANCES, body(machinetype="x"), {}, "Instance has no field machinetype"),
        ("POST", INSTANCES, body(labels={"n": 1}), {}, "labels.n is not a string"),
        ("POST", INSTANCES, body(status="UP"), {}, "status is none of"),
        ("POST", INSTANCES, body(name="Upper"), {}, "name does not match"),
        ("POST", INSTANCES, body(), {"request_id": "x"}, "has no parameter request_id"),
        ("GET", f"{INSTANCES}/n/labels", None, {}, "no method is GET"),
    ],
)
def test_a_request_that_is_none(
    caller: Caller, verb: str, path: str, document: Any, query: dict[str, str], says: str
) -> None:
    answer = caller.ask(verb, path, document, **query)
    assert answer.status_code == 400
    assert says in answer.text
    assert says in caller.gcp.gce.problems[0]


def test_an_answer_that_is_none(caller: Caller) -> None:
    assert caller.ask("POST", INSTANCES, body()).status_code == 200
    row = caller.gcp.gce.project("p").machines["us-central1-a", "n"].row
    row["networkInterfaces"][0]["networkIp"] = row["networkInterfaces"][0].pop("networkIP")
    assert caller.ask("GET", f"{INSTANCES}/n").status_code == 500
    assert caller.gcp.gce.problems == [
        "answered: compute.instances.get: Instance.networkInterfaces[0] has no field networkIp"
    ]


def test_what_did_not_fit_fails_the_block(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no method"), serving(tmp_path) as gcp:
        requests.get(f"{gcp.endpoint}/compute/v1/nothing", timeout=LIMIT_S)


def test_nobody_calls_without_the_key(caller: Caller) -> None:
    for header in ("", "Bearer x", "Basic x"):
        answer = requests.get(
            caller.gcp.endpoint + f"{INSTANCES}/n",
            headers={"Authorization": header},
            timeout=LIMIT_S,
        )
        assert answer.status_code == 401
        assert answer.json()["error"]["errors"][0]["reason"] == "authError"


def test_a_request_id_is_never_forgotten(caller: Caller) -> None:
    resource_id = "63ce7cd6-50ff-55e8-9141-34539239f934"
    first = caller.ask("POST", INSTANCES, body(), requestId=resource_id).json()
    assert first["clientOperationId"] == resource_id
    caller.ask("DELETE", f"{INSTANCES}/n")
    caller.gcp.gce.project("p").remove(("us-central1-a", "n"))
    again = caller.ask("POST", INSTANCES, body("other"), requestId=resource_id).json()
    assert again["name"] == first["name"]
    assert caller.gcp.gce.project("p").machines == {}


def test_a_name_is_there_once(caller: Caller) -> None:
    assert caller.ask("POST", INSTANCES, body()).status_code == 200
    answer = caller.ask("POST", INSTANCES, body())
    assert answer.status_code == 409
    assert answer.json()["error"]["errors"][0]["reason"] == "alreadyExists"


@pytest.mark.parametrize(
    "text", ['name = "n" or name = "m"', "labels.x ~ y", '(name eq "a.*") (zone = "z")']
)
def test_a_filter_that_it_cannot_read_is_refused(caller: Caller, text: str) -> None:
    answer = caller.ask("GET", "/compute/v1/projects/p/aggregated/instances", filter=text)
    assert answer.status_code == 400
