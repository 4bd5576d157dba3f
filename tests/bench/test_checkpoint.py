"""What the bench of checkpoints reckons, and where it refuses to."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import checkpoint, checkpoint_ways
from bench.uploads import BARE, DIGESTS, PLAIN, SEND, SENDFILE, TLS, UPLOAD


def test_a_folder_without_o_direct_is_refused(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    with pytest.raises(OSError, match="name one on a real disk"):
        checkpoint.check_direct(memory)
    assert not (memory / "direct").exists()


def test_ratios_are_of_the_same_round_and_against_the_best_of_dcp() -> None:
    saves = {
        name: {"stall": [2.0, 4.0], "lost": [10.0 + place, 10.0 + place], "durable": [3.0, 3.0]}
        for place, name in enumerate(checkpoint_ways.DCP)
    }
    samples = {
        **saves,
        checkpoint.FLOOR_COPY: {"seconds": [1.0, 4.0]},
        checkpoint.FLOOR_WRITE: {"seconds": [2.0, 2.0]},
        checkpoint_ways.STANDS: {"stall": [1.0, 4.0], "lost": [5.0, 5.0], "durable": [3.0, 3.0]},
        checkpoint_ways.OURS: {
            "stall": [0.5, 2.0],
            "lost": [2.5, 2.5],
            "durable": [4.0, 4.0],
            "committed": [4.0, 4.0],
            "lost_committed": [7.5, 7.5],
        },
        checkpoint_ways.LEAST: {"stall": [0.0, 0.0], "lost": [2.0, 2.0], "durable": [2.5, 2.5]},
        "load": {"disk": [1.0, 2.0], "disk, verified": [1.25, 2.5]},
        SEND: {"cpu_s_per_gb": [0.1, 0.2]},
        SENDFILE: {"cpu_s_per_gb": [0.1, 0.1]},
        DIGESTS: {"cpu_s_per_gb": [0.05, 0.05]},
        **{
            f"{name}, {scheme}": {"cpu_s_per_gb": [0.5, 0.7]}
            for name in (UPLOAD, BARE)
            for scheme in (PLAIN, TLS)
        },
    }
    found = checkpoint.report(samples, 1)
    assert found["best_dcp"] == "dcp thread"
    assert found["ratios"] == {
        "stall_vs_memcpy": 0.5,
        "lost_vs_best_dcp": 0.25,
        "durable_vs_direct": 2.0,
        "lost_committed_vs_best_dcp": 0.75,
        "standing": {"stall_vs_memcpy": 1.0, "lost_vs_best_dcp": 0.5, "durable_vs_direct": 1.5},
        "floor": {"stall_vs_memcpy": 0.0, "lost_vs_best_dcp": 0.2, "durable_vs_direct": 1.25},
        "upload_cpu_s_per_gb": {
            PLAIN: 0.6,
            TLS: 0.6,
            "floor": {PLAIN: 0.6, TLS: 0.6},
            SEND: 0.15,
            SENDFILE: 0.1,
            DIGESTS: 0.05,
        },
        "verify_share": 0.25,
    }
