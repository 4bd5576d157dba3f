"""The stores' fixtures, for the tests of what is built on them."""

from tests.providers.conftest import azurite, bucket, gcs

__all__ = ["azurite", "bucket", "gcs"]
