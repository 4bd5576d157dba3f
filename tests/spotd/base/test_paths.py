"""Default places."""

from pathlib import Path

import pytest

from spotd.api_client.client import local_socket
from spotd.base import paths
from spotd.base.errors import UserError
from spotd.config.load import load_config


def test_systemd_says_where_the_daemon_lives() -> None:
    environ = {"STATE_DIRECTORY": "/var/lib/spotd:/var/lib/more", "RUNTIME_DIRECTORY": "/run/spotd"}
    assert paths.state_dir(environ) == Path("/var/lib/spotd")
    assert paths.daemon_socket(environ) == Path("/run/spotd/spotd.sock")


def test_a_client_looks_for_its_own_daemon_before_the_machines() -> None:
    own, shared = paths.client_sockets({"XDG_RUNTIME_DIR": "/run/user/7"})
    assert own == Path("/run/user/7/spotd/spotd.sock")
    assert shared == Path("/run/spotd/spotd.sock")


def test_a_named_configuration_is_the_only_candidate() -> None:
    assert paths.config_files({"SPOTD_CONFIG": "/x.toml"}) == [Path("/x.toml")]
    system, user = paths.config_files({})
    assert system == Path("/etc/spotd/config.toml")
    assert user.parts[-2:] == ("spotd", "config.toml")


def test_what_we_may_not_enter_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/run/spotd is for the group spotd: who is not in it is told so by opening the socket."""
    real = Path.stat

    def stat(path: Path, **how: bool) -> object:
        if path in (paths.SYSTEM_SOCKET, paths.SYSTEM_CONFIG):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **how)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert local_socket("") == paths.SYSTEM_SOCKET
    with pytest.raises(UserError, match=r"cannot read the configuration /etc/spotd/config\.toml"):
        load_config(None, {})
