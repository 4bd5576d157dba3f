"""Jump hosts in the configuration: what is understood, and what is said of what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotd.config.changes import changed_keys
from spotd.config.config import ConfigError
from spotd.config.load import load_config
from tests.fixtures import sshd

KEYS = sshd.keys(3)
PUBLIC = " ".join(KEYS.user.public.split()[:2])
LIMITS = "limits = {max_nodes = 4, max_usd_per_hour = 12.5}\n"
AWS = '[providers.aws]\nkind = "aws"\nregions = ["us-east-1"]\n'
GOOD = {
    "network": '"jump"',
    "jump": '"spotd@bastion.example.com:2222"',
    "jump_host_key": f'"{PUBLIC} root@bastion"',
    "jump_key_file": '"KEY"',
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(KEYS.user.private)
    return tmp_path / "config.toml"


def write(file: Path, lines: dict[str, str], more: str = "") -> Path:
    given = "".join(f"{key} = {value}\n" for key, value in lines.items() if value)
    file.write_text(LIMITS + AWS + given.replace("KEY", str(file.with_name("key"))) + more)
    return file


def refused(file: Path, **changes: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(write(file, GOOD | changes), {})
    return [str(problem) for problem in caught.value.problems]


def test_a_jump_host_is_where_with_which_keys(file: Path) -> None:
    config = load_config(write(file, GOOD), {})
    [host] = config.jump_hosts().values()
    assert str(host) == "spotd@bastion.example.com:2222"
    assert host.address.host_public_key == PUBLIC
    assert host.private_key == KEYS.user.private.strip()
    assert "PRIVATE" not in repr(host)
    assert "PRIVATE" not in repr(config)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a@h", ("a", "h", 22)),
        ("a.b-c@10.0.0.5:22022", ("a.b-c", "10.0.0.5", 22022)),
        ("a@[2001:db8::7]:2222", ("a", "2001:db8::7", 2222)),
        ("a@[2001:db8::7]", ("a", "2001:db8::7", 22)),
    ],
)
def test_where_it_is(file: Path, text: str, where: tuple[str, str, int]) -> None:
    [host] = load_config(write(file, GOOD | {"jump": f'"{text}"'}), {}).jump_hosts().values()
    assert (host.address.user, host.address.host, host.address.port) == where


@pytest.mark.parametrize(
    "text",
    ["", "bastion", "@h", "a@", "a@h:0", "a@h:65536", "a@h:ssh", "a@-oProxyCommand=x", "a b@h",
     "a@h;id", "-a@h", "a@2001:db8::7", "a@[h]:1:2"],
)  # fmt: skip
def test_where_it_cannot_be(file: Path, text: str) -> None:
    [problem] = refused(file, jump=f'"{text}"')
    assert "providers.aws.jump" in problem
    assert "is not a user@host or user@host:port" in problem
    assert '"spotd@bastion.example.com"' in problem


def test_without_a_host_key_nobody_is_believed(file: Path) -> None:
    [problem] = refused(file, jump_host_key="")
    assert "providers.aws.jump_host_key" in problem
    assert "any server at that address would be trusted" in problem
    assert "ssh_host_ed25519_key.pub" in problem


@pytest.mark.parametrize(
    "key",
    ["SHA256:abc", "ssh-ed25519", "ssh-ed25519 AAAA", PUBLIC.replace("ssh-ed", "ssh-dd"), "a b"],
)
def test_what_is_no_host_key(file: Path, key: str) -> None:
    [problem] = refused(file, jump_host_key=f'"{key}"')
    assert "providers.aws.jump_host_key" in problem
    assert "is not a public key" in problem


def test_a_jump_network_needs_one(file: Path) -> None:
    [problem] = refused(file, jump="")
    assert 'providers.aws.jump: is missing, and network is "jump"' in problem


@pytest.mark.parametrize("network", ["", '"public"', '"private"'])
def test_elsewhere_it_has_no_place(file: Path, network: str) -> None:
    problems = refused(file, network=network)
    for key in ("jump", "jump_host_key", "jump_key_file"):
        assert any(f"providers.aws.{key}" in problem for problem in problems)
    kind = network or '"public"'
    assert all(f'is only for network = "jump", and network is {kind}' in one for one in problems)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"jump_key_file": ""}, "jump_key_file: is missing: the login needs a key"),
        ({"jump_key_file": '"/nowhere/key"'}, "cannot read /nowhere/key: No such file"),
        ({"jump_key_env": '"K"'}, "jump_key_file and jump_key_env are both given"),
        (
            {"jump_key_file": "", "jump_key_credential": '"jump"'},
            "jump_key_credential: there is no credential 'jump' without systemd",
        ),
        ({"jump_key_file": "", "jump_key_env": '"K"'}, "jump_key_env: the variable K is not set"),
    ],
)
def test_a_key_of_ours_has_to_be_readable(file: Path, changes: dict[str, str], said: str) -> None:
    [problem] = refused(file, **changes)
    assert said in problem


def test_what_is_no_key_is_not_quoted(file: Path) -> None:
    lines = GOOD | {"jump_key_file": "", "jump_key_env": '"K"'}
    with pytest.raises(ConfigError, match="is not a private key") as caught:
        load_config(write(file, lines), {"K": "canary"})
    assert "canary" not in str(caught.value)
    assert "ssh-keygen" in str(caught.value)


def test_the_key_may_be_a_credential_of_systemd(file: Path) -> None:
    lines = GOOD | {"jump_key_file": "", "jump_key_credential": '"key"'}
    environ = {"CREDENTIALS_DIRECTORY": str(file.parent)}
    [host] = load_config(write(file, lines), environ).jump_hosts().values()
    assert host.private_key == KEYS.user.private.strip()


def test_one_that_is_lost_later_is_named(file: Path) -> None:
    config = load_config(write(file, GOOD), {})
    file.with_name("key").unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        config.jump_hosts()


def test_a_change_names_the_key_and_not_its_value(file: Path) -> None:
    before = load_config(write(file, GOOD), {})
    after = load_config(write(file, GOOD | {"jump": '"spotd@other"'}), {})
    assert changed_keys(before, after) == ["providers.aws.jump"]
