"""Prove that this machine is one of Google Cloud, by a token of its metadata service.

Standard library only: it runs on nodes. Source: Google's pages on machine identity tokens.
"""

from __future__ import annotations

from urllib.parse import quote

from providers.federation import Endpoints, read_metadata

_METADATA = "http://metadata.google.internal"


def identity_token(audience: str, endpoints: Endpoints) -> str:
    """Return a token for `audience`. Raises MetadataError."""
    path = "/computeMetadata/v1/instance/service-accounts/default/identity"
    path += f"?audience={quote(audience, safe='')}&format=full"
    return read_metadata(endpoints.metadata or _METADATA, path, {"Metadata-Flavor": "Google"})
