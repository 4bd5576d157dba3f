"""An object store in a container of Azure Blob storage, `az://container/prefix`, whose account is
the option `account`. An ETag is new with every write."""

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
    client_of,
    open_bucket,
    read_line,
    read_proof,
)

WORDS = BackendTerms(
    "e_tag", "<Code>ContainerNotFound<", ("not valid in the specified time frame",)
)
# Of a machine that shows who it is: see providers/federation.py. Entra has no name for a session.
_NEEDED = ("tenant", "application", "audience")
_PROOF = frozenset({"identity", *_NEEDED, "session", "metadata", "sts", "tokens"})
_OPTIONS = frozenset({*COMMON, *_PROOF, "account", "account_key", "sas_token", "client_id"})
VERSION = "2021-12-02"  # of the REST API; with directories since 2020-02-10
_LIMIT_BYTES = 1 << 16
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


def open_azure(container: str, prefix: str, options: Mapping[str, str]) -> BucketStore:
    """The store under `prefix` of `container`; options as `open_store` lists them. Without
    credentials among them, as obstore finds some: the environment, then the machine's identity."""
    client = client_of("az", "AzureStore")
    line = read_line("az", options, _OPTIONS)
    account = options.get("account", "")
    if not _ACCOUNT.fullmatch(account):
        raise StoreConfigError(
            f"store option account is {account!r}: write the name of the storage account that has "
            f"the container {container}, 3 to 24 of a-z and 0-9"
        )
    credentials: Any = {"account_name": account}
    remove = None
    for option, name in (("endpoint", "endpoint"), ("client_id", "client_id")):
        if options.get(option):
            credentials[name] = options[option]
    if file := options.get("credentials_file"):
        credentials["credential_provider"] = partial(read_sas, Path(file))
        door = options.get("endpoint") or f"https://{account}.blob.core.windows.net"
        root = "/".join(part for part in (door.rstrip("/"), container, prefix) if part)
        remove = partial(_remove, root, Path(file), line.timeout_s)
    elif options.get("identity"):
        credentials["credential_provider"] = proof_of(options)
    elif key := options.get("account_key"):
        credentials["account_key"] = key
    elif sas := options.get("sas_token"):
        credentials["sas_key"] = sas.lstrip("?")

    def make(max_retries: int) -> Any:
        return client(container, prefix=prefix or None, **line.options(max_retries), **credentials)

    return open_bucket(f"az://{container}/{prefix}".rstrip("/"), prefix, make, WORDS, remove)


def proof_of(options: Mapping[str, str], *, reading: bool = False) -> Callable[[], dict[str, Any]]:
    """Who exchanges this machine's own identity for a token of the application. Entra makes none
    that is for `reading` alone: what it is good for, the application's role says. Raises
    StoreConfigError."""
    del reading
    allow_http = read_line("az", options, _OPTIONS).allow_http
    cloud, doors = read_proof(options, ("aws", "gcp"), _NEEDED, allow_http)
    tenant, application, audience = (options[name] for name in _NEEDED)
    return partial(azure_token, cloud, tenant, application, audience, doors)


def _remove(root: str, file: Path, timeout_s: float, key: str) -> None:
    """obstore deletes by a batch, which is a request about the container: one that a SAS of a
    directory is not good for. Raises OSError; FileNotFoundError is none where the blob is gone."""
    url = f"{root}/{quote(key)}?{read_sas(file)['sas_token']}"
    asked = urllib.request.Request(url, method="DELETE", headers={"x-ms-version": VERSION})  # noqa: S310 - the caller's
    try:
        with urllib.request.urlopen(asked, timeout=timeout_s):  # noqa: S310 - as above
            return
    except urllib.error.HTTPError as error:
        said = error.read(_LIMIT_BYTES).decode("utf-8", "replace")
        if error.code != 404 or WORDS.no_bucket in said:
            raise OSError(f"status code: {error.code}: {said}") from None


def read_sas(file: Path) -> dict[str, Any]:
    """What `providers.azure.credential_leases` wrote: asked for again by the client when less than
    five minutes of it are left. Raises OSError, ValueError."""
    text = file.read_text().strip()
    [end] = parse_qs(text)["se"]
    return {
        "sas_token": text,
        "expires_at": datetime.fromisoformat(end.replace("Z", "+00:00")),
    }
