"""Bucket settings, read by the clouds' own SDKs from local servers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from azure.storage.blob import BlobServiceClient, RetentionPolicy
from botocore.stub import Stubber

from providers.stores.settings import (
    BucketSettings,
    SettingsError,
    _s3_aborts_uploads,
    bucket_settings,
)
from spotd.demo.bucket import CREDENTIALS, Bucket
from tests.fixtures.azurite import KEY, Azurite
from tests.fixtures.gcs import Gcs


def client_of(bucket: Bucket) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=bucket.endpoint,
        aws_access_key_id=CREDENTIALS["access_key_id"],
        aws_secret_access_key=CREDENTIALS["secret_access_key"],
        region_name="us-east-1",
    )


def test_versions_of_s3(bucket: Bucket) -> None:
    client = client_of(bucket)
    assert bucket_settings(bucket.url, bucket.options) == BucketSettings(
        "us-east-1", aborts_uploads=False
    )
    switch = {"Bucket": bucket.name, "VersioningConfiguration": {"Status": "Enabled"}}
    client.put_bucket_versioning(**switch)
    try:
        assert bucket_settings(bucket.url, bucket.options) == BucketSettings(
            "us-east-1", True, aborts_uploads=False
        )
    finally:
        switch["VersioningConfiguration"] = {"Status": "Suspended"}
        client.put_bucket_versioning(**switch)
        client.close()


@pytest.mark.parametrize(
    ("rule", "ends"),
    [
        ({"Status": "Enabled", "Filter": {"Prefix": ""}}, True),
        ({"Status": "Enabled", "Filter": {"Prefix": "FOLDER/"}}, True),
        ({"Status": "Enabled", "Filter": {"Prefix": "FOLDER/deeper"}}, False),
        ({"Status": "Disabled", "Filter": {"Prefix": ""}}, False),
    ],
)
def test_rules_of_s3_that_end_uploads(bucket: Bucket, rule: dict[str, Any], ends: bool) -> None:
    """Lifecycle rules count if they cover the whole bucket or at least the store's prefix."""
    folder = urlsplit(bucket.url).path.strip("/")
    rule["Filter"] = {"Prefix": rule["Filter"]["Prefix"].replace("FOLDER", folder)}
    client = client_of(bucket)
    after = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}
    client.put_bucket_lifecycle_configuration(
        Bucket=bucket.name,
        LifecycleConfiguration={"Rules": [{"ID": "parts", **rule, **after}]},
    )
    try:
        settings = bucket_settings(bucket.url, bucket.options)
    finally:
        client.delete_bucket_lifecycle(Bucket=bucket.name)
        client.close()
    assert settings == BucketSettings("us-east-1", aborts_uploads=ends)


def test_who_may_not_see_the_rules_sees_the_rest(bucket: Bucket) -> None:
    client = client_of(bucket)
    with Stubber(client) as stubber:
        stubber.add_client_error("get_bucket_lifecycle_configuration", "AccessDenied")
        assert _s3_aborts_uploads(client, bucket.name, "") is None
    client.close()


@pytest.mark.xdist_group("gcs")
def test_rules_of_google_that_end_uploads(gcs: Gcs) -> None:
    rule = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}
    other = {"age": 7, "matchesPrefix": ["else/"]}
    for gcs.rules, ends in (
        ([rule], True),
        ([{**rule, "condition": other}], False),
        ([{**rule, "action": {"type": "Delete"}}], False),
    ):
        settings = bucket_settings(gcs.url, gcs.options)
        assert settings is not None
        assert settings.aborts_uploads is ends
    gcs.rules = []


@pytest.mark.xdist_group("gcs")
def test_soft_delete_of_google(gcs: Gcs) -> None:
    gcs.kept_s = 604_800
    try:
        assert bucket_settings(gcs.url, gcs.options) == BucketSettings(
            "us-central1", False, 604_800, False
        )
    finally:
        gcs.kept_s = 0
    assert bucket_settings(gcs.url, gcs.options) == BucketSettings(
        "us-central1", aborts_uploads=False
    )


@pytest.mark.xdist_group("azurite")
def test_soft_delete_of_azure(azurite: Azurite) -> None:
    assert bucket_settings(azurite.url, azurite.options) == BucketSettings(aborts_uploads=True)
    with BlobServiceClient(azurite.endpoint, credential=KEY) as client:
        client.set_service_properties(delete_retention_policy=RetentionPolicy(True, 7))
        try:
            assert bucket_settings(azurite.url, azurite.options) == BucketSettings(
                soft_delete_s=604_800.0, aborts_uploads=True
            )
        finally:
            client.set_service_properties(delete_retention_policy=RetentionPolicy())


def test_what_cannot_be_seen_says_why(bucket: Bucket) -> None:
    with pytest.raises(SettingsError, match="NoSuchBucket"):
        bucket_settings("s3://no-such-bucket/x", bucket.options)
    with pytest.raises(SettingsError, match="Connection"):
        bucket_settings("s3://b", {**bucket.options, "endpoint": "http://127.0.0.1:9"})
    assert bucket_settings("file:///x", {}) is None
