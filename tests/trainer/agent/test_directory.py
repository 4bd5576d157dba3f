"""A script that does not know spotd, whose checkpoint folder is uploaded."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spotd import wire
from tests.fixtures.waiting import wait_until
from tests.trainer.agent.node import Node

# As transformers saves: its own state last; at SIGTERM once more, and no longer than it takes.
SCRIPT = """
save() {
    mkdir -p out/checkpoint-$1
    echo "weights at $1" > out/checkpoint-$1/model.safetensors
    echo '{}' > out/checkpoint-$1/trainer_state.json
}
trap 'save 20; exit 0' TERM
echo "from ${SPOTD_RESUME##*/}, in $SPOTD_DIRECTORY"
[ -n "$SPOTD_RESUME" ] && cat $SPOTD_RESUME/model.safetensors && exit 0
save 10
while :; do sleep 0.02; done
"""


def moved_to(node: Node, generation: int) -> Node:
    """The next machine of the job."""
    home = node.home.with_name(f"machine-{generation}")
    return replace(node, home=home, generation=generation, token=f"token-{generation}")


@pytest.mark.behaviour("the program's save after a notice", way="directory mode")
def test_a_notice_s_last_save_is_what_the_next_machine_goes_on_from(node: Node) -> None:
    node.run()
    node.start(run=SCRIPT, directory="out")
    first = node.wait_for(wire.CHECKPOINT)
    assert (first.data["step"], first.data["trigger"]) == (10, "directory")
    node.send(wire.RELEASE)
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    assert [entry.data["step"] for entry in node.entries(wire.CHECKPOINT)] == [10, 20]
    assert node.kinds().index(wire.RELEASED) > node.kinds().index(wire.CHECKPOINT)
    with moved_to(node, 2) as second:
        second.run()
        second.start(run=SCRIPT, directory="out")
        assert second.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED
        folder = second.paths.workdir / "out"
        assert second.log() == f"from checkpoint-20, in {folder}\nweights at 20\n"
        assert second.wait_for(wire.CLAIMED).data["step"] == 20
        assert sorted(folder.glob("[!.]*")) == [folder / "checkpoint-10", folder / "checkpoint-20"]
    head = node.head()
    assert head is not None
    assert head.final


def test_an_agent_that_is_started_again_takes_it_up(node: Node) -> None:
    node.run()
    node.start(run=SCRIPT, directory="out")
    node.wait_for(wire.CHECKPOINT)
    node.kill_agent()
    out = node.paths.workdir / "out"
    shutil.copytree(out / "checkpoint-10", out / "checkpoint-15")
    node.run()
    wait_until("the other save", lambda: len(node.entries(wire.CHECKPOINT)) == 2)
    assert [entry.data["step"] for entry in node.entries(wire.CHECKPOINT)] == [10, 15]


def test_a_store_that_refuses_is_told_of_and_the_script_goes_on(node: Node, tmp_path: Path) -> None:
    script = f"{SCRIPT.replace('while :', 'while [ ! -e go ]')}\nexit 0"
    node.run()
    node.start(
        run=script.replace("save 10", "until [ -e go ]; do sleep 0.02; done; rm go; save 10"),
        directory="out",
    )
    node.wait_for(wire.STARTED)
    generation = node.store_root / "jobs" / "job-1" / "g00000001"
    generation.write_text("in the way")
    (node.paths.workdir / "go").touch()
    failed = node.wait_for(wire.CHECKPOINT_FAILED).data
    assert failed["error"].startswith("out: ")
    assert node.is_program_alive()
    generation.unlink()
    node.wait_for(wire.CHECKPOINT)
    (node.paths.workdir / "go").touch()
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED


def test_where_no_checkpoint_can_be_read_it_does_not_begin_afresh(node: Node) -> None:
    node.run()
    node.start(run=SCRIPT, directory="out")
    node.wait_for(wire.CHECKPOINT)
    node.send(wire.RELEASE)
    node.wait_for(wire.EXITED)
    for path in node.store_root.glob("jobs/*/g*/*/r*"):
        path.write_bytes(b"")
    with moved_to(node, 2) as second:
        second.run()
        second.start(run=SCRIPT, directory="out")
        exited = second.wait_for(wire.EXITED).data
        assert exited["code"] == 1
        assert "no checkpoint of the job can be read" in exited["tail"]
        assert second.log() == ""
        assert len(second.entries(wire.CHECKPOINT_SKIPPED)) == 2


# DeepSpeed's order: each step's folder, then the file that names the newest.
DEEPSPEED = """
save() {
    mkdir -p out/global_step$1
    head -c 9000 /dev/zero > out/global_step$1/mp_rank_00_model_states.pt
    head -c 9000 /dev/zero > out/global_step$1/zero_pp_rank_0_mp_rank_00_optim_states.pt
    printf global_step$1 > out/latest
}
trap 'exit 0' TERM
[ -n "$SPOTD_RESUME" ] && echo "${SPOTD_RESUME##*/}, $(cat out/latest)" && exit 0
save 10; save 20
while :; do sleep 0.02; done
"""


def test_a_framework_s_own_layout_is_released_at_its_step(node: Node) -> None:
    node.run()
    node.start(run=DEEPSPEED, directory="out")
    node.wait_for(wire.CHECKPOINT)
    node.send(wire.RELEASE)
    assert node.wait_for(wire.RELEASED).data["step"] == 20
    assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
    with moved_to(node, 2) as second:
        second.run()
        second.start(run=DEEPSPEED, directory="out")
        assert second.wait_for(wire.CLAIMED).data["step"] == 20
        assert second.wait_for(wire.EXITED).data["code"] == wire.EXIT_FINISHED
        assert second.log() == "global_step20, global_step20\n"


def test_where_nothing_is_complete_the_release_names_no_checkpoint_and_what_was_there(
    node: Node,
) -> None:
    script = """
trap 'exit 0' TERM
mkdir out; printf 'PK\\003\\004 cut' > out/last.pt
touch ready
while :; do sleep 0.02; done
"""
    node.run()
    node.start(run=script, directory="out")
    wait_until("the file", (node.paths.workdir / "ready").exists)
    node.send(wire.RELEASE)
    assert node.wait_for(wire.RELEASED).data["manifest"] == ""
    (warning,) = (entry.data["text"] for entry in node.entries(wire.WARNING))
    assert warning == ("not complete when the program had ended, so not saved as it is: last.pt")
