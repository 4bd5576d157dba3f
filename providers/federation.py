"""A machine of one cloud shows another who it is, by what its own cloud signs, and gets credentials
for it: no secret is handed to it, and nobody has to be there when they end.

Machines of Google Cloud and Azure have a token of their identity. One of AWS asks STS for such a
token (an account has to allow that once), or signs a question that Google then asks STS for it.

Standard library only: it runs on nodes. Paths and fields: Google's and Microsoft's pages on the
identity tokens of machines and on workload identity federation, and AWS's STS API reference
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
from urllib.parse import quote, urlencode

from providers.aws_signing import RoleKeys, role_keys, signed
from providers.base import MetadataError
from providers.link_local import ask, refuse

TIMEOUT_S = 10.0
PROVIDERS = {"aws": "spotd-aws", "azure": "spotd-azure"}  # of a pool of Google's, by their names
_GCP = "http://metadata.google.internal"
_AZURE = "http://169.254.169.254"
_GOOGLE_TOKENS = "https://sts.googleapis.com/v1/token"
_GOOGLE_IAM = "https://iamcredentials.googleapis.com"
_ENTRA = "https://login.microsoftonline.com"
_LASTS_S = 3600  # that a token of Google's account is asked for
_PROOF_S = 300  # that a token of AWS is good for: it is shown at once
_LIMIT_BYTES = 1 << 20
_REFUSALS = frozenset({400, 401, 403, 404})
# Of what the role may do, what is left of it.
_READING = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": ["s3:Get*", "s3:List*", "kms:Decrypt"], "Resource": "*"}
        ],
    }
)
_FIELDS = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")


class ExchangeError(OSError):
    """No credentials came of it, this time; the text has no secret in it. `refused`: somebody said
    no, and will say it again."""

    refused = False


@dataclass(frozen=True)
class Endpoints:
    """Where to ask, each "" for the cloud's own address: the machine's metadata service, AWS's STS,
    and of the cloud whose store it is the token service and Google's IAM."""

    metadata: str = ""
    sts: str = ""
    tokens: str = ""
    iam: str = ""


DOORS = tuple(one.name for one in fields(Endpoints))


def prove(cloud: str, audience: str, doors: Endpoints) -> str:
    """A token for `audience` that says which machine this is. Raises ExchangeError."""
    try:
        if cloud == "gcp":
            return _prove_gcp(audience, doors.metadata)
        if cloud == "azure":
            return _prove_azure(audience, doors.metadata)
        return _prove_aws(audience, role_keys(doors.metadata), doors.sts)
    except (MetadataError, ValueError, KeyError, IndexError) as error:
        raise _unproven(cloud, error) from None


def _unproven(cloud: str, error: Exception) -> ExchangeError:
    return ExchangeError(f"{cloud} does not say who this machine is: {error}")


def _prove_gcp(audience: str, base_url: str) -> str:
    path = "/computeMetadata/v1/instance/service-accounts/default/identity"
    path += f"?audience={quote(audience, safe='')}&format=full"
    return _asked(base_url or _GCP, path, {"Metadata-Flavor": "Google"})


def _prove_azure(audience: str, base_url: str) -> str:
    path = "/metadata/identity/oauth2/token?api-version=2018-02-01"
    path += f"&resource={quote(audience, safe='')}"
    return str(json.loads(_asked(base_url or _AZURE, path, {"Metadata": "true"}))["access_token"])


def _prove_aws(audience: str, keys: RoleKeys, sts: str) -> str:
    """Of the region's own STS: the global one makes none."""
    url = f"{(sts or _sts_of(keys)).rstrip('/')}/"
    asked = {
        "Action": "GetWebIdentityToken",
        "Version": "2011-06-15",
        "Audience.member.1": audience,
        "DurationSeconds": _PROOF_S,
        "SigningAlgorithm": "RS256",  # the only one that Entra takes
    }
    body, form = urlencode(asked).encode(), "application/x-www-form-urlencoded"
    headers = signed(keys, url, _now(), {"content-type": form}, body)
    token = _field(_post("AWS", url, body, headers), "WebIdentityToken")
    if not token:
        raise ExchangeError("AWS: the answer has no token")
    return token


def _question(keys: RoleKeys, provider: str, sts: str) -> str:
    """Who is asking?, as a request that this machine has signed and Google sends: good for this
    provider alone, whose name is signed with it."""
    url = f"{sts or _sts_of(keys)}?Action=GetCallerIdentity&Version=2011-06-15"
    headers = signed(keys, url, _now(), {"x-goog-cloud-target-resource": provider})
    listed = [{"key": name, "value": value} for name, value in headers.items()]
    return quote(json.dumps({"url": url, "method": "POST", "headers": listed}))


def _sts_of(keys: RoleKeys) -> str:
    return f"https://sts.{keys.region}.amazonaws.com"


def _asked(base_url: str, path: str, headers: Mapping[str, str]) -> str:
    answer = ask(base_url, path, timeout_s=TIMEOUT_S, headers=headers)
    if answer.status != 200 or not answer.text:
        raise refuse(answer, path)
    return answer.text


def aws_session(
    cloud: str, role: str, audience: str, name: str, doors: Endpoints, *, reading: bool = False
) -> dict[str, Any]:
    """Credentials of `role`, in the form that obstore takes: for an hour, and made anew when less
    than five minutes of it are left; with `reading` they can read alone. Raises ExchangeError."""
    asked = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": role,
        "RoleSessionName": re.sub(r"[^\w+=,.@-]", "-", name)[:64],
        "WebIdentityToken": prove(cloud, audience, doors),
        **({"Policy": _READING} if reading else {}),
    }
    body = _post(role, doors.sts, urlencode(asked).encode(), {})
    key, secret, token, until = (_field(body, name) for name in _FIELDS)
    try:
        expires = _moment(until)
    except ValueError:
        raise ExchangeError(f"{role}: the answer has no credentials") from None
    return {
        "access_key_id": key,
        "secret_access_key": secret,
        "token": token,
        "expires_at": expires,
    }


def google_token(
    cloud: str, account: str, pool: str, audience: str, doors: Endpoints, *, reading: bool = False
) -> dict[str, Any]:
    """A token of the service account `account`, in the form that obstore takes; as for
    aws_session. `pool` is the full name of a workload identity pool, whose provider for machines of
    `cloud` is called as in PROVIDERS."""
    provider = f"//iam.googleapis.com/{pool}/providers/{PROVIDERS[cloud]}"
    kind = "urn:ietf:params:oauth:token-type:"
    if cloud == "aws":
        try:
            subject = _question(role_keys(doors.metadata), provider, doors.sts)
        except (MetadataError, ValueError, KeyError, IndexError) as error:
            raise _unproven(cloud, error) from None
        form = "urn:ietf:params:aws:token-type:aws4_request"
    else:
        subject, form = prove(cloud, audience, doors), f"{kind}jwt"
    asked = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "audience": provider,
        "scope": "https://www.googleapis.com/auth/cloud-platform",
        "requested_token_type": f"{kind}access_token",
        "subject_token": subject,
        "subject_token_type": form,
    }
    said = _post(provider, doors.tokens or _GOOGLE_TOKENS, urlencode(asked).encode(), {})
    own = {"Authorization": f"Bearer {_value(provider, said, 'access_token')}"}
    own["Content-Type"] = "application/json"
    may = "read_only" if reading else "read_write"
    scope = [f"https://www.googleapis.com/auth/devstorage.{may}"]
    wanted = json.dumps({"scope": scope, "lifetime": f"{_LASTS_S}s"}).encode()
    path = f"/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
    said = _post(account, f"{doors.iam or _GOOGLE_IAM}{path}", wanted, own)
    token, until = (_value(account, said, name) for name in ("accessToken", "expireTime"))
    try:
        return {"token": token, "expires_at": _moment(until)}
    except ValueError:
        raise ExchangeError(f"{account}: the answer has no time") from None


def azure_token(
    cloud: str, tenant: str, application: str, audience: str, doors: Endpoints
) -> dict[str, Any]:
    """A token of an application of Entra, or of an identity, that trusts this machine; as for
    aws_session."""
    asked = {
        "client_id": application,
        "scope": "https://storage.azure.com/.default",
        "grant_type": "client_credentials",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": prove(cloud, audience, doors),
    }
    url = f"{doors.tokens or _ENTRA}/{tenant}/oauth2/v2.0/token"
    said = _post(application, url, urlencode(asked).encode(), {})
    token = _value(application, said, "access_token")
    try:
        lasts = timedelta(seconds=int(_value(application, said, "expires_in")))
    except ValueError:
        raise ExchangeError(f"{application}: the answer has no time") from None
    return {"token": token, "expires_at": _now() + lasts}


def _post(who: str, url: str, data: bytes, headers: Mapping[str, str]) -> str:
    """Raises ExchangeError with what the other side says; `who` begins its text."""
    request = urllib.request.Request(url, data, dict(headers), method="POST")  # noqa: S310 - the caller's
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as heard:  # noqa: S310 - as above
            return str(heard.read(_LIMIT_BYTES).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        said = error.read(_LIMIT_BYTES).decode("utf-8", "replace")
        failed = ExchangeError(f"{who}: {_reason(said) or error}")
        failed.refused = error.code in _REFUSALS
        raise failed from None
    except (OSError, ValueError) as error:
        raise ExchangeError(f"{who}: {error}") from None


def _reason(said: str) -> str:
    """Of a refusal: AWS's is XML; Google's token service and Entra say error_description, and
    Google's IAM an error with a message."""
    words = f"{_field(said, 'Code')} {_field(said, 'Message')}".strip()
    if words:
        return words
    try:
        document = json.loads(said)
        inner = document["error"]
        named = inner if isinstance(inner, str) else f"{inner['status']} {inner['message']}"
        return f"{named} {document.get('error_description', '')}".strip().splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return ""


def _value(who: str, said: str, name: str) -> str:
    """A field of a JSON answer. Raises ExchangeError where it has none."""
    try:
        value = json.loads(said)[name]
    except (ValueError, KeyError, TypeError):
        value = ""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ExchangeError(f"{who}: the answer has no {name}")
    return str(value)


def _field(body: str, name: str) -> str:
    """The text of an element that AWS has once in its answer; "" when it has none. None of these
    has anything in it that XML writes otherwise."""
    found = re.search(rf"<{name}>([^<]*)</{name}>", body)
    return found[1] if found else ""


def _moment(text: str) -> datetime:
    return datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)


def _now() -> datetime:
    return datetime.now(timezone.utc)
