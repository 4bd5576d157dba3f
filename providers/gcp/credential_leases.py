"""Issue credentials for one prefix of a Google Cloud Storage bucket.

The box gets an access token of a service account that may use the bucket (this needs
`iam.serviceAccounts.getAccessToken` on it), and has Google's token service limit the token by a
Credential Access Boundary. The result lasts as long as the token: an hour, or twelve where the
organisation policy iam.allowServiceAccountCredentialLifetimeExtension names the account. (Limits:
Google's IAM references of generateAccessToken and of Credential Access Boundaries.)
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from providers.base import AuthError, timestamp_us
from providers.credential_leases import LeasedCredentials
from providers.gcp.clients import Clients
from providers.gcp.policy import prefix_condition
from providers.iam.policy import StorePrefix

TIMES_S = (43_200, 3_600)
ROLE = "inRole:roles/storage.objectAdmin"  # an upper bound, on top of the account's own permissions
IAM = "https://iamcredentials.googleapis.com"
TOKENS = "https://sts.googleapis.com/v1/token"


class GcpCredentialIssuer:
    """Implements CredentialIssuer.

    `lifetime_s` 0 asks for the longest lifetime; one that is refused as too long is not tried
    again. `endpoints` are addresses other than Google's own, for "iam" and "tokens".
    """

    def __init__(
        self,
        service_account: str,
        credentials_file: Path | None = None,
        lifetime_s: float = 0.0,
        endpoints: dict[str, str] | None = None,
    ) -> None:
        self._clients = Clients("", credentials_file)
        self._account = service_account
        self._endpoints = {"iam": IAM, "tokens": TOKENS} | (endpoints or {})
        requested_s = int(lifetime_s or TIMES_S[0])
        self._durations_s = [
            requested_s,
            *(seconds for seconds in TIMES_S if seconds < requested_s),
        ]

    def issue(self, prefix: StorePrefix, session_name: str) -> LeasedCredentials:  # noqa: ARG002 - Google names the account
        """See CredentialIssuer.issue. Google's audit log names the account, so `session_name` is
        unused."""
        while True:
            longest_s = self._durations_s[0]
            try:
                token, expires = self._account_token(longest_s)
                break
            except AuthError as error:
                shorter = [duration_s for duration_s in self._durations_s if duration_s < longest_s]
                if "lifetime" not in str(error).lower() or not shorter:
                    raise
                self._durations_s = shorter
        limited = self._limited(token, boundary(prefix))
        if "expires_in" in limited:  # only some kinds of tokens report it
            expires = min(expires, _now() + timedelta(seconds=int(limited["expires_in"])))
        document = {"access_token": limited["access_token"], "expiry": expires.isoformat()}
        return LeasedCredentials("gcp", json.dumps(document), timestamp_us(expires))

    def _account_token(self, seconds: int) -> tuple[str, datetime]:
        def fetch(source: Any, request: Any) -> tuple[str, datetime]:
            from google.auth import exceptions, impersonated_credentials

            account = f"/v1/projects/-/serviceAccounts/{self._account}:generateAccessToken"
            credentials = impersonated_credentials.Credentials(
                source_credentials=source,
                target_principal=self._account,
                target_scopes=["https://www.googleapis.com/auth/devstorage.read_write"],
                lifetime=seconds,
                iam_endpoint_override=self._endpoints["iam"] + account,
            )
            try:
                credentials.refresh(request)
            except exceptions.RefreshError as error:  # the reason is in the second argument
                raise exceptions.RefreshError(": ".join(str(arg) for arg in error.args)) from None
            expiry: Any = credentials.expiry  # naive, in UTC
            return str(credentials.token), expiry.replace(tzinfo=UTC)

        return self._clients.with_credentials(fetch)

    def _limited(self, token: str, limits: dict[str, Any]) -> dict[str, Any]:
        def exchange(_source: Any, request: Any) -> dict[str, Any]:
            from google.oauth2 import sts

            kind = "urn:ietf:params:oauth:token-type:access_token"
            answer = sts.Client(self._endpoints["tokens"]).exchange_token(
                request,
                grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
                subject_token=token,
                subject_token_type=kind,
                requested_token_type=kind,
                additional_options=limits,
            )
            return dict(answer)

        return self._clients.with_credentials(exchange)


def boundary(prefix: StorePrefix) -> dict[str, Any]:
    """Return a Credential Access Boundary for the objects below one prefix."""
    rule = {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{prefix.bucket}",
        "availablePermissions": [ROLE],
        "availabilityCondition": {"expression": prefix_condition(prefix)},
    }
    return {"accessBoundary": {"accessBoundaryRules": [rule]}}


def _now() -> datetime:
    return datetime.now(UTC)
