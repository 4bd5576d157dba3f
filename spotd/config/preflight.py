"""Check what a start needs of this version and this machine, without creating anything."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from providers.clouds import CLOUDS
from providers.stores import open_store
from providers.stores.base import StoreError as ObjectStoreError
from spotd.base.errors import UserError
from spotd.base.extras import install_command
from spotd.base.validation import Path as Keys
from spotd.config.checks import Finding
from spotd.config.clouds import LocalProvider
from spotd.config.config import Config
from spotd.config.file import ConfigFile
from spotd.store.engine import check_url
from spotd.store.errors import StoreError


def check_start(config: Config, kinds: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what prevents `spotd run` here as this user. `kinds` is provider to kind."""
    yield from _check_adapters(kinds)
    yield from _check_tokens(config.file)
    yield from _check_login_library(config.file)
    homeless = [*_check_state(config.state_dir)]
    yield from homeless
    if config.file.database.url or config.state_dir.is_dir():
        yield from _check_database(config.database_url)
    for section, given, url in (
        ("deployment", config.file.deployment.store, config.deployment_store),
        ("checkpoint", config.file.checkpoint.store, config.checkpoint_defaults.store),
    ):
        if given or (url and not homeless):  # those that are not given lie in the state folder
            yield from _check_store((section, "store"), url, config)


def _check_adapters(kinds: Mapping[str, str]) -> Iterator[Finding]:
    for name, kind in kinds.items():
        sdk = CLOUDS[kind].sdk if kind in CLOUDS else ""
        if sdk and find_spec(sdk) is None:
            text = f'"{kind}" needs the SDK of that cloud, and {sdk} is not installed'
            fix = f"{install_command(kind)} where spotd runs, or remove [providers.{name}]"
            yield ("providers", name, "kind"), text, fix


def _check_login_library(file: ConfigFile) -> Iterator[Finding]:
    if file.dashboard.listen and file.dashboard.oidc and find_spec("authlib") is None:
        text = "needs Authlib, which is not installed"
        yield ("dashboard", "oidc"), text, f"{install_command('oidc')} where spotd runs"


def _check_tokens(file: ConfigFile) -> Iterator[Finding]:
    for name, entry in file.providers.items():
        if not isinstance(entry, LocalProvider):
            continue
        fix = "`spotctl cloud up` prints the path of the file"
        if entry.token_file is None:
            text = "is missing, and the cloud accepts no requests without it"
            yield ("providers", name, "token_file"), text, fix
        for key in ("token_file", "end_token_file"):
            path: Path | None = getattr(entry, key)
            try:
                if path is not None:
                    path.read_bytes()
            except OSError as error:
                text = f"{path} cannot be read by {_user()}: {error.strerror}"
                yield ("providers", name, key), text, fix


def _check_state(folder: Path) -> Iterator[Finding]:
    if not _writable(folder):
        fix = "let the user that runs spotd write there, or set another one"
        yield ("state_dir",), f"the state folder {folder} cannot be written by {_user()}", fix


def _check_database(url: str) -> Iterator[Finding]:
    try:
        check_url(url)
    except StoreError as error:
        yield ("database", "url"), str(error), ""


def _check_store(keys: Keys, url: str, config: Config) -> Iterator[Finding]:
    parts = urlsplit(url)
    if parts.scheme == "file" and not _writable(Path(unquote(parts.path))):
        fix = "let the user that runs spotd write there, or name another store"
        yield keys, f"{url} cannot be written by {_user()}", fix
        return
    try:
        options = config.store_options(url)
    except UserError:
        return  # a secret that cannot be read is reported with [stores]
    try:
        open_store(url, options)
    except ObjectStoreError as error:
        yield keys, str(error), ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"user {os.geteuid()}"


def _writable(folder: Path) -> bool:
    """Return whether this user may write to the folder or create it."""
    place = next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
