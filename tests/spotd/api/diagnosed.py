"""A job whose program hung, and which waits for data: what its node says. Not a test itself."""

from __future__ import annotations

from tests.spotd.api.rig import SPOT, Rig

FAULTHANDLER = """\
Thread 0x00007f01 (most recent call first):
  File "/app/trainer/link.py", line 172 in _run

Current thread 0x00007f02 (most recent call first):
  File "/app/data.py", line 9 in wait_for_shard
  File "/app/train.py", line 80 in main
"""
PY_SPY = """\
Process 7: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    Condition.wait (threading.py:320)
    Event.wait (threading.py:622)
    all_reduce (train.py:3)
    <module> (train.py:5)
Thread 9 (idle): "loader"
    Condition.wait (threading.py:320)
    Thread.run (threading.py:975)
    Thread._bootstrap (threading.py:995)
"""  # as 0.4.3 prints it, with names of ours
HUNG = {
    "what": "hung",
    "text": "no step for 130 s after step 12, 120 s are allowed: rank 1 after step 12",
    "again": True,
    "stacks": 2,
    "dumps": [
        {"rank": 0, "pid": 7, "how": "py-spy", "text": PY_SPY},
        {"rank": 1, "pid": 8, "how": "faulthandler", "text": FAULTHANDLER},
    ],
}
REPORT = {"from_step": 13, "to_step": 13, "losses": [2.0], "tokens": 10, "busy_s": 1.0}
USED = {"window_s": 360.0, "busy_s": 300.0, "data_s": 180.0, "save_s": 18.0, "gpu": 0.4}


def diagnosed(rig: Rig) -> None:
    """It hung an hour ago, for the second time, and is used badly now."""
    node = rig.launch(rig.submit(ago_s=90_000), SPOT, ago_s=8_000)
    rig.train(node, ago_s=7_900, until_s=7_000, first=0, last=12)
    rig.say(node, 4_000, "unwell", **HUNG)
    rig.say(node, 3_600, "unwell", **HUNG)
    rig.say(node, 1_800, "warning", text="the loss is 9", verdict="loss_spike", about={})
    rig.say(node, 1_200, "progress", **REPORT, usage={**USED, "gpu": 0.9})
    rig.say(node, 300, "progress", **{**REPORT, "from_step": 14, "to_step": 14}, usage=USED)
