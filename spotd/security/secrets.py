"""Secrets at rest: a master key outside the database, sealed values inside, one SSH key per job.

A sealed value is bound to its owner (`context`), so that a ciphertext copied to another job or name
does not open there.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from spotd.base.log import redactor
from spotd.security.master_key import (
    KEY_ADVICE,
    KEY_BYTES,
    KEY_NAME,
    NEXT_KEY_NAME,
    KeyState,
    MasterKeyError,
    RandomBytes,
    SealedValue,
    find_key,
    load_key,
    missing_key,
    missing_next_key,
)

_NONCE_BYTES = 12
_MAGIC = b"spv1"

_CHECK = "deployment/check"  # the context of what tells the master key of a deployment


@dataclass(frozen=True)
class KeyRing:
    """Master keys: the first seals, each of them may open. `epoch` is the store's number of it."""

    keys: tuple[bytes, ...] = field(repr=False)
    epoch: int = 0

    def __post_init__(self) -> None:
        for key in self.keys:
            if len(key) != KEY_BYTES:
                raise ValueError(f"a master key has {KEY_BYTES} bytes, not {len(key)}")


class SecretBox:
    """Seals and opens values with AES-256-GCM. Thread-safe.

    `find_ring` finds the keys again, because another replica may have changed the key in force.
    """

    def __init__(
        self,
        ring: KeyRing,
        random_bytes: RandomBytes,
        find_ring: Callable[[], KeyRing] | None = None,
    ) -> None:
        self._ring = ring
        self._random_bytes = random_bytes
        self._find_ring = find_ring

    @property
    def epoch(self) -> int:
        """Return the epoch of the sealing key.

        Read it before sealing a value that is then stored: the store refuses values of an older
        key, and could not recognise one that only claims to be new.
        """
        return self._ring.epoch

    def seal(self, plain: bytes, context: str) -> bytes:
        """Ciphertext of `plain`, bound to `context` (job id and name of the value)."""
        nonce = self._random_bytes(_NONCE_BYTES)
        cipher = AESGCM(self._ring.keys[0])
        return _MAGIC + nonce + cipher.encrypt(nonce, plain, context.encode())

    def open(self, sealed: bytes, context: str) -> bytes:
        """The reverse. Raises VaultError when key, context or bytes are not those of `seal`."""
        plain = self._try(sealed, context)
        if plain is None and self._find_ring is not None:
            self.refresh()
            plain = self._try(sealed, context)
        if plain is None:
            text = f"the stored secret {context!r} does not open with this master key"
            raise MasterKeyError(text, KEY_ADVICE)
        return plain

    def refresh(self) -> None:
        """Use the key that is in force now. Raises MasterKeyError if it is not available."""
        if self._find_ring is not None:
            self._ring = self._find_ring()

    def _try(self, sealed: bytes, context: str) -> bytes | None:
        plaintexts = (_decrypt(key, sealed, context) for key in self._ring.keys)
        return next((plain for plain in plaintexts if plain is not None), None)


def _decrypt(key: bytes, sealed: bytes, context: str) -> bytes | None:
    """Return the plaintext, or None if key, context or bytes do not match."""
    start = len(_MAGIC)
    nonce, body = sealed[start : start + _NONCE_BYTES], sealed[start + _NONCE_BYTES :]
    if not sealed.startswith(_MAGIC) or len(nonce) != _NONCE_BYTES:
        return None
    try:
        return AESGCM(key).decrypt(nonce, body, context.encode())
    except InvalidTag:
        return None


class KeyStates(Protocol):
    """Where a deployment keeps its KeyState (see `Store`)."""

    def key_state(self) -> KeyState: ...

    def store_key_check(self, check: bytes) -> KeyState: ...

    def rotate_key(
        self, epoch: int, check: bytes, reseal: Callable[[SealedValue], bytes]
    ) -> KeyState: ...


def unlock(
    states: KeyStates, state_dir: Path, environ: Mapping[str, str], random_bytes: RandomBytes
) -> SecretBox:
    """The vault of a deployment. Its first start chooses the key; with any other its jobs' keys
    would not open, and their machines could not be reached. Raises VaultError."""
    if states.key_state().check is None:
        key = load_key(state_dir, environ, random_bytes)
        states.store_key_check(SecretBox(KeyRing((key,)), random_bytes).seal(b"", _CHECK))

    def find_ring() -> KeyRing:
        return _find_ring(states.key_state(), state_dir, environ)

    return SecretBox(find_ring(), random_bytes, find_ring)


def _find_ring(state: KeyState, state_dir: Path, environ: Mapping[str, str]) -> KeyRing:
    """Return the key in force according to the database, then the other one. Raises MasterKeyError.

    While a key takes over there are two, and only the database knows which one is in force.
    """
    loaded = [find_key(name, state_dir, environ) for name in (KEY_NAME, NEXT_KEY_NAME)]
    keys = [key for key in loaded if key is not None]
    if not keys:
        raise missing_key(state_dir)
    for key in keys:
        if _is_key(key, state):
            return KeyRing((key, *(other for other in keys if other != key)), state.epoch)
    raise MasterKeyError("this master key is not that of the database", KEY_ADVICE)


def _is_key(key: bytes, state: KeyState) -> bool:
    """Return whether the key is the one in force."""
    return _decrypt(key, state.check or b"", _CHECK) is not None


def rotate(
    states: KeyStates,
    vault: SecretBox,
    state_dir: Path,
    environ: Mapping[str, str],
    random_bytes: RandomBytes,
) -> list[str]:
    """Put the key NEXT_KEY_NAME in force and return the names of values that it could not open.

    Every sealed value is sealed again in one transaction, so that after a crash one key is in force
    for all of them. A value that did not open before keeps its bytes, for a key that may still open
    it. Raises MasterKeyError, and StaleKeyError if another replica was faster.
    """
    key = find_key(NEXT_KEY_NAME, state_dir, environ)
    if key is None:
        raise missing_next_key(state_dir)
    vault.refresh()
    if _is_key(key, states.key_state()):
        text = f"the key {NEXT_KEY_NAME} is in force already"
        raise MasterKeyError(text, f"make it {KEY_NAME}, then a new one {NEXT_KEY_NAME}")
    epoch, fresh = vault.epoch, SecretBox(KeyRing((key,)), random_bytes)
    unread: set[str] = set()  # a transaction may be tried again

    def reseal(item: SealedValue) -> bytes:
        context = _context(item.job_id, item.name)
        try:
            plain = vault.open(item.value, context)
        except MasterKeyError:
            unread.add(context)
            return item.value
        return fresh.seal(plain, context)

    states.rotate_key(epoch, fresh.seal(b"", _CHECK), reseal)
    vault.refresh()
    return sorted(unread)


def _context(job_id: str, name: str) -> str:
    """Return what a sealed value is bound to."""
    if not job_id:
        return f"deployment/secrets/{name}"
    return f"{job_id}/secrets/{name}" if name else f"{job_id}/keys"


@dataclass(frozen=True)
class KeyPair:
    """An ed25519 pair in OpenSSH's formats: a private PEM text, a public line without comment."""

    private: str = field(repr=False)
    public: str


def make_key_pair(random_bytes: RandomBytes) -> KeyPair:
    """A new one."""
    return _key_pair(random_bytes(32), random_bytes(4))


@dataclass(frozen=True)
class JobKeys:
    """The user key of one job, and the seed that its nodes' host keys come from."""

    user: KeyPair
    host_seed: bytes = field(repr=False)

    @classmethod
    def create(cls, random_bytes: RandomBytes) -> JobKeys:
        return cls(make_key_pair(random_bytes), random_bytes(32))

    def pack(self) -> bytes:
        """Bytes to be sealed."""
        return json.dumps(
            {
                "user_private": self.user.private,
                "user_public": self.user.public,
                "host_seed": self.host_seed.hex(),
            }
        ).encode()

    @classmethod
    def unpack(cls, data: bytes) -> JobKeys:
        value = json.loads(data)
        user = KeyPair(value["user_private"], value["user_public"])
        return cls(user, bytes.fromhex(value["host_seed"]))


def seal_job_keys(vault: SecretBox, job_id: str, keys: JobKeys) -> bytes:
    """Return the value of `Submission.job_key`."""
    return vault.seal(keys.pack(), _context(job_id, ""))


def open_job_keys(vault: SecretBox, job_id: str, sealed: bytes) -> JobKeys:
    """Return the keys of a job. Raises MasterKeyError."""
    return JobKeys.unpack(vault.open(sealed, _context(job_id, "")))


def seal_secrets(vault: SecretBox, job_id: str, secrets: Mapping[str, str]) -> dict[str, bytes]:
    """Return the value of `Submission.secrets`; with `job_id` "", secrets of the deployment.

    From here on the log hides the values.
    """
    for value in secrets.values():
        redactor.register(value)
    return {
        name: vault.seal(value.encode(), _context(job_id, name)) for name, value in secrets.items()
    }


def open_secrets(vault: SecretBox, job_id: str, sealed: Mapping[str, bytes]) -> dict[str, str]:
    """Name to value. From here on the log hides the values. Raises VaultError."""
    secrets = {
        name: vault.open(value, _context(job_id, name)).decode() for name, value in sealed.items()
    }
    for value in secrets.values():
        redactor.register(value)
    return secrets


def host_key(keys: JobKeys, token: str) -> KeyPair:
    """The host key of the node that is launched with `token`: the same bytes every time, because a
    launch that is tried again must carry the same request."""
    derive = HKDF(hashes.SHA256(), length=36, salt=None, info=b"spotd host key " + token.encode())
    material = derive.derive(keys.host_seed)
    return _key_pair(material[:32], material[32:])


def _key_pair(seed: bytes, check: bytes) -> KeyPair:
    """OpenSSH's private format holds a random check number; ours is given, so that the text is a
    function of its inputs."""
    public = (
        Ed25519PrivateKey.from_private_bytes(seed)
        .public_key()
        .public_bytes(Encoding.Raw, PublicFormat.Raw)
    )
    public_blob = _strings(b"ssh-ed25519", public)
    secret = check + check + public_blob + _strings(seed + public, b"")
    secret += bytes(range(1, 1 + -len(secret) % 8))
    blob = b"openssh-key-v1\0" + _strings(b"none", b"none", b"") + struct.pack(">I", 1)
    text = base64.b64encode(blob + _strings(public_blob, secret)).decode()
    lines = "\n".join(text[start : start + 70] for start in range(0, len(text), 70))
    name = "OPENSSH PRIVATE KEY"
    return KeyPair(
        private=f"-----BEGIN {name}-----\n{lines}\n-----END {name}-----\n",
        public=f"ssh-ed25519 {base64.b64encode(public_blob).decode()}",
    )


def _strings(*values: bytes) -> bytes:
    """SSH strings: each a 32-bit length and the bytes."""
    return b"".join(struct.pack(">I", len(value)) + value for value in values)
