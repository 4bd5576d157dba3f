"""How a machine comes into being: one PUT, a few looks at its operation, and the removal of what a
create that failed leaves behind, which is a machine's resource without a machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from providers.azure.clients import Clients, failure
from providers.azure.codes import EXISTS, NOBODYS
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

LATEST_S = 8.0  # since the beginning: the port gives a launch ten seconds
GONE = "Gone"  # ours: a name that was taken, and is free
_DONE = ("Succeeded", "Failed", "Canceled")
# Tells a PUT not to change what is there.
_NEW_ALONE = {"If-None-Match": "*"}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class PollSchedule:
    """`patience_s` is for how long an operation is looked at, from the beginning of the call; it is
    looked at every `poll_s`."""

    patience_s: float = 7.0
    poll_s: float = 1.0


PATIENT = PollSchedule()


class Creation:
    """Creates of one resource group."""

    def __init__(
        self,
        clients: Clients,
        group: str,
        pace: PollSchedule,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clients = clients
        self._group = group
        self._pace = pace
        self._monotonic_s = monotonic_s
        self._sleep = sleep

    def create(self, name: str, body: dict[str, Any]) -> Launched | Pending:
        """The machine `name`: made, or there since an earlier call. Raises ProviderError; what a
        create that failed left behind has been removed, or is told to be."""
        begun_s = self._monotonic_s()
        try:
            url = self._put(name, body)
        except UnknownOutcome as error:
            if error.code != EXISTS:
                raise
            return self.look(name, body, begun_s)
        except (AuthError, ThrottledError):
            raise
        except ProviderError:
            self._clear(name, begun_s)
            raise
        status, error_row = self._watch(url, begun_s)
        if status == "Succeeded":
            return Launched(name)
        if status in _DONE:
            self._clear(name, begun_s)
            raise failure(error_row or {"code": status})
        return Pending(url or name)

    def look(self, name: str, body: dict[str, Any], begun_s: float = 0.0) -> Launched | Pending:
        """The machine that has the name already. Raises RejectedError for one that another request
        made, and what a failed create came to, once it is removed; UnknownOutcome for none."""
        begun_s = begun_s or self._monotonic_s()
        row = self.find(name)
        if row is None:
            raise UnknownOutcome(f"{name} was there, and is not any more", code=GONE)
        view = (row.get("properties") or {}).get("instanceView")
        if not _same(row, body):
            raise RejectedError(f"{name} is the name of a machine that another request made")
        state = state_of(row, view)
        if state is InstanceState.FAILED:
            self._remove(name, begun_s)
            raise _failed(name, view)
        if state is InstanceState.PENDING:
            return Pending(name)
        return Launched(name)

    def find(self, name: str) -> Row | None:
        """A machine with its instance view; None for none. Raises ProviderError."""
        try:
            row: Row = self._clients.compute(
                lambda client: client.virtual_machines.get(
                    self._group, name, expand="instanceView"
                ).as_dict()
            )
        except ProviderError as error:
            if error.code in NOBODYS:
                return None
            raise
        return row

    def delete(self, name: str) -> str:
        """Begin to delete a machine, and with it its card, address and disk; the address of the
        operation, "" where there is none. One that is not there, or ends already, is success."""
        try:
            url: str = self._clients.compute(
                lambda client: client.virtual_machines.begin_delete(
                    self._group, name, polling=False, cls=_operation
                ).result()
            )
        except UnknownOutcome as error:
            if error.code in NOBODYS or (error.code and self._ends(name)):
                return ""
            raise
        return url

    def _ends(self, name: str) -> bool:
        row = self.find(name)
        return row is None or state_of(row, None) is InstanceState.STOPPING

    def _put(self, name: str, body: dict[str, Any]) -> str:
        """The address of the operation."""
        url: str = self._clients.compute(
            lambda client: client.virtual_machines.begin_create_or_update(
                self._group, name, body, headers=dict(_NEW_ALONE), polling=False, cls=_operation
            ).result()
        )
        return url

    def _watch(self, url: str, begun_s: float) -> tuple[str, Row | None]:
        """(status, error) of an operation: the last that was heard while there is patience. That it
        cannot be heard of says nothing about the create, which Azure has accepted."""
        if not url:
            return "InProgress", None
        until_s = begun_s + self._pace.patience_s
        while self._monotonic_s() + self._pace.poll_s < until_s:
            self._sleep(self._pace.poll_s)
            try:
                answer = self._clients.operation(url)
            except ProviderError as error:
                log.warning("no word of %s: %s", url, error)
                return "InProgress", None
            if answer.get("status") in _DONE:
                return str(answer["status"]), answer.get("error")
        return "InProgress", None

    def _clear(self, name: str, begun_s: float) -> None:
        """Remove what a refused create left, and nothing that lives. After a slow refusal there is
        no time for that: then it is what it is when it cannot be removed."""
        if self._monotonic_s() - begun_s > LATEST_S:
            log.warning("no time to look for what a create that failed left behind: %s", name)
            return
        try:
            row = self.find(name)
            view = (row or {}).get("properties", {}).get("instanceView")
            if row is not None and state_of(row, view) is InstanceState.FAILED:
                self._remove(name, begun_s)
        except ProviderError as error:
            log.warning("left behind by a create that failed: %s: %s", name, error)

    def _remove(self, name: str, begun_s: float) -> None:
        """What cannot be removed now is listed as failed, and among the leftovers."""
        try:
            self._watch(self.delete(name), begun_s)
        except ProviderError as error:
            log.warning("left behind by a create that failed: %s: %s", name, error)


def _operation(answer: Any, *_: Any) -> str:
    """Where the operation of an answer is looked at; of what the SDK hands its `cls`."""
    headers = answer.http_response.headers
    return str(headers.get("Azure-AsyncOperation") or "")


def _failed(name: str, view: Row | None) -> ProviderError:
    """What a create that failed came to, from its instance view."""
    code, words = reason_of(view)
    return failure({"code": code, "message": words}) if code else UnknownOutcome(f"{name}: {words}")


def _same(row: Row, body: Row) -> bool:
    """Whether a machine is what a body asks for. Policies of the subscription may add tags; the
    expiry moves."""
    theirs, ours = read_instance(row), read_instance({"name": row["name"], **body})
    asked = {k: v for k, v in ours.tags.items() if k != EXPIRES_TAG}
    return (
        asked.items() <= tags_of(row).items()
        and theirs.instance_type.lower() == ours.instance_type.lower()
        and theirs.region.lower() == ours.region.lower()
        and theirs.zone == ours.zone
        and theirs.capacity_type is ours.capacity_type
    )
