"""`rclone mount`: what it is told of a bucket, which it may read alone.

One well-kept program for all clouds' stores, packaged by every distribution. What it opens a bucket
with is in its environment and nowhere else: no argument and no file has a key. Where a machine is
to show who it is, rclone asks for what it is given for that, and again before it ends: for S3 a
program of ours (`trainer.mounts.credentials`), for Google's and Azure's stores a door that it is
started with (`trainer.mounts.signing_proxy`). (Names of options: rclone's own pages on its backends
s3, google cloud storage and azureblob, and on `rclone mount`.)
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
from trainer.agent.data.read_meter import EVERY_S, counting

OLDEST = (1, 53)  # the first whose cache is of parts of files
_IDENTITY = (1, 54)  # the first that asks for tokens of an identity of Azure
_DOORS = (1, 61)  # the first whose endpoint of Azure is a URL
SAS_DAYS = 30  # that a mount of Azure's with an account's key can be read
_SAS_VERSION = "2021-12-02"
# A server that is silent for so long, and what is tried again so often, fails the read of whoever
# waits for it: after some minutes, and not never.
_BOUNDS = ("--timeout=30s", "--contimeout=10s", "--low-level-retries=5")
# What says that a copy of a data set is whole, and whose turn it is to make it, is none of the data
# (providers/stores/dataset_copy.py).
_HIDDEN = ("--exclude=/SPOTD-STAGED", "--exclude=/SPOTD-STAGING", "--exclude=/SPOTD-ORIGIN")
_OURS = ("RCLONE_", "AWS_CA_BUNDLE")


class UnmountableError(Exception):
    """A bucket that rclone cannot be let into; the text says why."""


def remote_env(
    url: str,
    options: Mapping[str, str],
    order: Path,
    now: datetime | None = None,
    *,
    version: tuple[int, int] = _DOORS,
) -> dict[str, str]:
    """The remote `spotd:` for an rclone of this `version`, as its environment names it. `order` is
    a private file in memory that a machine's proof of who it is finds its options in. Raises
    UnmountableError."""
    scheme, container = urlsplit(url).scheme, urlsplit(url).netloc
    more: dict[str, str] = {}
    if scheme == "s3":
        remote, more = _s3(options, order)
    elif scheme == "gs":
        remote = _gcs(options)
    else:
        remote = _azure(container, options, now or datetime.now(timezone.utc), version)
    named = {f"RCLONE_CONFIG_SPOTD_{name.upper()}": value for name, value in remote.items()}
    return {**named, **more}


def _s3(options: Mapping[str, str], order: Path) -> tuple[dict[str, str], dict[str, str]]:
    endpoint = options.get("endpoint", "")
    remote = {"type": "s3", "provider": "Other" if endpoint else "AWS", "no_check_bucket": "true"}
    names = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
    remote |= {name: options[name] for name in names if options.get(name)}
    if options.get("identity"):
        remote |= {"env_auth": "true", "profile": "spotd"}
        return remote, {
            "AWS_CONFIG_FILE": str(order.with_suffix(".aws")),
            "AWS_SDK_LOAD_CONFIG": "1",
        }
    if not options.get("access_key_id"):
        remote["env_auth"] = "true"
    return remote, {}


def aws_profile(order: Path) -> str:
    """What `AWS_CONFIG_FILE` has: rclone asks anew when what it has is over."""
    words = [*_ours("trainer.mounts.credentials"), str(order)]
    return f"[profile spotd]\ncredential_process = {shlex.join(words)}\n"


def with_door(argv: Sequence[str], url: str, order: Path, version: tuple[int, int]) -> list[str]:
    """The same command, started beside a door that gives it tokens. What `order` has are the
    options of the store; the word of the door is in the environment."""
    said = ".".join(map(str, version))
    return [*_ours("trainer.mounts.signing_proxy"), str(order), urlsplit(url).scheme, said, *argv]


def _ours(module: str) -> list[str]:
    """A program of ours, by the agent's own Python."""
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
    container: str, options: Mapping[str, str], now: datetime, version: tuple[int, int]
) -> dict[str, str]:
    account = options.get("account", "")
    root = options.get("endpoint") or f"https://{account}.blob.core.windows.net"
    sas = options.get("sas_token", "").lstrip("?")
    if key := options.get("account_key"):
        sas = reading_sas(account, container, key, now)
    if sas:
        return {"type": "azureblob", "sas_url": f"{root.rstrip('/')}/{container}?{sas}"}
    if version < _IDENTITY:
        raise UnmountableError(
            f"rclone {version[0]}.{version[1]} cannot show Azure who this machine is: have one of "
            f"{_IDENTITY[0]}.{_IDENTITY[1]} or newer in the image, or write mode: COPY"
        )
    remote = {"type": "azureblob", "account": account, "use_msi": "true"}
    if endpoint := options.get("endpoint", ""):
        remote["endpoint"] = _door_of(account, endpoint, version)
    # Who shows what it is has no identity of Azure's to choose.
    own = {} if options.get("identity") else {"msi_client_id": options.get("client_id", "")}
    return remote | {name: value for name, value in own.items() if value}


def _door_of(account: str, endpoint: str, version: tuple[int, int]) -> str:
    """As rclone names it: older ones want what is behind the account, and speak https."""
    if version >= _DOORS:
        return endpoint
    begin = f"https://{account}."
    if not endpoint.startswith(begin):
        raise UnmountableError(
            f"rclone {version[0]}.{version[1]} reaches endpoints like {begin}DOMAIN alone, and "
            f"that of the store is {endpoint}: have one of {_DOORS[0]}.{_DOORS[1]} or newer in the "
            "image, or write mode: COPY"
        )
    return endpoint.removeprefix(begin).rstrip("/")


def reading_sas(account: str, container: str, key: str, now: datetime) -> str:
    """A right to list and read one container, signed with the account's key. (Microsoft's reference
    "Create a service SAS", of this version: the fields that are signed, in order.)"""
    start, end = now - timedelta(minutes=15), now + timedelta(days=SAS_DAYS)
    given = {
        "sp": "rl",
        "st": f"{start:%Y-%m-%dT%H:%M:%SZ}",
        "se": f"{end:%Y-%m-%dT%H:%M:%SZ}",
        "sv": _SAS_VERSION,
        "sr": "c",
    }
    place = f"/blob/{account}/{container}"
    signed = [given["sp"], given["st"], given["se"], place, "", "", "", given["sv"], given["sr"]]
    text = "\n".join([*signed, *[""] * 7])
    mac = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    return urlencode({**given, "sig": base64.b64encode(mac).decode()})


def mount_argv(
    rclone: str,
    url: str,
    folder: Path,
    mode: MountMode,
    cache: Path,
    most: int,
    *,
    others: bool,
    count_s: int = EVERY_S,
) -> list[str]:
    """The command that mounts, and stays. `most` bytes are cached, at `cache`; with `others` the
    machine's other users see it too, those of containers among them; each `count_s` it says in its
    log how much was read."""
    parts = urlsplit(url)
    cached = mode is MountMode.MOUNT_CACHED
    argv = [rclone, "mount", f"spotd:{parts.netloc}{parts.path}".rstrip("/"), str(folder)]
    argv += ["--config=", *_HIDDEN, "--read-only", "--use-server-modtime", "--umask=022", *_BOUNDS]
    argv += [
        "--log-level=NOTICE",
        *counting(count_s),
        "--vfs-cache-mode",
        "full" if cached else "off",
    ]
    if cached:
        argv += [f"--cache-dir={cache}", f"--vfs-cache-max-size={most}B"]
        argv += ["--vfs-cache-max-age=8760h", "--vfs-cache-poll-interval=5s"]
    return [*argv, *(["--allow-other"] if others else [])]


def plain_env(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """What of the machine's environment it runs in; and arguments in place of the rest. AWS's SDK
    in it ends at once where AWS_CA_BUNDLE is set."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_OURS)}
    bundle = environ.get("AWS_CA_BUNDLE", "")
    return kept, [f"--ca-cert={bundle}"] if bundle else []
