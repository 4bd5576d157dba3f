"""How object stores are reached, and by which machines."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from providers.cloud_facts import StoreFacts, load
from providers.clouds import STORES
from providers.section import FederateSection, LendSettings, Section
from providers.stores.base import SECRET_OPTIONS
from spotd.planner.core.shard_stores import StorePlace, place_of
from spotd.spec.quantities import Bytes, Duration, StoreUrl, Usd


def parse_options(value: Any) -> Any:
    """Options as text. Raises ValueError for a secret that stands in the file."""
    if not isinstance(value, dict):
        return value
    for key in SECRET_OPTIONS:
        if key in value:
            raise ValueError(
                f"{key} must not be in the file; use {key}_file, {key}_env or {key}_credential"
            )
    return {
        key: str(item).lower() if isinstance(item, bool) else str(item)
        for key, item in value.items()
    }


class LendSection(LendSettings):
    """Credentials of one job's folder, made for machines that have no right there by themselves."""

    to: Literal["others", "all"] = Field(
        default="others",
        description="Only machines of other clouds, or also those of the same cloud",
    )
    lifetime: Duration | None = Field(
        default=None,
        description="Lifetime of credentials; default: the longest that the cloud allows",
    )


def _lend_section(store: StoreFacts) -> type[LendSection]:
    """Return the section of one kind of store: the keys of all, and its own."""
    own = load(store.lend)
    return create_model(own.__name__, __base__=(own, LendSection), __doc__=own.__doc__)


def _default_kind(value: Any) -> Any:
    """Name the kind where the section does not, as before there were others."""
    default = next(name for name, store in STORES.items() if store.federate_default)
    return {"kind": default, **value} if isinstance(value, dict) else value


if TYPE_CHECKING:
    Lend = LendSection
    Federate = FederateSection
else:
    _LENDS = [_lend_section(store) for store in STORES.values()]
    _FEDERATES = [load(store.federate) for store in STORES.values()]
    Lend = Annotated[reduce(or_, _LENDS), Field(discriminator="kind")]
    Federate = Annotated[reduce(or_, _FEDERATES), Field(discriminator="kind")]


class DatasetSection(Section):
    """Data that jobs mount by name, as dataset://NAME, and that is copied to each region once."""

    url: StoreUrl = Field(description="Store that has the whole data set")
    copies: list[StoreUrl] = Field(
        default=[],
        description="Stores that it may be copied to, each for machines of its region; the region "
        "is set in [stores]",
    )
    max_usd: Usd = Field(description="Maximum cost of one copy to a region, in USD")
    size: Bytes | None = Field(
        default=None, description="Like 3TB; if set, placement includes the cost of copying it"
    )
    usd_per_gb: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        default=None,
        description="Price per GB that leaves `url`; default: the list price of its cloud",
    )


class StagingSection(Section):
    """How the control box copies data sets ahead of jobs with spotd.stage_ahead."""

    usd_per_gb: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        default=None,
        description="Price per GB that leaves the box, besides the store's egress; without it the "
        "box copies nothing",
    )
    bytes_per_s: Annotated[Bytes, Field(ge=100_000)] = Field(
        default=50_000_000, description="Maximum rate of all copies together, like 50MB"
    )


class StoreSection(Section):
    """How the stores below `url` are reached."""

    url: StoreUrl
    shared: bool = Field(
        default=False,
        description="A folder that every rented machine mounts at the same path",
    )
    cloud: str = Field(
        default="", description="Cloud of the store; default: from the URL, if it shows one"
    )
    region: str = Field(
        default="", description="Region of the store; default: the option of that name"
    )
    zone: str = Field(
        default="", description="Zone of a folder that only machines of that zone can mount"
    )
    shards: bool = Field(
        default=False,
        description="Stores checkpoint shards of machines in its cloud and region",
    )
    options: Annotated[dict[str, str], BeforeValidator(parse_options)] = Field(default={})
    lend: Lend | None = None
    federate: Annotated[Federate | None, BeforeValidator(_default_kind)] = None

    @property
    def place(self) -> StorePlace:
        """Return the configured place of the store."""
        return place_of(self.url, self.options, self.cloud, self.region, self.zone)
