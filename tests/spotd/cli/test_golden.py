"""What every command prints, word for word, through the real API on a real socket.

To accept what is printed now: SPOTD_WRITE_GOLDEN=1 pytest tests/spotd/cli/test_golden.py, then read
the difference.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.domain.queue import Limits
from tests.spotd.api.images import bake_one
from tests.spotd.api.rig import JOB_FILE, OFFERS, Rig, crash, story
from tests.spotd.cli.conftest import Spotctl

DEADLINE = "  deadline: 60h\n  work: 40h\n"
FOLDER = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Rig]:
    """Three jobs: one preempted and running, one crashed, one that waits."""
    rig = Rig()
    crash(rig)
    story(rig)
    rig.submit("waiting-for-a-machine-since-yesterday", 90_030)
    rig.hold("i-0a1", 7_230, "job jold is not on record: the database was restored")
    rig.hold_disk("vol-0b2", 7_230, "job jold is not on record: the database was restored")
    bake_one(rig)
    (rig.folder / "job.yaml").write_text(JOB_FILE)
    for name, more in (("deadline", DEADLINE), ("residency", "  residency: [EU, CH]\n")):
        (rig.folder / f"{name}.yaml").write_text(JOB_FILE + more)
    yield rig.start()
    rig.close()


@pytest.mark.req("UX-01")
@pytest.mark.parametrize(
    ("name", "line", "columns"),
    [
        ("ps", "ps", 80),
        ("ps_wide", "ps --all", 120),
        ("ps_name", "ps -o name", 80),
        ("show", "show gpt", 80),
        ("show_wide", "show gpt", 120),
        ("show_crashed", "show crashed", 100),
        ("show_file", "show gpt --file", 80),
        ("nodes", "nodes", 100),
        ("nodes_job", "nodes gpt", 120),
        ("cost", "cost", 100),
        ("cost_job", "cost gpt", 100),
        ("cost_report", "cost report", 120),
        ("cost_report_job", "cost report gpt", 120),
        ("logs", "logs gpt", 80),
        ("logs_tail", "logs gpt --tail 2", 80),
        ("logs_setup", "logs gpt --stream setup", 80),
        ("plan", "plan FOLDER/job.yaml", 100),
        ("plan_deadline", "plan FOLDER/deadline.yaml", 110),
        ("plan_residency", "plan FOLDER/residency.yaml", 100),
        ("advise", "advisor job FOLDER/deadline.yaml --search 12h --parameters 70B", 140),
        ("advise_bare", "advisor job FOLDER/job.yaml", 140),
        ("providers", "providers", 140),
        ("doctor", "doctor", 100),
        ("alerts", "alerts test", 80),
        ("orphans", "orphans", 100),
        ("image", "image ls", 140),
        ("offers", "offers", 110),
        ("offers_gpu", "offers --gpus H100:8 --sort gpu --limit 2", 110),
        ("stats", "stats", 140),
        ("stats_zone", "stats --by zone --since 7d", 140),
        ("stats_claims", "stats --claims", 140),
        ("claims", "price claims", 130),
        ("prices", "price history --capacity spot --since 24h", 130),
    ],
)
def test_golden(
    fleet: Rig,
    spotctl: Spotctl,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    line: str,
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code = spotctl(fleet, *shlex.split(line.replace("FOLDER", str(fleet.folder))))
    captured = capsys.readouterr()
    shown = f"$ spotctl {line}\n{captured.out}"
    shown += "".join(f"stderr: {text}\n" for text in captured.err.splitlines())
    shown += f"exit {code}\n"
    # The checks of this machine differ from one to the next.
    lines = [text for text in shown.splitlines() if not re.match(r"ok +(python|ssh) ", text)]
    shown = "\n".join(lines).replace(str(fleet.folder), "/tmp/FOLDER") + "\n"
    shown = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:[\d:.]+(Z|[+-]\d\d:\d\d)", "TIME", shown)
    shown = re.sub(r"\b\ds$", "0s", shown, flags=re.MULTILINE)  # since this test began
    file = FOLDER / f"{name}.txt"
    if os.environ.get("SPOTD_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown)
    assert shown == file.read_text()
    assert "\x1b" not in shown
    width = max(len(text) for text in captured.out.splitlines())
    assert width <= columns or line.startswith(("show gpt --file", "plan"))


def test_plan_beyond_the_limits_is_refused(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    (rig.folder / "job.yaml").write_text(JOB_FILE)
    rig.store.market.set_limits(Limits(max_nodes=4, max_microusd_per_h=10_000_000))
    assert spotctl(rig, "plan", str(rig.folder / "job.yaml")) == 4
    error = capsys.readouterr().err
    assert "it would have to wait" in error
    assert "try: raise [limits] in config.toml" in error


def test_plan_above_the_price_cap_names_the_cheapest_offer(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    text = JOB_FILE.replace("H100:8", "H100:8\n  max_hourly_cost: 15")
    (rig.folder / "job.yaml").write_text(text)
    assert spotctl(rig, "plan", str(rig.folder / "job.yaml"), "--limit", "1") == 2
    error = capsys.readouterr().err
    assert "costs more than its max_hourly_cost of $15.00" in error
    assert "the cheapest is $19.93/h in aws/us-east-1a" in error
    assert "try: resources.max_hourly_cost of $19.93 or more" in error


def test_plan_without_an_answering_cloud_is_an_error(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    (rig.folder / "job.yaml").write_text(JOB_FILE)
    rig.silent_providers = {"toy-gcp": "no answer for 95 s"}
    assert spotctl(rig, "plan", str(rig.folder / "job.yaml")) == 0
    marked = [line for line in capsys.readouterr().out.splitlines() if "no answer for" in line]
    assert len(marked) == 1
    assert marked[0].startswith("toy-gcp/us-central1-a")
    rig.silent_providers["aws"] = "no answer for 40 s"
    assert spotctl(rig, "plan", str(rig.folder / "job.yaml")) == 2
    assert "no cloud with an offer that fits gpt answers" in capsys.readouterr().err


def test_plan_of_an_empty_file_is_an_error(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same message as of `run`."""
    (rig.folder / "empty.yaml").write_text("")
    for command in ("run", "plan"):
        assert spotctl(rig, command, str(rig.folder / "empty.yaml")) == 2
        assert "the file is empty (fix: a job needs at least 'run')" in capsys.readouterr().err


def test_plan_without_a_fitting_offer_is_an_error(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    (rig.folder / "job.yaml").write_text(JOB_FILE.replace("H100", "B200"))
    assert spotctl(rig, "plan", str(rig.folder / "job.yaml"), "-o", "json") == 2
    captured = capsys.readouterr()
    assert '"fitting": 0' in captured.out
    assert f"({len(OFFERS)} offers are known)" in captured.err
