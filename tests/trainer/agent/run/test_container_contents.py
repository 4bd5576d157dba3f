"""Environment, folders and login of a container."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spotd.wire import Package
from tests.trainer.agent.node import Node
from trainer.agent.base.paths import AgentPaths
from trainer.agent.run import container_contents


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_the_environment_arrives_as_it_is_and_so_does_the_exit_code(
    tmp_path: Path, shell: str
) -> None:
    script = tmp_path / "a b.sh"
    script.write_text('printf "%s|" "$A" "$B"; exit 75')
    path = tmp_path / "run.in"
    env = {"A": "it's $HOME\n`x`", "B": "", "BASH_FUNC_x%%": "() { :; }"}
    path.write_text(container_contents.inside_script(env, script))
    done = subprocess.run([shell, str(path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("it's $HOME\n`x`||", 75)


def test_the_folders_of_the_job_are_seen_and_roots_home_is_the_images_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_contents, "_LOCAL_DISKS", tmp_path / "disks")
    home, memory = Path("/root"), Path("/dev/shm/spotd-0/x")
    paths = AgentPaths(home / ".spotd", home / ".spotd/j/g1", memory)
    packages = (Package("0" * 64, ""), Package("1" * 64, "/opt/data"))
    start = Node(tmp_path).start_document(packages=packages, store_url=f"file://{tmp_path}/a%20b")
    expected = ["/opt/data", "/root/.spotd", f"{tmp_path}/a b"]
    assert container_contents.shared_folders(paths, start, home) == sorted(expected)
    assert (tmp_path / "a b").is_dir()

    (tmp_path / "disks").mkdir()
    elsewhere = AgentPaths(tmp_path / "disks/s", tmp_path / "disks/s/j/g1", Path("/tmp/spotd-0/x"))
    start = Node(tmp_path).start_document(store_url="s3://bucket")
    expected = ["/home/spotd", "/tmp/spotd-0/x", str(tmp_path / "disks")]
    assert container_contents.shared_folders(elsewhere, start, Path("/home/spotd")) == sorted(
        expected
    )


def test_a_login_is_taken_from_secrets_and_variables(tmp_path: Path) -> None:
    node = Node(tmp_path)
    names = {"SKYPILOT_DOCKER_USERNAME": "u", "SKYPILOT_DOCKER_SERVER": "nvcr.io"}
    start = node.start_document(envs=names, secrets={"SKYPILOT_DOCKER_PASSWORD": "p"})
    assert container_contents.registry_login(start) == {
        "username": "u",
        "password": "p",
        "server": "nvcr.io",
    }
    assert (
        container_contents.registry_login(
            node.start_document(secrets={"SKYPILOT_DOCKER_PASSWORD": "p"})
        )
        == {}
    )
