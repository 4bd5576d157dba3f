"""Who is lent what of which store, by the configuration in force."""

from __future__ import annotations

from collections.abc import Callable

from providers.stores.base import StoreUnavailableError
from providers.stores.settings import BucketSettings, SettingsError, bucket_settings
from spotd.act.lending import LendingLink, Loans
from spotd.clock import Clock
from spotd.config import Config
from spotd.decide.lending import Reach, Way
from spotd.errors import UserError
from spotd.registry import Lenders
from spotd.vault import JobKeys

LEND_EVERY_S = 30.0  # between looks at what is due; the shortest loan is renewed after 300 s


def loans_of(
    config: Callable[[], Config], link: LendingLink, keys: Callable[[str], JobKeys], clock: Clock
) -> Loans:
    """`config()` is asked each time: it may be read anew."""
    lenders = Lenders()
    return Loans(
        lambda url: config().store_access(url),
        lambda url: lenders.of(config().lender(url)),
        lambda url: config().store_options(url),
        link,
        keys,
        clock,
        lambda: (config().store_places, config().shard_stores),
        lambda: config().datasets,
    )


def reaches_of(config: Config, loans: Loans) -> list[Reach]:
    """Each provider and each store of checkpoints but folders of this box; what can be lent is
    tried. Machines that are processes here have what this box has."""
    file, limit_s = config.file, config.timing.unattended_s
    found = []
    for url in _buckets(config):
        lasts_s, error = _lasting_s(config, loans, url)
        for name, entry in file.providers.items():
            cloud = getattr(entry, "personality", entry.kind)
            way = loans.way(url, cloud)
            if way is Way.NONE and entry.kind == "local":
                continue
            access, lent = config.store_access(url), way is Way.LENT
            roled = cloud == access.cloud and cloud in access.roles
            known = (name, cloud, url, access.cloud, way, limit_s)
            lasts = (lasts_s, error) if lent else (0.0, "")
            found.append(Reach(*known, *lasts, roled=roled))
    return found


def _buckets(config: Config) -> list[str]:
    """Stores of checkpoints that are no folders of this box."""
    stores = (store.url for store in config.file.stores.values())
    urls = dict.fromkeys((config.checkpoint_defaults.store, *stores))
    return [url for url in urls if url and not url.startswith("file:")]


def settings_of(config: Config) -> dict[str, BucketSettings | str]:
    """What is set of each bucket of a cloud, or why that cannot be seen. A server that is nobody's
    of ours costs what its owner says."""
    found: dict[str, BucketSettings | str] = {}
    for url in (url for url in _buckets(config) if config.store_access(url).cloud):
        try:
            seen = bucket_settings(url, config.store_options(url))
        except (SettingsError, UserError) as error:
            found[url] = str(error)
        else:
            found |= {url: seen} if seen is not None else {}
    return found


def _lasting_s(config: Config, loans: Loans, url: str) -> tuple[float, str]:
    if not config.store_access(url).lends:
        return 0.0, ""
    try:
        return loans.lasting_s(url), ""
    except StoreUnavailableError as error:
        return 0.0, str(error)
