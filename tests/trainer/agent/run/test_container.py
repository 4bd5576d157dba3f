"""`setup` and `run` in a real container, from an image made here."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from providers.stores import open_store
from spotd import wire
from spotd.demo import s3
from spotd.wire import MountMode
from tests.fixtures import containers
from tests.fixtures.containers import IMAGE, Podman
from tests.fixtures.registry import Registry, serving
from tests.fixtures.search import files_with
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.agent.node import ROOT, Node
from trainer.agent.data.fuse import is_mounted
from trainer.agent.process.processes import descendants, send_signal

pytestmark = pytest.mark.root

TORCH = (
    "torch", "torchgen", "functorch", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath",
    "networkx", "sympy", "typing_extensions",
)  # fmt: skip
LIBRARIES = ("libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6", "librt.so.1", "libdl.so.2")
# Counts on from what the last one saved; saves when it is told to stop.
COUNTER = """
import json, os, pathlib, signal, sys, time
saved = pathlib.Path(os.environ["STATE"])
state = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "lives": 0}
state["lives"] += 1
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
print("begins at", state["step"], "of", os.environ["GREETING"], flush=True)
while True:
    state["step"] += 1
    time.sleep(0.01)
    if state["lives"] == 2 and state["step"] > 50:
        print("done", flush=True)
        sys.exit(0)
    if told:
        saved.write_text(json.dumps(state))
        print("saved", flush=True)
        sys.exit(75)
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with containers.running_podman() as found:
        yield found


@pytest.fixture
def node(tmp_path: Path, podman: Podman) -> Iterator[Node]:
    with Node(tmp_path / "node", environ=podman.env) as machine:
        yield machine
    assert podman.containers() == []


def test_a_job_trains_in_its_container_is_noticed_and_goes_on_of_the_same_image(
    node: Node, podman: Podman
) -> None:
    program = node.home / "counter.py"
    program.write_text(COUNTER)
    job = {
        "image": IMAGE,
        "setup": "echo of setup >/usr/made; sleep 1000 & echo $! >/usr/daemon",
        "run": f"cat /usr/made\n(setsid sleep 2000 &)\npython3 {program}\nexit $?\n",
        "envs": {"STATE": str(node.home / "state.json"), "GREETING": "it's\n$HOME"},
        "secrets": {"TOKEN": "very-secret"},
        "stop_grace_s": 30.0,
    }
    node.run()
    node.start(**job)
    begun = "begins at 0 of it's\n$HOME"
    wait_until("it counts", lambda: begun in node.log(), LIMIT_S)
    assert "of setup" in node.log()
    assert not Path("/usr/made").exists(), "it ran outside"
    [name] = podman.containers()
    assert name.startswith("spotd-job-1-g1-")
    described = podman("inspect", name)
    assert "very-secret" not in described
    node.kill_agent()  # it goes on without, and is found again
    node.run()

    node.send(wire.DRAIN, {"reason": "preempt", "deadline_s": 30.0})
    assert node.wait_for(wire.EXITED, LIMIT_S).data["code"] == wire.EXIT_RELEASED
    assert "saved" in node.log()
    assert json.loads((node.home / "state.json").read_text())["step"] > 1
    wait_until("no container is left", lambda: podman.containers() == [], LIMIT_S)
    [begun, ok] = node.entries(wire.IMAGE)
    assert (begun.data["status"], ok.data["status"]) == ("begin", "ok")
    digest = ok.data["digest"]
    node.kill_agent()

    second = Node(node.home, generation=2, environ=node.environ)
    with second:
        second.run()
        second.start(**{**job, "image": f"{IMAGE.rpartition(':')[0]}@{digest}"})
        assert second.wait_for(wire.EXITED, LIMIT_S).data["code"] == 0
        assert second.entries(wire.IMAGE)[-1].data["digest"] == digest
        assert "done" in second.log()
        wait_until("no container is left", lambda: podman.containers() == [], LIMIT_S)


@pytest.fixture(scope="module")
def registry(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("pushed")
    podman("push", "--quiet", IMAGE, f"dir:{folder}")
    with serving() as found:
        found.add("lab/train:1", folder)
        yield found


def test_an_image_is_pulled_with_its_login_and_the_login_is_seen_nowhere(
    node: Node, podman: Podman, registry: Registry
) -> None:
    registry.login = "me:pass-word-1"
    image = registry.name("lab/train:1")
    login = {"SKYPILOT_DOCKER_USERNAME": "me", "SKYPILOT_DOCKER_PASSWORD": "pass-word-1"}
    node.run()
    node.start(image=image, run='echo "pass=$SKYPILOT_DOCKER_PASSWORD."; exit 3', secrets=login)
    assert node.wait_for(wire.EXITED, LIMIT_S).data["code"] == 3
    assert "pass=." in node.log()
    ok = node.entries(wire.IMAGE)[-1].data
    assert (ok["status"], ok["pulled"]) == ("ok", True)
    assert ok["digest"] == registry.tags["lab/train:1"]
    wait_until("no container is left", lambda: podman.containers() == [], LIMIT_S)
    assert not files_with(b"pass-word-1", node.home, node.paths.memory)


def test_an_image_that_nobody_may_have_fails_the_job_with_a_text(
    node: Node, registry: Registry
) -> None:
    registry.login = "me:another"
    image = registry.name("lab/private:1")
    node.run()
    node.start(image=image, secrets={"SKYPILOT_DOCKER_USERNAME": "me"})
    failed = wait_until("setup has failed", lambda: node.entries(wire.SETUP), LIMIT_S)[0].data
    assert failed["status"] == "failed"
    assert f"image {image} does not exist, or needs a login" in failed["tail"]
    assert wire.READY not in node.kinds()
    assert wire.CLAIMED not in node.kinds()


def test_what_is_killed_is_gone_and_a_generation_before_leaves_no_container(
    node: Node, podman: Podman
) -> None:
    escaping = "(setsid setsid sleep 3000 &)\n(setsid sleep 3000 &)\nsleep 3000"
    node.run()
    node.start(image=IMAGE, run=escaping)
    node.wait_for(wire.STARTED, LIMIT_S)
    wait_until("three sleep", lambda: len(_asleep()) == 3)
    node.kill_agent()  # of a machine that was cut off: its container stands
    [old] = podman.containers()

    second = Node(node.home, generation=2, environ=node.environ)
    with second:
        second.run()
        second.start(image=IMAGE, run=escaping)
        second.wait_for(wire.STARTED, LIMIT_S)
        wait_until("the first is gone", lambda: len(_asleep()) == 3)
        [new] = podman.containers()
        assert new != old
        assert second.send(wire.STOP).ok
        wait_until("nothing sleeps", lambda: _asleep() == [])
        wait_until("no container is left", lambda: podman.containers() == [], LIMIT_S)


def test_the_end_of_who_holds_a_container_is_its_end(node: Node, podman: Podman) -> None:
    """Only the client is killed, as for docker, whose containers are not its children."""
    node.run()
    node.start(image=IMAGE, run="sleep 3000")
    node.wait_for(wire.STARTED, LIMIT_S)
    wait_until("it sleeps", _asleep)
    node.kill_agent()
    pids = node.pids("container")
    assert pids is not None
    for process in [*descendants(pids.program.pid), pids.program]:
        send_signal(process, signal.SIGKILL)
    wait_until("nothing sleeps", lambda: _asleep() == [])
    wait_until("no container is left", lambda: podman.containers() == [], LIMIT_S)


def _asleep() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if path.read_bytes() == b"sleep\x003000\x00" else []
        except OSError:
            continue
    return found


def test_a_program_of_our_engine_has_its_saver_in_its_container(
    node: Node, podman: Podman, tmp_path: Path
) -> None:
    """The program is killed after staging, and the save is still committed."""
    code = node.home / "code"
    for name in ("trainer", "providers", "spotd"):
        shutil.copytree(ROOT / name, code / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(xxhash.__file__).parent, code / "xxhash")
    libraries = Path("/lib") / f"{platform.machine()}-linux-gnu"
    for name in ("libpthread.so.0", "libgcc_s.so.1"):  # which the small image has not
        shutil.copy(libraries / name, code)
    program = shutil.copy(Path(__file__).parents[1] / "staging.py", node.home)
    node.run()
    node.start(
        image=IMAGE,
        run=f"exec python3 {program} --steps 3 --die",
        envs={"PYTHONPATH": str(code), "LD_LIBRARY_PATH": str(code)},
        engine="spotd",
        stop_grace_s=LIMIT_S,
    )
    exited = node.wait_for(wire.EXITED, LIMIT_S)
    assert exited.data["code"] == 128 + signal.SIGKILL, node.log()
    assert [entry.data["step"] for entry in node.entries(wire.CHECKPOINT)] == [1, 2, 3]
    assert node.entries(wire.WARNING) == [], "it is not the program's own"
    head = node.head()
    assert head is not None
    assert head.current is not None
    assert head.current.step == 3
    wait_until("no container is left", lambda: podman.containers() == [], LIMIT_S)


IMPORTS = """
import spotd_hook, sys
print(spotd_hook.report_results.__name__, spotd_hook.__file__)
try:
    print(spotd_hook.Run.__name__)
except ImportError as error:
    print("no Run:", error)
"""


def _link(source: str, target: str) -> None:
    """A copy that takes no room, where that is possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _bring(folder: Path, *modules: str) -> None:
    """Put modules of this environment into a folder that the container sees."""
    folder.mkdir()
    for name in modules:
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        origin = Path(spec.origin)
        if origin.name == "__init__.py":
            ignored = shutil.ignore_patterns("__pycache__", "include")
            shutil.copytree(origin.parent, folder / name, copy_function=_link, ignore=ignored)
        else:
            shutil.copy(origin, folder)


@pytest.mark.parametrize("torch", [False, True], ids=["without torch", "with torch"])
def test_the_hook_is_installed_into_the_environment_of_a_container(
    node: Node, podman: Podman, *, torch: bool
) -> None:
    """By the wheel that SPOTD_HOOK names, with nothing from a registry."""
    pip, code, venv = (node.home / name for name in ("pip", "code", "venv"))
    _bring(pip, "pip")
    _bring(code, *(TORCH if torch else ()))
    libraries = Path("/lib") / f"{platform.machine()}-linux-gnu"
    for name in LIBRARIES if torch else ():  # which the small image has not
        shutil.copy(libraries / name, code)
    program = node.home / "train.py"
    program.write_text(IMPORTS)
    installed = f"{venv}/lib/python3.{sys.version_info.minor}/site-packages"
    node.run()
    node.start(
        image=IMAGE,
        setup=f"python3 -m venv --without-pip {venv} && echo {code} > {installed}/code.pth && "
        f"PYTHONPATH={pip} python3 -m pip --python {venv}/bin/python install -q --no-index "
        '"$SPOTD_HOOK"',
        # In isolated mode only what is installed counts, and nothing of the agent's Python path.
        run=f"exec {venv}/bin/python -I {program}",
        envs={"LD_LIBRARY_PATH": str(code)},
    )
    exited = node.wait_for(wire.EXITED, LIMIT_S)
    assert exited.data["code"] == 0, node.log("setup") + node.log()
    wait_until("no container is left", lambda: podman.containers() == [], LIMIT_S)
    of_torch = "Run" if torch else "no Run: No module named 'torch'"
    printed = node.log().splitlines()[-2:]  # torch warns that there is no numpy
    assert printed == [f"report_results {installed}/spotd_hook/__init__.py", of_torch]


def test_buckets_copied_and_mounted_are_seen_in_the_container(
    node: Node, podman: Podman, tmp_path: Path
) -> None:
    """At paths chosen by the user, outside the agent's own folders."""
    with s3.serving() as made:
        open_store(made.url, made.options).put("a", b"words\n")
        copied, mounted = tmp_path / "copied", tmp_path / "mounted"
        buckets = tuple(
            wire.Bucket(str(folder), made.url, made.options, mode=mode)
            for folder, mode in ((copied, MountMode.COPY), (mounted, MountMode.MOUNT))
        )
        node.run()
        node.start(image=IMAGE, run=f"cat {copied}/a {mounted}/a", buckets=buckets)
        assert node.wait_for(wire.EXITED, LIMIT_S).data["code"] == 0, node.log("setup")
        wait_until("it to be unmounted", lambda: not is_mounted(mounted))
    wait_until("no container is left", lambda: podman.containers() == [], LIMIT_S)
    assert node.log() == "words\nwords\n"
