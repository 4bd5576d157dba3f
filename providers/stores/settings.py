"""What is set of a bucket that costs money beside what lies in it: versions, soft delete, and
whether parts of uploads that were never finished go by themselves.

Asked of the cloud itself by its own SDK, by the box alone, with what the store is opened with. Of
versions, and of its place, Azure says nothing here (but in its management interface).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 10.0
DAY_S = 86_400.0


class SettingsError(Exception):
    """They cannot be seen; the text says why."""


@dataclass(frozen=True)
class BucketSettings:
    """`kept_s` is how long what was deleted is kept, and paid for; `region` "" is not known.
    `ends_parts`: parts of an upload that a killed machine began go by a rule of the bucket (of
    Azure, after a week without one); None: not known."""

    region: str = ""
    versioned: bool = False
    kept_s: float = 0.0
    ends_parts: bool | None = None


def bucket_settings(url: str, options: Mapping[str, str]) -> BucketSettings | None:
    """Of a bucket; None of a folder. Raises SettingsError."""
    parts = urlsplit(url)
    look = {"s3": _s3, "gs": _gcs, "az": _azure}.get(parts.scheme)
    if look is None:
        return None
    try:
        return look(parts.netloc, parts.path.strip("/"), options)
    except ImportError as error:
        raise SettingsError(f"{error.name} is not installed where spotd runs") from None
    except Exception as error:  # noqa: BLE001 - three SDKs, and nothing rests on it
        said = str(error).strip().partition("\n")[0]
        raise SettingsError(f"{type(error).__name__}: {said}"[:300]) from None


def _s3(bucket: str, folder: str, options: Mapping[str, str]) -> BucketSettings:
    import boto3  # noqa: PLC0415 - an extra
    from botocore.config import Config  # noqa: PLC0415

    keys = {
        "aws_access_key_id": options.get("access_key_id"),
        "aws_secret_access_key": options.get("secret_access_key"),
        "aws_session_token": options.get("session_token"),
        "region_name": options.get("region"),
    }
    line = Config(connect_timeout=5, read_timeout=TIMEOUT_S, retries={"total_max_attempts": 1})
    session = boto3.Session(**{name: value for name, value in keys.items() if value})
    client: Any = session.client("s3", endpoint_url=options.get("endpoint"), config=line)
    try:
        versions = client.get_bucket_versioning(Bucket=bucket).get("Status")
        place = client.get_bucket_location(Bucket=bucket).get("LocationConstraint")
        ends = _s3_ends_parts(client, bucket, folder)
    finally:
        client.close()
    return BucketSettings(place or "us-east-1", versions == "Enabled", ends_parts=ends)


def _s3_ends_parts(client: Any, bucket: str, folder: str) -> bool | None:
    """A right of its own, without which the rest is seen still."""
    from botocore.exceptions import ClientError  # noqa: PLC0415

    try:
        rules = client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    except ClientError as error:
        found = error.response["Error"]["Code"] == "NoSuchLifecycleConfiguration"
        return False if found else None
    return any(
        rule["Status"] == "Enabled"
        and rule.get("AbortIncompleteMultipartUpload")
        and _covers(folder, _prefix_of(rule))
        for rule in rules
    )


def _prefix_of(rule: Mapping[str, Any]) -> str:
    """Of a rule's objects; rules of before there were filters say it themselves."""
    chosen = rule.get("Filter", {})
    return str(chosen.get("And", chosen).get("Prefix") or rule.get("Prefix") or "")


def _covers(folder: str, prefix: str) -> bool:
    """Whether all that lies in the folder has a name that begins so."""
    return (f"{folder}/" if folder else "").startswith(prefix)


def _gcs(bucket: str, folder: str, options: Mapping[str, str]) -> BucketSettings:
    from google.auth import default  # noqa: PLC0415 - an extra
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
    from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415
    from google.oauth2.service_account import Credentials  # noqa: PLC0415

    scopes = ["https://www.googleapis.com/auth/devstorage.read_only"]
    key = json.loads(options.get("service_account_key") or "{}")
    if key.get("disable_oauth"):
        found: Any = AnonymousCredentials()
    elif key:
        found = Credentials.from_service_account_info(key, scopes=scopes)
    else:
        found, _ = default(scopes=scopes)
    root = options.get("endpoint", "https://storage.googleapis.com").rstrip("/")
    with AuthorizedSession(found) as session:
        path = f"{root}/storage/v1/b/{bucket}"
        path += "?fields=location,versioning,softDeletePolicy,lifecycle"
        heard = session.get(path, timeout=TIMEOUT_S)
        heard.raise_for_status()
        data = heard.json()
    kept_s = float(data.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    versioned = data.get("versioning", {}).get("enabled") is True
    rules = data.get("lifecycle", {}).get("rule", [])
    ends = any(
        rule["action"]["type"] == "AbortIncompleteMultipartUpload"
        and "matchesSuffix" not in rule["condition"]
        and any(_covers(folder, one) for one in rule["condition"].get("matchesPrefix", [""]))
        for rule in rules
    )
    return BucketSettings(str(data.get("location", "")).lower(), versioned, kept_s, ends)


def _azure(_container: str, _folder: str, options: Mapping[str, str]) -> BucketSettings:
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - an extra
    from azure.storage.blob import BlobServiceClient  # noqa: PLC0415

    account = options["account"]
    root = options.get("endpoint") or f"https://{account}.blob.core.windows.net"
    given = options.get("account_key") or options.get("sas_token")
    with BlobServiceClient(
        root,
        credential=given or DefaultAzureCredential(),
        retry_total=0,
        connection_timeout=5,
        read_timeout=TIMEOUT_S,
    ) as client:
        policy = client.get_service_properties()["delete_retention_policy"]
    days = policy.days if policy is not None and policy.enabled else 0
    return BucketSettings(kept_s=(days or 0) * DAY_S, ends_parts=True)
