"""Default locations: systemd's folders, or the user's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import platformdirs

SYSTEM_CONFIG = Path("/etc/spotd/config.toml")
SYSTEM_SOCKET = Path("/run/spotd/spotd.sock")


def config_files(environ: Mapping[str, str]) -> list[Path]:
    """Return where a configuration is searched for if none is named, best first."""
    named = environ.get("SPOTD_CONFIG", "")
    if named:
        return [Path(named)]
    return [SYSTEM_CONFIG, platformdirs.user_config_path("spotd") / "config.toml"]


def state_dir(environ: Mapping[str, str]) -> Path:
    """The daemon's own files: database, master key, the default object store."""
    given = environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(given) if given else platformdirs.user_state_path("spotd")


def daemon_socket(environ: Mapping[str, str]) -> Path:
    """Return where a daemon with this environment listens."""
    given = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given) / "spotd.sock"
    session = environ.get("XDG_RUNTIME_DIR", "")
    return (Path(session) / "spotd" if session else state_dir(environ)) / "spotd.sock"


def client_sockets(environ: Mapping[str, str]) -> list[Path]:
    """Return where a client looks for a daemon: the user's own, then the machine's."""
    return [daemon_socket(environ), SYSTEM_SOCKET]


def imports_dir() -> Path:
    """Return where `spotctl` keeps interrupted imports."""
    return platformdirs.user_cache_path("spotd") / "imports"


def present(path: Path) -> bool:
    """Return whether the file exists.

    One in a folder that we may not enter counts: opening it then says what is wrong.
    """
    try:
        return path.exists()
    except PermissionError:
        return True
