"""The command lines of each container engine."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from trainer.agent.process import engines
from trainer.agent.process.engines import DOCKER, PODMAN, ContainerRequest, Engine, LocalImage

SUDO = ("sudo", "-n")
WANTED = ContainerRequest(
    "spotd-j-g1-ab", "place", "sha256:1", ("/home/u", "/data"), True, "/m/hold.in"
)
SAME = [
    "run",
    "--rm",
    "--interactive",
    "--pull",
    "never",
    "--name",
    "spotd-j-g1-ab",
    "--label",
    "spotd-place=place",
    "--network",
    "host",
    "--ipc",
    "host",
    "--user",
    "0:0",
    "--workdir",
    "/",
    "--pids-limit",
    "-1",
    "--ulimit",
    "memlock=-1:-1",
    "--log-driver",
    "none",
    "--security-opt",
    "label=disable",
    "--stop-timeout",
    "0",
]
REST = [
    "--mount",
    "type=bind,source=/home/u,target=/home/u",
    "--mount",
    "type=bind,source=/data,target=/data",
    "--entrypoint",
    "sh",
    "sha256:1",
    "/m/hold.in",
]


@pytest.fixture(autouse=True)
def no_infiniband(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engines, "_INFINIBAND", tmp_path / "infiniband")


@pytest.mark.parametrize(
    ("engine", "gpus"),
    [
        (Engine(PODMAN), ["--device", "nvidia.com/gpu=all"]),
        (Engine(DOCKER, SUDO), ["--gpus", "all"]),
    ],
)
def test_a_container_has_the_machines_gpus_network_and_memory(
    engine: Engine, gpus: list[str]
) -> None:
    assert engine.run_argv(WANTED) == [*engine.program, *SAME, *gpus, *REST]


def test_without_gpus_none_are_asked_for_and_infiniband_is_handed_in(tmp_path: Path) -> None:
    bare = ContainerRequest(**{**vars(WANTED), "gpus": False})
    assert Engine(PODMAN).run_argv(bare) == ["podman", *SAME, *REST]
    folder = tmp_path / "infiniband"
    folder.mkdir()
    cards = ["--device", str(folder), "--cap-add", "IPC_LOCK"]
    assert Engine(DOCKER).run_argv(bare) == ["docker", *SAME, *cards, *REST]


@pytest.mark.parametrize(
    ("engine", "pull", "logged_in", "remove"),
    [
        (
            Engine(PODMAN, SUDO),
            ["sudo", "-n", "podman", "pull", "r/x:1"],
            ["sudo", "-n", "podman", "pull", "--authfile", "/m/logins/config.json", "r/x:1"],
            ["sudo", "-n", "podman", "rm", "--force", "--ignore", "c"],
        ),
        (
            Engine(DOCKER),
            ["docker", "pull", "r/x:1"],
            ["docker", "--config", "/m/logins", "pull", "r/x:1"],
            ["docker", "rm", "--force", "c"],
        ),
    ],
)
def test_pulling_and_removing(
    engine: Engine, pull: list[str], logged_in: list[str], remove: list[str]
) -> None:
    assert engine.pull_argv("r/x:1") == pull
    assert engine.pull_argv("r/x:1", "/m/logins") == logged_in
    assert engine.remove_argv("c") == remove
    told = ["exec", "--user", "0:0", "--workdir", "/w", "c", "sh", "/m/run.in"]
    assert engine.exec_argv("c", "/w", "/m/run.in") == [*engine.program, *told]
    asked = ["ps", "--all", "--quiet", "--filter", "label=spotd-place=p"]
    assert engine.list_argv("p") == [*engine.program, *asked]


Answers = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def answering(answers: Mapping[str, str]) -> Answers:
    """Commands that start with these words succeed with this output; all others fail."""

    def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        said = " ".join(argv)
        found = [text for words, text in answers.items() if said.startswith(words)]
        code = 0 if found else 1
        return subprocess.CompletedProcess(argv, code, *(found or [""]), f"a\nno {argv[0]}")

    return run


def test_the_engine_is_the_one_that_answers() -> None:
    assert engines.choose_engine(answering({"podman version": "4"}), gpus=False, uid=0) == (
        Engine(PODMAN),
        "",
    )
    docker = answering({"sudo -n docker version": "20"})
    assert engines.choose_engine(docker, gpus=False, uid=1000) == (Engine(DOCKER, SUDO), "")
    none, why = engines.choose_engine(answering({}), gpus=False, uid=0)
    assert none is None
    assert why == "podman: no podman; docker: no docker"


def test_with_gpus_it_is_one_that_hands_them_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engines, "_CDI", (tmp_path,))
    monkeypatch.setattr(engines, "_HOOKS", ("no-such-hook",))
    both = {"podman version": "4.3.1\n", "docker version": "20"}
    none, why = engines.choose_engine(answering(both), gpus=True, uid=0)
    assert none is None
    assert "nvidia-ctk: no nvidia-ctk" in why
    assert "docker: nvidia-container-toolkit missing" in why
    runtimes = both | {"docker info": '{"nvidia": {}}'}
    assert engines.choose_engine(answering(runtimes), gpus=True, uid=0)[0] == Engine(DOCKER)
    described = both | {"nvidia-ctk cdi generate": ""}
    assert engines.choose_engine(answering(described), gpus=True, uid=0)[0] == Engine(PODMAN)
    (tmp_path / "nvidia.yaml").touch()
    assert engines.choose_engine(answering(both), gpus=True, uid=0)[0] == Engine(PODMAN)
    old = runtimes | {"podman version": "3.4.4\n"}  # Ubuntu 22.04's
    assert engines.choose_engine(answering(old), gpus=True, uid=0)[0] == Engine(DOCKER)
    assert engines.choose_engine(answering(old), gpus=False, uid=0)[0] == Engine(PODMAN)
    none, why = engines.choose_engine(answering({"podman version": "3.4.4\n"}), gpus=True, uid=0)
    assert none is None
    assert "podman: 3.4.4 hands no GPUs in, 4.1 does" in why


def test_what_an_engine_knows_of_an_image() -> None:
    pulled = {"Id": "ab", "Digest": "sha256:d", "RepoDigests": ["r/x@sha256:e"]}
    assert engines.parse_image_inspect(json.dumps([pulled])) == LocalImage("sha256:ab", "sha256:d")
    docker = {"Id": "sha256:ab", "RepoDigests": ["r/x@sha256:e"]}
    assert engines.parse_image_inspect(json.dumps([docker])) == LocalImage("sha256:ab", "sha256:e")
    made_here = {"Id": "sha256:ab", "RepoDigests": []}
    assert engines.parse_image_inspect(json.dumps([made_here])) == LocalImage(
        "sha256:ab", "sha256:ab"
    )


@pytest.mark.parametrize(
    ("image", "server", "keys"),
    [
        ("nvcr.io/x/y:1", "", {"nvcr.io"}),
        ("docker.io/x/y:1", "", {"docker.io", "https://index.docker.io/v1/"}),
        ("docker.io/x/y:1", "r.example:5000", {"r.example:5000"}),
    ],
)
def test_a_login_is_for_its_registry(image: str, server: str, keys: set[str]) -> None:
    login = {"username": "u", "password": "p:w"} | ({"server": server} if server else {})
    found = engines.registry_config(image, login)["auths"]
    assert found.keys() == keys
    assert {base64.b64decode(entry["auth"]) for entry in found.values()} == {b"u:p:w"}
