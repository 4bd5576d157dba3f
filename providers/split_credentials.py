"""A provider with two sets of credentials: one that creates machines and one that terminates them.

When the first set fails (expired, revoked, or a policy mistake), running machines can still be
terminated. Each set stands in for the other where that is safe: a refused terminate is retried with
the creating set, and a refused listing with the terminating set. The terminating set is tested
whenever offers are read; while it is refused, there are no offers, because untested credentials
cannot be relied on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    SerialConsole,
)
from providers.fault_injection import FaultInjector, Interruption, not_interruptible
from providers.images import HasImages, ImageMaker
from providers.readiness import CapacityNeed, Finding, ReadinessChecker, passed, run_check
from providers.warnings import ProviderWarning, WarningSource


class SplitProvider:
    """A Provider. `terminator` needs the permissions of spot-reaper: to list and to terminate."""

    def __init__(self, creator: Provider, terminator: Provider) -> None:
        self.name = creator.name
        self.local = creator.local
        self.watcher = creator.watcher
        self.limits_life = creator.limits_life
        self.power_off = creator.power_off
        self.prepared_file = creator.prepared_file
        self._creator = creator
        self._terminator = terminator

    @property
    def visibility_s(self) -> float:
        """See Provider.visibility_s."""
        return self._creator.visibility_s

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """See Provider.offers. Raises AuthError when the terminating credentials are refused."""
        try:
            self._terminator.list()
        except AuthError as error:
            raise AuthError(
                f"the credentials that end machines: {error}", code=error.code
            ) from None
        return self._creator.offers(request)

    def check_readiness(self, needs: Sequence[CapacityNeed]) -> Sequence[Finding]:
        """See ReadinessChecker.check_readiness; also checks that the terminating credentials can
        list."""
        findings = (
            [*self._creator.check_readiness(needs)]
            if isinstance(self._creator, ReadinessChecker)
            else []
        )
        fix = "correct the provider's settings that begin with `end_`"
        return [*findings, *run_check("credentials that end", fix, self._check_terminator)]

    def _check_terminator(self) -> Iterator[Finding]:
        yield passed("credentials that end", f"they list {len(self._terminator.list())} machines")

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """See Provider.launch."""
        return self._creator.launch(request)

    def terminate(self, instance_id: str) -> None:
        """See Provider.terminate."""
        try:
            self._terminator.terminate(instance_id)
        except AuthError:
            self._creator.terminate(instance_id)

    def list(self) -> Sequence[Instance]:
        """See Provider.list."""
        try:
            return self._creator.list()
        except AuthError:
            return self._terminator.list()

    def read_serial_console(self, instance_id: str) -> str:
        """See SerialConsole.read_serial_console."""
        return (
            self._creator.read_serial_console(instance_id)
            if isinstance(self._creator, SerialConsole)
            else ""
        )

    @property
    def interruption_usd(self) -> float:
        """See FaultInjector."""
        return self._creator.interruption_usd if isinstance(self._creator, FaultInjector) else 0.0

    def interrupt(self, instance_id: str) -> Interruption:
        """See FaultInjector.interrupt."""
        if not isinstance(self._creator, FaultInjector):
            raise not_interruptible(instance_id)
        return self._creator.interrupt(instance_id)

    def warnings(self) -> Sequence[ProviderWarning]:
        """See WarningSource.warnings."""
        return self._creator.warnings() if isinstance(self._creator, WarningSource) else ()

    def notices(self) -> Sequence[Notice]:
        """See Provider.notices."""
        return self._creator.notices()

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """See Provider.renew."""
        self._creator.renew(instance_id, expires_at_us)

    def leftovers(self) -> Sequence[Leftover]:
        """See Provider.leftovers."""
        return self._creator.leftovers()

    def discard(self, leftover_id: str) -> None:
        """See Provider.discard."""
        self._creator.discard(leftover_id)


class SplitImageMaker(HasImages, SplitProvider):
    """A SplitProvider that creates and removes images with the creating credentials."""

    def __init__(self, creator: Provider, images: ImageMaker, terminator: Provider) -> None:
        super().__init__(creator, terminator)
        self._images = images


def split_provider(creator: Provider, terminator: Provider) -> SplitProvider:
    """Return a SplitImageMaker where the cloud can create images, else a SplitProvider."""
    if isinstance(creator, ImageMaker):
        return SplitImageMaker(creator, creator, terminator)
    return SplitProvider(creator, terminator)
