"""Issue credentials for one prefix of an S3 bucket.

With a role: `sts:AssumeRole` with a session policy, which can only reduce the role's permissions.
With a user's keys, they last as long as the role's MaxSessionDuration, at most twelve hours; when
the box itself has a role (role chaining), one hour. Without a role: `sts:GetFederationToken` with a
user's keys, 36 hours. (Limits: AWS's STS API reference.)
"""

from __future__ import annotations

import json
import re
from typing import Any

from providers.aws.clients import Clients
from providers.aws.policy import prefix_policy
from providers.base import RejectedError, timestamp_us
from providers.credential_leases import LeasedCredentials, aws_credentials_text
from providers.iam.policy import StorePrefix

ROLE_S = (43_200, 28_800, 14_400, 7_200, 3_600)
USER_S = (129_600, 3_600)
LEAST_S = 900  # minimum of both calls
_NAME = re.compile(r"[^\w+=,.@-]")


class AwsCredentialIssuer:
    """Implements CredentialIssuer.

    `lifetime_s` 0 asks for the longest lifetime; one that is refused as too long is not tried
    again. The box's own credentials come through the SDK's chain.
    """

    def __init__(
        self, region: str, role: str = "", profile: str = "", lifetime_s: float = 0.0
    ) -> None:
        self._clients = Clients(profile)
        self._region = region
        self._role = role
        longest = ROLE_S if role else USER_S
        requested_s = max(LEAST_S, int(lifetime_s or longest[0]))
        self._durations_s = [
            requested_s,
            *(seconds for seconds in longest if seconds < requested_s),
        ]

    def issue(self, prefix: StorePrefix, session_name: str) -> LeasedCredentials:
        """See CredentialIssuer.issue."""
        policy = json.dumps(prefix_policy(prefix), separators=(",", ":"))
        while True:
            longest_s = self._durations_s[0]
            try:
                credentials = self._request(policy, _NAME.sub("-", session_name), longest_s)[
                    "Credentials"
                ]
            except RejectedError as error:
                shorter = [duration_s for duration_s in self._durations_s if duration_s < longest_s]
                if "DurationSeconds" not in str(error) or not shorter:
                    raise
                self._durations_s = shorter
                continue
            expires = credentials["Expiration"]
            keys = (
                credentials["AccessKeyId"],
                credentials["SecretAccessKey"],
                credentials["SessionToken"],
            )
            return LeasedCredentials(
                "aws", aws_credentials_text(*keys, expires), timestamp_us(expires)
            )

    def _request(self, policy: str, session_name: str, seconds: int) -> dict[str, Any]:
        common = {"Policy": policy, "DurationSeconds": seconds}
        if not self._role:
            # At most 32 characters; names differ at their end.
            user = {"Name": f"spotd-{session_name}"[-32:].lstrip("-")}
            return self._clients.call(self._region, "get_federation_token", "sts", **user, **common)
        session = {"RoleArn": self._role, "RoleSessionName": f"spotd-{session_name}"[:64]}
        return self._clients.call(self._region, "assume_role", "sts", **session, **common)
