"""What Compute Engine's operations tell: which creates are ours, and what became of them.

A create is accepted at once and fails up to half a minute later; nothing but its operation says so.
Operations carry no labels. What proves that one is ours is its request id, which it echoes: nobody
else can derive the same from the name of the machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from providers.base import CapacityType, Instance, InstanceState
from providers.gcp.clients import Clients
from providers.gcp.codes import EXISTS, operation_error
from providers.gcp.names import DEPLOYMENT_TAG, TOKEN_TAG, parted, region_of, target_of

# The same request id means the same request, also one that failed. A create that is asked for again
# after that is another one, with the next id; after so many its last answer stands.
ATTEMPTS = 5
KEPT = timedelta(hours=1)  # how long a failed create is listed
_NAMESPACE = uuid.UUID("5bd1d4f9-9a3e-5b0c-8f5d-3f3f4d3f6a11")


@dataclass(frozen=True)
class Create:
    """One of our creates that did not make a machine, or has not yet: `error` None while it is on
    its way."""

    instance_id: str
    token: str
    since_us: int
    error: tuple[str, str] | None  # the vendor's text, the class of error

    def to_instance(self, deployment: str) -> Instance:
        """As it is listed. Of the machine that is not there no more is known."""
        zone, _ = parted(self.instance_id)
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
    """The request id of a create: a UUID of who asks for what."""
    return str(uuid.uuid5(_NAMESPACE, f"{deployment}\n{token}\n{attempt}"))


def done(operation: Any) -> bool:
    """Whether an operation is over, with an error or without."""
    return bool(operation.status == type(operation).Status.DONE)


def us_of(moment: str) -> int:
    """Microseconds since the epoch of RFC 3339; 0 for none."""
    try:
        return int(datetime.fromisoformat(moment).timestamp() * 1_000_000)
    except ValueError:
        return 0


def since(now_s: float, span: timedelta) -> str:
    """That long before now, as filters want it."""
    moment = datetime.fromtimestamp(now_s, UTC) - span
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def unfinished_creates(clients: Clients, deployment: str, now_s: float) -> list[Create]:
    """Ours of the last hour that made no machine, or have not yet. One call, whatever the number
    of machines. Raises ProviderError."""
    # A filter by target finds nothing (facts of others), so that all inserts are asked for.
    after = f'(operationType = "insert") (insertTime > "{since(now_s, KEPT)}")'
    answers = clients.aggregated("GlobalOperations", "operations", after)
    return read_creates(deployment, (row for _, rows in answers for row in rows))


def read_creates(deployment: str, operations: Iterable[Any]) -> list[Create]:
    """Those of `operations` that are creates of this deployment and made no machine, the last of
    each machine: one that is asked for again is not the one that failed."""
    latest: dict[str, tuple[int, int, Any]] = {}
    for row in operations:
        instance_id = target_of(row.target_link)
        token = parted(instance_id)[1]  # the product's names are its tokens
        ids = [request_id(deployment, token, n) for n in range(ATTEMPTS)] if token else []
        if row.operation_type != "insert" or row.client_operation_id not in ids:
            continue
        order = (us_of(row.insert_time), ids.index(row.client_operation_id))
        if instance_id not in latest or latest[instance_id][:2] < order:
            latest[instance_id] = (*order, row)
    found = []
    for instance_id, (since_us, _, row) in latest.items():
        error = operation_error(row)
        if done(row) and (error is None or error.code in EXISTS):
            continue
        told = (str(error), type(error).__name__) if error else None
        found.append(Create(instance_id, parted(instance_id)[1], since_us, told))
    return found
