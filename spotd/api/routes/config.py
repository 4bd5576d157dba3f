"""The route that has the daemon read its configuration file again."""

from __future__ import annotations

from typing import Any

from spotd.api.request.request import ApiError, ApiRequest


def reload_config(call: ApiRequest) -> dict[str, Any]:
    """Read the configuration file again: all of it takes effect, or nothing. Returns the keys that
    changed."""
    try:
        changed = call.context.daemon.reload()
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything: we go on as before
        # The audit keeps the message alone: what is wrong with the file may quote a secret.
        message = "the configuration was not taken over; the one before stays in force"
        raise ApiError(409, "refused", message, str(error) or type(error).__name__) from None
    return {"kind": "ConfigReload", "changed": changed}
