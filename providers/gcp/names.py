"""Names of Compute Engine's things: links, our names of machines and disks, labels."""

from __future__ import annotations

import re
from collections.abc import Mapping

from providers.base import RejectedError

DEPLOYMENT_TAG = "spotd-deployment"
TOKEN_TAG = "spotd-token"  # noqa: S105 - a label

# Of the API's own description of Instance.name; keys and values of labels may be of other scripts
# as well, which ours never are.
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
MOST_LABELS = 64


def last(link: str) -> str:
    """The last part of a resource's link: its name."""
    return link.rpartition("/")[2]


def region_of(zone: str) -> str:
    """us-central1 of us-central1-a."""
    return zone.rpartition("-")[0]


def name_of(zone: str, resource: str) -> str:
    """Our name of something in a zone: whoever has it can end it, with no other memory."""
    return f"{zone}/{resource}"


def parted(name: str) -> tuple[str, str]:
    """(zone, name) of such a name; ("", "") of what can be none."""
    zone, _, resource = name.partition("/")
    if _NAME.fullmatch(zone) and _NAME.fullmatch(resource):
        return zone, resource
    return "", ""


def target_of(link: str, collection: str = "instances") -> str:
    """Our name of what an operation works on (".../zones/ZONE/instances/NAME"); "" for anything
    that is not of the collection."""
    parts = link.split("/")
    if len(parts) < 4 or parts[-2] != collection or parts[-4] != "zones":
        return ""
    return name_of(parts[-3], parts[-1])


def labelled(deployment: str) -> str:
    """A filter: what is of a deployment. In quotes, or an id of digits would be a number."""
    return f'labels.{DEPLOYMENT_TAG} = "{deployment}"'


def check_name(name: str) -> None:
    """Raises RejectedError for what Compute Engine takes for no name of a machine."""
    if not _NAME.fullmatch(name):
        raise RejectedError(
            f"{name!r} is no name of a machine on Google Cloud: it takes up to 63 small letters, "
            "digits and hyphens, a letter first and no hyphen last"
        )


def labels_of(tags: Mapping[str, str]) -> dict[str, str]:
    """The same as labels. Raises RejectedError for a tag that Google Cloud would not take: one that
    was changed to fit is not found again."""
    for key, value in tags.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise RejectedError(
                f"the tag {key}={value!r} is no label on Google Cloud: up to 63 small letters, "
                "digits, hyphens and underscores, a letter first in the key"
            )
    if len(tags) > MOST_LABELS:
        raise RejectedError(f"{len(tags)} tags; Google Cloud takes {MOST_LABELS} labels")
    return dict(tags)
