"""Object store in an Azure Blob container, `az://container/prefix`, of the storage account in the
option `account`. The version tag is the ETag, which changes with every write."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

from providers.federation import azure_token
from providers.stores.base import StoreConfigError
from providers.stores.bucket import (
    COMMON,
    BackendTerms,
    BucketStore,
    load_client_class,
    open_bucket,
    parse_client_options,
    parse_identity,
)

TERMS = BackendTerms(
    "e_tag", "<Code>ContainerNotFound<", ("not valid in the specified time frame",)
)
# Options for identity federation (providers/federation.py). Entra has no session names.
_IDENTITY_OPTIONS = ("tenant", "application", "audience")
_FEDERATION_OPTIONS = frozenset(
    {"identity", *_IDENTITY_OPTIONS, "session", "metadata", "sts", "tokens"}
)
_OPTIONS = frozenset(
    {*COMMON, *_FEDERATION_OPTIONS, "account", "account_key", "sas_token", "client_id"}
)
VERSION = "2021-12-02"  # of the REST API; directories need at least 2020-02-10
_LIMIT_BYTES = 1 << 16
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


def open_azure(container: str, prefix: str, options: Mapping[str, str]) -> BucketStore:
    """Open the store under `prefix` of `container`; for the options see `open_store`.

    Without credentials in the options obstore looks for them: in the environment, then in the
    machine's managed identity.
    """
    client_class = load_client_class("az", "AzureStore")
    client_options = parse_client_options("az", options, _OPTIONS)
    account = options.get("account", "")
    if not _ACCOUNT.fullmatch(account):
        raise StoreConfigError(
            f"store option account is {account!r}: write the name of the storage account that has "
            f"the container {container}, 3 to 24 of a-z and 0-9"
        )
    credentials: Any = {"account_name": account}
    delete_object = None
    for option, name in (("endpoint", "endpoint"), ("client_id", "client_id")):
        if options.get(option):
            credentials[name] = options[option]
    if file := options.get("credentials_file"):
        credentials["credential_provider"] = partial(read_sas, Path(file))
        endpoint = options.get("endpoint") or f"https://{account}.blob.core.windows.net"
        root = "/".join(part for part in (endpoint.rstrip("/"), container, prefix) if part)
        delete_object = partial(_delete_blob, root, Path(file), client_options.timeout_s)
    elif options.get("identity"):
        credentials["credential_provider"] = credential_provider(options)
    elif key := options.get("account_key"):
        credentials["account_key"] = key
    elif sas := options.get("sas_token"):
        credentials["sas_key"] = sas.lstrip("?")

    def make_client(max_retries: int) -> Any:
        return client_class(
            container, prefix=prefix or None, **client_options.options(max_retries), **credentials
        )

    return open_bucket(
        f"az://{container}/{prefix}".rstrip("/"), prefix, make_client, TERMS, delete_object
    )


def credential_provider(
    options: Mapping[str, str], *, read_only: bool = False
) -> Callable[[], dict[str, Any]]:
    """A function that exchanges this machine's identity for a token of the application.

    Entra has no read-only tokens, so `read_only` is ignored: the application's role decides.
    Raises StoreConfigError.
    """
    del read_only
    allow_http = parse_client_options("az", options, _OPTIONS).allow_http
    cloud, endpoints = parse_identity(options, "az", _IDENTITY_OPTIONS, allow_http)
    tenant, application, audience = (options[name] for name in _IDENTITY_OPTIONS)
    return partial(azure_token, cloud, tenant, application, audience, endpoints)


def _delete_blob(root: str, file: Path, timeout_s: float, key: str) -> None:
    """Delete one blob; a missing blob is not an error. Raises OSError.

    obstore's own delete is a batch request on the container, which a directory SAS does not allow.
    """
    url = f"{root}/{quote(key)}?{read_sas(file)['sas_token']}"
    request = urllib.request.Request(url, method="DELETE", headers={"x-ms-version": VERSION})  # noqa: S310 - configured URL
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):  # noqa: S310 - as above
            return
    except urllib.error.HTTPError as error:
        message = error.read(_LIMIT_BYTES).decode("utf-8", "replace")
        if error.code != 404 or TERMS.no_bucket in message:
            raise OSError(f"status code: {error.code}: {message}") from None


def read_sas(file: Path) -> dict[str, Any]:
    """Read the SAS token that `providers.azure.credential_leases` wrote.

    obstore calls this again when less than five minutes of it are left. Raises OSError, ValueError.
    """
    text = file.read_text().strip()
    [expiry] = parse_qs(text)["se"]
    return {
        "sas_token": text,
        "expires_at": datetime.fromisoformat(expiry.replace("Z", "+00:00")),
    }
