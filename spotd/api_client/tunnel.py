"""Forwarding of a remote daemon's socket by the user's own ssh.

`ssh -N -L local:remote` works with every OpenSSH since 6.7 and uses the user's own keys, agent,
jump hosts and configuration. Only a socket in a private folder listens.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from spotd.base.errors import ExitCode, UnreachableError, UserError

_START_TIMEOUT_S = 60.0  # a person may have to type a passphrase or touch a key


def check_host(host: str) -> str:
    """Return `host` if ssh cannot take it for an option. Raises UserError."""
    if not host or host.startswith("-") or any(char.isspace() for char in host):
        raise UserError(f"{host!r} is not a host", "--host user@box", ExitCode.USAGE)
    return host


@contextlib.contextmanager
def forward(host: str, remote: str) -> Iterator[Path]:
    """Yield a local socket that leads to `remote` on `host` while the block runs.

    Raises UnreachableError with the output of ssh.
    """
    check_host(host)
    # Not $TMPDIR: on macOS that is so long that a socket in it is not.
    with tempfile.TemporaryDirectory(prefix="spotctl-", dir="/tmp") as folder:
        local = Path(folder) / "s"
        options = ["-o", "ExitOnForwardFailure=yes", "-o", "ControlPath=none"]
        arguments = ["ssh", "-N", "-T", *options, "-L", f"{local}:{remote}", "--", host]
        with (Path(folder) / "err").open("w+b") as errors:
            try:
                process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=errors)
            except FileNotFoundError:
                raise UnreachableError("there is no ssh on this machine", "install it") from None
            try:
                _wait_until_ready(process=process, local=local, host=host, errors=Path(errors.name))
                yield local
            finally:
                process.terminate()
                process.wait()


def _wait_until_ready(
    process: subprocess.Popen[bytes], local: Path, host: str, errors: Path
) -> None:
    give_up_at = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            output = errors.read_text(errors="replace").strip() or f"exit {process.returncode}"
            raise UnreachableError(
                f"ssh to {host} failed: {output}", f"ssh {host} true, until that works"
            )
        if _accepts(local):
            return
        time.sleep(0.02)
    raise UnreachableError(
        f"ssh to {host} was not ready after {_START_TIMEOUT_S:.0f} s", f"ssh {host} true"
    )


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
