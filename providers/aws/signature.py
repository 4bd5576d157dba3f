"""Sign requests to AWS STS with the credentials of an EC2 instance's role (Signature Version 4).

Standard library only: it runs on nodes. Sources: the EC2 user guide on IMDSv2 and on instance roles
for paths and fields; AWS's reference on signed requests for the signature.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import parse_qsl, quote, urlsplit

from providers.base import MetadataError
from providers.link_local import request, unexpected_status

_IMDS = "http://169.254.169.254"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_ROLE = re.compile(r"[\w+=,.@-]{1,64}")
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class RoleKeys:
    """Temporary credentials of the instance's role, and the instance's region."""

    access: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    region: str


def role_keys(base_url: str = "") -> RoleKeys:
    """Return the credentials of this machine's role, from the metadata service.

    Raises MetadataError (also for a machine without a role), ValueError and KeyError for malformed
    answers.
    """
    base_url = base_url or _IMDS
    path = "/latest/api/token"
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    response = request(base_url, path, timeout_s=TIMEOUT_S, method="PUT", headers=ttl)
    if response.status != 200:
        raise unexpected_status(response, path)
    session = {"X-aws-ec2-metadata-token": response.text}

    def read(path: str) -> str:
        response = request(base_url, path, timeout_s=TIMEOUT_S, headers=session)
        if response.status == 404 and path == _ROLES:
            raise MetadataError("it has no role: see node_role of its provider")
        if response.status != 200 or not response.text:
            raise unexpected_status(response, path)
        return response.text

    role = read(_ROLES).partition("\n")[0]
    if not _ROLE.fullmatch(role):  # the value is not shown: it may be anything
        raise MetadataError(f"{_ROLES}: not the name of a role")
    credentials = json.loads(read(_ROLES + role))
    access, secret, token = (
        str(credentials[n]) for n in ("AccessKeyId", "SecretAccessKey", "Token")
    )
    return RoleKeys(access, secret, token, read("/latest/meta-data/placement/region"))


def sign_request(
    keys: RoleKeys, url: str, now: datetime, headers: Mapping[str, str], body: bytes = b""
) -> dict[str, str]:
    """Return all headers of a signed POST of `body` to STS at `url`.

    `headers` have lower-case names and are signed too. `now` is in UTC.
    """
    parts, timestamp = urlsplit(url), now.strftime("%Y%m%dT%H%M%SZ")
    all_headers = {
        "host": parts.netloc,
        "x-amz-date": timestamp,
        "x-amz-security-token": keys.token,
    }
    all_headers |= headers
    names = sorted(all_headers)
    query = sorted(parse_qsl(parts.query, keep_blank_values=True))
    canonical = [
        "POST",
        parts.path or "/",
        "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query),
        *(f"{name}:{all_headers[name]}" for name in names),
        "",
        ";".join(names),
        hashlib.sha256(body).hexdigest(),
    ]
    scope = (timestamp[:8], keys.region, "sts", "aws4_request")
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    key = b"AWS4" + keys.secret.encode()
    for part in scope:
        key = _hmac(key, part)
    signature = _hmac(
        key, "\n".join(("AWS4-HMAC-SHA256", timestamp, "/".join(scope), digest))
    ).hex()
    credential = f"Credential={keys.access}/{'/'.join(scope)}"
    authorization = (
        f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return {**all_headers, "authorization": authorization}


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
