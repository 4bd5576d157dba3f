"""The clouds that spotd knows: one line for each, whose facts are in its own folder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from providers.cloud_facts import Cloud, StoreFacts

# Each folder has the facts of its cloud in facts.py. They are loaded by name, because adapters
# import this table.
NAMES = (
    "aws",
    "gcp",
    "azure",
)
CLOUDS: Mapping[str, Cloud] = {
    name: import_module(f"providers.{name}.facts").FACTS for name in NAMES
}
CLOUD_OF_SCHEME: Mapping[str, Cloud] = {
    cloud.scheme: cloud for cloud in CLOUDS.values() if cloud.scheme
}
# kind of leased credentials and scheme of URLs -> the cloud's object store
STORES: Mapping[str, StoreFacts] = {
    name: cloud.store for name, cloud in CLOUDS.items() if cloud.store
}
STORE_OF_SCHEME: Mapping[str, StoreFacts] = {store.scheme: store for store in STORES.values()}
