"""Google Cloud API clients, one for each Compute Engine collection, and the translation of their
errors.

Google's SDK is imported with the first call.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from providers.base import AuthError, ProviderError, RejectedError, UnknownOutcome
from providers.gcp.codes import http_error

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
COMPUTE_SERVICE_ID = "6F81-5844-456A"  # Compute Engine in the Cloud Billing Catalog
PAGE_SIZE, SKU_PAGE_SIZE = 500, 5000  # maximum of each API
MAX_PARALLEL = 8
CREDENTIALS_FIX = (
    "check that `gcloud auth application-default print-access-token` works as the user that "
    "runs spotd"
)
# The warning of an empty scope; any other warning means that rows are missing.
_EMPTY = "NO_RESULTS_ON_PAGE"

T = TypeVar("T")
R = TypeVar("R")


class Clients:
    """Clients of one project, created on first use, over REST and without retries: the daemon
    retries.

    Credentials come from `credentials_file` or through the SDK's own chain, which renews them.
    `endpoints` are addresses other than Google's own, for "compute" and for other services by name
    (Private Service Connect).
    """

    def __init__(
        self,
        project: str,
        credentials_file: Path | None = None,
        endpoints: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self.project = project
        self._credentials_file = credentials_file
        self._endpoints = endpoints or {}
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._session: Any = None
        self._clients: dict[str, Any] = {}
        self._pool = ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="gcp")

    def call(
        self, collection: str, method: str, *, timeout_s: float | None = None, **fields: Any
    ) -> Any:
        """Make one call ("Instances", "delete_unary"). `fields` are those of its request except the
        project. Raises ProviderError."""
        with _translate_errors():
            bound_method = getattr(self._client(collection), method)
            fields_ = {"project": self.project, **fields}
            return bound_method(
                request=fields_, retry=None, timeout=self._call_timeout_s(timeout_s)
            )

    def insert(
        self, zone: str, body: Mapping[str, Any], request_id: str, timeout_s: float | None = None
    ) -> Any:
        """Return the operation of `instances.insert`; `body` is an Instance in JSON form."""
        return self.call(
            "Instances",
            "insert_unary",
            timeout_s=timeout_s,
            zone=zone,
            instance_resource=_to_message("Instance", body),
            request_id=request_id,
        )

    def insert_image(self, body: Mapping[str, Any], request_id: str) -> Any:
        """Return the operation of `images.insert` for a disk that may be in use; `body` is an Image
        in JSON form."""
        return self.call(
            "Images",
            "insert_unary",
            image_resource=_to_message("Image", body),
            force_create=True,
            request_id=request_id,
        )

    def aggregated(
        self,
        collection: str,
        field: str,
        filter_: str = "",
        scope_kind: str = "zones",
        **fields: Any,
    ) -> list[tuple[str, list[Any]]]:
        """Return (zone, its rows) for all zones, or for all regions with `scope_kind` "regions".

        With `include_all_scopes=True`, scopes without rows are included. Raises ProviderError
        rather than returning part of the rows.
        """
        fields |= {"filter": filter_} if filter_ else {}
        result: list[tuple[str, list[Any]]] = []
        with _translate_errors():
            pages = self._client(collection).aggregated_list(
                request={"project": self.project, "max_results": PAGE_SIZE, **fields},
                retry=None,
                timeout=self._timeout_s,
            )
            for page in pages.pages:
                _check_complete(collection, page.warning, page.unreachables)
                for scope, scoped in page.items.items():
                    _check_complete(f"{collection} of {scope}", scoped.warning, ())
                    kind, _, zone = scope.partition("/")
                    if kind == scope_kind:
                        result.append((zone, list(getattr(scoped, field))))
        return result

    def list_filtered(self, collection: str, filter_: str) -> list[Any]:
        """Return the rows of a global collection. Raises ProviderError rather than returning part
        of them."""
        result: list[Any] = []
        with _translate_errors():
            pages = self._client(collection).list(
                request={"project": self.project, "max_results": PAGE_SIZE, "filter": filter_},
                retry=None,
                timeout=self._timeout_s,
            )
            for page in pages.pages:
                _check_complete(collection, page.warning, ())
                result.extend(page.items)
        return result

    def skus(self) -> Iterator[dict[str, Any]]:
        """Yield the prices of Compute Engine's components in US dollars, from the Cloud Billing
        Catalog. Raises ProviderError."""
        token = ""
        while True:
            parameters = {"currencyCode": "USD", "pageSize": SKU_PAGE_SIZE, "pageToken": token}
            with _translate_errors():
                page, _ = self._request(
                    "cloudbilling",
                    "GET",
                    f"/v1/services/{COMPUTE_SERVICE_ID}/skus",
                    params={key: value for key, value in parameters.items() if value},
                )
            yield from page.get("skus") or ()
            token = str(page.get("nextPageToken") or "")
            if not token:
                return

    def with_credentials(self, use: Callable[[Any, Any], T]) -> T:
        """Call `use` with the credentials and a transport for the SDK's own token requests. Raises
        ProviderError."""
        with _translate_errors():
            from google.auth.transport.requests import Request

            with self._lock:
                credentials = self._load_credentials()
            return use(credentials, partial(Request(), timeout=self._timeout_s))

    def rows(self, collection: str, **fields: Any) -> list[Any]:
        """Return all rows of a plain list. Raises ProviderError."""
        with _translate_errors():
            request = {"project": self.project, **fields}
            pager = self._client(collection).list(
                request=request, retry=None, timeout=self._timeout_s
            )
            return [*pager]

    def request(
        self, service: str, verb: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Return (answer, headers) of a request to another Google service ("cloudquotas"). Raises
        ProviderError."""
        with _translate_errors():
            return self._request(service, verb, path, json=body)

    def identity(self) -> str:
        """Return the account of the credentials, as far as they name it. Raises ProviderError."""
        with _translate_errors(), self._lock:
            credentials = self._load_credentials()
        email = getattr(credentials, "service_account_email", "") or getattr(
            credentials, "account", ""
        )
        return str(email or type(credentials).__module__.rpartition(".")[2])

    def _request(
        self, service: str, verb: str, path: str, **more: Any
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        from google.api_core import exceptions

        session, universe = self._open_session()
        host = self._endpoints.get(service) or f"https://{service}.{universe}"
        answer = session.request(verb, f"{host}{path}", timeout=self._timeout_s, **more)
        if answer.status_code >= 400:
            raise exceptions.from_http_response(answer)
        document = answer.json()
        if not isinstance(document, dict):
            raise ValueError(f"{service} answers with no object")
        return document, answer.headers

    def map_parallel(self, items: Sequence[T], function: Callable[[T], R]) -> list[R]:
        """Call `function` for each item in parallel; raise the first error. No call is in flight
        any more when it returns."""
        futures = [self._pool.submit(function, item) for item in items]
        for future in futures:
            future.exception()
        return [future.result() for future in futures]

    def _call_timeout_s(self, requested_s: float | None) -> float:
        return (
            self._timeout_s if requested_s is None else max(0.1, min(requested_s, self._timeout_s))
        )

    def _client(self, collection: str) -> Any:
        with self._lock:
            client = self._clients.get(collection)
            if client is None:
                from google.api_core.client_options import ClientOptions
                from google.cloud import compute_v1

                make = getattr(compute_v1, f"{collection}Client")
                credentials = self._load_credentials()
                options = ClientOptions(
                    api_endpoint=self._endpoints.get("compute") or None,
                    universe_domain=credentials.universe_domain,
                )
                client = self._clients[collection] = make(
                    credentials=credentials, transport="rest", client_options=options
                )
            return client

    def _open_session(self) -> tuple[Any, str]:
        """Return (session, universe domain of the credentials)."""
        with self._lock:
            if self._session is None:
                from google.auth.transport.requests import AuthorizedSession

                self._session = AuthorizedSession(self._load_credentials())
            return self._session, self._load_credentials().universe_domain

    def _load_credentials(self) -> Any:
        """Load the credentials; the lock must be held."""
        if self._credentials is None:
            import google.auth

            if self._credentials_file:
                path = str(self._credentials_file)
                # The SDK warns about files from untrusted sources; this one is configured.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    credentials, _ = google.auth.load_credentials_from_file(path, scopes=[SCOPE])
            else:
                credentials, _ = google.auth.default(scopes=[SCOPE])
            self._credentials = credentials
        return self._credentials


def _to_message(name: str, body: Mapping[str, Any]) -> Any:
    """Convert JSON to a message of the SDK. Raises RejectedError for unknown fields."""
    from google.cloud import compute_v1
    from google.protobuf.json_format import ParseError

    try:
        return getattr(compute_v1, name).from_json(json.dumps(body), ignore_unknown_fields=False)
    except ParseError as error:
        raise RejectedError(f"the SDK does not support the request: {error}") from None


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate the SDK's exceptions into ProviderErrors."""
    import requests.exceptions
    from google.api_core import exceptions as failures
    from google.auth import exceptions as credentials
    from google.protobuf.json_format import ParseError

    try:
        yield
    except ProviderError:
        raise
    except failures.GoogleAPICallError as error:
        raise _translate_error(error) from None
    except credentials.TransportError as error:  # no connection to the token service
        raise UnknownOutcome(f"Google Cloud: {error}") from error
    except credentials.GoogleAuthError as error:
        if getattr(error, "retryable", False):
            raise UnknownOutcome(f"Google Cloud: {error}") from error
        raise AuthError(
            f"no credentials for Google Cloud: {_error_message(error)}; {CREDENTIALS_FIX}"
        ) from None
    except (
        failures.GoogleAPIError,
        requests.exceptions.RequestException,
        ParseError,
        ValueError,  # an unreadable answer
    ) as error:
        raise UnknownOutcome(f"Google Cloud: {error}") from error


def _translate_error(error: Any) -> ProviderError:
    """Translate an HTTP error answer."""
    reasons = [
        str(detail.get("reason", "")) for detail in error.errors or () if isinstance(detail, dict)
    ]
    headers: Mapping[str, str] = getattr(error.response, "headers", None) or {}
    retry_after = str(headers.get("Retry-After", ""))
    prefix_and_text = str(error.message).partition(": ")  # "POST https://…: message"
    text = (
        prefix_and_text[2]
        if prefix_and_text[0].startswith(("GET ", "POST ", "PATCH ", "DELETE "))
        else str(error.message)
    )
    reason = getattr(error, "reason", None)  # from google.rpc.ErrorInfo
    codes = [*reasons, str(reason or "")]
    pause_s = float(retry_after) if retry_after.isdecimal() else None
    translated = http_error(int(error.code or 0), codes, text, pause_s)
    if isinstance(translated, AuthError) and int(error.code or 0) == 401:
        return AuthError(f"{translated}; {CREDENTIALS_FIX}", code=translated.code)
    return translated


def _error_message(error: Exception) -> str:
    """Return the readable part of a credentials error: its first argument."""
    return str(error.args[0]) if error.args else type(error).__name__


def _check_complete(description: str, warning: Any, unreachable: Iterable[str]) -> None:
    missing = ", ".join(unreachable)
    code = warning.code if warning else ""
    if missing or code not in ("", _EMPTY):
        problem = f"{code} {warning.message}".strip() if code else f"no answer from {missing}"
        raise UnknownOutcome(f"{description}: the list is incomplete: {problem}")
