"""A cloud that is asked with two sets of credentials: one to make machines, one to end them.

Whoever has lost the first (expired, revoked, refused after a mistake in a policy) can still end
what runs. Each stands in for the other where that is safe: an end that is refused is tried with
those that make, and a listing that is refused with those that end. Second credentials that nobody
has tried are none: they are tried with every look at the offers, and where they are refused,
nothing is on sale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
from providers.fault_injection import Interrupter, Interruption, not_to_be_taken
from providers.images import Image, ImageMaker
from providers.readiness import CapacityNeed, Finding, ReadinessChecker, good, tried
from providers.serial_console import Console
from providers.warnings import ProviderWarning, WarningSource


class SplitProvider:
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

    def examine(self, needs: Sequence[CapacityNeed]) -> Sequence[Finding]:
        """See Examiner.examine, where those that make can be examined; and whether those that end
        machines list them."""
        found = [*self._makes.examine(needs)] if isinstance(self._makes, ReadinessChecker) else []
        fix = "put right the settings of the provider that begin with `end_`"
        return [*found, *tried("credentials that end", fix, self._look_at_ends)]

    def _look_at_ends(self) -> Iterator[Finding]:
        yield good("credentials that end", f"they list {len(self._ends.list())} machines")

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

    def console(self, instance_id: str) -> str:
        """See Console.console."""
        return self._makes.console(instance_id) if isinstance(self._makes, Console) else ""

    @property
    def interruption_usd(self) -> float:
        """See Interrupter."""
        return self._makes.interruption_usd if isinstance(self._makes, Interrupter) else 0.0

    def interrupt(self, instance_id: str) -> Interruption:
        """See Interrupter.interrupt."""
        if not isinstance(self._makes, Interrupter):
            raise not_to_be_taken(instance_id)
        return self._makes.interrupt(instance_id)

    def remarks(self) -> Sequence[ProviderWarning]:
        """See Remarking.remarks."""
        return self._makes.remarks() if isinstance(self._makes, WarningSource) else ()

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


class SplitImageMaker(SplitProvider):
    """Of a cloud that makes images of machines: made and removed with the credentials that make."""

    def __init__(self, makes: Provider, images: ImageMaker, ends: Provider) -> None:
        super().__init__(makes, ends)
        self._images = images

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """See ImageMaker.make_image."""
        return self._images.make_image(instance_id, name, tags)

    def images(self) -> Sequence[Image]:
        """See ImageMaker.images."""
        return self._images.images()

    def remove_image(self, image_id: str) -> None:
        """See ImageMaker.remove_image."""
        self._images.remove_image(image_id)


def divided(makes: Provider, ends: Provider) -> SplitProvider:
    """One of the two, by what the cloud can do."""
    if isinstance(makes, ImageMaker):
        return SplitImageMaker(makes, makes, ends)
    return SplitProvider(makes, ends)
