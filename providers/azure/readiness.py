"""Readiness checks for Azure: the granted permissions compared with the required ones; quotas,
image and network as they are now. Azure has no dry run that needs fewer permissions than the real
call."""

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
    check_clock,
    check_quota,
    check_ssh_access,
    failed,
    passed,
    run_check,
    run_parallel,
    warning,
)

SUBSCRIPTIONS, PERMISSIONS = "2022-12-01", "2022-04-01"  # versions of their APIs
SPOT_CORES, ALL_CORES = "lowPriorityCores", "cores"
_SPOT, _ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
_CREDENTIALS_FIX = "check that `az account get-access-token` works as the user that runs spotd"
_POLICY_FIX = "give the box the roles of `spotctl doctor --policy azure`"
_QUOTAS_URL = "https://portal.azure.com/#view/Microsoft_Azure_Capacity/QuotaMenuBlade/~/myQuotas"

Row = Mapping[str, Any]


class ReadinessCheck:
    """The checks of one provider."""

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
        self._required_roles = {
            f"{self._scope}/resourceGroups/{settings.resource_group}": roles[facts.name(CONTROL)],
            self._scope: roles[facts.name(MARKET)],
        }

    def run(self, needs: Sequence[CapacityNeed]) -> list[Finding]:
        """Run all checks; without valid credentials, only that one."""
        credentials = run_check("credentials", _CREDENTIALS_FIX, self._credentials)
        if credentials[0].grade is Grade.FAIL:
            return credentials
        checks = [
            partial(
                run_check,
                "permissions",
                _POLICY_FIX,
                partial(self._permissions, scope, role["Actions"]),
            )
            for scope, role in self._required_roles.items()
        ]
        image_fix = "set `image` of the provider to one that the region has"
        network_fix = "run `spotctl init azure --network {} --region {}`"
        for region in self._settings.regions:
            regional_needs = [need for need in needs if need.region == region]
            fix = network_fix.format(self._settings.network, region)
            network = partial(self._network, region, fix)
            checks += [
                partial(
                    run_check,
                    "quota",
                    _POLICY_FIX,
                    partial(self._quotas, region, regional_needs),
                    region,
                ),
                partial(run_check, "image", image_fix, partial(self._image, region), region),
                partial(run_check, "network", fix, network, region),
            ]
        return [*credentials, *run_parallel(checks)]

    def _credentials(self) -> Iterator[Finding]:
        before_s = time.time()
        answer, headers = self._clients.document(self._scope, SUBSCRIPTIONS)
        after_s = time.time()
        state = str(answer.get("state") or "Enabled")
        text = f"subscription {answer.get('displayName')} is {state}"
        fix = "put it right in the portal: only an enabled subscription has machines"
        if state == "Enabled":
            yield passed("credentials", text)
        else:
            yield failed("credentials", text, fix)
        yield from check_clock("Azure", str(headers.get("Date", "")), before_s, after_s)

    def _permissions(self, scope: str, required: Sequence[str]) -> Iterator[Finding]:
        path = f"{scope}/providers/Microsoft.Authorization/permissions"
        answer, _ = self._clients.document(path, PERMISSIONS)
        rows = answer.get("value") or ()
        missing = [action for action in required if not allows(rows, action)]
        scope_name = "the resource group" if "/resourceGroups/" in scope else "the subscription"
        message = f"{len(required) - len(missing)} of {len(required)} actions in {scope_name}"
        if missing:
            yield failed("permissions", f"missing: {', '.join(missing)}; {message}", _POLICY_FIX)
        else:
            yield passed("permissions", message)

    # --- quotas

    def _quotas(self, region: str, needs: Sequence[CapacityNeed]) -> Iterator[Finding]:
        if not needs:
            return
        usages = {
            str((row.get("name") or {}).get("value", "")).lower(): row
            for row in self._clients.compute(
                lambda client: [usage.as_dict() for usage in client.usage.list(region)]
            )
        }
        for name, counted in self._needs_by_quota(region, needs).items():
            row = usages.get(name.lower())
            if row is None:
                text = f"{region} has no quota {name}"
                yield warning("quota", text, _QUOTAS_URL, region)
                continue
            display_name = (row.get("name") or {}).get("localizedValue") or name
            needed = max(need.cpus * need.count for need in counted)
            kind = "lowPriority" if name == SPOT_CORES else "dedicated"
            fix = (
                f"az quota update --resource-name {name!r} --resource-type {kind} --limit-object "
                f"value={needed:g} --scope {self._scope}/providers/Microsoft.Compute/locations/"
                f"{region}, or {_QUOTAS_URL}"
            )
            quota_name = f"{display_name} ({row.get('currentValue', 0)} in use)"
            limit = float(row.get("limit") or 0)
            yield check_quota(
                quota_name, limit, "vCPUs", counted, lambda need: need.cpus, fix, region
            )

    def _needs_by_quota(
        self, region: str, needs: Sequence[CapacityNeed]
    ) -> dict[str, list[CapacityNeed]]:
        """Group needs by the quotas that count them: Spot machines of all sizes together; others in
        total and by family."""
        result: defaultdict[str, list[CapacityNeed]] = defaultdict(list)
        families = (
            self._families(region)
            if any(need_.capacity_type is _ON_DEMAND for need_ in needs)
            else {}
        )
        for need in needs:
            if need.capacity_type is _SPOT:
                result[SPOT_CORES].append(need)
            elif need.capacity_type is _ON_DEMAND:
                result[ALL_CORES].append(need)
                result[families.get(need.instance_type, f"of {need.instance_type}")].append(need)
        return dict(result)

    def _families(self, region: str) -> dict[str, str]:
        filter_ = f"location eq '{region}'"
        rows = self._clients.compute(
            lambda client: [row.as_dict() for row in client.resource_skus.list(filter=filter_)]
        )
        return {str(row.get("name")): str(row.get("family")) for row in rows if row.get("family")}

    # --- image and network

    def _image(self, region: str) -> Iterator[Finding]:
        configured = self._settings.image
        parts = configured.split(":")
        if len(parts) != 4:
            yield passed("image", f"{configured}: images by id are not checked", region)
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
            raise UnpreparedError(f"{region} has no image {configured}")
        image = self._clients.compute(
            lambda client: client.virtual_machine_images.get(
                region, publisher, offer, sku, version
            ).as_dict()
        )
        architecture = str((image.get("properties") or {}).get("architecture") or "x64")
        text = f"{publisher}:{offer}:{sku}:{version}, {architecture}"
        if architecture.lower() == "arm64":
            fix = "name an image for x64 machines by `image` of the provider"
            yield failed("image", text, fix, region)
        else:
            yield passed("image", text, region)

    def _network(self, region: str, fix: str) -> Iterator[Finding]:
        group = self._settings.resource_group
        try:
            subnet = self._clients.network(
                lambda client: client.subnets.get(group, f"spotd-{region}", "nodes").as_dict()
            )
        except UnknownOutcome as error:
            if error.code not in ("ResourceNotFound", "NotFound"):
                raise
            subnet_id = RegionSetup(self._settings.subscription_id, group).subnet_id(region)
            yield failed("network", f"{region} has no {subnet_id}", fix, region)
            return
        firewall = ((subnet.get("properties") or {}).get("networkSecurityGroup") or {}).get("id")
        if not firewall:
            yield failed("network", "the machines' subnet has no firewall", fix, region)
            return
        firewall_group, name = _group_of(str(firewall)), str(firewall).rpartition("/")[2]
        rules = self._clients.network(
            lambda client: client.network_security_groups.get(firewall_group, name).as_dict()
        )
        sources = sorted(
            {*_ssh_sources((rules.get("properties") or {}).get("securityRules") or ())}
        )
        narrow_fix = f"take that rule out of {name}"
        yield check_ssh_access(sources, f"spotd-{region}/nodes", fix, narrow_fix, region)


def allows(permissions: Sequence[Row], action: str) -> bool:
    """Whether a role grants the action and does not exclude it."""
    return any(
        _matches_any(row.get("actions") or (), action)
        and not _matches_any(row.get("notActions") or (), action)
        for row in permissions
    )


def _matches_any(patterns: Sequence[str], action: str) -> bool:
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)


def _group_of(resource_id: str) -> str:
    parts = resource_id.split("/")
    return parts[[part.lower() for part in parts].index("resourcegroups") + 1]


def _ssh_sources(rules: Sequence[Row]) -> Iterator[str]:
    """Yield the sources that may use TCP 22."""
    for rule in rules:
        properties = rule.get("properties") or {}
        ports = [
            properties.get("destinationPortRange") or "",
            *(properties.get("destinationPortRanges") or ()),
        ]
        if (
            properties.get("direction") != "Inbound"
            or properties.get("access") != "Allow"
            or str(properties.get("protocol")).lower() not in ("tcp", "*")
            or not any(map(_includes_22, ports))
        ):
            continue
        yield from filter(None, [properties.get("sourceAddressPrefix")])
        yield from properties.get("sourceAddressPrefixes") or ()


def _includes_22(ports: str) -> bool:
    first, _, last = ports.partition("-")
    if not first.isdecimal():
        return first == "*"
    return int(first) <= 22 <= int(last or first)
