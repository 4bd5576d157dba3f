"""Names of Compute Engine resources: links, ids of machines and disks, labels."""

from __future__ import annotations

import re
from collections.abc import Mapping

from providers.base import RejectedError

DEPLOYMENT_TAG = "spotd-deployment"
TOKEN_TAG = "spotd-token"  # noqa: S105 - a label

# From the API's description of Instance.name. Labels may also contain international characters,
# which spotd's labels never do.
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
MAX_LABELS = 64


def link_name(link: str) -> str:
    """Return the last part of a resource's link: its name."""
    return link.rpartition("/")[2]


def region_of(zone: str) -> str:
    """Return us-central1 for us-central1-a."""
    return zone.rpartition("-")[0]


def qualified_name(zone: str, resource: str) -> str:
    """Return "ZONE/NAME": with the zone in the id, deleting a machine needs no other state."""
    return f"{zone}/{resource}"


def split_name(name: str) -> tuple[str, str]:
    """Return (zone, name) of a qualified name; ("", "") for anything else."""
    zone, _, resource = name.partition("/")
    if _NAME.fullmatch(zone) and _NAME.fullmatch(resource):
        return zone, resource
    return "", ""


def target_of(link: str) -> str:
    """Return the qualified name of an operation's machine (".../zones/ZONE/instances/NAME"); "" for
    another target."""
    parts = link.split("/")
    if len(parts) < 4 or parts[-2] != "instances" or parts[-4] != "zones":
        return ""
    return qualified_name(parts[-3], parts[-1])


def label_filter(deployment: str) -> str:
    """Return a filter for the resources of a deployment. Unquoted, an id of digits would be a
    number."""
    return f'labels.{DEPLOYMENT_TAG} = "{deployment}"'


def check_name(name: str) -> None:
    """Raises RejectedError for an invalid machine name."""
    if not _NAME.fullmatch(name):
        raise RejectedError(
            f"{name!r} is not a valid machine name on Google Cloud: use up to 63 "
            "lower-case letters, digits and hyphens, a letter first and no hyphen last"
        )


def labels_of(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags as labels. Raises RejectedError for an invalid one: a label changed to fit
    could not be found again."""
    for key, value in tags.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise RejectedError(
                f"the tag {key}={value!r} is not a valid label on Google Cloud: use up to 63 "
                "lower-case letters, digits, hyphens and underscores, a letter first in the key"
            )
    if len(tags) > MAX_LABELS:
        raise RejectedError(f"{len(tags)} tags; Google Cloud takes {MAX_LABELS} labels")
    return dict(tags)
