"""The record of facts that each provider declares in its folder's `facts.py`.

Standard library only and without the clouds' SDKs: machines have these files, too. What costs an
import is named as "module:name" and loaded when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class StoreFacts:
    """Facts of a cloud's object store.

    `adapter` opens it (bucket, prefix, options); `settings` reads what a bucket is set to (bucket,
    folder, options); `issuer` makes credentials for one prefix (**settings). `lend` and `federate`
    are the sections of [stores.NAME] for this kind of store.
    """

    scheme: str  # of its URLs
    container: str  # as a URL names what holds objects: a bucket, or a container
    host: str  # that the names of the cloud's own endpoints end in
    adapter: str
    settings: str
    issuer: str
    lend: str
    federate: str
    read_right: str  # that reading takes, in the cloud's words
    write_right: str
    # The clouds whose machines it can trust, each with the arguments of `spotctl init --trust`.
    trusts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    federate_default: bool = False  # whether [stores.NAME.federate] without a kind is this one's
    # Whether leased credentials are what the SDK's `credential_process` prints.
    credential_process: bool = False
    # The options without which it cannot be opened, each with what it names.
    required_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class IdentityFacts:
    """How a cloud's machines prove to other clouds' stores who they are.

    `proof` makes a token (audience, endpoints). Where Google takes a signed request in its place,
    `signed` makes that (provider, endpoints), and `signed_type` is its name in a token exchange.
    """

    proof: str
    arguments: Mapping[str, str]  # what identifies a machine, by its name in --trust: its pattern
    signed: str = ""
    signed_type: str = ""
    modules: Sequence[str] = ()  # with that code: machines have them


@dataclass(frozen=True)
class AccountOption:
    """A name of the account that `spotctl init` needs without a daemon, as option `--NAME`."""

    name: str
    key: str  # in the provider's section of the configuration
    metavar: str
    help: str


@dataclass(frozen=True)
class AccountSetup:
    """Facts for `spotctl init`, before it loads the cloud's set-up."""

    region_pattern: str
    region_example: str
    retry: str  # how to run the command again with other credentials
    account: Sequence[AccountOption] = ()
    profile: bool = True  # whether --profile names credentials
    profile_help: str = ""
    queue: bool = False  # whether it can make a queue of interruption warnings
    limits_launches: bool = False  # whether its policy can limit instance types and capacity
    private_notes: Sequence[str] = ()  # on networks without public addresses, if it has its own


@dataclass(frozen=True)
class BillFacts:
    """The cloud's billing export, as `spotctl cost reconcile` reads it."""

    export: str  # the columns, a `providers.bill_export.BillExport`
    option: str
    help: str


@dataclass(frozen=True)
class SpotPrior:
    """Hours between two losses of one spot machine, before this fleet has had any, and who says
    so."""

    hours: float
    source: str


@dataclass(frozen=True)
class Cloud:
    """Facts of one cloud.

    `adapter` makes the provider (name, deployment, **settings); `section` is the class of its
    section of the configuration.
    """

    name: str  # also of its folder, and of the notice watcher that its machines run
    invoice_name: str  # as its invoices call it (the FOCUS column ProviderName)
    colour: str  # in plots: from Okabe and Ito's palette for colour-blind readers
    adapter: str
    section: str
    node_role_key: str  # the configuration key of the identity that its machines have; "" for none
    setup: AccountSetup
    smallest: Sequence[str]  # the smallest machines that spotd's boot script supports
    sdk: str = ""  # the package without which the adapter cannot reach the cloud
    store: StoreFacts | None = None
    identity: IdentityFacts | None = None
    bill: BillFacts | None = None
    spot_prior: SpotPrior | None = None
    imitated: bool = False  # whether the local cloud has its metadata service

    @property
    def scheme(self) -> str:
        """The scheme of its object store's URLs; "" without one."""
        return self.store.scheme if self.store else ""

    @property
    def node_modules(self) -> tuple[str, ...]:
        """The modules that machines need, whichever cloud they are of."""
        own = [f"providers.{self.name}.facts", f"providers.{self.name}.notice"]
        own += self.identity.modules if self.identity else ()
        own += [self.store.adapter.partition(":")[0]] if self.store else ()
        return tuple(own)


def load(target: str) -> Any:
    """Import what "module:name" names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def alternatives(names: Sequence[str], word: str = "or") -> str:
    """Join names as a sentence does: "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last
