"""What the output of the job's programs must not show."""

from __future__ import annotations

from spotd.wire import StartDocument

# Options of a store that anybody may see; whatever else there is, now or later, may be a secret.
_PLAIN_OPTIONS = frozenset(
    {"endpoint", "region", "allow_http", "timeout_s", "credentials_file"}
    | {"identity", "role", "audience", "session", "account", "client_id"}
    | {"service_account", "pool", "tenant", "application"}
)


def hidden_of(start: StartDocument) -> list[str]:
    """What the output of the job's programs must not show."""
    options = [*start.store_options.items()]
    for bucket in start.buckets:
        options += [*bucket.options.items(), *bucket.near_options.items()]
    for store in start.shard_stores:
        options += store.options.items()
    keys = [value for name, value in options if name not in _PLAIN_OPTIONS]
    return [*start.secrets.values(), *keys]
