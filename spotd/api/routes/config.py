"""The route that has the daemon read its configuration file again."""

from __future__ import annotations

from typing import Any

from spotd.api.request.request import ApiError, ApiRequest
from spotd.base.errors import UserError


def reload_config(call: ApiRequest) -> dict[str, Any]:
    """Read the configuration file again: all of it takes effect, or nothing. Returns the keys that
    changed."""
    try:
        changed = call.context.daemon.reload()
    except UserError as error:
        raise _refused(f"{error.text}; {error.try_}") from None
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything: we go on as before
        raise _refused(str(error) or type(error).__name__) from None
    return {"kind": "ConfigReload", "changed": changed}


def _refused(reason: str) -> ApiError:
    """Return the error; the audit keeps its message alone, as the reason may quote a secret."""
    message = "the configuration was not taken over; the one before stays in force"
    return ApiError(409, "refused", message, reason)
