"""Workload identity federation: a machine of one cloud gets credentials for a store on another
cloud by proving its identity, without stored secrets.

Each cloud's folder says how its machines prove what they are; this module exchanges the proof.

Standard library only: it runs on nodes. Sources of paths and fields: Google's and Microsoft's pages
on machine identity tokens and on workload identity federation, and AWS's STS API reference
(AssumeRoleWithWebIdentity, GetWebIdentityToken, GetCallerIdentity).
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlencode

from providers.base import MetadataError
from providers.cloud_facts import IdentityFacts, load
from providers.clouds import CLOUDS
from providers.link_local import request, unexpected_status

TIMEOUT_S = 10.0
_GOOGLE_TOKENS = "https://sts.googleapis.com/v1/token"
_GOOGLE_IAM = "https://iamcredentials.googleapis.com"
_ENTRA = "https://login.microsoftonline.com"
_ACCESS_TOKEN_S = 3600  # requested lifetime of Google's access tokens
_LIMIT_BYTES = 1 << 20
_REFUSALS = frozenset({400, 401, 403, 404})
# Session policy that limits a role to reading.
_READ_ONLY_POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": ["s3:Get*", "s3:List*", "kms:Decrypt"], "Resource": "*"}
        ],
    }
)
_FIELDS = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")


class ExchangeError(OSError):
    """No credentials this time. The text contains no secret. `refused`: the other side rejected the
    request, and a retry will not help."""

    refused = False


@dataclass(frozen=True)
class Endpoints:
    """Addresses other than the clouds' own; "" for the default.

    `metadata` is the machine's metadata service, `sts` AWS's STS, `tokens` the token service and
    `iam` Google's IAM of the cloud that has the store.
    """

    metadata: str = ""
    sts: str = ""
    tokens: str = ""
    iam: str = ""


ENDPOINT_NAMES = tuple(field_.name for field_ in fields(Endpoints))


def identity_token(cloud: str, audience: str, endpoints: Endpoints) -> str:
    """Return a token for `audience` that identifies this machine. Raises ExchangeError."""
    return str(_prove(cloud, _identity_of(cloud).proof, audience, endpoints))


def is_signed(cloud: str) -> bool:
    """Return whether Google takes a signed request of this cloud's machines instead of a token."""
    known = CLOUDS.get(cloud)
    return bool(known and known.identity and known.identity.signed)


def pool_provider(cloud: str) -> str:
    """Return the name of a cloud's machines in Google's workload identity pool."""
    return f"spotd-{cloud}"


def _identity_of(cloud: str) -> IdentityFacts:
    identity = CLOUDS[cloud].identity
    if identity is None:
        raise ExchangeError(f"machines of {cloud} have no identity")
    return identity


def _prove(cloud: str, proof: str, subject: str, endpoints: Endpoints) -> Any:
    """Make a proof of this machine's identity for `subject`. Raises ExchangeError."""
    try:
        return load(proof)(subject, endpoints)
    except (MetadataError, ValueError, KeyError, IndexError) as error:
        raise _identity_error(cloud, error) from None


def _identity_error(cloud: str, error: Exception) -> ExchangeError:
    return ExchangeError(f"{cloud} cannot prove this machine's identity: {error}")


def read_metadata(base_url: str, path: str, headers: Mapping[str, str]) -> str:
    """Return an answer of the machine's metadata service. Raises MetadataError."""
    response = request(base_url, path, timeout_s=TIMEOUT_S, headers=headers)
    if response.status != 200 or not response.text:
        raise unexpected_status(response, path)
    return response.text


def aws_session(
    cloud: str, role: str, audience: str, name: str, endpoints: Endpoints, *, reading: bool = False
) -> dict[str, Any]:
    """Return credentials of `role` in the format of obstore. Raises ExchangeError.

    They last an hour; obstore renews them when less than five minutes are left. With `reading` they
    are read-only.
    """
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": role,
        "RoleSessionName": re.sub(r"[^\w+=,.@-]", "-", name)[:64],
        "WebIdentityToken": identity_token(cloud, audience, endpoints),
        **({"Policy": _READ_ONLY_POLICY} if reading else {}),
    }
    body = post(role, endpoints.sts, urlencode(form).encode(), {})
    key, secret, token, until = (xml_field(body, name) for name in _FIELDS)
    try:
        expires = _parse_time(until)
    except ValueError:
        raise ExchangeError(f"{role}: the answer has no credentials") from None
    return {
        "access_key_id": key,
        "secret_access_key": secret,
        "token": token,
        "expires_at": expires,
    }


def google_token(
    cloud: str,
    account: str,
    pool: str,
    audience: str,
    endpoints: Endpoints,
    *,
    reading: bool = False,
) -> dict[str, Any]:
    """Return a token of the service account `account` in the format of obstore; see aws_session.

    `pool` is the full name of a workload identity pool, with a `pool_provider` for each cloud.
    """
    provider = f"//iam.googleapis.com/{pool}/providers/{pool_provider(cloud)}"
    kind, identity = "urn:ietf:params:oauth:token-type:", _identity_of(cloud)
    if identity.signed:
        subject = _prove(cloud, identity.signed, provider, endpoints)
        subject_type = identity.signed_type
    else:
        subject, subject_type = identity_token(cloud, audience, endpoints), f"{kind}jwt"
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "audience": provider,
        "scope": "https://www.googleapis.com/auth/cloud-platform",
        "requested_token_type": f"{kind}access_token",
        "subject_token": subject,
        "subject_token_type": subject_type,
    }
    body = post(provider, endpoints.tokens or _GOOGLE_TOKENS, urlencode(form).encode(), {})
    headers = {"Authorization": f"Bearer {_json_field(provider, body, 'access_token')}"}
    headers["Content-Type"] = "application/json"
    access = "read_only" if reading else "read_write"
    scope = [f"https://www.googleapis.com/auth/devstorage.{access}"]
    request_body = json.dumps({"scope": scope, "lifetime": f"{_ACCESS_TOKEN_S}s"}).encode()
    path = f"/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
    body = post(account, f"{endpoints.iam or _GOOGLE_IAM}{path}", request_body, headers)
    token, until = (_json_field(account, body, name) for name in ("accessToken", "expireTime"))
    try:
        return {"token": token, "expires_at": _parse_time(until)}
    except ValueError:
        raise ExchangeError(f"{account}: the answer has no time") from None


def azure_token(
    cloud: str, tenant: str, application: str, audience: str, endpoints: Endpoints
) -> dict[str, Any]:
    """Return a token of an Entra application or identity that trusts this machine; see
    aws_session."""
    form = {
        "client_id": application,
        "scope": "https://storage.azure.com/.default",
        "grant_type": "client_credentials",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": identity_token(cloud, audience, endpoints),
    }
    url = f"{endpoints.tokens or _ENTRA}/{tenant}/oauth2/v2.0/token"
    body = post(application, url, urlencode(form).encode(), {})
    token = _json_field(application, body, "access_token")
    try:
        lasts = timedelta(seconds=int(_json_field(application, body, "expires_in")))
    except ValueError:
        raise ExchangeError(f"{application}: the answer has no time") from None
    return {"token": token, "expires_at": now() + lasts}


def post(party: str, url: str, data: bytes, headers: Mapping[str, str]) -> str:
    """Send a POST and return the answer. Raises ExchangeError; its text begins with `party`."""
    request = urllib.request.Request(url, data, dict(headers), method="POST")  # noqa: S310 - the caller's
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - as above
            return str(response.read(_LIMIT_BYTES).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        body = error.read(_LIMIT_BYTES).decode("utf-8", "replace")
        failed = ExchangeError(f"{party}: {_reason(body) or error}")
        failed.refused = error.code in _REFUSALS
        raise failed from None
    except (OSError, ValueError) as error:
        raise ExchangeError(f"{party}: {error}") from None


def _reason(body: str) -> str:
    """Return the message of an error answer: AWS sends XML, Google's token service and Entra
    `error_description`, and Google's IAM an `error` object with a message."""
    message = f"{xml_field(body, 'Code')} {xml_field(body, 'Message')}".strip()
    if message:
        return message
    try:
        document = json.loads(body)
        inner = document["error"]
        summary = inner if isinstance(inner, str) else f"{inner['status']} {inner['message']}"
        return f"{summary} {document.get('error_description', '')}".strip().splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return ""


def _json_field(party: str, body: str, name: str) -> str:
    """Return a field of a JSON answer. Raises ExchangeError without it."""
    try:
        value = json.loads(body)[name]
    except (ValueError, KeyError, TypeError):
        value = ""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ExchangeError(f"{party}: the answer has no {name}")
    return str(value)


def xml_field(body: str, name: str) -> str:
    """Return the text of an XML element that occurs once; "" without it. These elements contain no
    escaped characters."""
    match = re.search(rf"<{name}>([^<]*)</{name}>", body)
    return match[1] if match else ""


def _parse_time(text: str) -> datetime:
    return datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)


def now() -> datetime:
    """Return the time of this machine, which signatures and expiries need."""
    return datetime.now(timezone.utc)
