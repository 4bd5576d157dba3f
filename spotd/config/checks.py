"""Checks beyond the model: limits, names, and referenced secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from providers.cloud_facts import alternatives
from providers.clouds import CLOUDS, STORE_OF_SCHEME
from providers.stores.base import SECRET_OPTIONS
from spotd.base.secret_refs import FORMS, read_secret
from spotd.base.validation import Path as Keys
from spotd.config.clouds import LocalProvider
from spotd.config.file import MINIMAL, ConfigFile
from spotd.config.stores import StoreSection
from spotd.planner.core.shard_stores import place_among

LEAST_UNATTENDED_H = 1.0  # where machines cost money
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")

Finding = tuple[Keys, str, str]


def node_role_key(kind: str) -> str:
    """The key of a provider's section for the identity of its machines; "" if it has none."""
    return CLOUDS[kind].node_role_key if kind in CLOUDS else ""


def _url_prefix(kind: str) -> str:
    return f"{CLOUDS[kind].scheme}://"


def check_limits(file: ConfigFile, kinds: Mapping[str, str]) -> Iterator[Finding]:
    paid = {name for name, kind in kinds.items() if kind in CLOUDS}
    paid |= {name for name, entry in file.providers.items() if not isinstance(entry, LocalProvider)}
    for key, example in (
        ("max_nodes", "max_nodes = 8"),
        ("max_usd_per_hour", "max_usd_per_hour = 40.0"),
    ):
        if paid and getattr(file.limits, key) is None:
            text = f"is missing, and {', '.join(sorted(paid))} can spend money"
            yield ("limits", key), text, f"set it under [limits], for example {example}"
    if paid and file.limits.unattended_h < LEAST_UNATTENDED_H:
        text = "is too short: an outage of the control box would end healthy machines"
        yield ("limits", "unattended_h"), text, f"write {LEAST_UNATTENDED_H:g} or more; 24 is usual"
    if file.timing.lost_after_s <= file.timing.suspect_after_s:
        yield ("timing", "lost_after_s"), "must be more than suspect_after_s", "120 is the default"


def check_names(file: ConfigFile, kinds: Mapping[str, str]) -> Iterator[Finding]:
    if not kinds:
        yield ("providers",), "no provider is configured", f"add one, for example\n{MINIMAL}"
    seen: list[tuple[str, Mapping[str, object]]] = []
    for name, provider in file.providers.items():
        keys: Keys = ("providers", name)
        make = getattr(provider, "personality", provider.kind)
        if not _NAME.fullmatch(name):
            yield keys, "is not a valid name", "use up to 31 of a-z, 0-9 and -"
        elif name in CLOUDS and name != make:
            fix = f"name it {make}, or use a name that is not a cloud's"
            yield keys, f"is the name of another cloud, and this one is {make}", fix
        for other, who in seen:
            if who == provider.identity():
                # Each would take the other's machines for orphans and end them.
                yield keys, f"is the same account as providers.{other}", "remove one of the two"
        seen.append((name, provider.identity()))


def check_references(file: ConfigFile, environ: Mapping[str, str]) -> Iterator[Finding]:
    for name, route in file.alerts.routes.items():
        try:
            route.build(environ)
        except ValueError as error:
            text, _, fix = str(error).partition("; ")
            yield ("alerts", "routes", name), text, fix
    route_name = file.alerts.market.route
    if route_name and route_name not in file.alerts.routes:
        known = ", ".join(file.alerts.routes) or "none is configured"
        fix = f"name a route of [alerts.routes]: {known}"
        yield ("alerts", "market", "route"), f"there is no route {route_name!r}", fix
    for name, budget in file.budgets.items():
        for percent, route_name in budget.routes.items():
            if route_name not in file.alerts.routes:
                known = ", ".join(file.alerts.routes) or "none is configured"
                fix = f"name a route of [alerts.routes]: {known}"
                yield ("budgets", name, "routes", percent), f"there is no route {route_name!r}", fix
    for name, entry in file.stores.items():
        yield from _check_kind(name, entry)
        yield from _check_federate(file, name, entry)
        if entry.lend is not None and not entry.url.startswith(_url_prefix(entry.lend.kind)):
            fix = f"lend is for stores of its cloud, like {_url_prefix(entry.lend.kind)}bucket"
            text = f'"{entry.lend.kind}" cannot issue credentials for {entry.url}'
            yield ("stores", name, "lend", "kind"), text, fix
        try:
            read_options(entry.options, environ)
        except ValueError as error:
            text, _, fix = str(error).partition("; ")
            yield ("stores", name, "options"), text, fix


def check_datasets(file: ConfigFile) -> Iterator[Finding]:
    places = {entry.url: entry.place for entry in file.stores.values()}
    for name, data in file.datasets.items():
        if not _NAME.fullmatch(name):
            yield ("datasets", name), "is not a valid name", "use up to 31 of a-z, 0-9 and -"
        for index, url in enumerate(data.copies):
            if not all(place_among(url, places)[:2]):
                text = f"the region of {url} is unknown, so no machine would copy data there"
                fix = "add a [stores.NAME] section with its url and region"
                yield ("datasets", name, "copies", index), text, fix


def _check_kind(name: str, entry: StoreSection) -> Iterator[Finding]:
    if entry.shared and not entry.url.startswith("file://"):
        fix = "remove it: every machine can reach a bucket"
        text = f"applies only to folders, and {entry.url} is not a folder"
        yield ("stores", name, "shared"), text, fix
    if entry.zone and not (entry.shared and entry.cloud and entry.region):
        text = "applies only to a shared folder with cloud and region"
        fix = "set shared = true, cloud and region; for a bucket, remove it: a bucket has no zone"
        yield ("stores", name, "zone"), text, fix
    if entry.shards and not all(entry.place[:2]):
        text = f"is for machines in the store's region, but the region of {entry.url} is unknown"
        clouds = alternatives([f'"{cloud}"' for cloud in CLOUDS])
        fix = f'add region = "..." as its cloud names it, and cloud = {clouds} if'
        yield ("stores", name, "shards"), text, f"{fix} the URL does not show it"
    store = STORE_OF_SCHEME.get(entry.url.partition(":")[0])
    for key, meaning in (store.required_options if store else {}).items():
        if not entry.options.get(key):
            text = f"lack {meaning} of {entry.url}"
            yield ("stores", name, "options"), text, f'add {key} = "NAME"'


def _check_federate(file: ConfigFile, name: str, entry: StoreSection) -> Iterator[Finding]:
    made = entry.federate
    if made is None:
        return
    keys: Keys = ("stores", name, "federate")
    if not entry.url.startswith(_url_prefix(made.kind)):
        fix = f"use federate of this kind only for stores like {_url_prefix(made.kind)}bucket"
        yield (*keys, "kind"), f'"{made.kind}" cannot grant access to {entry.url}', fix
    for key, text, fix in made.find_problems():
        yield (*keys, key), text, fix
    for provider, cloud in file.providers.items():
        key = node_role_key(cloud.kind)
        if cloud.kind in made.clouds and not getattr(cloud, key):
            text = f"{cloud.kind}: machines of providers.{provider} have no identity"
            yield (*keys, "clouds"), text, f"set {key} in [providers.{provider}]"


def read_options(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    secret = {key: read_secret(key, options, environ) for key in SECRET_OPTIONS}
    refs = {f"{key}_{form}" for key in SECRET_OPTIONS for form in FORMS}
    plain = {key: value for key, value in options.items() if key not in refs}
    return plain | {key: value for key, value in secret.items() if value}
