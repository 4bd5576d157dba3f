"""Sealed secrets, the master key's file, and keys that OpenSSH and paramiko load."""

import io
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from spotd.base import log
from spotd.base.clock import RandomIds
from spotd.security import secrets
from spotd.security.master_key import KeyState
from spotd.security.secrets import (
    JobKeys,
    KeyRing,
    MasterKeyError,
    SecretBox,
    host_key,
    load_key,
    unlock,
)
from tests.fixtures.waiting import LIMIT_S

random_bytes = RandomIds().random_bytes


@pytest.fixture
def box() -> SecretBox:
    return SecretBox(KeyRing((random_bytes(32),)), random_bytes)


def test_what_is_sealed_opens_and_is_not_readable(box: SecretBox) -> None:
    sealed = box.seal(b"hunter2-hunter2", "j1/secrets/TOKEN")
    assert b"hunter2" not in sealed
    assert box.open(sealed, "j1/secrets/TOKEN") == b"hunter2-hunter2"
    assert box.open(box.seal(b"", "j1/x"), "j1/x") == b""


def test_two_seals_of_the_same_value_differ(box: SecretBox) -> None:
    assert box.seal(b"same", "j1/x") != box.seal(b"same", "j1/x")


def test_a_value_does_not_open_for_another_job_or_name(box: SecretBox) -> None:
    sealed = box.seal(b"value", "j1/secrets/TOKEN")
    for context in ("j2/secrets/TOKEN", "j1/secrets/OTHER", ""):
        with pytest.raises(MasterKeyError, match="does not open"):
            box.open(sealed, context)


def test_every_changed_byte_is_noticed(box: SecretBox) -> None:
    sealed = box.seal(b"value", "j1/x")
    for index in range(len(sealed)):
        changed = bytearray(sealed)
        changed[index] ^= 1
        with pytest.raises(MasterKeyError):
            box.open(bytes(changed), "j1/x")
    for length in range(len(sealed)):
        with pytest.raises(MasterKeyError):
            box.open(sealed[:length], "j1/x")


def test_another_master_key_is_refused_with_advice(box: SecretBox) -> None:
    other = SecretBox(KeyRing((random_bytes(32),)), random_bytes)
    with pytest.raises(MasterKeyError, match="master key") as caught:
        other.open(box.seal(b"value", "j1/x"), "j1/x")
    assert "spotd-key" in caught.value.try_


def test_a_short_key_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SecretBox(KeyRing((b"short",)), random_bytes)


def test_the_first_start_makes_a_private_key_file_and_the_next_reads_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = load_key(state, {}, random_bytes)
    path = state / secrets.KEY_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == first == load_key(state, {}, random_bytes)
    assert [entry.name for entry in state.iterdir()] == [secrets.KEY_NAME]


SLOW_START = """
import sys
from pathlib import Path
from spotd.security.secrets import load_key

def random_bytes(count):  # asked for once it has seen that there is no file
    print("ready", flush=True)
    sys.stdin.readline()
    return bytes(count)

sys.stdout.write(load_key(Path(sys.argv[1]), {}, random_bytes).hex())
"""


def test_daemons_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_START, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as slow:
        assert slow.stdout
        assert slow.stdout.readline() == "ready\n"
        mine = load_key(tmp_path, {}, random_bytes)
        theirs, _ = slow.communicate("\n", timeout=LIMIT_S)
    assert theirs == mine.hex() != bytes(32).hex()


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_key(tmp_path, {}, random_bytes)
    (tmp_path / secrets.KEY_NAME).chmod(0o640)
    with pytest.raises(MasterKeyError, match="read by others") as caught:
        load_key(tmp_path, {}, random_bytes)
    assert caught.value.try_.startswith("chmod 600")


@pytest.mark.parametrize("content", [b"", b"short", b"z" * 64, b"a" * 62, bytes(range(200, 233))])
def test_a_file_without_a_key_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / secrets.KEY_NAME
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(MasterKeyError, match="holds no master key"):
        load_key(tmp_path, {}, random_bytes)
    assert path.read_bytes() == content


def test_the_systemd_credential_wins_and_may_be_hex(tmp_path: Path) -> None:
    credentials, state = tmp_path / "credentials", tmp_path / "state"
    credentials.mkdir()
    (credentials / secrets.KEY_NAME).write_text("ab" * 32 + "\n")
    environ = {"CREDENTIALS_DIRECTORY": str(credentials)}
    assert load_key(state, environ, random_bytes) == bytes.fromhex("ab" * 32)
    assert not state.exists()


def test_a_folder_of_other_credentials_leaves_the_file(tmp_path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    state = tmp_path / "state"
    assert load_key(state, environ, random_bytes) == (state / secrets.KEY_NAME).read_bytes()


def test_a_state_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MasterKeyError, match="cannot create the master key"):
        load_key(tmp_path / "file" / "state", {}, random_bytes)


class Checks:
    """What a database keeps of its master key."""

    def __init__(self) -> None:
        self.state = KeyState(None, 0)

    def key_state(self) -> KeyState:
        return self.state

    def store_key_check(self, check: bytes) -> KeyState:
        self.state = replace(self.state, check=self.state.check or check)
        return self.state


def test_a_deployment_is_opened_by_its_first_key_alone(tmp_path: Path) -> None:
    checks = Checks()
    sealed = unlock(checks, tmp_path / "one", {}, random_bytes).seal(b"value", "j1/x")
    assert unlock(checks, tmp_path / "one", {}, random_bytes).open(sealed, "j1/x") == b"value"
    with pytest.raises(MasterKeyError, match=r"is missing: there is no .*/two/spotd-key") as caught:
        unlock(checks, tmp_path / "two", {}, random_bytes)
    assert "belongs to this database" in caught.value.try_
    assert not (tmp_path / "two").exists(), "no key is made that would hide the mistake"
    load_key(tmp_path / "two", {}, random_bytes)
    with pytest.raises(MasterKeyError, match="not that of the database"):
        unlock(checks, tmp_path / "two", {}, random_bytes)


def test_of_two_first_starts_on_one_database_the_later_is_refused(tmp_path: Path) -> None:
    class Slow(Checks):
        def key_state(self) -> KeyState:
            self.asked += 1  # the first time it is as it was before the other one started
            return KeyState(None, 0) if self.asked == 1 else super().key_state()

        asked = 0

    checks = Slow()
    unlock(checks, tmp_path / "one", {}, random_bytes)
    checks.asked = 0
    with pytest.raises(MasterKeyError, match="not that of the database"):
        unlock(checks, tmp_path / "two", {}, random_bytes)


def test_job_keys_survive_sealing_and_stay_out_of_repr(box: SecretBox) -> None:
    keys = JobKeys.create(random_bytes)
    sealed = secrets.seal_job_keys(box, "j1", keys)
    assert secrets.open_job_keys(box, "j1", sealed) == keys
    with pytest.raises(MasterKeyError):
        secrets.open_job_keys(box, "j2", sealed)
    assert "PRIVATE" not in repr(keys)
    assert keys.host_seed.hex() not in repr(keys)
    assert repr(keys.host_seed) not in repr(keys)


def test_no_two_jobs_have_a_key_in_common() -> None:
    """Or a machine of one would be open to who has the other's."""
    made = [JobKeys.create(random_bytes) for _ in range(2)]
    for part in ("private", "public"):
        assert len({getattr(keys.user, part) for keys in made}) == 2
    assert len({keys.host_seed for keys in made}) == 2


def test_secrets_are_sealed_one_by_one(box: SecretBox) -> None:
    sealed = secrets.seal_secrets(box, "j1", {"A": "älpha", "B": ""})
    assert secrets.open_secrets(box, "j1", sealed) == {"A": "älpha", "B": ""}
    with pytest.raises(MasterKeyError, match="j1/secrets/B"):
        secrets.open_secrets(box, "j1", {"B": sealed["A"]})


def test_the_log_hides_secrets_that_were_sealed_or_opened(box: SecretBox) -> None:
    # New ones: the redactor remembers what other tests of this process have sealed.
    first, second = (random_bytes(8).hex() for _ in range(2))
    sealed = secrets.seal_secrets(box, "j1", {"A": first})
    other = {"B": box.seal(second.encode(), "j1/secrets/B")}
    assert log.redactor.clean(f"{first} {second}") == f"[hidden] {second}"
    secrets.open_secrets(box, "j1", {**sealed, **other})
    assert log.redactor.clean(f"{first} {second}") == "[hidden] [hidden]"


def test_a_host_key_is_the_same_bytes_for_the_same_token_and_no_other() -> None:
    keys, others = JobKeys.create(random_bytes), JobKeys.create(random_bytes)
    again = JobKeys.unpack(keys.pack())
    assert host_key(keys, "token-1") == host_key(again, "token-1")
    pairs = {host_key(keys, "token-1"), host_key(keys, "token-2"), host_key(others, "token-1")}
    assert len({pair.public for pair in pairs}) == len({pair.private for pair in pairs}) == 3


def test_keys_are_what_paramiko_cryptography_and_openssh_load(tmp_path: Path) -> None:
    keys = JobKeys.create(random_bytes)
    for pair in (keys.user, host_key(keys, "token")):
        loaded = paramiko.Ed25519Key.from_private_key(io.StringIO(pair.private))
        assert f"ssh-ed25519 {loaded.get_base64()}" == pair.public
        signature = loaded.sign_ssh_data(b"data")
        signature.rewind()
        public = paramiko.Ed25519Key(data=loaded.asbytes())
        assert public.verify_ssh_sig(b"data", signature)
        load_ssh_private_key(pair.private.encode(), None)
        path = tmp_path / "key"
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_text(pair.private)
        if tool := shutil.which("ssh-keygen"):
            told = subprocess.run([tool, "-y", "-f", path], check=True, capture_output=True)
            assert told.stdout.decode().split()[:2] == pair.public.split()
