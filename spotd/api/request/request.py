"""One API request as the routes see it, with the services they may use, and the errors they raise.

Routes are plain functions `route(call) -> dict`; nothing in them depends on the web framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from providers.iam.policy import PolicyFacts
from providers.readiness import CapacityNeed, Finding
from providers.stores.base import ObjectStore
from providers.stores.settings import BucketSettings
from providers.warnings import ProviderWarning
from spotd.act.ssh import Address
from spotd.base.clock import Clock, Ids
from spotd.base.live_reports import LiveReport
from spotd.base.process_metrics import ProcessMetrics
from spotd.domain.job import Job
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.money.approval import Approval
from spotd.money.budget import Budget
from spotd.planner.core.credential_lease import StoreReach
from spotd.planner.core.orphan_policy import HeldLeftover, HeldMachine
from spotd.security.secrets import SecretBox
from spotd.spec import CheckpointDefaults, KnownNames
from spotd.store.columns import clean
from spotd.store.interface import Store
from spotd.store.metrics import MetricRecords

API_VERSION = "spotd/v1"


@dataclass(frozen=True)
class Check:
    """One finding of the doctor.

    `try_` says what to do when the check is not `ok` or is `doubtful`. `doubtful` means that it
    works, but somebody should look at it.
    """

    name: str
    ok: bool
    text: str
    try_: str = ""
    doubtful: bool = False


@dataclass(frozen=True)
class ProviderInfo:
    """A configured provider; the machines of `local` ones are processes on the control box."""

    name: str
    kind: str
    local: bool


@dataclass(frozen=True)
class ApiContext:
    """The daemon's services that API routes may use.

    Storage: `objects` is the deployment's store (packages, logs). `open_store(url)` opens the
    authority store of a job. `spool_dir` holds an upload until its digest is checked.
    `back_up(file, now_us)` copies the database into a new file. `is_shared(url)` is true for a
    folder that rented machines have too. `store_cloud(url)` names the cloud that a bucket belongs
    to, or "" if it belongs to none of the known clouds. `bucket_settings()` returns the settings of
    each bucket, or the reason why they cannot be read. `store_reaches()` says how machines get
    access to the checkpoint stores.

    Job files: `defaults()` and `known()` are the settings that job files are parsed with.

    Keys and users: `rotate_key()` makes the next master key the current one and returns the names
    of the values that cannot be decrypted, or raises VaultError. `admit(node, user, public key)`
    lets a user log in to a machine (raises LinkError). `end_access_of_disabled_users()` ends the
    access of disabled users: node id -> "" or the reason why it failed. `is_trusted(uid)` is true
    for users that are never shut out.

    Clouds: `policy_facts(cloud)` is None when no such cloud is configured. `silent_providers()`
    lists the clouds that do not answer: provider -> description. `provider_warnings()` are the
    warnings of provider adapters: key -> (provider, warning). `held()` are machines that no job
    wants and that are not terminated, `held_leftovers()` resources that machines left behind and
    that are not deleted, and `unlisted_providers()` the providers whose resources this daemon has
    not listed. `jump_host(provider)` is the jump host of a provider's machines, and
    `try_jump_hosts()` tests all jump hosts: provider -> (whether it works, description).
    `check_cloud_readiness(needs)` asks the clouds how ready they are: provider -> findings.
    `image_makers()` are the providers that make machine images, provider -> kind of cloud.
    `configured_images()` maps an image id to the place in the configuration that names it.
    `live_reports()` are the reports of `spotctl doctor --live` on this box, oldest first.

    State of the daemon: `safe_mode()` is the reason why the daemon only observes and terminates, or
    ""; `leave_safe_mode()` ends that. `contested()` is the reason why the daemon does nothing, or
    "".

    Alerts: `test_alert(route)` sends a test message ("" means to every route) and returns route ->
    "" or the error. `check_alert_routes()` checks the alert routes without sending a message: name
    -> (the problem or "", whether the route is out of use).

    Money and metrics: `box_microusd_per_h()` is the cost of the control box (0: not configured),
    `budgets()` and `approval()` are those of the configuration, and `drill_days()` is the number of
    days that may pass without a drill (0: any number). `metric_records(now_us)` reads the records
    that metrics are made of, `process_metrics` holds the counters of this process, and `owner` is
    the name that the daemon signs leases with.
    """

    store: Store
    clock: Clock
    ids: Ids
    vault: SecretBox
    objects: ObjectStore
    open_store: Callable[[str], ObjectStore]
    spool_dir: Path
    defaults: Callable[[], CheckpointDefaults]
    known: Callable[[], KnownNames]
    market: Callable[[int], Market]
    providers_info: Callable[[], Sequence[ProviderInfo]]
    back_up: Callable[[Path, int], None]
    test_alert: Callable[[str], Mapping[str, str]]
    rotate_key: Callable[[], list[str]]
    policy_facts: Callable[[str], PolicyFacts | None]
    admit: Callable[[Node, str, str], None]
    end_access_of_disabled_users: Callable[[], Mapping[str, str]]
    is_trusted: Callable[[int], bool]
    image_makers: Callable[[], Mapping[str, str]] = dict
    configured_images: Callable[[], Mapping[str, str]] = dict
    silent_providers: Callable[[], Mapping[str, str]] = dict
    provider_warnings: Callable[[], Mapping[str, tuple[str, ProviderWarning]]] = dict
    held: Callable[[], Sequence[HeldMachine]] = tuple
    held_leftovers: Callable[[], Sequence[HeldLeftover]] = tuple
    unlisted_providers: Callable[[], Sequence[str]] = tuple
    safe_mode: Callable[[], str] = str
    leave_safe_mode: Callable[[], None] = lambda: None
    contested: Callable[[], str] = str
    store_cloud: Callable[[str], str] = lambda _url: ""
    bucket_settings: Callable[[], Mapping[str, BucketSettings | str]] = dict
    is_shared: Callable[[str], bool] = lambda _url: False
    store_reaches: Callable[[], Sequence[StoreReach]] = tuple
    jump_host: Callable[[str], Address | None] = lambda _provider: None
    try_jump_hosts: Callable[[], Mapping[str, tuple[bool, str]]] = dict
    check_cloud_readiness: Callable[
        [Mapping[str, Sequence[CapacityNeed]]], Mapping[str, Sequence[Finding]]
    ] = lambda _needs: {}
    live_reports: Callable[[], Sequence[LiveReport]] = tuple
    check_alert_routes: Callable[[], Mapping[str, tuple[str, bool]]] = dict
    box_microusd_per_h: Callable[[], int] = int
    budgets: Callable[[], Sequence[Budget]] = tuple
    drill_days: Callable[[], float] = float
    approval: Callable[[], Approval] = Approval
    metric_records: Callable[[int], MetricRecords] = lambda _now_us: MetricRecords()
    process_metrics: ProcessMetrics = field(default_factory=ProcessMetrics)
    owner: str = ""


@dataclass(frozen=True)
class ApiRequest:
    """One request that was admitted.

    `actor` is the user at the other end of the socket, as the kernel reports it.
    """

    context: ApiContext
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    actor: str = ""

    @property
    def now_us(self) -> int:
        return self.context.clock.now_us()

    def job(self) -> Job:
        """Return the job that the path names, by id or name. Raises ApiError (not found)."""
        name = self.path["job"]
        job = self.context.store.jobs.find(name)
        if job is None:
            raise not_found(f"there is no job {name!r}", "spotctl ps --all")
        return job

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return an integer of the query or the body, clamped to `low`..`high`.

        Raises ApiError (bad input).
        """
        value = self.query.get(name, self.body.get(name, default))
        try:
            return max(low, min(high, int(value)))
        except (TypeError, ValueError, OverflowError):
            raise bad_input(
                f"{name} must be a whole number, not {value!r}", f"leave {name} out"
            ) from None

    def text(self, name: str) -> str:
        """Return a string of the body. Raises ApiError (bad input)."""
        value = self.body.get(name, "")
        if not isinstance(value, str) or not storable(value):
            raise bad_input(f"{name} must be a text", "use a spotctl of the daemon's version")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """Return a map of strings of the body. Raises ApiError (bad input)."""
        value = self.body.get(name) or {}
        pairs = value.items() if isinstance(value, dict) else [("", None)]
        if not all(isinstance(v, str) and storable(v) and storable(k) for k, v in pairs):
            raise bad_input(f"{name} must map names to texts", f"quote the values of {name}")
        return dict(pairs)


def storable(text: str) -> bool:
    """Return whether a database can store the text.

    JSON and URLs may contain NUL and lone surrogates, which no database text may.
    """
    return clean(text) == text


class ApiError(Exception):
    """A refusal: HTTP status, a code for programs, what happened, and what to try."""

    def __init__(self, status: int, code: str, message: str, try_: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.text = message
        self.try_ = try_

    def to_data(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "text": self.text, "try": self.try_}}


def not_found(text: str, try_: str) -> ApiError:
    return ApiError(404, "not_found", text, try_)


def bad_input(text: str, try_: str) -> ApiError:
    return ApiError(400, "bad_input", text, try_)


def user_disabled(user: str) -> ApiError:
    return ApiError(403, "auth", f"{user} is disabled", "ask who runs spotd")


def conflict(text: str, try_: str) -> ApiError:
    return ApiError(409, "conflict", text, try_)
