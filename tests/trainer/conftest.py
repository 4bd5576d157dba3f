"""The stores' fixtures, for the tests of what is built on them."""

from tests.providers.stores.conftest import bucket

__all__ = ["bucket"]
