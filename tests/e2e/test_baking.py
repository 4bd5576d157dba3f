"""An image is baked by `spotctl image bake` on a machine of AWS's stand-in, over the real SDK, with
a real daemon, real SSH and the real agent, and is offered to a job. Needs root;
without it, a failure.

What `spot-node clean` takes off a disk is played: a namespace is not a whole machine, and it
refuses that. What follows from it is not: the machine lets nobody in any more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spotd.base.errors import ExitCode
from spotd.cli.app import run
from spotd.demo.box import wait_for
from tests.e2e.clouds import CloudBox, Clouds, running_clouds
from tests.fixtures.waiting import LIMIT_S

pytestmark = pytest.mark.root

PUBLIC = {"aws": "public", "gcp": "public", "azure": "public"}
SUDO = """\
case "$*" in
*" clean --home "*)
    rm ~/.ssh/authorized_keys && echo '{"cleaned": {"removed": 1, "failed": []}}' ;;
*) exec /usr/bin/sudo "$@" ;;
esac
"""
BAKE = """\
name: torch
resources:
  accelerators: H100:8
  use_spot: true
setup: echo the setup of torch
"""
JOB = BAKE.replace("name: torch", "name: uses").replace(
    "resources:", "resources:\n  image_id: baked:torch"
)


def spotctl(box: CloudBox, *words: str) -> int:
    return run(["--socket", str(box.socket_path), *words])


def said(capsys: pytest.CaptureFixture[str]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.e2e
def test_an_image_is_baked_and_offered_to_a_job_and_no_machine_is_left(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "bake.yaml").write_text(BAKE)
    (folder / "job.yaml").write_text(JOB + "run: sleep 600\n")
    with running_clouds(folder / "clouds", Path(sys.executable), PUBLIC) as clouds:
        clouds.grounds["aws"].machines.next_programs = {"/usr/local/bin/sudo": SUDO}
        aws = [site for site in clouds.sites() if site.name == "aws"]
        with CloudBox(folder / "box", aws, clouds.store, Path(sys.executable)) as box:
            box.start_daemon()
            try:
                _bake(box, clouds, capsys)
            except BaseException:
                print((folder / "box" / "daemon.log").read_text()[-8000:])
                raise


def _bake(box: CloudBox, clouds: Clouds, capsys: pytest.CaptureFixture[str]) -> None:
    assert spotctl(box, "run", "job.yaml", "-d") == ExitCode.USAGE
    assert "no image 'torch' was baked" in capsys.readouterr().err
    assert spotctl(box, "image", "bake", "bake.yaml", "--infra", "aws/us-west-2") == 0
    assert "image torch is available in aws/us-west-2" in capsys.readouterr().err
    [created] = [one for one in clouds.aws.ec2.seen if one.action == "CreateImage"]
    assert "spotd-baked" in created.body.values()
    assert spotctl(box, "image", "ls", "-o", "json") == 0
    [image] = said(capsys)["items"]
    assert (image["name"], image["state"], image["provider"]) == ("torch", "available", "aws")
    assert image["image_id"].startswith("ami-")
    assert spotctl(box, "plan", "job.yaml", "-o", "json") == 0
    offers = said(capsys)["offers"]
    assert {(row["region"], row["baked"]) for row in offers} == {("us-west-2", image["image_id"])}
    assert spotctl(box, "logs", "bake-torch-aws-us-west-2", "--stream", "setup") == 0
    assert "the setup of torch" in capsys.readouterr().out
    wait_for("no machine is left", lambda: not any(clouds.left().values()), LIMIT_S)
