"""Lending what lies below one prefix of a bucket of Google Cloud Storage.

The box takes an access token of a service account that may use the bucket (it needs
`iam.serviceAccounts.getAccessToken` of it), and has Google's token service limit that by a
Credential Access Boundary. What comes out lasts as long as the token: an hour, or twelve where the
organisation's policy iam.allowServiceAccountCredentialLifetimeExtension names the account. (Limits:
Google's IAM references of generateAccessToken and of Credential Access Boundaries.)
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from providers.base import AuthError
from providers.credential_leases import LeasedCredentials, micros
from providers.gcp.clients import Clients
from providers.gcp.policy import below
from providers.iam.policy import Place

TIMES_S = (43_200, 3_600)
ROLE = "inRole:roles/storage.objectAdmin"  # of objects; never more than the account itself may
IAM = "https://iamcredentials.googleapis.com"
TOKENS = "https://sts.googleapis.com/v1/token"


class GcpCredentialIssuer:
    """Keeps `providers.credential_leases.CredentialIssuer`. `lifetime_s` 0 asks for the longest;
    what is refused as too long is not asked for again. `endpoints` are addresses other than
    Google's own, of "iam" and "tokens"."""

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
        wanted_s = int(lifetime_s or TIMES_S[0])
        self._times = [wanted_s, *(seconds for seconds in TIMES_S if seconds < wanted_s)]

    def lend(self, place: Place, name: str) -> LeasedCredentials:  # noqa: ARG002 - Google names the account
        """See Lender."""
        while True:
            seconds = self._times[0]
            try:
                token, expires = self._account_token(seconds)
                break
            except AuthError as error:
                shorter = [other for other in self._times if other < seconds]
                if "lifetime" not in str(error).lower() or not shorter:
                    raise
                self._times = shorter
        answer = self._limited(token, boundary(place))
        if "expires_in" in answer:  # said of tokens of some kinds only; never more than the token
            expires = min(expires, _now() + timedelta(seconds=int(answer["expires_in"])))
        document = {"access_token": answer["access_token"], "expiry": expires.isoformat()}
        return LeasedCredentials("gcp", json.dumps(document), micros(expires))

    def _account_token(self, seconds: int) -> tuple[str, datetime]:
        def ask(source: Any, request: Any) -> tuple[str, datetime]:
            from google.auth import exceptions, impersonated_credentials

            account = f"/v1/projects/-/serviceAccounts/{self._account}:generateAccessToken"
            found = impersonated_credentials.Credentials(
                source_credentials=source,
                target_principal=self._account,
                target_scopes=["https://www.googleapis.com/auth/devstorage.read_write"],
                lifetime=seconds,
                iam_endpoint_override=self._endpoints["iam"] + account,
            )
            try:
                found.refresh(request)
            except exceptions.RefreshError as error:  # the reason is in the second of its arguments
                raise exceptions.RefreshError(": ".join(str(arg) for arg in error.args)) from None
            expiry: Any = found.expiry  # without a zone, and UTC
            return str(found.token), expiry.replace(tzinfo=UTC)

        return self._clients.with_credentials(ask)

    def _limited(self, token: str, limits: dict[str, Any]) -> dict[str, Any]:
        def ask(_source: Any, request: Any) -> dict[str, Any]:
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

        return self._clients.with_credentials(ask)


def boundary(place: Place) -> dict[str, Any]:
    """A Credential Access Boundary: the objects below one prefix."""
    rule = {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{place.bucket}",
        "availablePermissions": [ROLE],
        "availabilityCondition": {"expression": below(place)},
    }
    return {"accessBoundary": {"accessBoundaryRules": [rule]}}


def _now() -> datetime:
    return datetime.now(UTC)
