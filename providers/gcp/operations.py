"""Compute Engine's operations: the deployment's creates and their outcomes.

A create is accepted at once and may fail up to half a minute later; only its operation shows this.
Operations have no labels. The request id, which the operation repeats, proves that it belongs to
this deployment: nobody else can derive it from the name of the machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from providers.base import CapacityType, Instance, InstanceState, parse_timestamp_us
from providers.gcp.clients import Clients
from providers.gcp.codes import EXISTS, operation_error
from providers.gcp.names import DEPLOYMENT_TAG, TOKEN_TAG, region_of, split_name, target_of

# A request id identifies a request for ever, also a failed one. A retried create therefore uses the
# next id; after this many attempts, the last answer is final.
ATTEMPTS = 5
LISTED_FOR = timedelta(hours=1)  # how long a failed create is listed
_NAMESPACE = uuid.UUID("5bd1d4f9-9a3e-5b0c-8f5d-3f3f4d3f6a11")


@dataclass(frozen=True)
class Create:
    """A create of the deployment without a machine: `error` is None while it is in progress."""

    instance_id: str
    token: str
    since_us: int
    error: tuple[str, str] | None  # (vendor's message, name of the error class)

    def to_instance(self, deployment: str) -> Instance:
        """Return it as a listed instance; nothing more is known of the missing machine."""
        zone, _ = split_name(self.instance_id)
        text, code = self.error or ("", "")
        return Instance(
            instance_id=self.instance_id,
            token=self.token,
            tags={DEPLOYMENT_TAG: deployment, TOKEN_TAG: self.token},
            state=InstanceState.FAILED if self.error else InstanceState.PENDING,
            region=region_of(zone),
            zone=zone,
            instance_type="",
            capacity_type=CapacityType.SPOT,
            launched_at_us=self.since_us,
            error=text,
            error_code=code,
        )


def request_id(deployment: str, token: str, attempt: int = 0) -> str:
    """Return the request id of a create: a UUID derived from deployment, token and attempt."""
    return str(uuid.uuid5(_NAMESPACE, f"{deployment}\n{token}\n{attempt}"))


def is_done(operation: Any) -> bool:
    """Whether an operation has finished, with or without an error."""
    return bool(operation.status == type(operation).Status.DONE)


def time_before(now_s: float, span: timedelta) -> str:
    """Return the time `span` before `now_s` in the format of filters."""
    time_ = datetime.fromtimestamp(now_s, UTC) - span
    return time_.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def unfinished_creates(clients: Clients, deployment: str, now_s: float) -> list[Create]:
    """Return the deployment's creates of the last hour without a machine, in one call. Raises
    ProviderError."""
    # A filter by target finds nothing (reported by others), so fetch all inserts.
    filter_ = f'(operationType = "insert") (insertTime > "{time_before(now_s, LISTED_FOR)}")'
    rows_by_scope = clients.aggregated("GlobalOperations", "operations", filter_)
    return read_creates(deployment, (row for _, rows in rows_by_scope for row in rows))


def read_creates(deployment: str, operations: Iterable[Any]) -> list[Create]:
    """Return the creates of this deployment without a machine, the latest for each machine: a
    retried create replaces the failed one."""
    latest: dict[str, tuple[int, int, Any]] = {}
    for row in operations:
        instance_id = target_of(row.target_link)
        token = split_name(instance_id)[1]  # machines are named after their tokens
        request_ids = [request_id(deployment, token, n) for n in range(ATTEMPTS)] if token else []
        if row.operation_type != "insert" or row.client_operation_id not in request_ids:
            continue
        order = (parse_timestamp_us(row.insert_time), request_ids.index(row.client_operation_id))
        if instance_id not in latest or latest[instance_id][:2] < order:
            latest[instance_id] = (*order, row)
    creates = []
    for instance_id, (since_us, _, row) in latest.items():
        error = operation_error(row)
        if is_done(row) and (error is None or error.code in EXISTS):
            continue
        failure = (str(error), type(error).__name__) if error else None
        creates.append(Create(instance_id, split_name(instance_id)[1], since_us, failure))
    return creates
