"""Replies in EC2's format that moto lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from xml.sax.saxutils import escape

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"

# what -> (HTTP status, code, words). Codes and words are EC2's; capacity does travel as 500.
REFUSALS = {
    "no_capacity": (
        500,
        "InsufficientInstanceCapacity",
        "There is no Spot capacity available that matches your request.",
    ),
    "quota": (400, "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"),
    "no_quota": (
        400,
        "VcpuLimitExceeded",
        (
            "You have requested more vCPU capacity than your current vCPU limit of 0 allows for "
            "the instance bucket that the specified instance type belongs to."
        ),
    ),
    "price": (
        400,
        "SpotMaxPriceTooLow",
        "Your Spot request price is lower than the minimum required Spot request fulfillment price",
    ),
    "rejected": (400, "InvalidParameterCombination", "The parameters cannot be used together."),
    "unauthorized": (403, "UnauthorizedOperation", "You are not authorized to do this."),
    "expired": (400, "RequestExpired", "Request has expired."),
    "not_enabled": (  # of a region that the account has not opted in to
        401,
        "AuthFailure",
        "AWS was not able to validate the provided access credentials",
    ),
    "throttled": (503, "RequestLimitExceeded", "Request limit exceeded."),
    "http_500": (500, "InternalError", "An internal error has occurred"),
    "unheard_of": (400, "SomethingNew", "Nobody has seen this code before."),
    "in_use": (400, "InvalidParameterValue", "Network interface 'eni-1' is currently in use."),
    "bad_value": (400, "InvalidParameterValue", "Value (x) for parameter id is invalid."),
    "mismatch": (
        400,
        "IdempotentParameterMismatch",
        (
            "Arguments on this idempotent request are inconsistent with arguments used in previous "
            "request(s)."
        ),
    ),
}


def error(status: int, code: str, words: str) -> tuple[int, bytes]:
    """An error of the EC2 query protocol."""
    return status, (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(words)}</Message></Error>"
        "</Errors><RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>"
    ).encode()


# action -> the set of its answer; of what is named by its id EC2 says that there is no such thing.
_SETS = {"DescribeInstances": "reservationSet", "DescribeVolumes": "volumeSet"}


def unseen(action: str, form: Mapping[str, str]) -> tuple[int, bytes]:
    """EC2's answer for a resource that exists but is not visible yet."""
    kind = "Volume" if "Volume" in action else "InstanceID"
    if action in _SETS and "InstanceId.1" not in form:
        return answer(action, {_SETS[action]: []})
    return error(400, f"Invalid{kind}.NotFound", f"The {kind} does not exist")


Tree = str | int | Mapping[str, "Tree"] | list["Tree"]


def answer(operation: str, body: Mapping[str, Tree]) -> tuple[int, bytes]:
    """A reply of the EC2 query protocol; a list is written as <item>s."""
    parts = "".join(_element(name, value) for name, value in body.items())
    root = f"{operation}Response"
    return 200, f'<{root} xmlns="{NAMESPACE}"><requestId>r</requestId>{parts}</{root}>'.encode()


def _element(name: str, value: Tree) -> str:
    return f"<{name}>{_inner(value)}</{name}>"


def _inner(value: Tree) -> str:
    if isinstance(value, Mapping):
        return "".join(_element(name, item) for name, item in value.items())
    if isinstance(value, list):
        return "".join(_element("item", item) for item in value)
    return escape(str(value))


def tag_set(tags: Mapping[str, str]) -> list[Tree]:
    return [{"key": key, "value": value} for key, value in tags.items()]


def filters(form: Mapping[str, str]) -> dict[str, list[str]]:
    """Return {name: values} of a request's Filter.N.Name and Filter.N.Value.M."""
    result: dict[str, list[str]] = {}
    for key, name in form.items():
        if key.startswith("Filter.") and key.endswith(".Name"):
            prefix = key.removesuffix("Name") + "Value."
            result[name] = [value for other, value in form.items() if other.startswith(prefix)]
    return result


def listed(form: Mapping[str, str], name: str) -> list[str]:
    """Return the values of a request's NAME.1, NAME.2, ..."""
    return [form[key] for key in _numbered(form, name)]


def _numbered(form: Mapping[str, str], name: str) -> Iterable[str]:
    number = 1
    while f"{name}.{number}" in form:
        yield f"{name}.{number}"
        number += 1


def scores(told: Mapping[tuple[str, str], int], form: Mapping[str, str]) -> tuple[int, bytes]:
    """Placement scores of (type, zone id) by zone, for the requested regions."""
    regions, kinds = listed(form, "RegionName"), listed(form, "InstanceType")
    if form.get("SingleAvailabilityZone") != "true" or not 1 <= len(regions) <= 10:
        return error(400, "InvalidParameterValue", "The stand-in tells scores of zones alone.")
    short = {f"{name[:2]}{name.split('-')[1][0]}{name[-1]}": name for name in regions}
    rows: list[Tree] = [
        {"region": short[zone.partition("-")[0]], "availabilityZoneId": zone, "score": score}
        for (kind, zone), score in told.items()
        if kind in kinds and zone.partition("-")[0] in short
    ]
    return answer("GetSpotPlacementScores", {"spotPlacementScoreSet": rows})
