"""Command line and environment of a read-only `rclone mount` of a bucket.

rclone supports the stores of all clouds, and every distribution packages it. Credentials are only
in its environment, never in an argument or a file. Where the machine authenticates by its identity,
rclone requests fresh credentials before they expire: for S3 from `trainer.mounts.credentials`, for
Google's and Azure's stores through a proxy started with it (`trainer.mounts.signing_proxy`). Option
names are from rclone's pages on its backends s3, google cloud storage and azureblob, and on `rclone
mount`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from spotd.wire import MountMode
from trainer.agent.data.read_meter import EVERY_S, stats_flags

MIN_VERSION = (1, 53)  # the first that caches parts of files
_IDENTITY_VERSION = (1, 54)  # the first that supports Azure managed identities
_ENDPOINT_URL_VERSION = (1, 61)  # the first that takes the Azure endpoint as a URL
SAS_DAYS = 30  # validity of a SAS made from an Azure account key
_SAS_VERSION = "2021-12-02"
# With these limits, a read from a silent server fails after some minutes instead of hanging.
_LIMITS = ("--timeout=30s", "--contimeout=10s", "--low-level-retries=5")
# Markers of data set copies that are not part of the data (providers/stores/dataset_copy.py).
_EXCLUDED = ("--exclude=/SPOTD-STAGED", "--exclude=/SPOTD-STAGING", "--exclude=/SPOTD-ORIGIN")
_UNSET_PREFIXES = ("RCLONE_", "AWS_CA_BUNDLE")


class UnmountableError(Exception):
    """rclone cannot access the bucket; the message has the reason."""


def remote_env(
    url: str,
    options: Mapping[str, str],
    options_file: Path,
    now: datetime | None = None,
    *,
    version: tuple[int, int] = _ENDPOINT_URL_VERSION,
) -> dict[str, str]:
    """Return the environment that defines the remote `spotd:` for rclone of this `version`.

    `options_file` is a private file in memory with the store options, for authentication by the
    machine's identity. Raises UnmountableError.
    """
    scheme, container = urlsplit(url).scheme, urlsplit(url).netloc
    extra: dict[str, str] = {}
    if scheme == "s3":
        remote, extra = _s3(options, options_file)
    elif scheme == "gs":
        remote = _gcs(options)
    else:
        remote = _azure(container, options, now=now or datetime.now(timezone.utc), version=version)
    prefixed = {f"RCLONE_CONFIG_SPOTD_{name.upper()}": value for name, value in remote.items()}
    return {**prefixed, **extra}


def _s3(options: Mapping[str, str], options_file: Path) -> tuple[dict[str, str], dict[str, str]]:
    endpoint = options.get("endpoint", "")
    remote = {"type": "s3", "provider": "Other" if endpoint else "AWS", "no_check_bucket": "true"}
    names = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
    remote |= {name: options[name] for name in names if options.get(name)}
    if options.get("identity"):
        remote |= {"env_auth": "true", "profile": "spotd"}
        return remote, {
            "AWS_CONFIG_FILE": str(options_file.with_suffix(".aws")),
            "AWS_SDK_LOAD_CONFIG": "1",
        }
    if not options.get("access_key_id"):
        remote["env_auth"] = "true"
    return remote, {}


def aws_profile(options_file: Path) -> str:
    """Return the content of `AWS_CONFIG_FILE`, which makes rclone request new credentials in
    time."""
    command = [*_own_program("trainer.mounts.credentials"), str(options_file)]
    return f"[profile spotd]\ncredential_process = {shlex.join(command)}\n"


def with_signing_proxy(
    argv: Sequence[str], url: str, options_file: Path, *, version: tuple[int, int]
) -> list[str]:
    """Return the command started beside a proxy that supplies tokens.

    `options_file` holds the store options; the proxy's secret is in the environment.
    """
    return [
        *_own_program("trainer.mounts.signing_proxy"),
        str(options_file),
        urlsplit(url).scheme,
        _text(version),
        *argv,
    ]


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _own_program(module: str) -> list[str]:
    """Return the command of one of our modules, run by the agent's own Python."""
    return ["env", f"PYTHONPATH={Path(__file__).parents[3]}", sys.executable, "-m", module]


def _gcs(options: Mapping[str, str]) -> dict[str, str]:
    remote = {"type": "google cloud storage", "no_check_bucket": "true"}
    if options.get("endpoint"):
        remote["endpoint"] = f"{options['endpoint'].rstrip('/')}/storage/v1/"
    key = options.get("service_account_key", "")
    if not key:
        return {**remote, "env_auth": "true"}
    if json.loads(key).get("disable_oauth"):
        return {**remote, "anonymous": "true"}
    return {**remote, "service_account_credentials": key}


def _azure(
    container: str, options: Mapping[str, str], *, now: datetime, version: tuple[int, int]
) -> dict[str, str]:
    account = options.get("account", "")
    root = options.get("endpoint") or f"https://{account}.blob.core.windows.net"
    sas = options.get("sas_token", "").lstrip("?")
    if key := options.get("account_key"):
        sas = read_only_sas(account, container, key=key, now=now)
    if sas:
        return {"type": "azureblob", "sas_url": f"{root.rstrip('/')}/{container}?{sas}"}
    if version < _IDENTITY_VERSION:
        raise UnmountableError(
            f"rclone {_text(version)} cannot use an Azure identity: install "
            f"{_text(_IDENTITY_VERSION)} or newer in the image, or use mode: COPY"
        )
    remote = {"type": "azureblob", "account": account, "use_msi": "true"}
    if endpoint := options.get("endpoint", ""):
        remote["endpoint"] = _azure_endpoint(account, endpoint, version)
    # With identity federation there is no Azure managed identity to choose.
    identity = {} if options.get("identity") else {"msi_client_id": options.get("client_id", "")}
    return remote | {name: value for name, value in identity.items() if value}


def _azure_endpoint(account: str, endpoint: str, version: tuple[int, int]) -> str:
    """Return the endpoint as rclone expects it: older versions take the domain after the
    account."""
    if version >= _ENDPOINT_URL_VERSION:
        return endpoint
    prefix = f"https://{account}."
    if not endpoint.startswith(prefix):
        raise UnmountableError(
            f"rclone {_text(version)} supports only endpoints like {prefix}DOMAIN, but "
            f"that of the store is {endpoint}: install "
            f"{_text(_ENDPOINT_URL_VERSION)} or newer in the image, or use mode: COPY"
        )
    return endpoint.removeprefix(prefix).rstrip("/")


def read_only_sas(account: str, container: str, *, key: str, now: datetime) -> str:
    """Return a SAS to list and read one container, signed with the account key.

    The signed fields and their order are from Microsoft's reference "Create a service SAS", for
    this version.
    """
    start, end = now - timedelta(minutes=15), now + timedelta(days=SAS_DAYS)
    fields = {
        "sp": "rl",
        "st": f"{start:%Y-%m-%dT%H:%M:%SZ}",
        "se": f"{end:%Y-%m-%dT%H:%M:%SZ}",
        "sv": _SAS_VERSION,
        "sr": "c",
    }
    resource = f"/blob/{account}/{container}"
    signed = [
        fields["sp"],
        fields["st"],
        fields["se"],
        resource,
        "",
        "",
        "",
        fields["sv"],
        fields["sr"],
    ]
    text = "\n".join([*signed, *[""] * 7])
    mac = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    return urlencode({**fields, "sig": base64.b64encode(mac).decode()})


def mount_argv(
    rclone: str,
    url: str,
    folder: Path,
    *,
    mode: MountMode,
    cache: Path,
    cache_bytes: int,
    allow_other: bool,
    count_s: int = EVERY_S,
) -> list[str]:
    """Return the command that mounts, and runs until it is unmounted.

    `cache_bytes` limits the cache in the folder `cache`. With `allow_other` other users of the
    machine, such as those in containers, can see the mount. Every `count_s` seconds the log gets
    the number of bytes read.
    """
    parts = urlsplit(url)
    cached = mode is MountMode.MOUNT_CACHED
    argv = [rclone, "mount", f"spotd:{parts.netloc}{parts.path}".rstrip("/"), str(folder)]
    argv += [
        "--config=",
        *_EXCLUDED,
        "--read-only",
        "--use-server-modtime",
        "--umask=022",
        *_LIMITS,
    ]
    argv += [
        "--log-level=NOTICE",
        *stats_flags(count_s),
        "--vfs-cache-mode",
        "full" if cached else "off",
    ]
    if cached:
        argv += [f"--cache-dir={cache}", f"--vfs-cache-max-size={cache_bytes}B"]
        argv += ["--vfs-cache-max-age=8760h", "--vfs-cache-poll-interval=5s"]
    return [*argv, *(["--allow-other"] if allow_other else [])]


def rclone_env(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the machine's environment without variables that rclone misreads, and arguments to
    replace them.

    rclone's AWS SDK fails at once if AWS_CA_BUNDLE is set.
    """
    inherited = {
        name: value for name, value in environ.items() if not name.startswith(_UNSET_PREFIXES)
    }
    bundle = environ.get("AWS_CA_BUNDLE", "")
    return inherited, [f"--ca-cert={bundle}"] if bundle else []
