"""A cloud that is asked with two sets of credentials: one to make machines, one to end them.

Whoever has lost the first (expired, revoked, refused after a mistake in a policy) can still end
what runs. Each stands in for the other where that is safe: an end that is refused is tried with
those that make, and a listing that is refused with those that end. Second credentials that nobody
has tried are none: they are tried with every look at the offers, and where they are refused,
nothing is on sale.
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.base import (
    AuthError,
    Instance,
    Launched,
    LaunchRequest,
    Leftover,
    Notice,
    Offer,
    OfferRequest,
    Pending,
    Provider,
)


class Divided:
    """See the module. `ends` needs the rights of the reaper: to list and to terminate."""

    def __init__(self, makes: Provider, ends: Provider) -> None:
        self.name = makes.name
        self.local = makes.local
        self.watcher = makes.watcher
        self.limits_life = makes.limits_life
        self.power_off = makes.power_off
        self.prepared_file = makes.prepared_file
        self._makes = makes
        self._ends = ends

    @property
    def visibility_s(self) -> float:
        """As the cloud has told by now."""
        return self._makes.visibility_s

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """See Provider.offers. Raises AuthError when the credentials that end are refused."""
        try:
            self._ends.list()
        except AuthError as error:
            raise AuthError(
                f"the credentials that end machines: {error}", code=error.code
            ) from None
        return self._makes.offers(request)

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """See Provider.launch."""
        return self._makes.launch(request)

    def terminate(self, instance_id: str) -> None:
        """See Provider.terminate."""
        try:
            self._ends.terminate(instance_id)
        except AuthError:
            self._makes.terminate(instance_id)

    def list(self) -> Sequence[Instance]:
        """See Provider.list."""
        try:
            return self._makes.list()
        except AuthError:
            return self._ends.list()

    def notices(self) -> Sequence[Notice]:
        """See Provider.notices."""
        return self._makes.notices()

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """See Provider.renew."""
        self._makes.renew(instance_id, expires_at_us)

    def leftovers(self) -> Sequence[Leftover]:
        """See Provider.leftovers."""
        return self._makes.leftovers()

    def discard(self, leftover_id: str) -> None:
        """See Provider.discard."""
        self._makes.discard(leftover_id)
