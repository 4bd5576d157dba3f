"""Azure API clients of one provider, and the translation of their errors.

The SDK is imported with the first call.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from providers.azure.codes import CODES
from providers.base import (
    AuthError,
    ProviderError,
    RejectedError,
    ThrottledError,
    UnknownOutcome,
)
from providers.error_codes import THROTTLE_PAUSE_S

CONNECT_TIMEOUT_S = 3.0
# azure-identity tries four times to get a token; its default pauses (0.8) would use up half of the
# time for a launch.
TOKEN_BACKOFF_S = 0.2
PUBLIC_ENDPOINT = "https://management.azure.com"
RETAIL_ENDPOINT = "https://prices.azure.com"
PRICES_PATH = "/api/retail/prices"
# azure-identity reports every failure as an authentication failure, also an unreachable token
# service. Only the text distinguishes them: the chain drops the errors of its members.
_TOKEN_SERVICE_FAILURE = re.compile(
    r"Authentication failed: [^\n]*(HTTP Error: 5\d\d|certificate verify|[Cc]onnection|timed out)"
)
_CREDENTIALS_FIX = "check that `az account get-access-token` works as the user that runs spotd"

T = TypeVar("T")


class Clients:
    """Clients of one subscription, created on first use.

    Credentials come only through azure-identity's own chain, which renews them. Nothing is retried,
    registered or redirected here: the pipeline has no policies for that. The daemon retries.
    """

    def __init__(
        self,
        subscription_id: str,
        endpoint: str = "",
        authority: str = "",
        prices_endpoint: str = "",
        timeout_s: float = 10.0,
    ) -> None:
        self._subscription_id = subscription_id
        self._endpoint = (endpoint or PUBLIC_ENDPOINT).rstrip("/")
        self._authority = authority
        self._prices_endpoint = (prices_endpoint or RETAIL_ENDPOINT).rstrip("/")
        self._timeouts = {
            "connection_timeout": min(CONNECT_TIMEOUT_S, timeout_s),
            "read_timeout": timeout_s,
        }
        self._lock = threading.Lock()
        self._cached: dict[str, Any] = {}

    def compute(self, use: Callable[[Any], T]) -> T:
        """Call `use` with a ComputeManagementClient. Raises ProviderError."""
        return self._translate_errors(lambda: use(self._client("compute", self._make_compute)))

    def network(self, use: Callable[[Any], T]) -> T:
        """Call `use` with a NetworkManagementClient. Raises ProviderError."""
        return self._translate_errors(lambda: use(self._client("network", self._make_network)))

    def storage(self, account_url: str, use: Callable[[Any], T]) -> T:
        """Call `use` with a DataLakeServiceClient of a storage account. Raises ProviderError."""

        def make() -> Any:
            from azure.storage.filedatalake import DataLakeServiceClient

            options: dict[str, Any] = {"retry_total": 0, **self._timeouts}
            return DataLakeServiceClient(account_url, self._credential(), **options)

        return self._translate_errors(lambda: use(self._client(account_url, make)))

    def operation(self, url: str) -> Mapping[str, Any]:
        """Return the state of an operation: {"status": ..., "error": ...}. Raises ProviderError."""

        def fetch(client: Any) -> Mapping[str, Any]:
            from azure.core.rest import HttpRequest

            return _document(client.send_request(HttpRequest("GET", url)))

        return self.compute(fetch)

    def document(
        self, path: str, version: str, body: Mapping[str, Any] | None = None
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """Return (document, headers) at a path of Resource Manager; with `body`, PUT it first.
        Raises ProviderError."""

        def fetch(client: Any) -> tuple[Mapping[str, Any], Mapping[str, str]]:
            from azure.core.rest import HttpRequest

            method = "GET" if body is None else "PUT"
            url, parameters = f"{self._endpoint}{path}", {"api-version": version}
            request = HttpRequest(method, url, params=parameters, json=body)
            answer = client.send_request(request)
            return _document(answer), answer.headers

        return self.compute(fetch)

    def placement_scores(self, api_version: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a query of `scores.py`, sent to the first region in it. Raises
        ProviderError."""

        def fetch(client: Any) -> Mapping[str, Any]:
            from azure.core.rest import HttpRequest

            url = (
                f"{self._endpoint}/subscriptions/{self._subscription_id}/providers/"
                f"Microsoft.Compute/locations/{query['desiredLocations'][0]}"
                "/placementScores/spot/generate"
            )
            request = HttpRequest(
                "POST", url, params={"api-version": api_version}, json=dict(query)
            )
            return _document(client.send_request(request))

        return self.compute(fetch)

    def graph(self, api_version: str, query: str) -> Mapping[str, Any]:
        """Return the answer of Resource Graph for the subscription. Raises ProviderError."""

        def fetch(client: Any) -> Mapping[str, Any]:
            from azure.core.rest import HttpRequest

            url = f"{self._endpoint}/providers/Microsoft.ResourceGraph/resources"
            body = {
                "subscriptions": [self._subscription_id],
                "query": query,
                "options": {"resultFormat": "objectArray"},
            }
            request = HttpRequest("POST", url, params={"api-version": api_version}, json=body)
            return _document(client.send_request(request))

        return self.compute(fetch)

    def prices(self, page: str | Mapping[str, str]) -> Mapping[str, Any]:
        """Return one page of the retail prices: the first by its parameters, others by their URL.
        Needs no credentials. Raises ProviderError."""

        def fetch() -> Mapping[str, Any]:
            from azure.core.rest import HttpRequest

            if isinstance(page, str):
                request = HttpRequest("GET", page)
            else:
                url = f"{self._prices_endpoint}{PRICES_PATH}"
                request = HttpRequest("GET", url, params=dict(page))
            client = self._client("prices", self._make_prices)
            return _document(client.send_request(request))

        return self._translate_errors(fetch)

    def blob(self, url: str) -> str:
        """Return the text at a URL that contains its own authorization. Raises ProviderError."""

        def fetch() -> str:
            from azure.core.rest import HttpRequest

            answer = self._client("blobs", self._make_blobs).send_request(HttpRequest("GET", url))
            answer.raise_for_status()
            return bytes(answer.content).decode(errors="replace")

        return self._translate_errors(fetch)

    def _translate_errors(self, call: Callable[[], T]) -> T:
        import azure.core.exceptions as failures

        try:
            return call()
        except failures.ClientAuthenticationError as error:
            raise _credentials_error(error) from None
        except failures.HttpResponseError as error:
            if error.response is None:
                raise UnknownOutcome(str(error)) from error
            raise _translate_response(error.response) from None
        except failures.SerializationError as error:
            raise RejectedError(str(error)) from None
        except (failures.AzureError, ValueError) as error:  # ValueError: an unreadable answer
            raise UnknownOutcome(f"{type(error).__name__}: {error}") from error

    def _client(self, name: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if name not in self._cached:
                self._cached[name] = make()
            return self._cached[name]

    def _make_compute(self) -> Any:
        from azure.mgmt.compute import ComputeManagementClient

        return self._management(ComputeManagementClient)

    def _make_network(self) -> Any:
        from azure.mgmt.network import NetworkManagementClient

        return self._management(NetworkManagementClient)

    def _management(self, client: Callable[..., Any]) -> Any:
        import azure.core.pipeline.policies as policies_
        from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy

        scopes = [f"{self._endpoint}/.default"]
        credential = self._credential()
        return client(
            credential,
            self._subscription_id,
            base_url=self._endpoint,
            credential_scopes=scopes,
            policies=[
                policies_.RequestIdPolicy(),
                policies_.HeadersPolicy(),
                policies_.UserAgentPolicy("spotd"),
                policies_.ContentDecodePolicy(),
                ARMChallengeAuthenticationPolicy(credential, *scopes),
            ],
            **self._timeouts,
        )

    def _credential(self) -> Any:
        """Return the credential; the lock must be held."""
        if "credential" not in self._cached:
            self._cached["credential"] = self._make_credential()
        return self._cached["credential"]

    def _make_prices(self) -> Any:
        import azure.core.pipeline.policies as steps
        from azure.core import PipelineClient

        policies = [steps.UserAgentPolicy("spotd"), steps.ContentDecodePolicy()]
        options: dict[str, Any] = {"policies": policies, **self._timeouts}
        return PipelineClient(self._prices_endpoint, **options)

    def _make_blobs(self) -> Any:
        """No policy parses the content: it is plain text."""
        import azure.core.pipeline.policies as steps
        from azure.core import PipelineClient

        options: dict[str, Any] = {"policies": [steps.UserAgentPolicy("spotd")], **self._timeouts}
        return PipelineClient(self._endpoint, **options)

    def _make_credential(self) -> Any:
        """A configured authority is one that Microsoft's instance discovery does not know."""
        from azure.identity import DefaultAzureCredential

        authority: dict[str, Any] = {}
        if self._authority:
            authority = {"authority": self._authority, "disable_instance_discovery": True}
        retries = {"retry_backoff_factor": TOKEN_BACKOFF_S}
        return DefaultAzureCredential(**authority, **self._timeouts, **retries)


def error_from_document(
    error: Mapping[str, Any], retry_after_s: float | None = None
) -> ProviderError:
    """Return the error for the "error" object of an answer or of an operation."""
    code, message = str(error.get("code") or ""), str(error.get("message") or "")
    return CODES.error(code, message, retry_after_s)


def _document(response: Any) -> Mapping[str, Any]:
    """Return the JSON object of a response. Raises azure.core's HttpResponseError, and ValueError
    for anything else."""
    response.raise_for_status()
    document = response.json()
    if not isinstance(document, Mapping):
        raise ValueError(f"not a document: {str(document)[:200]}")
    return document


def _translate_response(response: Any) -> ProviderError:
    status, error = response.status_code, _error_document(response)
    retry_after_s = _parse_seconds(response.headers.get("Retry-After", ""))
    message = str(error.get("message") or "")
    if status == 429:
        pause_s = THROTTLE_PAUSE_S if retry_after_s is None else retry_after_s
        code = str(error.get("code") or "429")
        return ThrottledError(f"{code}: {message}", retry_after_s=pause_s, code=code)
    if not error.get("code"):  # not an answer of Azure, perhaps a proxy's page
        text = f"HTTP {status} without an error code: {message}"
        kind = AuthError if status in (401, 403) else UnknownOutcome
        return kind(text, code=str(status))
    return error_from_document(error, retry_after_s)


def _credentials_error(error: Any) -> ProviderError:
    """Return the error for a credential that is missing or refused. A failure of the token service
    says nothing about the credential."""
    if _TOKEN_SERVICE_FAILURE.search(str(error.message)):
        return UnknownOutcome(f"no token: {error.message}")
    return AuthError(
        f"no credentials for Azure: {error.message}; {_CREDENTIALS_FIX}", code="Unauthorized"
    )


def _error_document(response: Any) -> Mapping[str, Any]:
    """Return {"code": ..., "message": ...} of an answer; {} for an unreadable one. Some answers
    have it in an "error", some are it."""
    try:
        document = response.json()
    except Exception:  # noqa: BLE001 - not an error document of Azure
        return {}
    if not isinstance(document, Mapping):
        return {}
    error = document.get("error", document)
    return error if isinstance(error, Mapping) else {}


def _parse_seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdecimal() else None
