"""Lending what lies below one prefix of an S3 bucket.

With a role: `sts:AssumeRole` with a session policy, which takes away from what the role may do and
adds nothing. From a user's keys that lasts as long as the role's own MaxSessionDuration, twelve
hours at most; where the box itself has a role (they are chained) one hour. Without a role: a user's
keys by `sts:GetFederationToken`, 36 hours. (Limits: AWS's STS API reference.)
"""

from __future__ import annotations

import json
import re
from typing import Any

from providers.aws.clients import Clients
from providers.aws.policy import prefix_policy
from providers.base import RejectedError
from providers.credential_leases import LeasedCredentials, aws_text, micros
from providers.iam.policy import Place

ROLE_S = (43_200, 28_800, 14_400, 7_200, 3_600)
USER_S = (129_600, 3_600)
LEAST_S = 900  # of both
_NAME = re.compile(r"[^\w+=,.@-]")


class AwsCredentialIssuer:
    """Keeps `providers.credential_leases.CredentialIssuer`. `lifetime_s` 0 asks for the longest;
    what is refused as too long is not asked for again. Credentials of the box come through the
    SDK's own chain."""

    def __init__(
        self, region: str, role: str = "", profile: str = "", lifetime_s: float = 0.0
    ) -> None:
        self._clients = Clients(profile)
        self._region = region
        self._role = role
        longest = ROLE_S if role else USER_S
        wanted_s = max(LEAST_S, int(lifetime_s or longest[0]))
        self._times = [wanted_s, *(seconds for seconds in longest if seconds < wanted_s)]

    def lend(self, place: Place, name: str) -> LeasedCredentials:
        """See Lender."""
        policy = json.dumps(prefix_policy(place), separators=(",", ":"))
        while True:
            seconds = self._times[0]
            try:
                found = self._ask(policy, _NAME.sub("-", name), seconds)["Credentials"]
            except RejectedError as error:
                shorter = [other for other in self._times if other < seconds]
                if "DurationSeconds" not in str(error) or not shorter:
                    raise
                self._times = shorter
                continue
            expires = found["Expiration"]
            keys = (found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
            return LeasedCredentials("aws", aws_text(*keys, expires), micros(expires))

    def _ask(self, policy: str, name: str, seconds: int) -> dict[str, Any]:
        common = {"Policy": policy, "DurationSeconds": seconds}
        if not self._role:
            # At most 32 characters; the end of a name is what differs.
            user = {"Name": f"spotd-{name}"[-32:].lstrip("-")}
            return self._clients.call(self._region, "get_federation_token", "sts", **user, **common)
        session = {"RoleArn": self._role, "RoleSessionName": f"spotd-{name}"[:64]}
        return self._clients.call(self._region, "assume_role", "sts", **session, **common)
