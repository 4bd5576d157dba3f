"""Names of container images."""

from __future__ import annotations

import pytest

from spotd.domain.container import container_of, full_name, pinned

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("pytorch/pytorch:2.6", "docker.io/pytorch/pytorch:2.6"),
        ("nvcr.io/nvidia/pytorch:25.01-py3", "nvcr.io/nvidia/pytorch:25.01-py3"),
        ("localhost/x", "localhost/x:latest"),
        ("r:5000/a/b_c--d:V1", "r:5000/a/b_c--d:V1"),
        (f"x:1@{DIGEST}", f"docker.io/library/x@{DIGEST}"),
    ],
)
def test_a_name_is_read_as_docker_reads_it(name: str, full: str) -> None:
    assert full_name(name) == full


@pytest.mark.parametrize(
    "name",
    ["", "Ubuntu", "a b", "x:", "x@sha256:12", "https://r.io/x", "-x", "a//b", "x;id", "x\n"],
)
def test_what_no_registry_has_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="REGISTRY/NAME:TAG"):
        full_name(name)


def test_a_job_keeps_to_the_digest_that_it_began_with() -> None:
    other = f"sha256:{'1' * 64}"
    assert pinned("r:5000/x:1", DIGEST) == f"r:5000/x@{DIGEST}"
    assert pinned("x", "") == "docker.io/library/x:latest"
    assert pinned(f"x@{DIGEST}", other) == f"docker.io/library/x@{DIGEST}"


def test_what_is_a_container() -> None:
    assert container_of("docker:x:1") == "x:1"
    assert container_of("ami-0123") == ""
