"""Finding, reading and checking the configuration; every problem is told at once."""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from spotd import paths
from spotd.config.checks import (
    check_limits,
    check_names,
    check_references,
    read_options,
    read_route,
)
from spotd.config.file import MINIMAL, ConfigFile, LocalProvider, SlackRoute
from spotd.config.start import check_start
from spotd.errors import InputError, Problem, suggest
from spotd.model import Timing
from spotd.spec import CheckpointDefaults, Known
from spotd.validation import Path as Keys
from spotd.validation import key_text, validate_partly

ENV_PREFIX = "SPOTD__"


class ConfigError(InputError):
    """A configuration that spotd does not start with."""


@dataclass(frozen=True)
class Config:
    """The configuration in force. `path` is the file it came from."""

    path: Path
    file: ConfigFile
    state_dir: Path
    socket: Path
    environ: Mapping[str, str] = field(repr=False)

    @property
    def database_url(self) -> str:
        return self.file.database.url or f"sqlite:///{self.state_dir / 'spotd.db'}"

    @property
    def deployment_store(self) -> str:
        """URL of the store of packages and logs."""
        return self.file.deployment.store or (self.state_dir / "store").as_uri()

    @property
    def checkpoint_defaults(self) -> CheckpointDefaults:
        """A folder of this machine serves as long as every machine of a job is one of its
        processes; a cloud's machine needs a store that it can reach."""
        section, providers = self.file.checkpoint, self.file.providers.values()
        local = all(isinstance(provider, LocalProvider) for provider in providers)
        store = (self.state_dir / "checkpoints").as_uri() if local else ""
        return CheckpointDefaults(section.store or store, section.every, section.keep)

    @property
    def timing(self) -> Timing:
        """How patient the daemon is, and how long machines go on without it."""
        unattended_s = self.file.limits.unattended_h * 3600
        return replace(self.file.timing.to_model(), unattended_s=unattended_s)

    @property
    def known(self) -> Known:
        """The names that job files may use."""
        return Known(clouds=_clouds(self.file), routes=tuple(self.file.alerts.routes))

    def store_options(self, url: str) -> dict[str, str]:
        """Options, secrets included, of the [stores] entry that `url` lies under, the closest one.

        Raises ConfigError when a secret cannot be read any more.
        """
        entries = [entry for entry in self.file.stores.values() if _is_under(url, entry.url)]
        if not entries:
            return {}
        entry = max(entries, key=lambda entry: len(entry.url))
        try:
            return read_options(entry.options, self.environ)
        except ValueError as error:
            text, _, fix = str(error).partition("; ")
            raise _error(self.path, [Problem("stores", text, fix)]) from None

    def route_url(self, name: str) -> str:
        """The secret URL of a Slack route. Raises ConfigError when it cannot be read any more."""
        route = self.file.alerts.routes[name]
        try:
            return read_route(route, self.environ) if isinstance(route, SlackRoute) else ""
        except ValueError as error:
            text, _, fix = str(error).partition("; ")
            raise _error(self.path, [Problem(f"alerts.routes.{name}", text, fix)]) from None


class _Environment(ConfigFile, BaseSettings):
    """The model as pydantic-settings wants it; only its fields are read."""

    model_config = SettingsConfigDict(extra="forbid")


def load_config(
    named: Path | None = None, environ: Mapping[str, str] | None = None, *, to_start: bool = False
) -> Config:
    """Read the file `named` (--config), or the first that exists of `paths.config_files`;
    `to_start` a daemon with it, which asks more of it and of this machine.

    Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    path = named or _find(environ)
    problems: list[tuple[Keys, Problem]] = []
    data = _merge(_read(path), _overrides(environ, problems))
    kinds = _kinds(data)
    file, wrong = validate_partly(ConfigFile, data)
    problems += [(keys, _blame(keys, problem, environ)) for keys, problem in wrong]
    config = Config(
        path=path,
        file=file,
        state_dir=_expand("state_dir", file.state_dir or paths.state_dir(environ), problems),
        socket=_expand("socket", file.socket or paths.daemon_socket(environ), problems),
        environ=environ,
    )
    for keys, text, fix in itertools.chain(
        check_limits(file, kinds),
        check_names(file, kinds),
        check_references(file, environ),
        check_start(config, kinds) if to_start else (),
    ):
        if not any(_related(keys, other) for other, _ in problems):
            problems.append((keys, Problem(key_text(keys), text, fix)))
    if problems:
        raise _error(path, [problem for _, problem in problems])
    return config


def _error(path: Path, problems: Sequence[Problem]) -> ConfigError:
    title = f"the configuration {path} cannot be used:"
    return ConfigError(title, problems, f"correct {path} as said above, then start again")


def _find(environ: Mapping[str, str]) -> Path:
    candidates = paths.config_files(environ)
    for path in candidates:
        if paths.present(path):
            return path
    if environ.get("SPOTD_CONFIG"):
        return candidates[0]  # reading it says what is wrong
    looked = ", ".join(str(path) for path in candidates)
    raise ConfigError(
        f"there is no configuration: looked for {looked}",
        [],
        f"for clouds on this machine: mkdir -p {candidates[-1].parent} && "
        f"spotctl cloud up > {candidates[-1]}; for others write one (spotd check says what is "
        "wrong with it), or name one with --config; "
        f"the smallest is\n{MINIMAL}",
    )


def _read(path: Path) -> dict[str, Any]:
    advice = f"name another with --config, or write one; the smallest is\n{MINIMAL}"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        title = f"cannot read the configuration {path}: {error.strerror}"
        raise ConfigError(title, [], advice) from None
    except RecursionError:
        raise _error(path, [Problem("", "not TOML for spotd: too deep")]) from None
    except ValueError as error:  # of which those for TOML and UTF-8 are kinds
        raise _error(path, [Problem("", f"not TOML: {error}")]) from None


def _expand(key: str, path: Path, problems: list[tuple[Keys, Problem]]) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        fix = "write the whole path, from /"
        problems.append(((key,), Problem(key, f"{path}: nobody has that home folder", fix)))
        return Path("/")


def _overrides(environ: Mapping[str, str], problems: list[tuple[Keys, Problem]]) -> dict[str, Any]:
    """What SPOTD__... variables say, as nested tables."""
    for name in environ:
        section = name.removeprefix(ENV_PREFIX).split("__")[0].lower()
        if name.startswith(ENV_PREFIX) and section not in ConfigFile.model_fields:
            fix = suggest(section, ConfigFile.model_fields)
            problems.append(((name,), Problem(name, "no such section", fix)))
    source = EnvSettingsSource(_Environment, env_prefix=ENV_PREFIX, env_nested_delimiter="__")
    source.env_vars = {name.lower(): value for name, value in environ.items()}
    try:
        return source()
    except SettingsError:
        problems.append(((ENV_PREFIX,), Problem(ENV_PREFIX, "a whole section must be JSON")))
        return {}


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _blame(keys: Keys, problem: Problem, environ: Mapping[str, str]) -> Problem:
    """Say so when the value came from the environment."""
    name = ENV_PREFIX + "__".join(str(key) for key in keys).upper()
    return replace(problem, where=f"{problem.where} ({name})") if name in environ else problem


def _related(one: Keys, other: Keys) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _kinds(data: Mapping[str, Any]) -> dict[str, str]:
    """Provider name to kind, as written: what is checked must not vanish with a wrong key."""
    providers = data.get("providers")
    entries = providers.items() if isinstance(providers, dict) else ()
    return {name: str(entry.get("kind")) for name, entry in entries if isinstance(entry, dict)}


def _is_under(url: str, prefix: str) -> bool:
    return url == prefix or url.startswith(prefix + "/")


def _clouds(file: ConfigFile) -> tuple[str, ...]:
    makes = {getattr(entry, "personality", entry.kind) for entry in file.providers.values()}
    return tuple(sorted({*file.providers, *makes}))
