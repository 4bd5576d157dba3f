"""Secrets at rest: a master key outside the database, sealed values inside it, one SSH key a job.

What is sealed names what it belongs to (`context`), so that a ciphertext copied to another job or
another name does not open there.
"""

from __future__ import annotations

import base64
import json
import os
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

from spotd.errors import UserError
from spotd.log import redactor

KEY_NAME = "spotd-key"  # of the systemd credential, and of the file in the state folder
_KEY_BYTES = 32
_NONCE_BYTES = 12
_MAGIC = b"spv1"

_CHECK = "deployment/check"  # the context of what tells the master key of a deployment
_KEY_ADVICE = (
    f"start with the {KEY_NAME} that belongs to this database (the systemd credential, or the file "
    "of the state folder it was made with); if that is lost for good, give spotd a new database"
)

RandomBytes = Callable[[int], bytes]


class VaultError(UserError):
    """No usable master key, or a sealed value that this key does not open."""


class Vault:
    """Seals and opens with AES-256-GCM."""

    def __init__(self, key: bytes, random_bytes: RandomBytes) -> None:
        if len(key) != _KEY_BYTES:
            raise ValueError(f"a master key has {_KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)
        self._random_bytes = random_bytes

    def seal(self, plain: bytes, context: str) -> bytes:
        """Ciphertext of `plain`, bound to `context` (job id and name of the value)."""
        nonce = self._random_bytes(_NONCE_BYTES)
        return _MAGIC + nonce + self._cipher.encrypt(nonce, plain, context.encode())

    def open(self, sealed: bytes, context: str) -> bytes:
        """The reverse. Raises VaultError when key, context or bytes are not those of `seal`."""
        start = len(_MAGIC)
        nonce, body = sealed[start : start + _NONCE_BYTES], sealed[start + _NONCE_BYTES :]
        try:
            if not sealed.startswith(_MAGIC) or len(nonce) != _NONCE_BYTES:
                raise InvalidTag
            return self._cipher.decrypt(nonce, body, context.encode())
        except InvalidTag:
            raise VaultError(
                f"the stored secret {context!r} does not open with this master key", _KEY_ADVICE
            ) from None


class KeyChecks(Protocol):
    """Where a deployment keeps what only its own master key opens (see `Store`)."""

    def key_check(self) -> bytes | None: ...

    def keep_key_check(self, check: bytes) -> bytes: ...


def unlock(
    checks: KeyChecks, state_dir: Path, environ: Mapping[str, str], random_bytes: RandomBytes
) -> Vault:
    """The vault of a deployment. Its first start chooses the key; with any other its jobs' keys
    would not open, and their machines could not be reached. Raises VaultError."""
    check = checks.key_check()
    key = load_key(state_dir, environ, random_bytes, create=check is None)
    vault = Vault(key, random_bytes)
    if check is None:
        check = checks.keep_key_check(vault.seal(b"", _CHECK))
    try:
        vault.open(check, _CHECK)
    except VaultError:
        raise VaultError("this master key is not that of the database", _KEY_ADVICE) from None
    return vault


def load_key(
    state_dir: Path,
    environ: Mapping[str, str],
    random_bytes: RandomBytes,
    *,
    create: bool = True,
) -> bytes:
    """The master key: systemd's credential if there is one, else the state folder's file, made when
    it is missing and `create` is set. Raises VaultError."""
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    if folder and (credential := Path(folder) / KEY_NAME).exists():
        return _read_key(credential)  # systemd itself keeps this folder private
    path = state_dir / KEY_NAME
    if not path.exists():
        if not create:
            raise VaultError(
                f"the master key of the database is missing: there is no {path}, "
                f"and no systemd credential {KEY_NAME}",
                _KEY_ADVICE,
            )
        _create_key(path, random_bytes(_KEY_BYTES))
    return _read_key(path, private=True)


def _create_key(path: Path, key: bytes) -> None:
    """Complete or not at all, and never over another one: written aside, then linked."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(descriptor)
        try:
            path.hardlink_to(aside)
        except FileExistsError:
            return  # another process was first; its key counts
        finally:
            aside.unlink()
        _sync_folder(path.parent)
    except OSError as error:
        raise VaultError(
            f"cannot create the master key {path}: {error.strerror}",
            "make the state folder writable for spotd, or hand the key in with "
            f"LoadCredential={KEY_NAME}:/path",
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_key(path: Path, *, private: bool = False) -> bytes:
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except OSError as error:
        raise VaultError(
            f"cannot read the master key {path}: {error.strerror}",
            f"let the user that runs spotd read {path}",
        ) from error
    if private and mode & 0o077:
        raise VaultError(
            f"the master key {path} can be read by others (mode {mode & 0o777:04o})",
            f"chmod 600 {path}",
        )
    if len(data) == _KEY_BYTES:
        return data
    try:
        key = bytes.fromhex(data.decode("ascii").strip())
    except (UnicodeDecodeError, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise VaultError(
            f"{path} holds no master key: it must be 32 bytes, or 64 hex digits",
            "restore it from a backup; for a new deployment: "
            f"(umask 077; openssl rand -hex 32 > {path})",
        )
    return key


@dataclass(frozen=True)
class KeyPair:
    """An ed25519 pair in OpenSSH's formats: a private PEM text, a public line without comment."""

    private: str = field(repr=False)
    public: str


@dataclass(frozen=True)
class JobKeys:
    """The user key of one job, and the seed that its nodes' host keys come from."""

    user: KeyPair
    host_seed: bytes = field(repr=False)

    @classmethod
    def create(cls, random_bytes: RandomBytes) -> JobKeys:
        return cls(_key_pair(random_bytes(32), random_bytes(4)), random_bytes(32))

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


def seal_job_keys(vault: Vault, job_id: str, keys: JobKeys) -> bytes:
    """What `Submission.job_key` holds."""
    return vault.seal(keys.pack(), f"{job_id}/keys")


def open_job_keys(vault: Vault, job_id: str, sealed: bytes) -> JobKeys:
    """Raises VaultError."""
    return JobKeys.unpack(vault.open(sealed, f"{job_id}/keys"))


def seal_secrets(vault: Vault, job_id: str, secrets: Mapping[str, str]) -> dict[str, bytes]:
    """What `Submission.secrets` holds. From here on the log hides the values."""
    for value in secrets.values():
        redactor.register(value)
    return {
        name: vault.seal(value.encode(), f"{job_id}/secrets/{name}")
        for name, value in secrets.items()
    }


def open_secrets(vault: Vault, job_id: str, sealed: Mapping[str, bytes]) -> dict[str, str]:
    """Name to value. From here on the log hides the values. Raises VaultError."""
    secrets = {
        name: vault.open(value, f"{job_id}/secrets/{name}").decode()
        for name, value in sealed.items()
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
