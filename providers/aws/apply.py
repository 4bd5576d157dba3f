"""Asks AWS for one call of a step."""

from __future__ import annotations

from typing import Any

from providers.aws.clients import Clients
from providers.base import ProviderError
from providers.iam.setup import Call, search

# What AWS says of something that does not exist.
_ABSENT = (
    "NoSuchEntity",
    "ResourceNotFoundException",
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
)


class Account:
    """An AWS account, by a profile of the SDK's configuration, or by clients that stand."""

    def __init__(self, profile: str = "", clients: Clients | None = None) -> None:
        self._clients = clients or Clients(profile)

    def ask(self, call: Call) -> Any:
        """The part of the answer that is wanted, None for what does not exist; an answer of which
        nothing is wanted is true. Raises ProviderError."""
        try:
            answer = self._clients.call(
                call.region, call.operation, service=call.service, **call.parameters
            )
        except ProviderError as error:
            if error.code in _ABSENT:
                return None
            raise
        return search(call.answer, answer) if call.answer else True
