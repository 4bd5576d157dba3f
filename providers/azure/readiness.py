"""Whether Azure would let us do our work: what our roles allow, held against what we do; quotas,
image and network as they are now. Azure has no dry run that asks for fewer rights than the run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from providers.azure.clients import Clients
from providers.azure.launch import RegionSetup
from providers.azure.policy import MARKET, policies
from providers.azure.settings import Settings
from providers.base import CapacityType, UnknownOutcome, UnpreparedError
from providers.iam.policy import CONTROL, PolicyFacts
from providers.readiness import (
    CapacityNeed,
    Finding,
    Grade,
    bad,
    clock,
    doubtful,
    good,
    login,
    quota,
    side_by_side,
    tried,
)

SUBSCRIPTIONS, PERMISSIONS = "2022-12-01", "2022-04-01"  # versions of their APIs
SPOT_CORES, ALL_CORES = "lowPriorityCores", "cores"
_SPOT, _PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND
_FIX = "see that `az account get-access-token` works as the user that runs spotd"
_POLICY = "give the box the roles of `spotctl doctor --policy azure`"
_QUOTAS = "https://portal.azure.com/#view/Microsoft_Azure_Capacity/QuotaMenuBlade/~/myQuotas"

Row = Mapping[str, Any]


class ReadinessCheck:
    """Of one provider."""

    def __init__(self, clients: Clients, settings: Settings, deployment: str) -> None:
        self._clients = clients
        self._settings = settings
        self._scope = f"/subscriptions/{settings.subscription_id}"
        account = {
            "subscription_id": settings.subscription_id,
            "resource_group": settings.resource_group,
        }
        facts = PolicyFacts(deployment, settings.regions, "", "", account=account)
        roles = policies(facts)
        self._needed = {
            f"{self._scope}/resourceGroups/{settings.resource_group}": roles[facts.name(CONTROL)],
            self._scope: roles[facts.name(MARKET)],
        }

    def run(self, needs: Sequence[CapacityNeed]) -> list[Finding]:
        """Who we are first: whoever is nobody may do nothing."""
        who = tried("credentials", _FIX, self._credentials)
        if who[0].grade is Grade.FAIL:
            return who
        looks = [
            partial(tried, "permissions", _POLICY, partial(self._rights, scope, role["Actions"]))
            for scope, role in self._needed.items()
        ]
        image_fix = "set `image` of the provider to one that the region has"
        network_fix = "run `spotctl init azure --network {} --region {}`"
        for region in self._settings.regions:
            here = [need for need in needs if need.region == region]
            fix = network_fix.format(self._settings.network, region)
            network = partial(self._network, region, fix)
            looks += [
                partial(tried, "quota", _POLICY, partial(self._quotas, region, here), region),
                partial(tried, "image", image_fix, partial(self._image, region), region),
                partial(tried, "network", fix, network, region),
            ]
        return [*who, *side_by_side(looks)]

    def _credentials(self) -> Iterator[Finding]:
        before_s = time.time()
        answer, headers = self._clients.document(self._scope, SUBSCRIPTIONS)
        after_s = time.time()
        state = str(answer.get("state") or "Enabled")
        text = f"subscription {answer.get('displayName')} is {state}"
        fix = "put it right in the portal: only an enabled subscription has machines"
        if state == "Enabled":
            yield good("credentials", text)
        else:
            yield bad("credentials", text, fix)
        yield from clock("Azure", str(headers.get("Date", "")), before_s, after_s)

    def _rights(self, scope: str, needed: Sequence[str]) -> Iterator[Finding]:
        path = f"{scope}/providers/Microsoft.Authorization/permissions"
        answer, _ = self._clients.document(path, PERMISSIONS)
        rows = answer.get("value") or ()
        lacking = [action for action in needed if not allows(rows, action)]
        where = "the resource group" if "/resourceGroups/" in scope else "the subscription"
        told = f"{len(needed) - len(lacking)} of {len(needed)} actions in {where}"
        if lacking:
            yield bad("permissions", f"lacking: {', '.join(lacking)}; {told}", _POLICY)
        else:
            yield good("permissions", told)

    # --- quotas

    def _quotas(self, region: str, needs: Sequence[CapacityNeed]) -> Iterator[Finding]:
        if not needs:
            return
        usages = {
            str((row.get("name") or {}).get("value", "")).lower(): row
            for row in self._clients.compute(
                lambda client: [one.as_dict() for one in client.usage.list(region)]
            )
        }
        for name, some in self._counted(region, needs).items():
            row = usages.get(name.lower())
            if row is None:
                text = f"{region} tells of no quota {name}"
                yield doubtful("quota", text, _QUOTAS, region)
                continue
            words = (row.get("name") or {}).get("localizedValue") or name
            asked = max(need.cpus * need.count for need in some)
            kind = "lowPriority" if name == SPOT_CORES else "dedicated"
            fix = (
                f"az quota update --resource-name {name!r} --resource-type {kind} --limit-object "
                f"value={asked:g} --scope {self._scope}/providers/Microsoft.Compute/locations/"
                f"{region}, or {_QUOTAS}"
            )
            called = f"{words} ({row.get('currentValue', 0)} in use)"
            limit = float(row.get("limit") or 0)
            yield quota(called, limit, "vCPUs", some, lambda need: need.cpus, fix, region)

    def _counted(self, region: str, needs: Sequence[CapacityNeed]) -> dict[str, list[CapacityNeed]]:
        """By the quota that counts them: Spot machines of all sizes together, others in all and by
        their family."""
        found: defaultdict[str, list[CapacityNeed]] = defaultdict(list)
        families = self._families(region) if any(n.capacity_type is _PLAIN for n in needs) else {}
        for need in needs:
            if need.capacity_type is _SPOT:
                found[SPOT_CORES].append(need)
            elif need.capacity_type is _PLAIN:
                found[ALL_CORES].append(need)
                found[families.get(need.instance_type, f"of {need.instance_type}")].append(need)
        return dict(found)

    def _families(self, region: str) -> dict[str, str]:
        only = f"location eq '{region}'"
        rows = self._clients.compute(
            lambda client: [row.as_dict() for row in client.resource_skus.list(filter=only)]
        )
        return {str(row.get("name")): str(row.get("family")) for row in rows if row.get("family")}

    # --- image and network

    def _image(self, region: str) -> Iterator[Finding]:
        named = self._settings.image
        parts = named.split(":")
        if len(parts) != 4:
            yield good("image", f"{named}: an id of its own is not looked at", region)
            return
        publisher, offer, sku, version = parts
        if version == "latest":
            rows = self._clients.compute(
                lambda client: client.virtual_machine_images.list(
                    region, publisher, offer, sku, top=1, orderby="name desc"
                )
            )
            version = str(rows[0].name) if rows else ""
        if not version:
            raise UnpreparedError(f"{region} has no image {named}")
        image = self._clients.compute(
            lambda client: client.virtual_machine_images.get(
                region, publisher, offer, sku, version
            ).as_dict()
        )
        made_for = str((image.get("properties") or {}).get("architecture") or "x64")
        text = f"{publisher}:{offer}:{sku}:{version}, {made_for}"
        if made_for.lower() == "arm64":
            fix = "name an image for x64 machines by `image` of the provider"
            yield bad("image", text, fix, region)
        else:
            yield good("image", text, region)

    def _network(self, region: str, fix: str) -> Iterator[Finding]:
        group = self._settings.resource_group
        try:
            subnet = self._clients.network(
                lambda client: client.subnets.get(group, f"spotd-{region}", "nodes").as_dict()
            )
        except UnknownOutcome as error:
            if error.code not in ("ResourceNotFound", "NotFound"):
                raise
            where = RegionSetup(self._settings.subscription_id, group).subnet_id(region)
            yield bad("network", f"{region} has no {where}", fix, region)
            return
        firewall = ((subnet.get("properties") or {}).get("networkSecurityGroup") or {}).get("id")
        if not firewall:
            yield bad("network", "no firewall hangs on the machines' subnet", fix, region)
            return
        owner, name = _group_of(str(firewall)), str(firewall).rpartition("/")[2]
        rules = self._clients.network(
            lambda client: client.network_security_groups.get(owner, name).as_dict()
        )
        sources = sorted(
            {*_who_logs_in((rules.get("properties") or {}).get("securityRules") or ())}
        )
        narrower = f"take that rule out of {name}"
        yield login(sources, f"spotd-{region}/nodes", fix, narrower, region)


def allows(permissions: Sequence[Row], action: str) -> bool:
    """Whether one of the roles in force has the action, and does not take it away again."""
    return any(
        _names(row.get("actions") or (), action) and not _names(row.get("notActions") or (), action)
        for row in permissions
    )


def _names(patterns: Sequence[str], action: str) -> bool:
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)


def _group_of(ident: str) -> str:
    parts = ident.split("/")
    return parts[[part.lower() for part in parts].index("resourcegroups") + 1]


def _who_logs_in(rules: Sequence[Row]) -> Iterator[str]:
    """From where a rule lets TCP 22 in."""
    for rule in rules:
        told = rule.get("properties") or {}
        ports = [told.get("destinationPortRange") or "", *(told.get("destinationPortRanges") or ())]
        if (
            told.get("direction") != "Inbound"
            or told.get("access") != "Allow"
            or str(told.get("protocol")).lower() not in ("tcp", "*")
            or not any(map(_has_22, ports))
        ):
            continue
        yield from filter(None, [told.get("sourceAddressPrefix")])
        yield from told.get("sourceAddressPrefixes") or ()


def _has_22(ports: str) -> bool:
    first, _, last = ports.partition("-")
    if not first.isdecimal():
        return first == "*"
    return int(first) <= 22 <= int(last or first)
