"""`spot-node`: the program on the rented machine. It needs Python 3.10 and nothing else.

    spot-node run      start the agent of a job's generation, detached, unless it runs
    spot-node follow   print what happens, for ever
    spot-node send     give the agent a command
    spot-node put/has  store a package of the job's code, or ask whether it is there
    spot-node lend     keep credentials of the job's store, in place of those before
    spot-node clean    take off the disk what is secret or the machine's own, for an image
    spot-node admit/dismiss  let a user log in with a key of their own, or no more

What varies comes in on stdin, never in an argument: arguments are for everybody to read.
Environment: SPOTD_HOME (default ~/.spotd); SPOTD_METADATA_BASE (where the cloud's metadata service
is, when not at its own address); SPOTD_LOG_LIMIT_BYTES (size at which a log is rotated).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spotd.wire import WireError, parse_agent_config
from trainer.agent.base.paths import NodeError, find_home, find_places

# Each command imports what it needs and no more: a bundle is compiled anew at every call, and a
# node that is being taken away has no time for it.
# ruff: noqa: PLC0415

SEND_TIMEOUT_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; its exit code. What went wrong is said on stderr."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except BrokenPipeError:
        # Whoever followed is gone. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (NodeError, WireError, OSError) as error:
        print(f"spot-node {args.command}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spot-node", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="start the agent (configuration on stdin)").set_defaults(
        run=_run
    )
    follow = commands.add_parser("follow", help="print journal, heartbeats and logs for ever")
    follow.add_argument("--after", type=int, default=0, help="last journal number already known")
    follow.set_defaults(run=_follow)
    send = commands.add_parser("send", help="give the agent a command (on stdin)")
    send.set_defaults(run=_send)
    lend = commands.add_parser("lend", help="keep credentials of the job's store (on stdin)")
    lend.set_defaults(run=_lend)
    for command in (follow, send, lend):
        command.add_argument("--job", required=True)
        command.add_argument("--generation", type=int, required=True)
    for name, action in (("put", _put), ("has", _has)):
        command = commands.add_parser(name, help="store, or look for, a package")
        command.add_argument("--digest", required=True, help="sha256 of the archive, in hex")
        command.set_defaults(run=action)
    commands.choices["has"].add_argument(
        "--unless-able", action="store_true", help="or what is in it is here without it"
    )
    commands.choices["has"].add_argument(
        "--unless-tools", default="", help="or a Python is here that those wheels are for"
    )
    commands.choices["has"].add_argument("--machine", default="", help="the only one it is for")
    commands.add_parser("admit", help="let a user log in (on stdin)").set_defaults(run=_admit)
    commands.add_parser("dismiss", help="let one log in no more").set_defaults(run=_dismiss)
    clean = commands.add_parser("clean", help="make the disk fit for an image, as root")
    clean.add_argument("--home", required=True, help="the agent's folder")
    clean.add_argument("--prepared-file", default="", help="what the preparation left there")
    clean.set_defaults(run=_clean)
    pull = commands.add_parser("pull", help="used by the agent itself")
    pull.add_argument("order", help="the file that says what to pull")
    pull.set_defaults(run=_pull)
    commands.add_parser("keep", help="used by the agent itself").set_defaults(run=_keep)
    return parser


def _print(value: dict[str, Any]) -> int:
    print(json.dumps(value), flush=True)
    return 0


def _run(_: argparse.Namespace) -> int:
    from trainer.agent.main.launch import run_detached

    line = sys.stdin.buffer.readline()
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise WireError("stdin must be one JSON line: the agent's configuration") from None
    if not isinstance(data, dict):
        raise WireError("the agent's configuration must be a JSON object")
    return _print(run_detached(parse_agent_config(data), os.environ))


def _follow(args: argparse.Namespace) -> int:
    from trainer.agent.main.stream_server import Follower, read_request, write_all

    places = find_places(os.environ, args.job, args.generation)
    stdin, stdout = sys.stdin.fileno(), sys.stdout.fileno()
    offsets = read_request(stdin)
    Follower(places, args.generation, args.after, offsets, write_all(stdout)).run(stdin)
    return 0


def _send(args: argparse.Namespace) -> int:
    from trainer.agent.main.control import send_command

    places = find_places(os.environ, args.job, args.generation)
    line = sys.stdin.buffer.readline()
    try:
        reply = send_command(places.control_socket, line, SEND_TIMEOUT_S)
    except OSError as error:
        where = f"job {args.job} generation {args.generation}"
        raise WireError(f"no agent answers for {where} ({error}): `spot-node run` first") from None
    sys.stdout.buffer.write(reply.to_line())
    sys.stdout.buffer.flush()
    return 0


def _lend(args: argparse.Namespace) -> int:
    from providers.credential_leases import parse_lent
    from trainer.agent.base.folders import make_folders
    from trainer.agent.base.leased_credentials import borrow

    places = find_places(os.environ, args.job, args.generation)
    asked = _asked()
    try:
        until = int(asked.get("expires_at_us", ""))
        store = asked.pop("store", "")
        lent = parse_lent({**asked, "expires_at_us": until})
    except ValueError as error:
        raise WireError(f"no credentials: {error}") from None
    make_folders(places)
    return _print({"kept": borrow(places, lent, store), "file": str(places.lent_of(store))})


def _put(args: argparse.Namespace) -> int:
    from trainer.agent.data.packages import put_package

    put_package(find_home(os.environ), args.digest, sys.stdin.buffer)
    return _print({"put": True})


def _has(args: argparse.Namespace) -> int:
    from trainer.agent.base.pythons import find_python
    from trainer.agent.data.packages import has_package
    from trainer.agent.run.saver_env import fit

    home, tools = find_home(os.environ), args.unless_tools
    able = (args.unless_able or tools) and find_python(home, "s3:") != ""
    served = able or (tools and (args.machine != os.uname().machine or fit(home, tools)))
    return _print({"has": bool(served) or has_package(home, args.digest)})


def _admit(_: argparse.Namespace) -> int:
    from trainer.agent.process.ssh_access import admit

    asked = _asked()
    admit(Path.home(), asked.get("user", ""), asked.get("public_key", ""))
    return _print({"admitted": True})


def _dismiss(_: argparse.Namespace) -> int:
    from trainer.agent.process.ssh_access import dismiss

    return _print({"ended": dismiss(Path.home(), _asked().get("user", ""), os.environ)})


def _clean(args: argparse.Namespace) -> int:
    from trainer.agent.cleanup.clean import check_rented, clean

    check_rented(os.environ, Path(args.prepared_file) if args.prepared_file else None)
    cleaned = clean(Path("/"), Path(args.home))
    _print({"cleaned": cleaned.to_data()})
    return 1 if cleaned.failed else 0


def _asked() -> dict[str, str]:
    """One JSON line of texts."""
    try:
        data = json.loads(sys.stdin.buffer.readline())
    except ValueError:
        data = None
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise WireError("stdin must be one JSON line of texts")
    return data


def _pull(args: argparse.Namespace) -> int:
    from trainer.agent.process.pull import main as pull

    return pull(args.order)


def _keep(_: argparse.Namespace) -> int:
    from trainer.agent.process.script_supervisor import keep

    return keep()


if __name__ == "__main__":
    sys.exit(main())
