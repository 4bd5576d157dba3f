"""Prove that this machine is one of AWS: by a token that STS makes for its role (an account has to
enable that once), or by a signed request that Google sends to STS.

Standard library only: it runs on nodes. Source: AWS's STS API reference (GetWebIdentityToken,
GetCallerIdentity).
"""

from __future__ import annotations

import json
from urllib.parse import quote, urlencode

from providers.aws.signature import RoleKeys, role_keys, sign_request
from providers.federation import Endpoints, ExchangeError, now, post, xml_field

_TOKEN_S = 300  # lifetime of a token: it is used at once


def identity_token(audience: str, endpoints: Endpoints) -> str:
    """Return a token of the machine's role for `audience`.

    It comes from the region's own STS: the global one issues no such tokens. Raises MetadataError,
    ExchangeError, ValueError and KeyError.
    """
    keys = role_keys(endpoints.metadata)
    url = f"{(endpoints.sts or _sts_of(keys)).rstrip('/')}/"
    parameters = {
        "Action": "GetWebIdentityToken",
        "Version": "2011-06-15",
        "Audience.member.1": audience,
        "DurationSeconds": _TOKEN_S,
        "SigningAlgorithm": "RS256",  # the only one that Entra takes
    }
    body = urlencode(parameters).encode()
    content_type = {"content-type": "application/x-www-form-urlencoded"}
    headers = sign_request(keys, url, now(), content_type, body)
    token = xml_field(post("AWS", url, body, headers), "WebIdentityToken")
    if not token:
        raise ExchangeError("AWS: the answer has no token")
    return token


def signed_caller_identity(provider: str, endpoints: Endpoints) -> str:
    """Return a signed GetCallerIdentity request, which Google sends to STS.

    The name of `provider` is signed too, so the request is valid for that provider only. Raises
    MetadataError, ValueError and KeyError.
    """
    keys = role_keys(endpoints.metadata)
    url = f"{endpoints.sts or _sts_of(keys)}?Action=GetCallerIdentity&Version=2011-06-15"
    headers = sign_request(keys, url, now(), {"x-goog-cloud-target-resource": provider})
    listed = [{"key": name, "value": value} for name, value in headers.items()]
    return quote(json.dumps({"url": url, "method": "POST", "headers": listed}))


def _sts_of(keys: RoleKeys) -> str:
    return f"https://sts.{keys.region}.amazonaws.com"
