"""The services of the daemon that API routes may use, in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from providers.iam.policy import PolicyFacts
from providers.readiness import CapacityNeed, Finding
from providers.stores.base import ObjectStore
from providers.stores.settings import BucketSettings
from providers.warnings import ProviderWarning
from spotd.act.ssh import Address
from spotd.base.clock import Clock, Ids
from spotd.base.live_reports import LiveReport
from spotd.base.process_metrics import ProcessMetrics
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.money.approval import ADMINS, Approval
from spotd.money.budget import Budget
from spotd.planner.core.credential_lease import StoreReach
from spotd.planner.core.orphan_policy import HeldLeftover, HeldMachine
from spotd.security.secrets import SecretBox
from spotd.spec import CheckpointDefaults, KnownNames
from spotd.store.interface import Store
from spotd.store.metrics import MetricRecords


@dataclass(frozen=True)
class ProviderInfo:
    """A configured provider; the machines of `local` ones are processes on the control box."""

    name: str
    kind: str
    local: bool


@dataclass(frozen=True)
class StorageServices:
    """The deployment's files, and the checkpoint stores of its jobs.

    `objects` is the deployment's store (packages, logs). `open_store(url)` opens the authority
    store of a job. `spool_dir` holds an upload until its digest is checked. `back_up(file, now_us)`
    copies the database into a new file. `is_shared(url)` is true for a folder that rented machines
    have too. `store_cloud(url)` names the cloud that a bucket belongs to, or "" if it belongs to
    none of the known clouds. `bucket_settings()` returns the settings of each bucket, or the reason
    why they cannot be read. `store_reaches()` says how machines get access to the checkpoint
    stores.
    """

    objects: ObjectStore
    open_store: Callable[[str], ObjectStore]
    spool_dir: Path
    back_up: Callable[[Path, int], None]
    is_shared: Callable[[str], bool] = lambda _url: False
    store_cloud: Callable[[str], str] = lambda _url: ""
    bucket_settings: Callable[[], Mapping[str, BucketSettings | str]] = dict
    store_reaches: Callable[[], Sequence[StoreReach]] = tuple


@dataclass(frozen=True)
class DashboardFacts:
    """The configuration of the team's dashboard, as far as the doctor checks it.

    `certificate` is None where a proxy encrypts; `issuer` is the identity provider or "".
    """

    listen: str
    url: str
    certificate: Path | None
    tokens: bool
    issuer: str


@dataclass(frozen=True)
class ConfiguredSettings:
    """Settings of the configuration file.

    `defaults()` and `known()` are the settings that job files are parsed with. `budgets()` and
    `approval()` are those of the configuration, `box_microusd_per_h()` is the cost of the control
    box (0: not configured), and `drill_days()` the number of days that may pass without a drill
    (0: any number). `overrides()` is ADMINS or SECOND_PERSON: who may let a job exceed a budget.
    `dashboard()` is the team's dashboard, None where none is served.
    """

    defaults: Callable[[], CheckpointDefaults]
    known: Callable[[], KnownNames]
    budgets: Callable[[], Sequence[Budget]] = tuple
    approval: Callable[[], Approval] = Approval
    box_microusd_per_h: Callable[[], int] = int
    drill_days: Callable[[], float] = float
    overrides: Callable[[], str] = lambda: ADMINS
    dashboard: Callable[[], DashboardFacts | None] = lambda: None


@dataclass(frozen=True)
class UserAccess:
    """Access of users to machines and to the API.

    `admit(node, user, public key)` lets a user log in to a machine (raises LinkError).
    `end_access_of_disabled_users()` ends the access of disabled users: node id -> "" or the reason
    why it failed. `is_trusted(uid)` is true for users that are never shut out.
    """

    admit: Callable[[Node, str, str], None]
    end_access_of_disabled_users: Callable[[], Mapping[str, str]]
    is_trusted: Callable[[int], bool]


@dataclass(frozen=True)
class CloudServices:
    """The configured clouds, what the daemon knows of them, and calls to them.

    `policy_facts(cloud)` is None when no such cloud is configured. `silent_providers()` lists the
    clouds that do not answer: provider -> description. `provider_warnings()` are the warnings of
    provider adapters: key -> (provider, warning). `held()` are machines that no job needs and that
    are not terminated, `held_leftovers()` resources that machines left behind and that are not
    deleted, and `unlisted_providers()` the providers whose resources this daemon has not listed.
    `jump_host(provider)` is the jump host of a provider's machines, and `try_jump_hosts()` tests
    all jump hosts: provider -> (whether it works, description). `check_readiness(needs)` checks how
    ready the clouds are: provider -> findings. `image_makers()` are the providers that make
    machine images, provider -> kind of cloud. `configured_images()` maps an image id to the place
    in the configuration that names it. `live_reports()` are the reports of `spotctl doctor --live`
    on this box, oldest first.
    """

    providers: Callable[[], Sequence[ProviderInfo]]
    policy_facts: Callable[[str], PolicyFacts | None]
    silent_providers: Callable[[], Mapping[str, str]] = dict
    provider_warnings: Callable[[], Mapping[str, tuple[str, ProviderWarning]]] = dict
    held: Callable[[], Sequence[HeldMachine]] = tuple
    held_leftovers: Callable[[], Sequence[HeldLeftover]] = tuple
    unlisted_providers: Callable[[], Sequence[str]] = tuple
    jump_host: Callable[[str], Address | None] = lambda _provider: None
    try_jump_hosts: Callable[[], Mapping[str, tuple[bool, str]]] = dict
    check_readiness: Callable[
        [Mapping[str, Sequence[CapacityNeed]]], Mapping[str, Sequence[Finding]]
    ] = lambda _needs: {}
    image_makers: Callable[[], Mapping[str, str]] = dict
    configured_images: Callable[[], Mapping[str, str]] = dict
    live_reports: Callable[[], Sequence[LiveReport]] = tuple


@dataclass(frozen=True)
class AlertServices:
    """The alert routes of the configuration.

    `test(route)` sends a test message ("" means to every route) and returns route -> "" or the
    error. `check_routes()` checks the routes without sending a message: name -> (the problem or "",
    whether the route is out of use).
    """

    test: Callable[[str], Mapping[str, str]]
    check_routes: Callable[[], Mapping[str, tuple[str, bool]]] = dict


@dataclass(frozen=True)
class DaemonStatus:
    """The state of the daemon's process.

    `safe_mode()` is the reason why the daemon only observes and terminates, or "";
    `leave_safe_mode()` ends that. `reload()` reads the configuration file again and returns the
    keys that changed; if it raises, nothing has. `contested()` is the reason why the daemon does
    nothing, or "". `process_metrics` holds the counters of this process, and `owner` is the name
    that the daemon signs leases with.
    """

    safe_mode: Callable[[], str] = str
    leave_safe_mode: Callable[[], None] = lambda: None
    reload: Callable[[], list[str]] = list
    contested: Callable[[], str] = str
    process_metrics: ProcessMetrics = field(default_factory=ProcessMetrics)
    owner: str = ""


@dataclass(frozen=True)
class ApiContext:
    """The daemon's services that API routes may use.

    `rotate_key()` makes the next master key the current one and returns the names of the values
    that cannot be decrypted, or raises VaultError. `market(now_us)` is the market that plans are
    made with. `metric_records(now_us)` reads the records that metrics are made of.
    """

    store: Store
    clock: Clock
    ids: Ids
    vault: SecretBox
    rotate_key: Callable[[], list[str]]
    market: Callable[[int], Market]
    storage: StorageServices
    settings: ConfiguredSettings
    users: UserAccess
    clouds: CloudServices
    alerts: AlertServices
    daemon: DaemonStatus = field(default_factory=DaemonStatus)
    metric_records: Callable[[int], MetricRecords] = lambda _now_us: MetricRecords()
