"""What is set of a bucket, as the clouds' own SDKs see it on servers here."""

from __future__ import annotations

import boto3
import pytest
from azure.storage.blob import BlobServiceClient, RetentionPolicy

from providers.stores.settings import BucketSettings, SettingsError, bucket_settings
from spotd.demo.bucket import KEYS, Bucket
from tests.rigs.azurite import KEY, Azurite
from tests.rigs.gcs import Gcs


def test_versions_of_s3(bucket: Bucket) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=bucket.endpoint,
        aws_access_key_id=KEYS["access_key_id"],
        aws_secret_access_key=KEYS["secret_access_key"],
        region_name="us-east-1",
    )
    assert bucket_settings(bucket.url, bucket.options) == BucketSettings("us-east-1")
    switch = {"Bucket": bucket.name, "VersioningConfiguration": {"Status": "Enabled"}}
    client.put_bucket_versioning(**switch)
    try:
        assert bucket_settings(bucket.url, bucket.options) == BucketSettings("us-east-1", True)
    finally:
        switch["VersioningConfiguration"] = {"Status": "Suspended"}
        client.put_bucket_versioning(**switch)
        client.close()


@pytest.mark.xdist_group("gcs")
def test_soft_delete_of_google(gcs: Gcs) -> None:
    gcs.kept_s = 604_800
    try:
        assert bucket_settings(gcs.url, gcs.options) == BucketSettings(
            "us-central1", False, 604_800
        )
    finally:
        gcs.kept_s = 0
    assert bucket_settings(gcs.url, gcs.options) == BucketSettings("us-central1")


@pytest.mark.xdist_group("azurite")
def test_soft_delete_of_azure(azurite: Azurite) -> None:
    assert bucket_settings(azurite.url, azurite.options) == BucketSettings()
    with BlobServiceClient(azurite.endpoint, credential=KEY) as client:
        client.set_service_properties(delete_retention_policy=RetentionPolicy(True, 7))
        try:
            assert bucket_settings(azurite.url, azurite.options) == BucketSettings(kept_s=604_800.0)
        finally:
            client.set_service_properties(delete_retention_policy=RetentionPolicy())


def test_what_cannot_be_seen_says_why(bucket: Bucket) -> None:
    with pytest.raises(SettingsError, match="NoSuchBucket"):
        bucket_settings("s3://no-such-bucket/x", bucket.options)
    with pytest.raises(SettingsError, match="Connection"):
        bucket_settings("s3://b", {**bucket.options, "endpoint": "http://127.0.0.1:9"})
    assert bucket_settings("file:///x", {}) is None
