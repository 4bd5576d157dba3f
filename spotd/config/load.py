"""Find, read and check the configuration; report every problem at once."""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from spotd.base import paths
from spotd.base.errors import Problem, suggest
from spotd.base.validation import Path as Keys
from spotd.base.validation import key_text, validate_partly
from spotd.config.checks import check_datasets, check_limits, check_names, check_references
from spotd.config.config import Config, ConfigError, config_error
from spotd.config.dashboard import check_dashboard
from spotd.config.file import MINIMAL, ConfigFile
from spotd.config.jump_hosts import check_jumps
from spotd.config.metrics_listener import check_metrics
from spotd.config.preflight import check_start

ENV_PREFIX = "SPOTD__"


class _Environment(ConfigFile, BaseSettings):
    """The model as pydantic-settings wants it; only its fields are read."""

    model_config = SettingsConfigDict(extra="forbid")


def load_config(
    named: Path | None = None, environ: Mapping[str, str] | None = None, *, to_start: bool = False
) -> Config:
    """Read the file `named` (--config), or the first that exists of `paths.config_files`.

    `to_start` also checks what starting a daemon needs of this machine. Raises ConfigError.
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
        check_datasets(file),
        check_jumps(file, environ),
        check_metrics(file.metrics, environ),
        check_dashboard(file.dashboard, environ),
        check_start(config, kinds) if to_start else (),
    ):
        if not any(_related(keys, other) for other, _ in problems):
            problems.append((keys, Problem(key_text(keys), text, fix)))
    if problems:
        raise config_error(path, [problem for _, problem in problems])
    return config


def _find(environ: Mapping[str, str]) -> Path:
    candidates = paths.config_files(environ)
    for path in candidates:
        if paths.present(path):
            return path
    if environ.get("SPOTD_CONFIG"):
        return candidates[0]  # reading it says what is wrong
    looked = ", ".join(str(path) for path in candidates)
    raise ConfigError(
        f"there is no configuration file at {looked}",
        [],
        f"for clouds on this machine: mkdir -p {candidates[-1].parent} && "
        f"spotctl cloud up > {candidates[-1]}; for others write one (spotd check lists what is "
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
        raise config_error(path, [Problem("", "not TOML for spotd: too deep")]) from None
    except ValueError as error:  # of which those for TOML and UTF-8 are kinds
        raise config_error(path, [Problem("", f"not TOML: {error}")]) from None


def _expand(key: str, path: Path, problems: list[tuple[Keys, Problem]]) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        fix = "write the whole path, from /"
        problems.append(((key,), Problem(key, f"{path}: there is no such home folder", fix)))
        return Path("/")


def _overrides(environ: Mapping[str, str], problems: list[tuple[Keys, Problem]]) -> dict[str, Any]:
    """Return the SPOTD__... variables as nested tables."""
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
    """Say in the problem that the value came from the environment."""
    name = ENV_PREFIX + "__".join(str(key) for key in keys).upper()
    return replace(problem, where=f"{problem.where} ({name})") if name in environ else problem


def _related(one: Keys, other: Keys) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _kinds(data: Mapping[str, Any]) -> dict[str, str]:
    """Return each provider's kind as written, also if another of its keys is wrong."""
    providers = data.get("providers")
    entries = providers.items() if isinstance(providers, dict) else ()
    return {name: str(entry.get("kind")) for name, entry in entries if isinstance(entry, dict)}
