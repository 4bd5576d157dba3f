"""Secrets that must not appear in the output of the job's programs."""

from __future__ import annotations

from spotd.wire import StartDocument

# Store options that are not secret. Every other option, also a future one, counts as secret.
_PLAIN_OPTIONS = frozenset(
    {"endpoint", "region", "allow_http", "timeout_s", "credentials_file"}
    | {"identity", "role", "audience", "session", "account", "client_id"}
    | {"service_account", "pool", "tenant", "application"}
)


def secret_values(start: StartDocument) -> list[str]:
    """Return the values to mask in the output of the job's programs."""
    options = [*start.storage.store_options.items()]
    for bucket in start.files.buckets:
        options += [*bucket.options.items(), *bucket.near_options.items()]
    for store in start.storage.shard_stores:
        options += store.options.items()
    keys = [value for name, value in options if name not in _PLAIN_OPTIONS]
    return [*start.program.secrets.values(), *keys]
