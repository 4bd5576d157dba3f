"""The saver's environment is built from wheels sent with the job, by the machine's own Python."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from providers.stores.local import LocalStore
from spotd import wire
from spotd.act.bundle import build_bundle
from spotd.act.saver_env import SaverEnv, pack, pythons_in, wheels
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.agent.node import Node
from trainer.agent.data.packages import put_package
from trainer.agent.run.saver_env import (
    Interpreter,
    choose_wheels,
    ensure_saver_env,
    find_interpreters,
    wheels_fit,
)

OURS = Interpreter(sys.executable, sys.version_info[1], os.uname().machine)
ABI3 = "obstore-0.12.1-cp311-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
HASH = "xxhash-4.1.0-cp3{0}-cp3{0}-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
PURE = "typing_extensions-4.15.0-py3-none-any.whl"


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A Python of this machine with only the standard library."""
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
    found = choose_wheels(names, Interpreter("/usr/bin/python3", minor, machine))
    assert (found and sorted(found)) == (chosen and sorted(chosen))


def test_what_this_box_has_installed_is_sent_as_wheels(tmp_path: Path) -> None:
    found = wheels(tmp_path / "none")
    assert {name.partition("-")[0] for name in found} == {"obstore", "xxhash", "typing_extensions"}
    assert choose_wheels(found, OURS) is not None
    assert pack(found) == pack(wheels(tmp_path / "none")), "the same again"
    more = tmp_path / "wheels"
    more.mkdir()
    (more / HASH.format(14)).write_bytes(b"a wheel")
    (more / "torch-2.0-py3-none-any.whl").write_bytes(b"nothing of ours")
    assert wheels(more).keys() - found.keys() == {HASH.format(14)}
    store = LocalStore(tmp_path / "store")
    digest = SaverEnv(store, more).tools().digest
    assert hashlib.sha256(store.get(f"packages/{digest}")[0]).hexdigest() == digest
    assert SaverEnv(store, more).tools().digest == digest, "it is there already"


def test_a_python_that_lacks_both_gets_an_environment(tmp_path: Path, bare: str) -> None:
    """The agent's own code, on a Python without other packages, as on a machine."""
    data = pack(wheels(tmp_path / "none"))
    digest, home = hashlib.sha256(data).hexdigest(), tmp_path / "home"
    put_package(home, digest, io.BytesIO(data))
    bundle = tmp_path / "bundle.pyz"
    bundle.write_bytes(build_bundle().data)
    text = (
        "from pathlib import Path; import sys\n"
        "from trainer.agent.base.pythons import add_saver_packages, find_python\n"
        "from trainer.agent.run.saver_env import ensure_saver_env\n"
        f"home = Path({str(home)!r})\n"
        "assert find_python(home, 's3://b') == find_python(home, 'file:///x') == ''\n"
        f"print(ensure_saver_env(home, {digest!r}))\n"
        "print(find_python(home, 's3://b'))\n"
        "add_saver_packages(home)\n"
        "from providers.stores import open_store\n"
        "print(open_store('s3://b/x', {'region': 'r'}).url)\n"
        f"assert ensure_saver_env(home, {digest!r}) == ''\n"
    )
    env = {"PATH": "/nowhere", "PYTHONPATH": str(bundle)}
    done = subprocess.run(
        [bare, "-c", text], capture_output=True, text=True, env=env, check=False, timeout=LIMIT_S
    )
    trouble, python, url = done.stdout.split("\n")[:3]
    assert (trouble, url) == ("", "s3://b/x"), done.stderr
    assert python == str(home / "saver/made/bin/python")
    words = [python, "-m", "trainer.saver", "--help"]
    said = subprocess.run(
        words, capture_output=True, text=True, env=env, check=False, timeout=LIMIT_S
    )
    assert "Run the saver process" in said.stdout, said.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A relocatable Python, laid out like python-build-standalone's: a copy of this machine's, with
    its standard library."""
    folder = tmp_path_factory.mktemp("alone")
    version = sysconfig.get_python_version()
    path = folder / f"cpython-{version}.0+20260101-{os.uname().machine}-{KIND}"
    binary, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        left_out = {"__pycache__", "test", "dist-packages", "site-packages", "sitecustomize.py"}
        return None if left_out & set(Path(member.name).parts) else member

    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.add(binary, f"python/bin/python{version}")
        for name in ("python3", "python"):
            link = tarfile.TarInfo(f"python/bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, f"python{version}"
            archive.addfile(link)
        archive.add(library, f"python/lib/python{version}", filter=wanted)
    return folder


def test_pythons_that_stand_alone_are_packages_of_their_own(tmp_path: Path, alone: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    [python] = alone.iterdir()
    for name in (python.name, NOT_GLIBC, "cpython-3.12.tar.gz"):
        (folder / name).write_bytes(python.read_bytes() if name == python.name else b"another")
    store = LocalStore(tmp_path / "store")
    tools = SaverEnv(store, folder).tools()
    [found] = tools.pythons
    assert found.machine == os.uname().machine
    assert store.get(f"packages/{found.digest}")[0] == python.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(store.get(f"packages/{tools.digest}")[0])) as archive:
        told = archive.extractfile(f"{python.name}.sha256")
        assert told is not None
        assert told.read().decode() == found.digest
        assert [name for name in archive.getnames() if name.startswith("cpython")] == [
            f"{python.name}.sha256"
        ]
    assert SaverEnv(store, tmp_path / "none").tools().pythons == ()


# Of a machine whose own Python is too old: it runs the agent, and nothing else is to be had by it.
OLD = (
    "from pathlib import Path; import sys; sys.path.insert(0, sys.argv[1])\n"
    "from trainer.agent.run import saver_env as tools\n"
    "known = tools._probe\n"
    "tools._probe = lambda path: None if path == sys.executable else known(path)\n"
    "print(tools.ensure_saver_env(Path(sys.argv[2]), sys.argv[3]))\n"
)


def test_which_files_are_taken_for_a_python(tmp_path: Path) -> None:
    taken = "cpython-3.11.17{}20261021-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
    for name in (taken.format("+"), taken.format("%2B"), taken.format("-"), NOT_GLIBC):
        (tmp_path / name).touch()
    assert pythons_in(tmp_path) == [
        (taken.format("%2B"), "x86_64"),
        (taken.format("+"), "x86_64"),
    ]
    assert pythons_in(tmp_path / "none") == []


def test_a_machine_whose_python_is_too_old_uses_the_one_that_was_sent(
    tmp_path: Path, bare: str, alone: Path
) -> None:
    store, home = LocalStore(tmp_path / "store"), tmp_path / "home"
    tools = SaverEnv(store, alone).tools()
    env = {"PATH": "/nowhere"}
    words = [bare, "-c", OLD, str(Path.cwd()), str(home), tools.digest]

    def make() -> str:
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
        assert not done.returncode, done.stderr
        return done.stdout.strip()

    put_package(home, tools.digest, io.BytesIO(store.get(f"packages/{tools.digest}")[0]))
    assert "there is no Python 3.11 or newer here: put one into" in make()
    assert not (home / "saver" / "made").exists()
    python = tools.pythons[0].digest
    put_package(home, python, io.BytesIO(store.get(f"packages/{python}")[0]))
    assert make() == ""
    made = home / "saver" / "made" / "bin" / "python"
    text = "import json, obstore, sys, xxhash; print(json.dumps([sys.base_prefix, json.__file__]))"
    done = subprocess.run([made, "-c", text], capture_output=True, env=env, check=True)
    for place in json.loads(done.stdout):
        assert place.startswith(str(home / "saver" / f"python-{python[:16]}"))
    env["PYTHONPATH"] = str(Path.cwd())
    words = [str(made), "-m", "trainer.saver", "--help"]
    said = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert "Run the saver process" in said.stdout, said.stderr


def test_a_python_that_cannot_be_unpacked_leaves_nothing(
    tmp_path: Path, bare: str, alone: Path
) -> None:
    folder, home = tmp_path / "wheels", tmp_path / "home"
    folder.mkdir()
    [whole] = alone.iterdir()
    (folder / whole.name).write_bytes(whole.read_bytes()[: 1 << 20])
    store = LocalStore(tmp_path / "store")
    tools = SaverEnv(store, folder).tools()
    for digest in (tools.digest, tools.pythons[0].digest):
        put_package(home, digest, io.BytesIO(store.get(f"packages/{digest}")[0]))
    words = [bare, "-c", OLD, str(Path.cwd()), str(home), tools.digest]
    env = {"PATH": "/nowhere"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert "cannot be made: the Python that was sent:" in done.stdout, done.stderr
    assert list((home / "saver").iterdir()) == []


def test_a_python_is_sent_where_no_wheels_fit_one(node: Node) -> None:
    """This machine's agent has all modules, so one that lacks them is simulated."""
    home, digests = node.home / ".spotd", {}
    for name, found in (("fits", wheels(node.home)), ("not", {PURE: b""})):
        data = pack(found)
        digests[name] = hashlib.sha256(data).hexdigest()
        put_package(home, digests[name], io.BytesIO(data))
    assert wheels_fit(home, digests["fits"])
    assert not wheels_fit(home, digests["not"])
    assert not wheels_fit(home, "0" * 64), "it was not sent"
    for tools, machine, able, has in (
        ("fits", os.uname().machine, False, True),
        ("not", os.uname().machine, False, False),
        ("not", "another", False, True),
        ("not", os.uname().machine, True, True),
    ):
        words = f"has --digest {'0' * 64} --unless-tools {digests[tools]} --machine {machine}"
        done = subprocess.run(
            [sys.executable, "-c", HAS.format(able=able), *words.split()],
            capture_output=True,
            env=node.env,
            check=True,
        )
        assert json.loads(done.stdout) == {"has": has}, (tools, machine, able)


HAS = (
    "import sys; from trainer.agent.base import pythons\n"
    "pythons.find_python = lambda *_: 'python' if {able} else ''\n"
    "from trainer import node; sys.exit(node.main())\n"
)
KIND = "unknown-linux-gnu-install_only.tar.gz"
NOT_GLIBC = "cpython-3.12.8+20260101-x86_64-unknown-linux-musl-install_only.tar.gz"
MAKE = (
    "from pathlib import Path; import sys; sys.path.insert(0, sys.argv[1])\n"
    "from trainer.agent.run.saver_env import ensure_saver_env\n"
    "print(ensure_saver_env(Path(sys.argv[2]), sys.argv[3]))"
)


def test_of_what_does_not_fit_the_machine_is_told_what_to_do(tmp_path: Path) -> None:
    data = pack({ABI3: b"", PURE: b""})
    digest = hashlib.sha256(data).hexdigest()
    put_package(tmp_path, digest, io.BytesIO(data))
    found = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            MAKE,
            str(Path.cwd()),
            str(tmp_path),
            digest,
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
    assert find_interpreters()[0].minor == sys.version_info[1]
    digest = "0" * 64
    assert ensure_saver_env(node.home, digest) == "", "not even looked for"
    asked = node.call("has", "--digest", digest, "--unless-able")
    assert asked.stdout == b'{"has": true}\n'
    assert node.call("has", "--digest", digest).stdout == b'{"has": false}\n'


def test_a_job_goes_on_where_nothing_can_be_made(node: Node) -> None:
    node.run()
    node.start(run="true", tools="0" * 64)
    assert node.wait_for(wire.EXITED).data["code"] == 0
