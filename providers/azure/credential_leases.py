"""Lending what lies below one directory of a container of Azure storage.

A user-delegation SAS: signed with a key that Entra gives the box for at most seven days (it needs
`Microsoft.Storage/storageAccounts/blobServices/generateUserDelegationKey/action`, and may not give
what its own role at the container lacks). Directories are of accounts with a hierarchical
namespace; without one, a SAS is for a whole container, and none is made. (Limits: Microsoft's
references of Get User Delegation Key and of user delegation SAS.)
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from providers.azure.clients import Clients
from providers.credential_leases import LeasedCredentials, micros
from providers.iam.policy import Place

LONGEST = timedelta(days=7)
SKEW = timedelta(minutes=15)  # that the clocks of others may be behind ours


class AzureCredentialIssuer:
    """Keeps `providers.credential_leases.CredentialIssuer`. `endpoint` and `authority` are for
    clouds other than the public one."""

    def __init__(
        self, account: str, lifetime_s: float = 0.0, endpoint: str = "", authority: str = ""
    ) -> None:
        self._account = account
        self._endpoint = endpoint or f"https://{account}.dfs.core.windows.net"
        self._clients = Clients("", authority=authority)
        wanted = timedelta(seconds=lifetime_s) if lifetime_s else LONGEST
        self._lifetime = min(LONGEST - SKEW, wanted)

    def lend(self, place: Place, name: str) -> LeasedCredentials:  # noqa: ARG002 - Azure names who signs
        """See Lender."""
        now = datetime.now(UTC).replace(microsecond=0)
        start, expires = now - SKEW, now + self._lifetime

        def sign(client: Any) -> str:
            from azure.storage.filedatalake import (
                DirectorySasPermissions,
                generate_directory_sas,
            )

            key = client.get_user_delegation_key(start, expires)
            rights = DirectorySasPermissions(
                read=True, write=True, create=True, delete=True, list=True
            )
            return generate_directory_sas(
                self._account,
                place.bucket,
                place.prefix.rstrip("/"),
                key,
                permission=rights,
                start=start,
                expiry=expires,
                protocol="https",
            )

        return LeasedCredentials(
            "azure", self._clients.storage(self._endpoint, sign), micros(expires)
        )
