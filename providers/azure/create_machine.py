"""Create a machine: one PUT, a few polls of its operation, and clean-up after a failed create,
which leaves a resource without a machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from providers.azure.clients import Clients, error_from_document
from providers.azure.codes import EXISTS, NOT_FOUND
from providers.azure.listing import read_instance, reason_of, state_of, tags_of
from providers.base import (
    EXPIRES_TAG,
    AuthError,
    InstanceState,
    Launched,
    Pending,
    ProviderError,
    RejectedError,
    ThrottledError,
    UnknownOutcome,
)

log = logging.getLogger(__name__)

CLEANUP_DEADLINE_S = 8.0  # since the start of the call: the port allows ten seconds for a launch
GONE = "Gone"  # spotd's own code: the name was taken, and is free now
_DONE = ("Succeeded", "Failed", "Canceled")
# Keeps a PUT from changing an existing machine.
_ONLY_IF_NEW = {"If-None-Match": "*"}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class PollSchedule:
    """`patience_s` is how long an operation is polled, counted from the start of the call; `poll_s`
    is the interval."""

    patience_s: float = 7.0
    poll_s: float = 1.0


DEFAULT_SCHEDULE = PollSchedule()


class MachineCreator:
    """Creates and deletes machines of one resource group."""

    def __init__(
        self,
        clients: Clients,
        group: str,
        schedule: PollSchedule,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clients = clients
        self._group = group
        self._schedule = schedule
        self._monotonic_s = monotonic_s
        self._sleep = sleep

    def create(self, name: str, body: dict[str, Any]) -> Launched | Pending:
        """Create the machine `name`, or find it from an earlier call.

        Raises ProviderError; the remains of a failed create are then deleted, or their deletion has
        begun.
        """
        started_s = self._monotonic_s()
        try:
            url = self._put(name, body)
        except UnknownOutcome as error:
            if error.code != EXISTS:
                raise
            return self.check_existing(name, body, started_s)
        except (AuthError, ThrottledError):
            raise
        except ProviderError:
            self._clean_up(name, started_s)
            raise
        status, error_document = self._poll(url, started_s)
        if status == "Succeeded":
            return Launched(name)
        if status in _DONE:
            self._clean_up(name, started_s)
            raise error_from_document(error_document or {"code": status})
        return Pending(url or name)

    def check_existing(
        self, name: str, body: dict[str, Any], started_s: float = 0.0
    ) -> Launched | Pending:
        """Return the state of the machine that already has the name.

        Raises RejectedError for a machine of another request, the error of a failed create once its
        remains are deleted, and UnknownOutcome when there is none.
        """
        started_s = started_s or self._monotonic_s()
        row = self.find(name)
        if row is None:
            raise UnknownOutcome(f"{name} existed and is gone", code=GONE)
        view = (row.get("properties") or {}).get("instanceView")
        if not _matches(row, body):
            raise RejectedError(f"{name} is the name of a machine that another request made")
        state = state_of(row, view)
        if state is InstanceState.FAILED:
            self._remove(name, started_s)
            raise _create_error(name, view)
        if state is InstanceState.PENDING:
            return Pending(name)
        return Launched(name)

    def find(self, name: str) -> Row | None:
        """Return a machine with its instance view; None for a missing one. Raises ProviderError."""
        try:
            row: Row = self._clients.compute(
                lambda client: client.virtual_machines.get(
                    self._group, name, expand="instanceView"
                ).as_dict()
            )
        except ProviderError as error:
            if error.code in NOT_FOUND:
                return None
            raise
        return row

    def delete(self, name: str) -> str:
        """Begin to delete a machine with its interface, address and disk; return the operation's
        URL, "" without one.

        A missing machine and one that is being deleted are success.
        """
        try:
            url: str = self._clients.compute(
                lambda client: client.virtual_machines.begin_delete(
                    self._group, name, polling=False, cls=_operation_url
                ).result()
            )
        except UnknownOutcome as error:
            if error.code in NOT_FOUND or (error.code and self._is_ending(name)):
                return ""
            raise
        return url

    def _is_ending(self, name: str) -> bool:
        row = self.find(name)
        return row is None or state_of(row, None) is InstanceState.STOPPING

    def _put(self, name: str, body: dict[str, Any]) -> str:
        """Return the URL of the operation."""
        url: str = self._clients.compute(
            lambda client: client.virtual_machines.begin_create_or_update(
                self._group,
                name,
                body,
                headers=dict(_ONLY_IF_NEW),
                polling=False,
                cls=_operation_url,
            ).result()
        )
        return url

    def _poll(self, url: str, started_s: float) -> tuple[str, Row | None]:
        """Return the last (status, error) of an operation within the schedule.

        A failed poll says nothing about the create, which Azure has accepted.
        """
        if not url:
            return "InProgress", None
        stop_s = started_s + self._schedule.patience_s
        while self._monotonic_s() + self._schedule.poll_s < stop_s:
            self._sleep(self._schedule.poll_s)
            try:
                answer = self._clients.operation(url)
            except ProviderError as error:
                log.warning("cannot poll %s: %s", url, error)
                return "InProgress", None
            if answer.get("status") in _DONE:
                return str(answer["status"]), answer.get("error")
        return "InProgress", None

    def _clean_up(self, name: str, started_s: float) -> None:
        """Delete the remains of a refused create, and nothing that lives.

        After a slow refusal there is no time for it; then the remains show up as a leftover.
        """
        if self._monotonic_s() - started_s > CLEANUP_DEADLINE_S:
            log.warning("no time to clean up after a failed create: %s", name)
            return
        try:
            row = self.find(name)
            view = (row or {}).get("properties", {}).get("instanceView")
            if row is not None and state_of(row, view) is InstanceState.FAILED:
                self._remove(name, started_s)
        except ProviderError as error:
            log.warning("left over from a failed create: %s: %s", name, error)

    def _remove(self, name: str, started_s: float) -> None:
        """Delete the machine; if that fails, it is listed as failed and as a leftover."""
        try:
            self._poll(self.delete(name), started_s)
        except ProviderError as error:
            log.warning("left over from a failed create: %s: %s", name, error)


def _operation_url(answer: Any, *_: Any) -> str:
    """Return the URL of an answer's operation; the SDK calls this as its `cls`."""
    headers = answer.http_response.headers
    return str(headers.get("Azure-AsyncOperation") or "")


def _create_error(name: str, view: Row | None) -> ProviderError:
    """Return the error of a failed create, from its instance view."""
    code, message = reason_of(view)
    return (
        error_from_document({"code": code, "message": message})
        if code
        else UnknownOutcome(f"{name}: {message}")
    )


def _matches(row: Row, body: Row) -> bool:
    """Whether a machine matches a request. Policies of the subscription may add tags; the expiry
    changes."""
    actual, expected = read_instance(row), read_instance({"name": row["name"], **body})
    expected_tags = {k: v for k, v in expected.tags.items() if k != EXPIRES_TAG}
    return (
        expected_tags.items() <= tags_of(row).items()
        and actual.instance_type.lower() == expected.instance_type.lower()
        and actual.region.lower() == expected.region.lower()
        and actual.zone == expected.zone
        and actual.capacity_type is expected.capacity_type
    )
