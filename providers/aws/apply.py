"""Execute one call of a set-up step on AWS."""

from __future__ import annotations

from typing import Any

from providers.aws.clients import Clients
from providers.base import ProviderError
from providers.iam.setup import Call, select_jmespath

# Error codes for a missing resource.
_MISSING_CODES = (
    "NoSuchEntity",
    "ResourceNotFoundException",
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
)


class Account:
    """An AWS account, through a profile of the SDK's configuration or through existing clients."""

    def __init__(self, profile: str = "", clients: Clients | None = None) -> None:
        self._clients = clients or Clients(profile)

    def execute(self, call: Call) -> Any:
        """Return the queried part of the answer, None for a missing resource, True without a query.
        Raises ProviderError."""
        try:
            answer = self._clients.call(
                call.region, call.operation, service=call.service, **call.parameters
            )
        except ProviderError as error:
            if error.code in _MISSING_CODES:
                return None
            raise
        return select_jmespath(call.answer, answer) if call.answer else True
