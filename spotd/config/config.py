"""The configuration in force, and what is derived from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotd.config.checks import read_options, read_route
from spotd.config.file import ConfigFile, LocalProvider, SlackRoute
from spotd.errors import InputError, Problem
from spotd.model import Timing
from spotd.spec import CheckpointDefaults, Known


class ConfigError(InputError):
    """A configuration that spotd does not start with."""


def config_error(path: Path, problems: Sequence[Problem]) -> ConfigError:
    """What is wrong with the file at `path`."""
    title = f"the configuration {path} cannot be used:"
    return ConfigError(title, problems, f"correct {path} as said above, then start again")


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
            raise config_error(self.path, [Problem("stores", text, fix)]) from None

    def route_url(self, name: str) -> str:
        """The secret URL of a Slack route. Raises ConfigError when it cannot be read any more."""
        route = self.file.alerts.routes[name]
        try:
            return read_route(route, self.environ) if isinstance(route, SlackRoute) else ""
        except ValueError as error:
            text, _, fix = str(error).partition("; ")
            raise config_error(self.path, [Problem(f"alerts.routes.{name}", text, fix)]) from None


def _is_under(url: str, prefix: str) -> bool:
    return url == prefix or url.startswith(prefix + "/")


def _clouds(file: ConfigFile) -> tuple[str, ...]:
    makes = {getattr(entry, "personality", entry.kind) for entry in file.providers.values()}
    return tuple(sorted({*file.providers, *makes}))
