"""Read the bucket settings that cause hidden storage costs: versioning, soft delete, and cleanup of
incomplete multipart uploads.

Only the daemon calls this, through the clouds' own SDKs and with the store's own credentials. Azure
reports versioning and region only in its management API, so they stay unknown there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from providers.cloud_facts import load
from providers.clouds import STORE_OF_SCHEME

TIMEOUT_S = 10.0
DAY_S = 86_400.0


class SettingsError(Exception):
    """The settings cannot be read; the message says why."""


@dataclass(frozen=True)
class BucketSettings:
    """Settings of one bucket that affect its cost.

    `region` is "" if unknown. `soft_delete_s` is how long deleted objects are retained and billed,
    in seconds. `aborts_uploads` says whether a lifecycle rule deletes the parts of incomplete
    uploads (Azure does so after a week without a rule); None if unknown.
    """

    region: str = ""
    versioned: bool = False
    soft_delete_s: float = 0.0
    aborts_uploads: bool | None = None


def bucket_settings(url: str, options: Mapping[str, str]) -> BucketSettings | None:
    """Settings of the bucket at `url`; None for a folder. Raises SettingsError."""
    parts = urlsplit(url)
    store = STORE_OF_SCHEME.get(parts.scheme)
    if store is None:
        return None
    try:
        settings: BucketSettings = load(store.settings)(
            parts.netloc, parts.path.strip("/"), options
        )
        return settings
    except ImportError as error:
        raise SettingsError(f"{error.name} is not installed where spotd runs") from None
    except Exception as error:  # noqa: BLE001 - three SDKs, and the result is only advice
        message = str(error).strip().partition("\n")[0]
        raise SettingsError(f"{type(error).__name__}: {message}"[:300]) from None


def read_s3(bucket: str, folder: str, options: Mapping[str, str]) -> BucketSettings:
    """Read the settings of a bucket of S3."""
    import boto3  # noqa: PLC0415 - an extra
    from botocore.config import Config  # noqa: PLC0415

    keys = {
        "aws_access_key_id": options.get("access_key_id"),
        "aws_secret_access_key": options.get("secret_access_key"),
        "aws_session_token": options.get("session_token"),
        "region_name": options.get("region"),
    }
    config = Config(connect_timeout=5, read_timeout=TIMEOUT_S, retries={"total_max_attempts": 1})
    session = boto3.Session(**{name: value for name, value in keys.items() if value})
    client: Any = session.client("s3", endpoint_url=options.get("endpoint"), config=config)
    try:
        versions = client.get_bucket_versioning(Bucket=bucket).get("Status")
        region = client.get_bucket_location(Bucket=bucket).get("LocationConstraint")
        aborts = _s3_aborts_uploads(client, bucket, folder)
    finally:
        client.close()
    return BucketSettings(region or "us-east-1", versions == "Enabled", aborts_uploads=aborts)


def _s3_aborts_uploads(client: Any, bucket: str, folder: str) -> bool | None:
    """None if the credentials may not read lifecycle rules: that is a separate permission."""
    from botocore.exceptions import ClientError  # noqa: PLC0415

    try:
        rules = client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    except ClientError as error:
        no_rules = error.response["Error"]["Code"] == "NoSuchLifecycleConfiguration"
        return False if no_rules else None
    return any(
        rule["Status"] == "Enabled"
        and rule.get("AbortIncompleteMultipartUpload")
        and _covers(folder, _prefix_of(rule))
        for rule in rules
    )


def _prefix_of(rule: Mapping[str, Any]) -> str:
    """The key prefix a lifecycle rule applies to; old rules have it outside the filter."""
    rule_filter = rule.get("Filter", {})
    return str(rule_filter.get("And", rule_filter).get("Prefix") or rule.get("Prefix") or "")


def _covers(folder: str, prefix: str) -> bool:
    """Whether every key in the folder starts with `prefix`."""
    return (f"{folder}/" if folder else "").startswith(prefix)


def read_gcs(bucket: str, folder: str, options: Mapping[str, str]) -> BucketSettings:
    """Read the settings of a bucket of Google Cloud Storage."""
    from google.auth import default  # noqa: PLC0415 - an extra
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
    from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415
    from google.oauth2.service_account import Credentials  # noqa: PLC0415

    scopes = ["https://www.googleapis.com/auth/devstorage.read_only"]
    key = json.loads(options.get("service_account_key") or "{}")
    if key.get("disable_oauth"):
        credentials: Any = AnonymousCredentials()
    elif key:
        credentials = Credentials.from_service_account_info(key, scopes=scopes)
    else:
        credentials, _ = default(scopes=scopes)
    root = options.get("endpoint", "https://storage.googleapis.com").rstrip("/")
    with AuthorizedSession(credentials) as session:
        path = f"{root}/storage/v1/b/{bucket}"
        path += "?fields=location,versioning,softDeletePolicy,lifecycle"
        response = session.get(path, timeout=TIMEOUT_S)
        response.raise_for_status()
        data = response.json()
    soft_delete_s = float(data.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    versioned = data.get("versioning", {}).get("enabled") is True
    rules = data.get("lifecycle", {}).get("rule", [])
    aborts = any(
        rule["action"]["type"] == "AbortIncompleteMultipartUpload"
        and "matchesSuffix" not in rule["condition"]
        and any(_covers(folder, prefix) for prefix in rule["condition"].get("matchesPrefix", [""]))
        for rule in rules
    )
    return BucketSettings(
        region=str(data.get("location", "")).lower(),
        versioned=versioned,
        soft_delete_s=soft_delete_s,
        aborts_uploads=aborts,
    )


def read_azure(_container: str, _folder: str, options: Mapping[str, str]) -> BucketSettings:
    """Read the settings of a storage account."""
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - an extra
    from azure.storage.blob import BlobServiceClient  # noqa: PLC0415

    account = options["account"]
    root = options.get("endpoint") or f"https://{account}.blob.core.windows.net"
    key = options.get("account_key") or options.get("sas_token")
    with BlobServiceClient(
        root,
        credential=key or DefaultAzureCredential(),
        retry_total=0,
        connection_timeout=5,
        read_timeout=TIMEOUT_S,
    ) as client:
        policy = client.get_service_properties()["delete_retention_policy"]
    days = policy.days if policy is not None and policy.enabled else 0
    return BucketSettings(soft_delete_s=(days or 0) * DAY_S, aborts_uploads=True)
