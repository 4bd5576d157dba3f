"""What a machine of AWS proves itself with: the keys of its role, and requests to AWS's STS that
are signed with them (Signature Version 4).

Standard library only: it runs on nodes. Paths and fields: EC2's user guide on IMDSv2 and on roles
of instances; the signature: AWS's reference of signed requests.
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
from providers.link_local import ask, refuse

_IMDS = "http://169.254.169.254"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_ROLE = re.compile(r"[\w+=,.@-]{1,64}")
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class RoleKeys:
    """Of the machine's role, in the machine's region."""

    access: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    region: str


def role_keys(base_url: str = "") -> RoleKeys:
    """Raises MetadataError, also for a machine without a role; ValueError and KeyError for
    nonsense."""
    base_url = base_url or _IMDS
    path = "/latest/api/token"
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    answer = ask(base_url, path, timeout_s=TIMEOUT_S, method="PUT", headers=ttl)
    if answer.status != 200:
        raise refuse(answer, path)
    session = {"X-aws-ec2-metadata-token": answer.text}

    def read(path: str) -> str:
        answer = ask(base_url, path, timeout_s=TIMEOUT_S, headers=session)
        if answer.status == 404 and path == _ROLES:
            raise MetadataError("it has no role: see node_role of its provider")
        if answer.status != 200 or not answer.text:
            raise refuse(answer, path)
        return answer.text

    role = read(_ROLES).partition("\n")[0]
    if not _ROLE.fullmatch(role):  # and is not shown: it may be anything
        raise MetadataError(f"{_ROLES}: not the name of a role")
    found = json.loads(read(_ROLES + role))
    access, secret, token = (str(found[n]) for n in ("AccessKeyId", "SecretAccessKey", "Token"))
    return RoleKeys(access, secret, token, read("/latest/meta-data/placement/region"))


def signed(
    keys: RoleKeys, url: str, now: datetime, headers: Mapping[str, str], body: bytes = b""
) -> dict[str, str]:
    """All headers of a POST of `body` to STS at `url`, `headers` (of names in lower case) among
    them and signed as well. `now` is in UTC."""
    parts, moment = urlsplit(url), now.strftime("%Y%m%dT%H%M%SZ")
    told = {"host": parts.netloc, "x-amz-date": moment, "x-amz-security-token": keys.token}
    told |= headers
    names = sorted(told)
    query = sorted(parse_qsl(parts.query, keep_blank_values=True))
    canonical = [
        "POST",
        parts.path or "/",
        "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query),
        *(f"{name}:{told[name]}" for name in names),
        "",
        ";".join(names),
        hashlib.sha256(body).hexdigest(),
    ]
    scope = (moment[:8], keys.region, "sts", "aws4_request")
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    key = b"AWS4" + keys.secret.encode()
    for word in scope:
        key = _hmac(key, word)
    signature = _hmac(key, "\n".join(("AWS4-HMAC-SHA256", moment, "/".join(scope), digest))).hex()
    who = f"Credential={keys.access}/{'/'.join(scope)}"
    line = f"AWS4-HMAC-SHA256 {who}, SignedHeaders={';'.join(names)}, Signature={signature}"
    return {**told, "authorization": line}


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
