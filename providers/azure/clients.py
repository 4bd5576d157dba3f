"""Calls to Azure: the clients of one provider, and one place where their failures are translated.
The SDK is imported with the first call."""

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
from providers.error_codes import THROTTLED_S

CONNECT_S = 3.0
# azure-identity asks for a token four times; its own pauses (0.8) are half of what a launch has.
TOKEN_BACKOFF_S = 0.2
PUBLIC_CLOUD = "https://management.azure.com"
RETAIL = "https://prices.azure.com"
PRICES_PATH = "/api/retail/prices"
# azure-identity calls every failure an authentication's, also that nobody was there to ask. Its
# text is all that tells them apart: the chain drops what its members raised.
_TROUBLE = re.compile(
    r"Authentication failed: [^\n]*(HTTP Error: 5\d\d|certificate verify|[Cc]onnection|timed out)"
)
_FIX = "see that `az account get-access-token` works as the user that runs spotd"

T = TypeVar("T")


class Clients:
    """Of one subscription, made when first used. Credentials come through azure-identity's own
    chain alone, which renews what expires.

    Nothing is tried twice down here, and nothing is registered or redirected: the pipeline has no
    policies for that. The daemon repeats what may be repeated.
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
        self._endpoint = (endpoint or PUBLIC_CLOUD).rstrip("/")
        self._authority = authority
        self._prices_endpoint = (prices_endpoint or RETAIL).rstrip("/")
        self._timeouts = {
            "connection_timeout": min(CONNECT_S, timeout_s),
            "read_timeout": timeout_s,
        }
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}

    def compute(self, ask: Callable[[Any], T]) -> T:
        """What `ask` makes of a ComputeManagementClient. Raises ProviderError."""
        return self._translating(lambda: ask(self._client("compute", self._make_compute)))

    def network(self, ask: Callable[[Any], T]) -> T:
        """What `ask` makes of a NetworkManagementClient. Raises ProviderError."""
        return self._translating(lambda: ask(self._client("network", self._make_network)))

    def storage(self, account_url: str, ask: Callable[[Any], T]) -> T:
        """What `ask` makes of a DataLakeServiceClient of a storage account. Raises
        ProviderError."""

        def made() -> Any:
            from azure.storage.filedatalake import DataLakeServiceClient

            options: dict[str, Any] = {"retry_total": 0, **self._timeouts}
            return DataLakeServiceClient(account_url, self._credential(), **options)

        return self._translating(lambda: ask(self._client(account_url, made)))

    def operation(self, url: str) -> Mapping[str, Any]:
        """How far an operation is: {"status": ..., "error": ...}. Raises ProviderError."""

        def ask(client: Any) -> Mapping[str, Any]:
            from azure.core.rest import HttpRequest

            return _document(client.send_request(HttpRequest("GET", url)))

        return self.compute(ask)

    def document(
        self, path: str, version: str, body: Mapping[str, Any] | None = None
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """(what is at a path of Resource Manager's, the headers of that answer); with a `body` it
        is put there. Raises ProviderError."""

        def ask(client: Any) -> tuple[Mapping[str, Any], Mapping[str, str]]:
            from azure.core.rest import HttpRequest

            verb = "GET" if body is None else "PUT"
            url, parameters = f"{self._endpoint}{path}", {"api-version": version}
            request = HttpRequest(verb, url, params=parameters, json=body)
            answer = client.send_request(request)
            return _document(answer), answer.headers

        return self.compute(ask)

    def placement_scores(self, api: str, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """What Azure answers to a question of `scores.py`, asked in the first region that it names.
        Raises ProviderError."""

        def ask(client: Any) -> Mapping[str, Any]:
            from azure.core.rest import HttpRequest

            url = (
                f"{self._endpoint}/subscriptions/{self._subscription_id}/providers/"
                f"Microsoft.Compute/locations/{question['desiredLocations'][0]}"
                "/placementScores/spot/generate"
            )
            request = HttpRequest("POST", url, params={"api-version": api}, json=dict(question))
            return _document(client.send_request(request))

        return self.compute(ask)

    def graph(self, api: str, question: str) -> Mapping[str, Any]:
        """What Resource Graph answers about the subscription. Raises ProviderError."""

        def ask(client: Any) -> Mapping[str, Any]:
            from azure.core.rest import HttpRequest

            url = f"{self._endpoint}/providers/Microsoft.ResourceGraph/resources"
            body = {
                "subscriptions": [self._subscription_id],
                "query": question,
                "options": {"resultFormat": "objectArray"},
            }
            request = HttpRequest("POST", url, params={"api-version": api}, json=body)
            return _document(client.send_request(request))

        return self.compute(ask)

    def prices(self, page: str | Mapping[str, str]) -> Mapping[str, Any]:
        """One page of the retail prices: the first by its parameters, others by their address.
        Nobody has to say who they are. Raises ProviderError."""

        def ask() -> Mapping[str, Any]:
            from azure.core.rest import HttpRequest

            if isinstance(page, str):
                request = HttpRequest("GET", page)
            else:
                url = f"{self._prices_endpoint}{PRICES_PATH}"
                request = HttpRequest("GET", url, params=dict(page))
            client = self._client("prices", self._make_prices)
            return _document(client.send_request(request))

        return self._translating(ask)

    def blob(self, url: str) -> str:
        """The text behind an address that says itself who may read it. Raises ProviderError."""

        def ask() -> str:
            from azure.core.rest import HttpRequest

            answer = self._client("blobs", self._make_blobs).send_request(HttpRequest("GET", url))
            answer.raise_for_status()
            return bytes(answer.content).decode(errors="replace")

        return self._translating(ask)

    def _translating(self, ask: Callable[[], T]) -> T:
        import azure.core.exceptions as failures

        try:
            return ask()
        except failures.ClientAuthenticationError as error:
            raise _unauthorized(error) from None
        except failures.HttpResponseError as error:
            if error.response is None:
                raise UnknownOutcome(str(error)) from error
            raise _translated(error.response) from None
        except failures.SerializationError as error:
            raise RejectedError(str(error)) from None
        except (failures.AzureError, ValueError) as error:  # ValueError: of what cannot be read
            raise UnknownOutcome(f"{type(error).__name__}: {error}") from error

    def _client(self, name: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]

    def _make_compute(self) -> Any:
        from azure.mgmt.compute import ComputeManagementClient

        return self._management(ComputeManagementClient)

    def _make_network(self) -> Any:
        from azure.mgmt.network import NetworkManagementClient

        return self._management(NetworkManagementClient)

    def _management(self, client: Callable[..., Any]) -> Any:
        import azure.core.pipeline.policies as steps
        from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy

        scopes = [f"{self._endpoint}/.default"]
        credential = self._credential()
        return client(
            credential,
            self._subscription_id,
            base_url=self._endpoint,
            credential_scopes=scopes,
            policies=[
                steps.RequestIdPolicy(),
                steps.HeadersPolicy(),
                steps.UserAgentPolicy("spotd"),
                steps.ContentDecodePolicy(),
                ARMChallengeAuthenticationPolicy(credential, *scopes),
            ],
            **self._timeouts,
        )

    def _credential(self) -> Any:
        """With the lock held."""
        if "credential" not in self._made:
            self._made["credential"] = self._make_credential()
        return self._made["credential"]

    def _make_prices(self) -> Any:
        import azure.core.pipeline.policies as steps
        from azure.core import PipelineClient

        policies = [steps.UserAgentPolicy("spotd"), steps.ContentDecodePolicy()]
        options: dict[str, Any] = {"policies": policies, **self._timeouts}
        return PipelineClient(self._prices_endpoint, **options)

    def _make_blobs(self) -> Any:
        """No policy reads what comes: it is no document."""
        import azure.core.pipeline.policies as steps
        from azure.core import PipelineClient

        options: dict[str, Any] = {"policies": [steps.UserAgentPolicy("spotd")], **self._timeouts}
        return PipelineClient(self._endpoint, **options)

    def _make_credential(self) -> Any:
        """Another authority is one of a cloud that Microsoft's own does not know of."""
        from azure.identity import DefaultAzureCredential

        elsewhere: dict[str, Any] = {}
        if self._authority:
            elsewhere = {"authority": self._authority, "disable_instance_discovery": True}
        pauses = {"retry_backoff_factor": TOKEN_BACKOFF_S}
        return DefaultAzureCredential(**elsewhere, **self._timeouts, **pauses)


def failure(error: Mapping[str, Any], retry_after_s: float | None = None) -> ProviderError:
    """What the "error" of an answer, or of an operation, means."""
    code, words = str(error.get("code") or ""), str(error.get("message") or "")
    return CODES.error(code, words, retry_after_s)


def _document(response: Any) -> Mapping[str, Any]:
    """Raises azure.core's HttpResponseError, and ValueError for what is no JSON object."""
    response.raise_for_status()
    document = response.json()
    if not isinstance(document, Mapping):
        raise ValueError(f"not a document: {str(document)[:200]}")
    return document


def _translated(response: Any) -> ProviderError:
    status, error = response.status_code, _error_of(response)
    retry_after_s = _seconds(response.headers.get("Retry-After", ""))
    words = str(error.get("message") or "")
    if status == 429:
        pause_s = THROTTLED_S if retry_after_s is None else retry_after_s
        code = str(error.get("code") or "429")
        return ThrottledError(f"{code}: {words}", retry_after_s=pause_s, code=code)
    if not error.get("code"):  # a proxy's page, or nothing: the status is all there is
        text = f"HTTP {status} without a reason that can be read: {words}"
        kind = AuthError if status in (401, 403) else UnknownOutcome
        return kind(text, code=str(status))
    return failure(error, retry_after_s)


def _unauthorized(error: Any) -> ProviderError:
    """Of a credential that is not to be had, or that Azure refuses. The token service's own trouble
    says nothing about it."""
    if _TROUBLE.search(str(error.message)):
        return UnknownOutcome(f"no token: {error.message}")
    return AuthError(f"no credentials for Azure: {error.message}; {_FIX}", code="Unauthorized")


def _error_of(response: Any) -> Mapping[str, Any]:
    """{"code": ..., "message": ...} of an answer; {} where none can be read. Some answers have it
    in an "error", some are it."""
    try:
        document = response.json()
    except Exception:  # noqa: BLE001 - whatever came, it is no error of Azure's
        return {}
    if not isinstance(document, Mapping):
        return {}
    error = document.get("error", document)
    return error if isinstance(error, Mapping) else {}


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdecimal() else None
