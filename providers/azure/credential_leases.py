"""Issue credentials for one directory in a container of Azure storage.

A user delegation SAS, signed with a key that Entra gives the box for at most seven days (this needs
`Microsoft.Storage/storageAccounts/blobServices/generateUserDelegationKey/action`; the SAS cannot
exceed the box's own role on the container). Directories need an account with a hierarchical
namespace; without one, a SAS covers a whole container, and none is issued. (Limits: Microsoft's
references of Get User Delegation Key and of user delegation SAS.)
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from providers.azure.clients import Clients
from providers.base import timestamp_us
from providers.credential_leases import LeasedCredentials
from providers.iam.policy import StorePrefix

MAX_LIFETIME = timedelta(days=7)
CLOCK_SKEW = timedelta(minutes=15)  # tolerated for servers whose clock is behind


class AzureCredentialIssuer:
    """Implements CredentialIssuer. `endpoint` and `authority` are for clouds other than the public
    one."""

    def __init__(
        self, account: str, lifetime_s: float = 0.0, endpoint: str = "", authority: str = ""
    ) -> None:
        self._account = account
        self._endpoint = endpoint or f"https://{account}.dfs.core.windows.net"
        self._clients = Clients("", authority=authority)
        requested = timedelta(seconds=lifetime_s) if lifetime_s else MAX_LIFETIME
        self._lifetime = min(MAX_LIFETIME - CLOCK_SKEW, requested)

    def issue(self, prefix: StorePrefix, session_name: str) -> LeasedCredentials:  # noqa: ARG002 - Azure names who signs
        """See CredentialIssuer.issue. Azure's logs name the signer, so `session_name` is unused."""
        now = datetime.now(UTC).replace(microsecond=0)
        start, expires = now - CLOCK_SKEW, now + self._lifetime

        def sign(client: Any) -> str:
            from azure.storage.filedatalake import (
                DirectorySasPermissions,
                generate_directory_sas,
            )

            key = client.get_user_delegation_key(start, expires)
            permissions = DirectorySasPermissions(
                read=True, write=True, create=True, delete=True, list=True
            )
            return generate_directory_sas(
                self._account,
                prefix.bucket,
                prefix.prefix.rstrip("/"),
                key,
                permission=permissions,
                start=start,
                expiry=expires,
                protocol="https",
            )

        return LeasedCredentials(
            "azure", self._clients.storage(self._endpoint, sign), timestamp_us(expires)
        )
