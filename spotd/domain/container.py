"""Names of container images, as in `image_id: docker:nvcr.io/nvidia/pytorch:25.01`."""

from __future__ import annotations

import re

PREFIX = "docker:"
_HUB = "docker.io"
# The grammar of the distribution specification: registry, path, tag, digest.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REGISTRY = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?"
_NAME = re.compile(
    rf"(?:(?P<registry>{_REGISTRY})/)?(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


def full_name(name: str) -> str:
    """Return `name` with its registry and a tag or digest, as docker reads it on any engine.

    Raises ValueError for a name that no registry can have.
    """
    match = _NAME.fullmatch(name)
    if match is None or len(name) > 255 + 128 + 72:
        raise ValueError(
            f"{name[:100]!r} is not a name of an image; write REGISTRY/NAME:TAG, in lower case"
        )
    registry, path = match["registry"] or "", match["path"]
    if registry and not (set(".:") & set(registry) or registry == "localhost"):
        registry, path = "", f"{registry}/{path}"
    if not registry:
        registry, path = _HUB, path if "/" in path else f"library/{path}"
    if match["digest"]:
        return f"{registry}/{path}@{match['digest']}"
    return f"{registry}/{path}:{match['tag'] or 'latest'}"


def pinned(name: str, digest: str) -> str:
    """Return the image's full name with this digest, or with its own if the digest is "".

    A tag that was moved meanwhile changes nothing.
    """
    full = full_name(name)
    if not digest or "@" in full:
        return full
    registry, _, rest = full.partition("/")
    return f"{registry}/{rest.rpartition(':')[0]}@{digest}"


def container_of(image_id: str) -> str:
    """The container image of a job's `image_id`; "" where that is a machine's."""
    return image_id.removeprefix(PREFIX) if image_id.startswith(PREFIX) else ""
