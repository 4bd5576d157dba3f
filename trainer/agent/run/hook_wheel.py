"""The wheel of `spotd_hook` for a job's own environment, named by `SPOTD_HOOK`.

Most programs find the module on their Python path without it. An interpreter that ignores
PYTHONPATH, or an environment in a container, installs it with `pip install "$SPOTD_HOOK"`; nothing
is fetched from a package index. The wheel is made on the machine, from the files that the box has
sent, and its version is derived from its content.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from trainer.agent.base.paths import write_private

# `pip install "$SPOTD_HOOK[saver]"`: a container has no other environment for the saver.
SAVER_REQUIREMENTS = ("obstore>=0.12,<0.13", "xxhash>=3.6")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can say: bytes depend on content alone
_METADATA = """\
Metadata-Version: 2.4
Name: spotd-hook
Version: {version}
Summary: Save and resume training under spotd.
License-Expression: Apache-2.0
Requires-Python: >=3.10
Provides-Extra: saver
"""
_WHEEL = """\
Wheel-Version: 1.0
Generator: spotd
Root-Is-Purelib: true
Tag: py3-none-any
"""


def hook_wheel_path(folder: Path) -> Path:
    """Return where the wheel is in a generation's folder."""
    return folder / f"spotd_hook-{_version()}-py3-none-any.whl"


def write_hook_wheel(folder: Path) -> Path:
    """Write the wheel unless it is there, and return its path. Raises OSError."""
    path = hook_wheel_path(folder)
    if not path.exists():
        write_private(path, build_hook_wheel())
    return path


@cache
def build_hook_wheel() -> bytes:
    """Build the wheel, which Python also imports from as it is."""
    version = _version()
    info = f"spotd_hook-{version}.dist-info"
    extras = "".join(
        f"Requires-Dist: {requirement}; extra == 'saver'\n" for requirement in SAVER_REQUIREMENTS
    )
    members = {
        **_sources(),
        f"{info}/METADATA": (_METADATA.format(version=version) + extras).encode(),
        f"{info}/WHEEL": _WHEEL.encode(),
    }
    members[f"{info}/RECORD"] = _record(members, f"{info}/RECORD").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            member = zipfile.ZipInfo(name, _EPOCH)
            member.external_attr = 0o100644 << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


@cache
def _sources() -> Mapping[str, bytes]:
    """Return the modules of the hook, from our archive or from our source folder."""
    package = files("trainer.hook") / "spotd_hook"
    names = sorted(item.name for item in package.iterdir() if item.name.endswith(".py"))
    return {f"spotd_hook/{name}": (package / name).read_bytes() for name in names}


@cache
def _version() -> str:
    """A version of the content: pip keeps an installed wheel of the same version."""
    digest = hashlib.sha256()
    for name, data in _sources().items():
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return f"0+g{digest.hexdigest()[:12]}"


def _record(members: Mapping[str, bytes], own_name: str) -> str:
    lines = []
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own_name},,\n"])
