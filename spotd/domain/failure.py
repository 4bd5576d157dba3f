"""Why an attempt failed: one computation, from a job's rows, that all views and alerts read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.wire import (
    EXIT_DIVERGED,
    EXIT_HUNG,
    EXIT_UNFIT,
    FailedPart,
)
from spotd.wire.failure_cause import TAIL_LINES, exit_meaning, find_cause, tidy_lines

MACHINE = "machine"  # it was lost, did not come up, or is not fit
CLOUD = "cloud"  # it refused the machine
CALL = "call"  # a call of spotd to a machine, its cloud or the store fails at present

# The parts that are not the program; PROGRAM is missing on purpose: its exit code says more.
PART_FAILED = {
    FailedPart.SETUP: "setup failed",
    FailedPart.FILES: "the job's files could not be put in place",
    FailedPart.IMAGE: "the container could not be started",
    FailedPart.STORE: "the checkpoint store could not be used",
    FailedPart.AGENT: "the agent could not run the program",
}
_ENDS = {
    EXIT_HUNG: "the program hung, and was ended",
    EXIT_UNFIT: "the machine is not fit to train on",
    EXIT_DIVERGED: "training diverged",
}


@dataclass(frozen=True)
class Failure:
    """One failure of a machine, or of the program on it.

    `cause` is one line; `recognised` is False where it is only the last line of the output. `lines`
    are the last ones of the output.
    """

    node_id: str
    generation: int
    rank: int
    at_us: int
    part: str
    text: str
    cause: str = ""
    recognised: bool = True
    lines: tuple[str, ...] = ()
    exit_code: int | None = None

    @property
    def summary(self) -> str:
        """The failure and its cause in one line."""
        if not self.cause or self.cause in self.text:
            return self.text
        return f"{self.text}: {self.cause}" if self.recognised else f"{self.text}; {self.label}"

    @property
    def label(self) -> str:
        """Return the cause, labelled as the last line if it is only that."""
        return self.cause if self.recognised or not self.cause else f'last line: "{self.cause}"'


def describe_exit(node: Node) -> str:
    """Describe the failure of a node whose program ended or could not be started."""
    code = node.training.exit_code
    part = _part(node, FailedPart.PROGRAM)
    if part in PART_FAILED:
        return PART_FAILED[part]
    if code in _ENDS:
        return _ENDS[code]
    meaning = exit_meaning(code or 0)
    return f"the program exited with code {code}" + (f" ({meaning})" if meaning else "")


def failure_of(node: Node) -> Failure | None:
    """Return how a node failed; None if it did not: it works, or left for another reason."""
    training, departure = node.training, node.departure
    if training.setup_failed:
        part = _part(node, FailedPart.SETUP)
        at_us = departure.left_at_us or node.agent.heard_at_us
        return _of_output(node, part.value, PART_FAILED.get(part, "setup failed"), at_us)
    if node.program_failed:
        text = describe_exit(node)
        part_name = _part(node, FailedPart.PROGRAM).value
        if training.exit_code == EXIT_UNFIT:
            part_name = MACHINE
        elif departure.leave_text.startswith("exited with code "):  # as a mate or a drill ended it
            text = f"the program {departure.leave_text}"
        return _of_output(node, part_name, text, training.exited_at_us)
    if departure.leave_reason is LeaveReason.BOOT_TIMEOUT:
        cause = node.call.effect_error or departure.leave_text
        return _plain(node, MACHINE, "the machine did not get ready", cause, departure.left_at_us)
    if departure.leave_reason is LeaveReason.LOST and training.exit_code is None:
        return _plain(
            node, MACHINE, "the machine was lost", departure.leave_text, departure.left_at_us
        )
    if node.machine.launch_error and not node.instance_id:
        at_us = departure.left_at_us or node.machine.gone_at_us
        return _plain(node, CLOUD, "the cloud refused a machine", node.machine.launch_error, at_us)
    if node.state is not NodeState.GONE and node.call.effect_failures and node.call.effect_error:
        call = node.call.effect.value.replace("_", " ") if node.call.effect else "a call"
        text = f"{call} fails ({node.call.effect_failures} times in a row)"
        return _plain(node, CALL, text, node.call.effect_error, node.call.effect_failed_at_us)
    return None


def newest_failure(nodes: Iterable[Node]) -> Failure | None:
    """Return the newest failure of a job; a refusal of the cloud only if nothing else failed.

    If the ranks of a gang failed together, the rank that failed first is the cause.
    """
    failures = [failure for node in nodes if (failure := failure_of(node)) is not None]
    if not failures:
        return None
    own = [failure for failure in failures if failure.part != CLOUD] or failures
    newest = max(failure.generation for failure in own)
    of_run = [failure for failure in own if failure.generation == newest]
    programs = [failure for failure in of_run if failure.part not in (MACHINE, CALL)]
    return min(programs or of_run, key=lambda failure: failure.at_us)


def is_over(failure: Failure, nodes: Iterable[Node]) -> bool:
    """Return whether the job has trained again since the failure."""
    return any(
        node.training.first_step_at_us > failure.at_us
        and node.id != failure.node_id
        and not node.program_failed
        for node in nodes
    )


def _part(node: Node, default: FailedPart) -> FailedPart:
    part = node.training.failed_part
    return FailedPart(part) if part in set(FailedPart) else default


def _of_output(node: Node, part: str, text: str, at_us: int) -> Failure:
    training = node.training
    found = find_cause(training.exit_tail, training.exit_code)
    cause = training.exit_cause or found.line
    lines = [line for line in tidy_lines(training.exit_tail) if line.strip()]
    return Failure(
        node_id=node.id,
        generation=node.generation,
        rank=node.rank,
        at_us=at_us,
        part=part,
        text=text,
        cause=cause.partition("\n")[0],
        recognised=bool(training.exit_cause) or found.recognised,
        lines=tuple(lines[-TAIL_LINES:]),
        exit_code=training.exit_code,
    )


def _plain(node: Node, part: str, text: str, cause: str, at_us: int) -> Failure:
    return Failure(
        node_id=node.id,
        generation=node.generation,
        rank=node.rank,
        at_us=at_us,
        part=part,
        text=text,
        cause=cause.strip().partition("\n")[0],
    )
