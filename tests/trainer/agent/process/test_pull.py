"""Which pull errors are retried."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

import pytest

from trainer.agent.process.engines import DOCKER, Engine, LocalImage
from trainer.agent.process.pull import (
    REFUSED,
    RETRY_PAUSES_S,
    UNREACHED,
    is_permanent_error,
    pull_image,
)

IMAGE = "r.example/x:1"


class Machine:
    """A machine whose engine has the image after the pull that prints "done"."""

    def __init__(self, *pulls: str, has: str = "") -> None:
        self.pulls = list(pulls)
        self.has = has
        self.asked: list[str] = []
        self.slept: list[float] = []

    def run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(argv[-1])
        found = json.dumps([{"Id": "sha256:1", "RepoDigests": ["x@sha256:d"]}])
        return subprocess.CompletedProcess(argv, int(argv[-1] != self.has), found, "")

    def pull(self, argv: list[str]) -> tuple[int, str]:
        said = self.pulls.pop(0)
        if said == "done":
            self.has = argv[-1]
        return int(said != "done"), f"Trying to pull...\n{said}\n"

    def bring(self, image: str = IMAGE) -> tuple[int, str, LocalImage | None, bool]:
        outside = {"run": self.run, "pull": self.pull, "sleep": self.slept.append}
        return pull_image(Engine(DOCKER), image, "", **outside)  # type: ignore[arg-type]


def test_an_image_that_is_here_is_not_pulled() -> None:
    code, _, found, pulled = Machine(has=IMAGE).bring()
    assert (code, found, pulled) == (0, LocalImage("sha256:1", "sha256:d"), False)
    by_id = Machine(has="sha256:1")
    assert by_id.bring("r.example/x@sha256:1")[0] == 0
    assert by_id.asked == ["r.example/x@sha256:1", "sha256:1"]


def test_what_may_pass_is_tried_again() -> None:
    machine = Machine("connection refused", "received unexpected HTTP status: 503", "done")
    assert machine.bring() == (0, "", LocalImage("sha256:1", "sha256:d"), True)
    assert machine.slept == list(RETRY_PAUSES_S[:2])


def test_a_registry_that_stays_away_is_this_machines_trouble() -> None:
    machine = Machine(*["dial tcp: i/o timeout"] * 6)
    code, text, found, _ = machine.bring()
    assert (code, found, machine.pulls) == (UNREACHED, None, [])
    assert text == f"image {IMAGE} cannot be pulled after 6 attempts: dial tcp: i/o timeout"


def test_what_a_registry_will_never_give_is_asked_for_once() -> None:
    machine = Machine("Error: manifest unknown: no such tag")
    code, text, _, _ = machine.bring()
    assert code == REFUSED
    assert text == (
        f"image {IMAGE} does not exist, or needs a login (Error: manifest unknown: no such tag)"
    )
    assert machine.slept == []


@pytest.mark.parametrize(
    ("output", "last_word"),
    [
        ("unauthorized: authentication required", True),
        ("denied: requested access to the resource is denied", True),
        ("Error: no matching manifest for linux/arm64", True),
        ("reading manifest 9 in docker.io/library/x: manifest unknown", True),
        ("invalid username/password: unauthorized: incorrect username or password", True),
        ("toomanyrequests: You have reached your pull rate limit. denied: later", False),
        ("Get https://r/v2/: dial tcp: lookup r: no such host", False),
        ("unexpected EOF", False),
        ("no space left on device", False),
    ],
)
def test_last_words(output: str, last_word: bool) -> None:
    assert is_permanent_error(output) is last_word
