"""The part of the store's contract that keeps machines from outliving their purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class NodeRowTimes(NamedTuple):
    """What the row of a machine's node says: when it was gone (0: it is not), and when the cloud
    had accepted that we end it (0: never)."""

    gone_us: int
    ended_us: int


class OwnedResource(Protocol):
    """What carries the mark of a machine: the machine itself, or something that it left behind."""

    @property
    def instance_id(self) -> str: ...

    @property
    def token(self) -> str: ...


class OrphanRecords(Protocol):
    """A part of `spotd.store.interface.Store`."""

    def asked_for(
        self, provider: str, instances: Sequence[OwnedResource]
    ) -> dict[str, NodeRowTimes]:
        """Those instances, by id, that a node stands or stood for (it has their token, or
        the id of one without any), and what became of it."""
        ...

    def record_renewed(self, node_id: str, until_us: int) -> None:
        """The cloud moved the node's expiry on to `until_us`. Makes no job due."""
        ...

    def release_orphans(self, name: str, at_us: int) -> None:
        """A person said that what no node wants and was there at `at_us` may go: machines of the
        provider of that name, or what machines left there (`decide.sweeping.leftovers_of`)."""
        ...

    def orphans_released_us(self, name: str) -> int:
        """The latest of these times; 0 when nobody ever said so."""
        ...

    def claims(self) -> tuple[int, int]:
        """The number that is known to stand for this database in the deployment's store, and the
        one that is about to; 0 for none."""
        ...

    def record_claim(self, confirmed: int, intended: int) -> None:
        """These numbers."""
        ...

    def record_home(self, home: int, moved: str, at_us: int) -> None:
        """The database lies at `home` (a number that stands for the place, not 0) from now on; one
        that lay elsewhere before is in quarantine, for the reason `moved`."""
        ...
