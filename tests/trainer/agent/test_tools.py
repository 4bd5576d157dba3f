"""The saver's environment is made of wheels that came with the job, by the machine's own Python."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from providers.stores.local import LocalStore
from spotd import wire
from spotd.act.bundle import build_bundle
from spotd.act.kit import Kit, pack, wheels
from tests.trainer.agent.node import Node
from trainer.agent.packages import put_package
from trainer.agent.tools import Interpreter, choose, interpreters, make_tools

OURS = Interpreter(sys.executable, sys.version_info[1], os.uname().machine)
ABI3 = "obstore-0.12.1-cp311-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
HASH = "xxhash-4.1.0-cp3{0}-cp3{0}-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
PURE = "typing_extensions-4.15.0-py3-none-any.whl"


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A Python of this machine with the standard library alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    found = subprocess.run([python, "-c", "import xxhash"], capture_output=True, check=False)
    assert b"ModuleNotFoundError" in found.stderr
    return str(python)


@pytest.mark.parametrize(
    ("minor", "machine", "chosen"),
    [
        (11, "x86_64", [HASH.format(11), PURE, ABI3]),
        (13, "x86_64", [HASH.format(13), PURE, ABI3]),
        (12, "x86_64", None),  # nobody has its xxhash
        (11, "aarch64", None),
        (10, "x86_64", None),
    ],
)
def test_what_fits_a_python(minor: int, machine: str, chosen: list[str] | None) -> None:
    names = [ABI3, HASH.format(11), HASH.format(13), PURE]
    found = choose(names, Interpreter("/usr/bin/python3", minor, machine))
    assert (found and sorted(found)) == (chosen and sorted(chosen))


def test_what_this_box_has_installed_is_sent_as_wheels(tmp_path: Path) -> None:
    found = wheels(tmp_path / "none")
    assert {name.partition("-")[0] for name in found} == {"obstore", "xxhash", "typing_extensions"}
    assert choose(found, OURS) is not None
    assert pack(found) == pack(wheels(tmp_path / "none")), "the same again"
    more = tmp_path / "wheels"
    more.mkdir()
    (more / HASH.format(14)).write_bytes(b"a wheel")
    (more / "torch-2.0-py3-none-any.whl").write_bytes(b"nothing of ours")
    assert wheels(more).keys() - found.keys() == {HASH.format(14)}
    store = LocalStore(tmp_path / "store")
    digest = Kit(store, more).digest()
    assert hashlib.sha256(store.get(f"packages/{digest}")[0]).hexdigest() == digest
    assert Kit(store, more).digest() == digest, "it is there already"


def test_a_python_that_lacks_both_gets_an_environment(tmp_path: Path, bare: str) -> None:
    """The agent's own code, on a Python with nothing, as on a machine."""
    data = pack(wheels(tmp_path / "none"))
    digest, home = hashlib.sha256(data).hexdigest(), tmp_path / "home"
    put_package(home, digest, io.BytesIO(data))
    bundle = tmp_path / "bundle.pyz"
    bundle.write_bytes(build_bundle().data)
    text = (
        "from pathlib import Path; import sys\n"
        "from trainer.agent.pythons import adopt, find_python\n"
        "from trainer.agent.tools import make_tools\n"
        f"home = Path({str(home)!r})\n"
        "assert find_python(home, 's3://b') == find_python(home, 'file:///x') == ''\n"
        f"print(make_tools(home, {digest!r}))\n"
        "print(find_python(home, 's3://b'))\n"
        "adopt(home)\n"
        "from providers.stores import open_store\n"
        "print(open_store('s3://b/x', {'region': 'r'}).url)\n"
        f"assert make_tools(home, {digest!r}) == ''\n"
    )
    env = {"PATH": "/nowhere", "PYTHONPATH": str(bundle)}
    done = subprocess.run(
        [bare, "-c", text], capture_output=True, text=True, env=env, check=False, timeout=60
    )
    trouble, python, url = done.stdout.split("\n")[:3]
    assert (trouble, url) == ("", "s3://b/x"), done.stderr
    assert python == str(home / "saver/made/bin/python")
    words = [python, "-m", "trainer.saver", "--help"]
    said = subprocess.run(words, capture_output=True, text=True, env=env, check=False, timeout=60)
    assert "saves what the training processes" in said.stdout, said.stderr


MAKE = (
    "from pathlib import Path; import sys; sys.path.insert(0, sys.argv[1])\n"
    "from trainer.agent.tools import make_tools\n"
    "print(make_tools(Path(sys.argv[2]), sys.argv[3]))"
)


def test_of_what_does_not_fit_the_machine_is_told_what_to_do(tmp_path: Path) -> None:
    data = pack({ABI3: b"", PURE: b""})
    digest = hashlib.sha256(data).hexdigest()
    put_package(tmp_path, digest, io.BytesIO(data))
    found = subprocess.run(
        [
            *(sys.executable, "-S", "-c"),
            MAKE,
            *(str(Path.cwd()), str(tmp_path), digest),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no wheels of obstore and xxhash fit 3." in found.stdout, found.stderr
    assert "folder `wheels`" in found.stdout
    assert not (tmp_path / "saver" / "made").exists()
    assert list((tmp_path / "saver").iterdir()) == [], "nothing half made"


def test_who_has_what_is_needed_is_sent_and_makes_nothing(node: Node) -> None:
    assert interpreters()[0].minor == sys.version_info[1]
    digest = "0" * 64
    assert make_tools(node.home, digest) == "", "not even looked for"
    asked = node.call("has", "--digest", digest, "--unless-able")
    assert asked.stdout == b'{"has": true}\n'
    assert node.call("has", "--digest", digest).stdout == b'{"has": false}\n'


def test_a_job_goes_on_where_nothing_can_be_made(node: Node) -> None:
    node.run()
    node.start(run="true", tools="0" * 64)
    assert node.wait_for(wire.EXITED).data["code"] == 0
