"""Calls to Compute Engine and to the Cloud Billing Catalog: one client for each collection, and one
place where their failures are translated. Google's SDK is imported with the first of them."""

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
COMPUTE_PRODUCTS = "6F81-5844-456A"  # Compute Engine's number in the Cloud Billing Catalog
A_PAGE, A_PAGE_OF_SKUS = 500, 5000  # the most that each gives at once
SIDE_BY_SIDE = 8
FIX = "see that `gcloud auth application-default print-access-token` works as the user of spotd"
# A scope that has nothing says so by a warning; any other warning means that something is missing.
_EMPTY = "NO_RESULTS_ON_PAGE"

T = TypeVar("T")
R = TypeVar("R")


class Clients:
    """Clients of one project, made when first used, with plain REST and without retries: the
    daemon repeats what is worth it. Credentials come from `credentials_file` or through the SDK's
    own chain, which renews what expires. `endpoints` are addresses other than Google's own, of
    "compute" and of other services by their names (Private Service Connect)."""

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
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="gcp")

    def call(
        self, collection: str, method: str, *, timeout_s: float | None = None, **fields: Any
    ) -> Any:
        """One call ("Instances", "delete_unary"); `fields` are those of its request, but for the
        project. Raises ProviderError."""
        with _translating():
            ask = getattr(self._client(collection), method)
            request = {"project": self.project, **fields}
            return ask(request=request, retry=None, timeout=self._time_s(timeout_s))

    def insert(
        self, zone: str, body: Mapping[str, Any], request_id: str, timeout_s: float | None = None
    ) -> Any:
        """The operation of `instances.insert`; `body` is an Instance as it goes over the wire."""
        return self.call(
            "Instances",
            "insert_unary",
            timeout_s=timeout_s,
            zone=zone,
            instance_resource=_message("Instance", body),
            request_id=request_id,
        )

    def insert_image(self, body: Mapping[str, Any], request_id: str) -> Any:
        """The operation of `images.insert`, of a disk that may be in use; `body` is an Image as it
        goes over the wire."""
        return self.call(
            "Images",
            "insert_unary",
            image_resource=_message("Image", body),
            force_create=True,
            request_id=request_id,
        )

    def aggregated(
        self, collection: str, rows: str, only: str = "", of: str = "zones", **fields: Any
    ) -> list[tuple[str, list[Any]]]:
        """(zone, its rows) of all zones, or `of` all "regions", and pages; `only` is a filter. With
        `include_all_scopes=True` also those that have none. Raises ProviderError: half an answer is
        none."""
        fields |= {"filter": only} if only else {}
        found: list[tuple[str, list[Any]]] = []
        with _translating():
            pages = self._client(collection).aggregated_list(
                request={"project": self.project, "max_results": A_PAGE, **fields},
                retry=None,
                timeout=self._timeout_s,
            )
            for page in pages.pages:
                _check_whole(collection, page.warning, page.unreachables)
                for scope, scoped in page.items.items():
                    _check_whole(f"{collection} of {scope}", scoped.warning, ())
                    kind, _, zone = scope.partition("/")
                    if kind == of:
                        found.append((zone, list(getattr(scoped, rows))))
        return found

    def listed(self, collection: str, only: str) -> list[Any]:
        """The rows of what is in no zone; `only` is a filter. Raises ProviderError: half an answer
        is none."""
        found: list[Any] = []
        with _translating():
            pages = self._client(collection).list(
                request={"project": self.project, "max_results": A_PAGE, "filter": only},
                retry=None,
                timeout=self._timeout_s,
            )
            for page in pages.pages:
                _check_whole(collection, page.warning, ())
                found.extend(page.items)
        return found

    def skus(self) -> Iterator[dict[str, Any]]:
        """Every price of Compute Engine's parts, of the Cloud Billing Catalog, in US dollars.
        Raises ProviderError."""
        token = ""
        while True:
            parameters = {"currencyCode": "USD", "pageSize": A_PAGE_OF_SKUS, "pageToken": token}
            with _translating():
                page, _ = self._ask(
                    "cloudbilling",
                    "GET",
                    f"/v1/services/{COMPUTE_PRODUCTS}/skus",
                    params={key: value for key, value in parameters.items() if value},
                )
            yield from page.get("skus") or ()
            token = str(page.get("nextPageToken") or "")
            if not token:
                return

    def with_credentials(self, ask: Callable[[Any, Any], T]) -> T:
        """What `ask` makes of the credentials themselves and of a transport for the SDK's own
        questions about them. Raises ProviderError."""
        with _translating():
            from google.auth.transport.requests import Request

            with self._lock:
                credentials = self._load()
            return ask(credentials, partial(Request(), timeout=self._timeout_s))

    def rows(self, collection: str, **fields: Any) -> list[Any]:
        """All rows of a plain list. Raises ProviderError."""
        with _translating():
            request = {"project": self.project, **fields}
            pager = self._client(collection).list(
                request=request, retry=None, timeout=self._timeout_s
            )
            return [*pager]

    def ask(
        self, service: str, verb: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        """(answer, its headers) of another service of Google's ("cloudquotas"). Raises
        ProviderError."""
        with _translating():
            return self._ask(service, verb, path, json=body)

    def who(self) -> str:
        """The account that the credentials are, as far as they say. Raises ProviderError."""
        with _translating(), self._lock:
            found = self._load()
        email = getattr(found, "service_account_email", "") or getattr(found, "account", "")
        return str(email or type(found).__module__.rpartition(".")[2])

    def _ask(
        self, service: str, verb: str, path: str, **more: Any
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        from google.api_core import exceptions

        session, universe = self._authorized()
        host = self._endpoints.get(service) or f"https://{service}.{universe}"
        answer = session.request(verb, f"{host}{path}", timeout=self._timeout_s, **more)
        if answer.status_code >= 400:
            raise exceptions.from_http_response(answer)
        document = answer.json()
        if not isinstance(document, dict):
            raise ValueError(f"{service} answers with no object")
        return document, answer.headers

    def side_by_side(self, things: Sequence[T], ask: Callable[[T], R]) -> list[R]:
        """`ask` of each, some at once; the first error. None is on its way when this is over."""
        answers = [self._pool.submit(ask, thing) for thing in things]
        for answer in answers:
            answer.exception()
        return [answer.result() for answer in answers]

    def _time_s(self, asked_s: float | None) -> float:
        return self._timeout_s if asked_s is None else max(0.1, min(asked_s, self._timeout_s))

    def _client(self, collection: str) -> Any:
        with self._lock:
            client = self._clients.get(collection)
            if client is None:
                from google.api_core.client_options import ClientOptions
                from google.cloud import compute_v1

                make = getattr(compute_v1, f"{collection}Client")
                credentials = self._load()
                options = ClientOptions(
                    api_endpoint=self._endpoints.get("compute") or None,
                    universe_domain=credentials.universe_domain,
                )
                client = self._clients[collection] = make(
                    credentials=credentials, transport="rest", client_options=options
                )
            return client

    def _authorized(self) -> tuple[Any, str]:
        """(session, the domain that the credentials are good for)."""
        with self._lock:
            if self._session is None:
                from google.auth.transport.requests import AuthorizedSession

                self._session = AuthorizedSession(self._load())
            return self._session, self._load().universe_domain

    def _load(self) -> Any:
        """The credentials, with the lock held."""
        if self._credentials is None:
            import google.auth

            if self._credentials_file:
                path = str(self._credentials_file)
                # The SDK warns of files from strangers; this one is named by who runs spotd.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    found, _ = google.auth.load_credentials_from_file(path, scopes=[SCOPE])
            else:
                found, _ = google.auth.default(scopes=[SCOPE])
            self._credentials = found
        return self._credentials


def _message(name: str, body: Mapping[str, Any]) -> Any:
    """A message of the SDK. Raises RejectedError for what it has no words for."""
    from google.cloud import compute_v1
    from google.protobuf.json_format import ParseError

    try:
        return getattr(compute_v1, name).from_json(json.dumps(body), ignore_unknown_fields=False)
    except ParseError as error:
        raise RejectedError(f"the SDK cannot say what is asked for: {error}") from None


@contextmanager
def _translating() -> Iterator[None]:
    """The SDK's failures as ours."""
    import requests.exceptions
    from google.api_core import exceptions as failures
    from google.auth import exceptions as credentials
    from google.protobuf.json_format import ParseError

    try:
        yield
    except ProviderError:
        raise
    except failures.GoogleAPICallError as error:
        raise _translated(error) from None
    except credentials.TransportError as error:  # of the way to whoever gives tokens
        raise UnknownOutcome(f"Google Cloud: {error}") from error
    except credentials.GoogleAuthError as error:
        if getattr(error, "retryable", False):
            raise UnknownOutcome(f"Google Cloud: {error}") from error
        raise AuthError(f"no credentials for Google Cloud: {_words(error)}; {FIX}") from None
    except (
        failures.GoogleAPIError,
        requests.exceptions.RequestException,
        ParseError,
        ValueError,  # of an answer that cannot be read
    ) as error:
        raise UnknownOutcome(f"Google Cloud: {error}") from error


def _translated(error: Any) -> ProviderError:
    """Of an answer with an HTTP error."""
    reasons = [str(one.get("reason", "")) for one in error.errors or () if isinstance(one, dict)]
    headers: Mapping[str, str] = getattr(error.response, "headers", None) or {}
    asked = str(headers.get("Retry-After", ""))
    words = str(error.message).partition(": ")  # "POST https://…: what it says"
    text = (
        words[2]
        if words[0].startswith(("GET ", "POST ", "PATCH ", "DELETE "))
        else str(error.message)
    )
    reason = getattr(error, "reason", None)  # of google.rpc.ErrorInfo
    found = [*reasons, str(reason or "")]
    pause_s = float(asked) if asked.isdecimal() else None
    told = http_error(int(error.code or 0), found, text, pause_s)
    if isinstance(told, AuthError) and int(error.code or 0) == 401:
        return AuthError(f"{told}; {FIX}", code=told.code)
    return told


def _words(error: Exception) -> str:
    """What an error of the credentials says: the first of its arguments is in words."""
    return str(error.args[0]) if error.args else type(error).__name__


def _check_whole(what: str, warning: Any, unreachable: Iterable[str]) -> None:
    missing = ", ".join(unreachable)
    code = warning.code if warning else ""
    if missing or code not in ("", _EMPTY):
        told = f"{code} {warning.message}".strip() if code else f"no answer of {missing}"
        raise UnknownOutcome(f"{what}: the list is not complete: {told}")
