"""The tables of the configuration for AWS: [providers.NAME], and of [stores.NAME] for S3 `lend`
and `federate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from providers.aws.facts import FACTS
from providers.section import (
    RESERVED,
    FederateSection,
    LendSettings,
    Marginal,
    NetworkedProvider,
    formed,
)

_ROLE = r"arn:aws[a-z-]*:iam::\d{12}:role/.+"
_ROLE_LIKE = "arn:aws:iam::123456789012:role/NAME"
if TYPE_CHECKING:
    Trusted = str
else:
    Trusted = Literal[tuple(FACTS.store.trusts)]
ReservationId = Annotated[str, formed(r"cr-[0-9a-f]+", "cr-0123456789abcdef0")]


class AwsProvider(NetworkedProvider):
    identity_keys: ClassVar[frozenset[str]] = frozenset({"profile"})

    kind: Literal["aws"]
    regions: list[str] = Field(min_length=1)
    profile: str = ""
    end_profile: str = Field(default="", description="Credentials for ending machines")
    instance_types: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Shell patterns of instance types; default: types with GPUs",
    )
    image: Annotated[str, formed(r"ami-[0-9a-f]+|ssm:/.+", "ami-0123456789abcdef0")] | None = Field(
        default=None,
        description='"ami-…" or "ssm:/PARAMETER"; default: AWS\'s own GPU image of Ubuntu 22.04',
    )
    node_role: str = Field(default="", description="Instance profile of the machines")
    reservations: dict[ReservationId, Marginal] = Field(default={}, description=f"Id: {RESERVED}")
    queue: str = Field(default="", description="SQS queue of each region that EventBridge fills")

    def policy_account(
        self, lends: Sequence[LendSettings], federates: Sequence[FederateSection]
    ) -> Mapping[str, str]:
        """Return the queue, the roles that the box assumes to issue leases, and the audiences for
        which machines need tokens elsewhere."""
        roles = {lend.role for lend in lends if isinstance(lend, AwsLend) and lend.role}
        audiences = {table.token_audience(self.kind) for table in federates} - {""}
        return {
            "queue": self.queue,
            "lend": " ".join(sorted(roles)),
            "prove": " ".join(sorted(audiences)),
        }

    @classmethod
    def two_accounts_fix(cls, cloud: str, key: str) -> str:
        """Return the fix for two queues: all else of an account is the same in both."""
        del cloud
        return f"the same {key} in both: a queue of that name in each region"


class AwsLend(LendSettings):
    kind: Literal["aws"]
    role: Annotated[str, formed(f"({_ROLE})?", _ROLE_LIKE)] = Field(
        default="",
        description="Role to assume; without one, the user of the box's keys is federated",
    )
    profile: str = Field(
        default="", description="Profile of the box; default: the credentials that the SDK finds"
    )

    def issuer_settings(self, options: Mapping[str, str]) -> Mapping[str, str]:
        """Return the bucket's region."""
        return {"region": options.get("region", "us-east-1")}


class AwsFederate(FederateSection):
    """Machines of these clouds sign in to AWS with their own cloud's identity token, and assume a
    role that may use the bucket."""

    kind: Literal["aws"]
    clouds: list[Trusted] = Field(min_length=1)
    role: Annotated[str, formed(_ROLE, _ROLE_LIKE)]
    audience: str = Field(min_length=1, description="Audience of the tokens that the role trusts")
