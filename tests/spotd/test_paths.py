"""Default places."""

from pathlib import Path

from spotd import paths


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
