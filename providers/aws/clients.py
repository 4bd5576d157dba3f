"""AWS API clients, one for each service and region, and the translation of their errors.

botocore is imported with the first call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

from providers.aws.codes import CODES
from providers.base import (
    AuthError,
    ProviderError,
    RejectedError,
    UnknownOutcome,
    UnpreparedError,
)

CONNECT_TIMEOUT_S = 3.0
MAX_PARALLEL = 8  # regions that are called at the same time

# Refusals for which other credentials do not help: a missing permission, or a blocked account.
_PERMISSION_CODES = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
_ACCOUNT_CODES = ("PendingVerification", "Blocked")
_CREDENTIALS_FIX = "check that `aws sts get-caller-identity` works as the user that runs spotd"
_POLICY_FIX = "`spotctl doctor --policy aws` prints the rights that it needs"

# A region that every account of the partition has (partitions: AWS's endpoints file).
_HOME_REGIONS = {"aws": "us-east-1", "aws-cn": "cn-north-1", "aws-us-gov": "us-gov-west-1"}

T = TypeVar("T")


class Clients:
    """Clients of one profile, created on first use.

    Credentials come only through the SDK's own chain, which renews them. Nothing is retried here
    (`total_max_attempts=1`): botocore would retry capacity refusals, which EC2 reports with HTTP
    500, and the daemon retries everything else.
    """

    def __init__(self, profile: str = "", timeout_s: float = 10.0) -> None:
        self._profile = profile
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._pool = ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="aws")

    def call(
        self, region: str, operation: str, service: str = "ec2", **parameters: Any
    ) -> dict[str, Any]:
        """Make one call; `operation` is a method name of the client ("run_instances"). Raises
        ProviderError."""
        import botocore.exceptions as failures
        import botocore.parsers

        try:
            client = self._client(service, region)
            return dict(getattr(client, operation)(**parameters))
        except failures.ClientError as error:
            raise self._translate_refusal(error.response, region) from None
        except (
            failures.CredentialRetrievalError,
            failures.NoCredentialsError,
            failures.PartialCredentialsError,
            failures.NoAuthTokenError,
            failures.ProfileNotFound,
            failures.SSOError,
            failures.TokenRetrievalError,
            failures.InvalidConfigError,
        ) as error:
            self._reset()
            raise AuthError(f"no credentials for AWS: {error}; {_CREDENTIALS_FIX}") from None
        except failures.ParamValidationError as error:
            raise RejectedError(f"{region}: {error}") from None
        except failures.InvalidRegionError:
            raise UnpreparedError(_unknown_region(region)) from None
        except failures.EndpointConnectionError as error:
            if not self._is_known_region(region):
                raise UnpreparedError(_unknown_region(region)) from None
            raise UnknownOutcome(f"{region}: {error}") from error
        except (
            failures.BotoCoreError,
            botocore.parsers.ResponseParserError,
            ValueError,  # an unreadable answer
        ) as error:
            raise UnknownOutcome(f"{region}: {error}") from error

    def pages(
        self, region: str, operation: str, rows: str, service: str = "ec2", **parameters: Any
    ) -> list[dict[str, Any]]:
        """Return all rows of a paginated answer. Raises ProviderError rather than returning part of
        them."""
        result: list[dict[str, Any]] = []
        next_token = ""
        while True:
            page = {"NextToken": next_token} if next_token else {}
            answer = self.call(region, operation, service, **parameters, **page)
            result.extend(answer.get(rows) or ())
            next_token = answer.get("NextToken") or ""
            if not next_token:
                return result

    def for_all_regions(
        self, regions: Sequence[str], fetch: Callable[[str], Iterable[T]]
    ) -> list[tuple[str, list[T]]]:
        """Call `fetch` for each region in parallel and return all results, or raise the first
        error.

        No call is in flight any more when it returns.
        """
        results, failed = self.for_each_region(regions, fetch)
        for error in failed.values():
            raise error
        return results

    def for_each_region(
        self, regions: Sequence[str], fetch: Callable[[str], Iterable[T]]
    ) -> tuple[list[tuple[str, list[T]]], dict[str, ProviderError]]:
        """Call `fetch` for each region in parallel; return the results, and the errors by
        region."""

        def fetch_region(region: str) -> list[T] | ProviderError:
            try:
                return list(fetch(region))
            except ProviderError as error:
                return error

        if len(regions) == 1:
            outcomes = [fetch_region(regions[0])]
        else:
            calls = [self._pool.submit(fetch_region, region) for region in regions]
            wait(calls)
            outcomes = [call.result() for call in calls]
        results: list[tuple[str, list[T]]] = []
        failed: dict[str, ProviderError] = {}
        for region, outcome in zip(regions, outcomes, strict=True):
            if isinstance(outcome, ProviderError):
                failed[region] = outcome
            else:
                results.append((region, outcome))
        return results, failed

    def credentials(self) -> tuple[str, bool]:
        """Return (how they were found, whether they are permanent or renewed), after a first
        call."""
        from botocore.credentials import RefreshableCredentials

        with self._lock:
            credentials = self._session.get_credentials() if self._session is not None else None
        if credentials is None:
            return "unknown", True
        return str(credentials.method), isinstance(
            credentials, RefreshableCredentials
        ) or not credentials.token

    def _translate_refusal(self, response: Mapping[str, Any], region: str) -> ProviderError:
        error = _translate_error(response, region)
        if not isinstance(error, AuthError) or error.code in _ACCOUNT_CODES:
            return error
        if error.code in _PERMISSION_CODES:
            return AuthError(f"{error}; {_POLICY_FIX}", code=error.code)
        # EC2 also uses AuthFailure when the account has not opted in to a region.
        enabled_hint = f"that {region} is enabled: `aws account list-regions`"
        if error.code != "AuthFailure":
            enabled_hint = ""
        elif self._valid_elsewhere(region):
            message = f"{error}; the credentials are valid in other regions: check {enabled_hint}"
            return UnpreparedError(message, code=error.code)
        self._reset()
        hint = f", and {enabled_hint}" if enabled_hint else ""
        return AuthError(f"{error}; {_CREDENTIALS_FIX}{hint}", code=error.code)

    def _valid_elsewhere(self, region: str) -> bool:
        """Whether STS accepts the refused credentials in the partition's home region, which every
        account has enabled."""
        import botocore.exceptions as failures

        try:
            home_region = _HOME_REGIONS.get(self._partition(region), region)
            if home_region == region:
                return False
            self._client("sts", home_region).get_caller_identity()
        except (failures.BotoCoreError, failures.ClientError, ValueError):
            return False
        return True

    def _partition(self, region: str) -> str:
        """Raises botocore's errors."""
        with self._lock:
            session = self._open_session()
            return str(session.get_partition_for_region(region))

    def _reset(self) -> None:
        """Have the next call load credentials again: a credentials file may have changed."""
        with self._lock:
            self._session = None
            self._clients.clear()

    def _is_known_region(self, region: str) -> bool:
        """Whether the SDK knows the region; a region may be newer than the SDK."""
        import botocore.session

        session = botocore.session.Session()
        return any(
            region in session.get_available_regions("ec2", partition)
            for partition in session.get_available_partitions()
        )

    def _client(self, service: str, region: str) -> Any:
        """Return a client; raises botocore's errors. A session is not thread-safe, a client is."""
        with self._lock:
            client = self._clients.get((service, region))
            if client is None:
                client = self._clients[service, region] = self._create_client(service, region)
            return client

    def _create_client(self, service: str, region: str) -> Any:
        import botocore.config

        config = botocore.config.Config(
            connect_timeout=min(CONNECT_TIMEOUT_S, self._timeout_s),
            read_timeout=self._timeout_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=MAX_PARALLEL,
            user_agent_extra="spotd",
        )
        return self._open_session().create_client(service, region_name=region, config=config)

    def _open_session(self) -> Any:
        import botocore.session

        if self._session is None:
            self._session = botocore.session.Session(profile=self._profile or None)
            self._session.register_component("data_loader", _data_loader())
        return self._session


def _unknown_region(region: str) -> str:
    return f"AWS has no region {region!r} that can be reached: see `aws ec2 describe-regions`"


@cache
def _data_loader() -> Any:
    """Share one loader: EC2's API model is large, and one copy is enough for all AWS providers."""
    import botocore.loaders

    return botocore.loaders.create_loader()


def _translate_error(response: Mapping[str, Any], region: str) -> ProviderError:
    error, metadata = response.get("Error") or {}, response.get("ResponseMetadata") or {}
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    if not code or code.isdecimal():  # not an answer of AWS, perhaps a proxy's page
        status = metadata.get("HTTPStatusCode", code)
        return UnknownOutcome(f"{region}: HTTP {status} without an error code: {message}")
    described = f"{region}: {message}" if message else region
    return CODES.error(code, described)
