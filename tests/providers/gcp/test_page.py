"""docs/clouds/gcp.md shows what goes over the wire. SPOTD_WRITE_GOLDEN=1 updates it."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from providers.base import EXPIRES_TAG, CapacityType, OfferRequest
from spotd.config.file import TimingSection
from spotd.config.schedule import Schedule
from spotd.domain.market import Timing
from spotd.planner.core.expiry import RENEW_SHARE
from tests.clouds.gcp.gce import Call
from tests.fixtures.local_cloud import user_key
from tests.fixtures.waiting import until
from tests.providers.gcp.conftest import Lab, request

PAGE = Path(__file__).parents[3] / "docs" / "clouds" / "gcp.md"
BLOCK = r"(<!-- golden: {} -->\n```\w+\n)(.*?)(```\n)"
TOKEN = "spotd-j1-g1-c0-r0-abcdefghij"
WEEK_S = 7 * 86_400
MACHINES = 100
OWN_IMAGE = "projects/PROJECT/global/images/baked"
LAUNCHES: dict[str, dict[str, Any]] = {
    "spot": {},
    "on_demand": {"capacity_type": CapacityType.ON_DEMAND},
    "reserved": {"capacity_type": CapacityType.RESERVED, "reservation": "ours"},
    "calendar": {"capacity_type": CapacityType.BLOCK, "reservation": "may"},
    "flex_start": {"capacity_type": CapacityType.BLOCK},
    "gang": {"gang": "spotd-j1-g1-c0-abcdefghij", "interconnect": "gpudirect"},
    "private": {"disk_gib": 500, "image_id": OWN_IMAGE},
}


def written(lab: Lab, call: Call) -> list[str]:
    """A request in the format of the page."""
    lines = [call.line]
    if call.body is not None:
        for item in call.body.get("metadata", {}).get("items", ()):
            if item["key"] == "user-data":
                assert item["value"].startswith("#cloud-config\n")
                item["value"] = "(the cloud-config)"
        lines += json.dumps(call.body, indent=1, sort_keys=True).splitlines()
    text = "\n".join(lines).replace(user_key().public.strip(), "KEY")
    text = text.replace(TOKEN, "TOKEN").replace(f"projects/{lab.name}/", "projects/PROJECT/")
    text = re.sub(r'(requestId=|"labelFingerprint": "|operation-)[\w=/+-]+', r"\1ID", text)
    return text.replace('"deployment0"', '"DEPLOYMENT"').splitlines()


def launched(lab: Lab, name: str) -> list[Call]:
    settings: dict[str, Any] = {}
    if name == "private":
        lab.gce.machines.images.add(OWN_IMAGE)
        account = "spotd-node-DEPLOYMENT@PROJECT.iam.gserviceaccount.com"
        settings = {"network": "private", "node_service_account": account}
    if name == "gang":
        settings = {"fabric": "spotd-fabric"}
        lab.gce.machines.subnetworks |= {f"spotd-fabric-{n}" for n in range(1, 5)}
    lab.gce.machines.delay_s = 0.05
    lab.gce.calls.clear()
    received = request(TOKEN, max_run_s=WEEK_S, **LAUNCHES[name])
    lab.cloud("deployment0", **settings).launch(received)
    return [*lab.gce.calls]


def spot(lab: Lab) -> list[str]:
    return written(lab, launched(lab, "spot")[0])


def after(lab: Lab) -> list[str]:
    """The calls after a create; the number of operation polls varies."""
    lines = [written(lab, call)[0] for call in launched(lab, "spot")[1:]]
    return list(dict.fromkeys(lines))


def differences(lab: Lab, name: str) -> list[str]:
    before = spot(lab)
    lab.project.machines.clear()
    lab.project.requests.clear()
    calls = (call for call in launched(lab, name) if call.method == "compute.instances.insert")
    lines = difflib.ndiff(before, written(lab, next(calls)))
    return [line for line in lines if line[0] in "+-"]


def last_call(lab: Lab, act: Callable[[Any, str], None], **tags: str) -> list[str]:
    cloud = lab.cloud("deployment0")
    received = request(TOKEN, max_run_s=WEEK_S, tags={"spotd-job": "j1", **tags})
    cloud.launch(received)
    lab.gce.calls.clear()
    act(cloud, f"us-central1-a/{TOKEN}")
    return written(lab, lab.gce.calls[-1])


def left_behind(cloud: Any, lab: Lab) -> None:
    lab.fault("leftovers", "instances.delete")
    cloud.terminate(f"us-central1-a/{TOKEN}")
    [left] = until(cloud.leftovers)
    cloud.discard(left.leftover_id)


def image(lab: Lab) -> list[str]:
    cloud = lab.cloud("deployment0")
    cloud.launch(request(TOKEN))
    lab.gce.calls.clear()
    cloud.make_image(f"us-central1-a/{TOKEN}", "spotd-baked", {"spotd-job": "j1"})
    return written(lab, lab.gce.calls[-1])


def rhythm(lab: Lab) -> list[str]:
    """Calls of each verb when nothing changes, at the daemon's intervals."""
    cloud = lab.cloud("deployment0", reservations={"us-east4-a/x": 0})
    timing, schedule = TimingSection(), Schedule()
    cloud.launch(request(TOKEN, tags={EXPIRES_TAG: "1900000000"}))
    resource_id = f"us-central1-a/{TOKEN}"
    until(lambda: next((i for i in cloud.list() if i.host_public_key), None))
    cloud.offers(OfferRequest())
    renewals_s = RENEW_SHARE * Timing.unattended_s / MACHINES
    verbs: dict[str, tuple[Callable[[], object], float]] = {
        "list": (cloud.list, timing.survey_every_s),
        "notices": (cloud.notices, schedule.notices_s),
        "offers": (lambda: cloud.offers(OfferRequest()), timing.offers_every_s),
        "leftovers": (cloud.leftovers, schedule.leftovers_s),
        "renew": (lambda: cloud.renew(resource_id, 1_900_003_600 * 1_000_000), renewals_s),
    }
    lines = []
    for verb, (ask, every_s) in verbs.items():
        lab.calls()
        ask()
        lines += [f"{verb:<10}{call:<36}{3600 / every_s:6.0f}" for call in lab.calls()]
    return lines


def placed(lab: Lab) -> list[str]:
    """The placement policy of a gang."""
    calls = (c for c in launched(lab, "gang") if c.method == "compute.resourcePolicies.insert")
    return written(lab, next(calls))


SHOWN: dict[str, Callable[[Lab], list[str]]] = {
    "spot": spot,
    "after": after,
    **{
        name: (lambda lab, name=name: differences(lab, name))  # type: ignore[misc]
        for name in LAUNCHES
        if name != "spot"
    },
    "placed": placed,
    "terminate": lambda lab: last_call(lab, lambda cloud, ident: cloud.terminate(ident)),
    "renew": lambda lab: last_call(
        lab,
        lambda cloud, ident: cloud.renew(ident, 1_900_003_600 * 1_000_000),
        **{EXPIRES_TAG: "1900000000"},
    ),
    "discard": lambda lab: last_call(lab, lambda cloud, _: left_behind(cloud, lab)),
    "simulate": lambda lab: last_call(lab, lambda cloud, ident: cloud.interrupt(ident)),
    "image": image,
    "rhythm": rhythm,
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_request_of_the_page(lab: Lab, name: str) -> None:
    wanted = "\n".join(SHOWN[name](lab)) + "\n"
    text = PAGE.read_text()
    block = re.compile(BLOCK.format(name), re.DOTALL)
    if os.environ.get("SPOTD_WRITE_GOLDEN"):
        text = block.sub(lambda found: found[1] + wanted + found[3], text)
        PAGE.write_text(text)
    found = block.search(text)
    assert found is not None
    assert found[2] == wanted


def test_the_page_has_no_other_requests() -> None:
    assert set(re.findall(r"<!-- golden: (\w+) -->", PAGE.read_text())) == set(SHOWN)
