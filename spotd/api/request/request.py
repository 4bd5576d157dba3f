"""One request as the routes see it: parsed, with what they may use; and how a route says no.

Routes are plain functions `route(call) -> dict`; nothing in them knows the web framework.
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
from spotd.store.metric_records import MetricRecords

API_VERSION = "spotd/v1"


@dataclass(frozen=True)
class Check:
    """One finding of the doctor. `try_` says what to do when it is not `ok`, or `doubtful`: then
    somebody should look, and it works."""

    name: str
    ok: bool
    text: str
    try_: str = ""
    doubtful: bool = False


@dataclass(frozen=True)
class ProviderInfo:
    """A configured provider; `local` ones are processes on this box."""

    name: str
    kind: str
    local: bool


@dataclass(frozen=True)
class ApiContext:
    """What the daemon lends to its doors.

    `objects` is the deployment's store (packages, logs); `open_store(url)` opens a job's authority
    store; `spool_dir` takes an upload until its digest is known; `defaults()` and `known()` are
    what job files are read with; `back_up(file, now_us)` copies the database into a new file;
    `test_alert(route)` sends a test message ("" means to every route) and returns route -> "" or
    what went wrong; `rotate_key()` has the next master key take over and names what does not open,
    or raises VaultError;
    `admit(node, user, public key)` lets a user in to a machine (LinkError), `put_out()` has those
    that are disabled put out, node id -> "" or why not; `is_trusted(uid)` is true of those who are
    never shut out; `policy_facts(cloud)` is None when no such cloud is configured; `silent` are the
    clouds that do not answer, provider -> what is known of it; `remarks` what adapters came upon
    in answers, key -> (provider, remark); `held` are the machines that no job
    wants and that are not ended, `held_leftovers` what machines left behind and is not discarded,
    and `unswept` the providers of which this daemon does not know; `safe_mode()` is why the daemon
    only observes and ends, or "", and `leave_safe_mode()` a person's word against it; `contested()`
    is why it stands still; `is_shared(url)` is true of a folder that rented machines have too;
    `store_cloud(url)` is whose a bucket is ("" nobody's of ours), `bucket_settings()` what is set
    of each, or why that cannot be seen; `reaches()` says how machines get at the stores of
    checkpoints; `jump_host(provider)` is the way to a provider's machines, and `try_ways()`
    tries all of them: provider -> whether it is good, and what was found;
    `examine(needs)` asks the clouds how ready they are, provider -> findings;
    `live_reports()` are the reports of `spotctl doctor --live` on this box, the oldest first;
    `reach_routes()` tries the alert routes without telling anybody anything, name -> (what is in
    the way, or "", whether it is out of use); `makers()` are the providers that make images of
    machines, with their make of cloud, and `configured_images()` says of an image's id where the
    configuration names it; `drill_days()` how many may go by without
    a drill (0: any number), `box_microusd_per_h()` what the control box costs (0: nobody said),
    `budgets()` and `approval()` are those of the configuration; `tally(now_us)` reads what metrics
    are made of, `meters` has what this process counts itself, and `owner` is what it signs leases
    with.
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
    put_out: Callable[[], Mapping[str, str]]
    is_trusted: Callable[[int], bool]
    makers: Callable[[], Mapping[str, str]] = dict
    configured_images: Callable[[], Mapping[str, str]] = dict
    silent: Callable[[], Mapping[str, str]] = dict
    remarks: Callable[[], Mapping[str, tuple[str, ProviderWarning]]] = dict
    held: Callable[[], Sequence[HeldMachine]] = tuple
    held_leftovers: Callable[[], Sequence[HeldLeftover]] = tuple
    unswept: Callable[[], Sequence[str]] = tuple
    safe_mode: Callable[[], str] = str
    leave_safe_mode: Callable[[], None] = lambda: None
    contested: Callable[[], str] = str
    store_cloud: Callable[[str], str] = lambda _url: ""
    bucket_settings: Callable[[], Mapping[str, BucketSettings | str]] = dict
    is_shared: Callable[[str], bool] = lambda _url: False
    reaches: Callable[[], Sequence[StoreReach]] = tuple
    jump_host: Callable[[str], Address | None] = lambda _provider: None
    try_ways: Callable[[], Mapping[str, tuple[bool, str]]] = dict
    examine: Callable[[Mapping[str, Sequence[CapacityNeed]]], Mapping[str, Sequence[Finding]]] = (
        lambda _needs: {}
    )
    live_reports: Callable[[], Sequence[LiveReport]] = tuple
    reach_routes: Callable[[], Mapping[str, tuple[str, bool]]] = dict
    box_microusd_per_h: Callable[[], int] = int
    budgets: Callable[[], Sequence[Budget]] = tuple
    drill_days: Callable[[], float] = float
    approval: Callable[[], Approval] = Approval
    tally: Callable[[int], MetricRecords] = lambda _now_us: MetricRecords()
    meters: ProcessMetrics = field(default_factory=ProcessMetrics)
    owner: str = ""


@dataclass(frozen=True)
class ApiRequest:
    """One request that was let in. `actor` is the user at the other end of the socket as the kernel
    names it."""

    backing: ApiContext
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    actor: str = ""

    @property
    def now_us(self) -> int:
        return self.backing.clock.now_us()

    def job(self) -> Job:
        """The job that the path names, by id or name. Raises ApiError (not found)."""
        name = self.path["job"]
        job = self.backing.store.find_job(name)
        if job is None:
            raise not_found(f"there is no job {name!r}", "spotctl ps --all")
        return job

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """An integer of the query or the body, held within bounds. Raises ApiError (bad input)."""
        value = self.query.get(name, self.body.get(name, default))
        try:
            return max(low, min(high, int(value)))
        except (TypeError, ValueError, OverflowError):
            raise bad_input(
                f"{name} must be a whole number, not {value!r}", f"leave {name} out"
            ) from None

    def text(self, name: str) -> str:
        """A string of the body. Raises ApiError (bad input)."""
        value = self.body.get(name, "")
        if not isinstance(value, str) or not storable(value):
            raise bad_input(f"{name} must be a text", "use a spotctl of the daemon's version")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """A map of strings of the body. Raises ApiError (bad input)."""
        value = self.body.get(name) or {}
        pairs = value.items() if isinstance(value, dict) else [("", None)]
        if not all(isinstance(v, str) and storable(v) and storable(k) for k, v in pairs):
            raise bad_input(f"{name} must map names to texts", f"quote the values of {name}")
        return dict(pairs)


def storable(text: str) -> bool:
    """Whether a database takes it: JSON and addresses may hold what no text is, NUL and halves of
    characters."""
    return clean(text) == text


class ApiError(Exception):
    """A refusal: HTTP status, a code for programs, what happened, what to try."""

    def __init__(self, status: int, code: str, text: str, try_: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.try_ = try_

    def to_data(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "text": self.text, "try": self.try_}}


def not_found(text: str, try_: str) -> ApiError:
    return ApiError(404, "not_found", text, try_)


def bad_input(text: str, try_: str) -> ApiError:
    return ApiError(400, "bad_input", text, try_)


def shut_out(user: str) -> ApiError:
    return ApiError(403, "auth", f"{user} is disabled", "ask who runs spotd")


def conflict(text: str, try_: str) -> ApiError:
    return ApiError(409, "conflict", text, try_)
