"""Prove that this machine is one of Azure, by a token of its metadata service.

Standard library only: it runs on nodes. Source: Microsoft's pages on managed identities.
"""

from __future__ import annotations

import json
from urllib.parse import quote

from providers.federation import Endpoints, read_metadata

_METADATA = "http://169.254.169.254"


def identity_token(audience: str, endpoints: Endpoints) -> str:
    """Return a token for `audience`. Raises MetadataError, ValueError and KeyError."""
    path = "/metadata/identity/oauth2/token?api-version=2018-02-01"
    path += f"&resource={quote(audience, safe='')}"
    answer = read_metadata(endpoints.metadata or _METADATA, path, {"Metadata": "true"})
    return str(json.loads(answer)["access_token"])
