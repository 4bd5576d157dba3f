"""Calls to AWS: one client for each service and region, and one place where its failures are
translated. botocore is imported with the first of them."""

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

CONNECT_S = 3.0
SIDE_BY_SIDE = 8  # regions that one question goes to at once

# Refusals that other credentials do not help against: a right is missing, or the account is held.
_RIGHTS = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
_ACCOUNT = ("PendingVerification", "Blocked")
_CREDENTIALS = "see that `aws sts get-caller-identity` works as the user that runs spotd"
_POLICY = "`spotctl doctor --policy aws` prints the rights that it needs"

# Regions that are in every account of their partition (AWS's endpoints file names the partitions).
_HOMES = {"aws": "us-east-1", "aws-cn": "cn-north-1", "aws-us-gov": "us-gov-west-1"}

T = TypeVar("T")


class Clients:
    """Clients of one profile, made when first used. Credentials come through the SDK's own chain
    alone, which renews what expires.

    Nothing is tried twice down here (`total_max_attempts=1`): botocore repeats what EC2 refuses
    for want of capacity, which it says with HTTP 500, and the daemon repeats everything else.
    """

    def __init__(self, profile: str = "", timeout_s: float = 10.0) -> None:
        self._profile = profile
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="aws")

    def call(
        self, region: str, operation: str, service: str = "ec2", **parameters: Any
    ) -> dict[str, Any]:
        """One call (`operation` as a method of the client: "run_instances"). Raises
        ProviderError."""
        import botocore.exceptions as failures
        import botocore.parsers

        try:
            client = self._client(service, region)
            return dict(getattr(client, operation)(**parameters))
        except failures.ClientError as error:
            raise self._refusal(error.response, region) from None
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
            self._forget()
            raise AuthError(f"no credentials for AWS: {error}; {_CREDENTIALS}") from None
        except failures.ParamValidationError as error:
            raise RejectedError(f"{region}: {error}") from None
        except failures.InvalidRegionError:
            raise UnpreparedError(_no_region(region)) from None
        except failures.EndpointConnectionError as error:
            if not self._known(region):
                raise UnpreparedError(_no_region(region)) from None
            raise UnknownOutcome(f"{region}: {error}") from error
        except (
            failures.BotoCoreError,
            botocore.parsers.ResponseParserError,
            ValueError,  # of an answer that cannot be read
        ) as error:
            raise UnknownOutcome(f"{region}: {error}") from error

    def pages(
        self, region: str, operation: str, rows: str, service: str = "ec2", **parameters: Any
    ) -> list[dict[str, Any]]:
        """All rows of a paginated answer. Raises ProviderError; half an answer is none."""
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            more = {"NextToken": token} if token else {}
            answer = self.call(region, operation, service, **parameters, **more)
            found.extend(answer.get(rows) or ())
            token = answer.get("NextToken") or ""
            if not token:
                return found

    def everywhere(
        self, regions: Sequence[str], ask: Callable[[str], Iterable[T]]
    ) -> list[tuple[str, list[T]]]:
        """What `ask` answers for each region, side by side: of all of them, or the first error.
        When this is over no call is on its way any more."""
        answers, failed = self.wherever(regions, ask)
        for error in failed.values():
            raise error
        return answers

    def wherever(
        self, regions: Sequence[str], ask: Callable[[str], Iterable[T]]
    ) -> tuple[list[tuple[str, list[T]]], dict[str, ProviderError]]:
        """The same, of those regions that answer, and the errors of the others."""

        def one(region: str) -> list[T] | ProviderError:
            try:
                return list(ask(region))
            except ProviderError as error:
                return error

        if len(regions) == 1:
            found = [one(regions[0])]
        else:
            calls = [self._pool.submit(one, region) for region in regions]
            wait(calls)
            found = [call.result() for call in calls]
        answers: list[tuple[str, list[T]]] = []
        failed: dict[str, ProviderError] = {}
        for region, told in zip(regions, found, strict=True):
            if isinstance(told, ProviderError):
                failed[region] = told
            else:
                answers.append((region, told))
        return answers, failed

    def credentials(self) -> tuple[str, bool]:
        """(how they were found, whether they last or are renewed), once a call has used them."""
        from botocore.credentials import RefreshableCredentials

        with self._lock:
            found = self._session.get_credentials() if self._session is not None else None
        if found is None:
            return "nobody knows", True
        return str(found.method), isinstance(found, RefreshableCredentials) or not found.token

    def _refusal(self, response: Mapping[str, Any], region: str) -> ProviderError:
        found = _translated(response, region)
        if not isinstance(found, AuthError) or found.code in _ACCOUNT:
            return found
        if found.code in _RIGHTS:
            return AuthError(f"{found}; {_POLICY}", code=found.code)
        # So EC2 calls it, too, when the account has not opted in to a region.
        enabled = f"that {region} is enabled: `aws account list-regions`"
        if found.code != "AuthFailure":
            enabled = ""
        elif self._good_beside(region):
            words = f"{found}; the credentials are good elsewhere: see {enabled}"
            return UnpreparedError(words, code=found.code)
        self._forget()
        more = f", and {enabled}" if enabled else ""
        return AuthError(f"{found}; {_CREDENTIALS}{more}", code=found.code)

    def _good_beside(self, region: str) -> bool:
        """Whether STS takes the credentials in a region that no account can do without: those that
        were refused, before anybody looks for new ones."""
        import botocore.exceptions as failures

        try:
            home = _HOMES.get(self._partition(region), region)
            if home == region:
                return False
            self._client("sts", home).get_caller_identity()
        except (failures.BotoCoreError, failures.ClientError, ValueError):
            return False
        return True

    def _partition(self, region: str) -> str:
        """Raises botocore's errors."""
        with self._lock:
            session = self._opened()
            return str(session.get_partition_for_region(region))

    def _forget(self) -> None:
        """The next call looks for credentials anew: those in a file may have been changed."""
        with self._lock:
            self._session = None
            self._clients.clear()

    def _known(self, region: str) -> bool:
        """Whether the SDK has heard of it; a region may be newer than the SDK."""
        import botocore.session

        session = botocore.session.Session()
        return any(
            region in session.get_available_regions("ec2", partition)
            for partition in session.get_available_partitions()
        )

    def _client(self, service: str, region: str) -> Any:
        """Raises botocore's errors. A session may be used by one thread at a time, a client by
        many."""
        with self._lock:
            client = self._clients.get((service, region))
            if client is None:
                client = self._clients[service, region] = self._make(service, region)
            return client

    def _make(self, service: str, region: str) -> Any:
        import botocore.config

        config = botocore.config.Config(
            connect_timeout=min(CONNECT_S, self._timeout_s),
            read_timeout=self._timeout_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=SIDE_BY_SIDE,
            user_agent_extra="spotd",
        )
        return self._opened().create_client(service, region_name=region, config=config)

    def _opened(self) -> Any:
        import botocore.session

        if self._session is None:
            self._session = botocore.session.Session(profile=self._profile or None)
            self._session.register_component("data_loader", _models())
        return self._session


def _no_region(region: str) -> str:
    return f"AWS has no region {region!r} that can be reached: see `aws ec2 describe-regions`"


@cache
def _models() -> Any:
    """EC2's model is large; one copy is enough for all providers of this make."""
    import botocore.loaders

    return botocore.loaders.create_loader()


def _translated(response: Mapping[str, Any], region: str) -> ProviderError:
    error, meta = response.get("Error") or {}, response.get("ResponseMetadata") or {}
    code, words = str(error.get("Code", "")), str(error.get("Message", ""))
    if not code or code.isdecimal():  # a proxy's page, or nothing: the status is all there is
        status = meta.get("HTTPStatusCode", code)
        return UnknownOutcome(f"{region}: HTTP {status} without a reason that can be read: {words}")
    text = f"{region}: {words}" if words else region
    return CODES.error(code, text)
