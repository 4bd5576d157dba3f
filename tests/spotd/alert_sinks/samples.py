"""An alert of each kind that spotd sends, and docs/slack.md, which shows their messages.

`python -m tests.spotd.alert_sinks.samples --write` rewrites the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import spotd
from spotd.alert_sinks.base import Alert
from spotd.alert_sinks.slack_blocks import payload
from spotd.domain.events import Event, Severity

PAGE = Path(spotd.__file__ or "").parent.parent / "docs" / "slack.md"
DASHBOARD = "https://spotd.example.org"
MENTIONS = {Severity.ERROR: ["<!here>", "<!subteam^S0614TZR7>"]}
AT_US = 1_795_860_000 * 1_000_000  # 2026-11-28 10:00 UTC

_INFO, _WARNING, _ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR
# (kind, severity, text, data) of alerts about a job
_OF_JOBS: Sequence[tuple[str, Severity, str, Mapping[str, object]]] = [
    ("notice", _WARNING, "preempt notice for node g1 in aws/us-east-1a, 120 s left", {}),
    ("withdrawn", _INFO, "the notice for node g1 in aws/us-east-1a was withdrawn", {}),
    ("lost", _WARNING, "node g1 in aws/us-east-1a is gone, without a notice", {}),
    (
        "recovered",
        _INFO,
        "training again on gcp/europe-west4-b from step 1200",
        {"seconds": 94.0, "steps_lost": 14, "lost_s": 70.0, "lost_microusd": 210_000},
    ),
    (
        "recovered",
        _WARNING,
        "started from the beginning on gcp/europe-west4-b: there was no checkpoint",
        {"anew": True, "seconds": 94.0, "lost_s": 9_000.0, "lost_microusd": 4_100_000},
    ),
    (
        "crashed",
        _WARNING,
        "the program exited with code 1; restart 2 of 3",
        {"cause": "ValueError: batch size 12 is not divisible by 8 & <ranks>"},
    ),
    (
        "failed",
        _ERROR,
        "gpt failed: the program exited with code 1; the checkpoint of step 1200 is retained",
        {"cause": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"},
    ),
    ("succeeded", _INFO, "gpt finished at step 5000", {"step": 5000}),
    ("succeeded", _WARNING, "gpt finished: nothing kept", {"step": 0, "kept": False}),
    ("slow", _WARNING, "steps take 2.1 times as long as before", {}),
    ("moved", _WARNING, "moves to another machine: the disk of node g1 is full", {}),
    ("waits", _WARNING, "gpt has no machine for 30m: no offer has capacity", {"seconds": 1800}),
    ("stays", _ERROR, "node g1 should have ended 20 min ago, but still runs", {"seconds": 1200}),
    ("unsaved", _ERROR, "nothing was saved for 3h; the last is step 1200", {"step": 1200}),
    ("unheard", _WARNING, "node g1 has not reported within 8 min", {}),
    ("unconfirmed", _ERROR, "node g1 exited, and its last checkpoint could not be read", {}),
    ("start_failed", _WARNING, "node g1 could not be started: setup ended with 127", {}),
    ("outbid", _WARNING, "the price of node g1 is above max_hourly_cost", {}),
    ("yielded", _WARNING, "gave its machine to bert, which has a higher priority", {}),
    ("yield_in_vain", _WARNING, "saved nothing in 600 s: bert keeps waiting", {}),
    ("shrunk", _WARNING, "continues with 3 of 4 machines", {"nodes": 3, "of": 4}),
    ("regrouped", _INFO, "continues with all 4 machines", {"nodes": 4, "of": 4}),
    ("stepped_back", _WARNING, "the next machine resumes from the checkpoint of step 800", {}),
    ("rolled_back", _WARNING, "the program rolled back to the checkpoint of step 800", {}),
    ("checkpoint_failed", _ERROR, "the checkpoint of step 1300 failed: no space left", {}),
    ("checkpoint_skipped", _WARNING, "the checkpoint of step 1300 is damaged; step 1200", {}),
    ("outputs", _ERROR, "the outputs are not stored: access denied", {}),
    ("disk", _ERROR, "the disk of node g1 stays full", {}),
    ("node_warning", _WARNING, "node g1: the clock is 40 s off", {}),
    ("unfit", _WARNING, "the machine is not fit to train on: GPU 3 does not answer", {}),
    ("hung", _WARNING, "training hangs: no step for 15m", {"step": 1200}),
    ("gpu", _WARNING, "GPU 3 fell off the bus (Xid 79)", {}),
    ("gpu_noted", _WARNING, "GPU 3 has corrected 12 memory errors", {}),
    ("mount_lost", _ERROR, "the bucket at /data is no longer served", {}),
    ("mount_failing", _WARNING, "reads of /data fail", {}),
    ("nan_after_resume", _ERROR, "the loss is not finite after the resume", {}),
    ("loss_spike", _WARNING, "the loss rose from 2.1 to 9.7 at step 1201", {}),
    ("not_resumed", _ERROR, "the program did not open what was restored for it", {}),
    ("nan", _ERROR, "the loss is not finite since step 1201", {}),
    ("straggler", _WARNING, "rank 3 takes 1.8 times as long as the others", {}),
    ("peers", _WARNING, "ranks wait for rank 3, and give up in 5m", {}),
    ("link_refused", _WARNING, "the machine that answers has another key", {}),
    ("saves_cost", _WARNING, "saves take 12 % of the time of the job", {}),
    ("idle_gpus", _WARNING, "the GPUs were busy for 4 % of the last hour", {}),
    ("gpus_low", _WARNING, "the GPUs were busy for 22 % of the last hour", {}),
    ("cost_forecast", _WARNING, "reaches its limit of $40.00 in about 3h", {}),
    ("cost_reached", _ERROR, "reached its limit of $40.00: it saves and ends", {}),
    ("budget_approval", _WARNING, "may exceed the budget team; another admin approves", {}),
    ("outlier", _WARNING, "spends 4 times a day what jobs of its project do", {}),
    ("plan_rejected", _ERROR, "a decision was rejected: two machines of one rank", {}),
    ("pass_failed", _ERROR, "a decision about gpt failed: KeyError", {}),
    ("not_renewed", _ERROR, "the expiry of node g1 cannot be renewed: access denied", {}),
    ("not_lent", _ERROR, "the credentials of node g1 for its store cannot be renewed", {}),
    ("total_differs", _WARNING, "the job file says 3,000 steps, its program says 4,000", {}),
    ("drill_overdue", _WARNING, "no drill has passed for 34 days", {}),
    ("none_available", _WARNING, "no machine that gpt requests is available", {}),
    ("available_again", _INFO, "a machine that gpt requests is available again", {}),
]
_OF_BOX: Sequence[tuple[str, Severity, str]] = [
    ("budget", _WARNING, "budget team: 80 % of $4,000 is spent"),
    ("budget_stop", _ERROR, "gpt is paused: the budget team is used up"),
    ("unexplained", _WARNING, "$12.40 of the bill of aws is unexplained"),
    ("prices", _WARNING, "no prices of gcp for 6h: the last known are used"),
    ("price_spike", _WARNING, "aws/us-east-1a p5.48xlarge costs 44 % more than its median"),
    ("price_spike_over", _INFO, "aws/us-east-1a p5.48xlarge is at its median again"),
    ("remark", _WARNING, "aws answered with a code that spotd does not know: NewThing"),
    ("credentials", _ERROR, "the credentials of azure are refused"),
    ("orphan", _WARNING, "i-0abc (aws) belonged to no job and was ended"),
    ("orphan_held", _ERROR, "3 machines are unknown to this database; none was ended"),
    ("leftovers_held", _WARNING, "2 disks were left behind in gcp; none was deleted"),
    ("quarantine", _ERROR, "the database was restored: machines it does not know are not ended"),
    ("stranded", _ERROR, "2 machines run in gcp, which is no longer configured"),
    ("config", _ERROR, "the configuration was not applied: limits.max_nodes"),
    ("safe_mode", _ERROR, "spotd crashed 5 times within 10m: it launches nothing"),
    ("contested", _ERROR, "another spotd uses this deployment"),
    ("jump", _ERROR, "the jump host of provider gcp does not answer"),
    ("database_away", _ERROR, "the database has not answered for 2m"),
    ("database_back", _INFO, "the database answers again"),
    ("alert_route", _ERROR, "alert route default is disabled: Slack answered 404: no_service"),
    ("test", _INFO, "this is a test of the alert route"),
]


def samples() -> list[Alert]:
    """Return an alert of each kind."""
    found = [
        Alert(
            id=number,
            at_us=AT_US,
            job_id="j1",
            job_name="gpt",
            event=Event(kind, text, severity=severity, alert=True, data=data),
            spent_microusd=12_340_000,
            link=f"{DASHBOARD}/job/gpt",
        )
        for number, (kind, severity, text, data) in enumerate(_OF_JOBS, start=1)
    ]
    return found + [
        Alert(
            id=number,
            at_us=AT_US,
            job_id="",
            job_name="",
            event=Event(kind, text, severity=severity, alert=True),
        )
        for number, (kind, severity, text) in enumerate(_OF_BOX, start=len(found) + 1)
    ]


def digest() -> list[Alert]:
    """Return alerts that come as one message: repeats, several jobs, one that failed."""
    of_kind = {alert.event.kind: alert for alert in reversed(samples())}
    crashes = of_kind["crashed"]
    folded = Alert(
        id=crashes.id,
        at_us=AT_US,
        job_id="j2",
        job_name="bert",
        event=crashes.event,
        repeats=4,
        link=f"{DASHBOARD}/job/bert",
    )
    return [of_kind["notice"], folded, of_kind["checkpoint_failed"], of_kind["failed"]]


def rendered(body: Mapping[str, Any]) -> str:
    """Return the text of a message, block by block, as a reader sees it."""
    return "\n\n".join(_shown(block) for block in body["blocks"])


def _shown(block: Mapping[str, Any]) -> str:
    if block["type"] == "header":
        return f"# {_plain(block['text']['text'])}"
    if block["type"] == "section":
        return _plain(block["text"]["text"])
    return "  ".join(_plain(element["text"]) for element in block["elements"])


def _plain(text: str) -> str:
    """Return mrkdwn with its links, mentions and escapes as Slack shows them."""
    text = re.sub(r"<!subteam\^(\w+)>", r"@\1", text)
    text = re.sub(r"<!(\w+)>", r"@\1", text)
    text = re.sub(r"<(https?://[^|>]+)\|([^>]+)>", r"[\2](\1)", text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def page() -> str:
    """Return docs/slack.md."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# Messages in Slack\n"
    yield (
        "This page shows a message of each kind of alert, with `[dashboard] url` set and with "
        '`mention = {error = ["here", "S0614TZR7"]}` on the route. [alerts.md](alerts.md) has the '
        "settings. `python -m tests.spotd.alert_sinks.samples --write` writes the page.\n"
    )
    yield "## Several alerts in one message\n"
    yield _fenced(rendered(payload(digest(), MENTIONS)))
    for alert in samples():
        yield f"\n## {alert.event.kind}: {alert.event.severity.value}\n"
        yield _fenced(rendered(payload([alert], MENTIONS)))


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def main() -> int:
    """Print the page, or write it. Return the exit code."""
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
