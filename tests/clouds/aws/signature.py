"""Parse the signature of AWS requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


def signed_for(environ: WSGIEnvironment) -> tuple[str, str]:
    """Return (region, service) of the signature: KEY/20261122/us-east-1/ec2/aws4_request."""
    parts = _scope(environ)
    return (parts[2], parts[3]) if len(parts) >= 4 else ("", "")


def key_of(environ: WSGIEnvironment) -> str:
    """Return the access key."""
    return _scope(environ)[0]


def _scope(environ: WSGIEnvironment) -> list[str]:
    header = str(environ.get("HTTP_AUTHORIZATION", ""))
    return header.partition("Credential=")[2].split(",")[0].split("/")
