"""`spot-node`: the program on the rented machine. It needs Python 3.10 and nothing else.

    spot-node run      start the agent of a job's generation, detached, unless it runs
    spot-node follow   print journal, heartbeats and logs until stdin closes
    spot-node send     send the agent a command
    spot-node put/has  store a package of the job's code, or check whether it is there
    spot-node lend     store new credentials of the job's store, replacing older ones
    spot-node clean    delete secrets and machine-specific files before an image is made
    spot-node admit/dismiss  let a user log in with their own key, or revoke that

Data is read from stdin, because other users of the machine can read command-line arguments.
Environment: SPOTD_HOME (default ~/.spotd), SPOTD_METADATA_BASE (URL of the metadata service if it
is not at its usual address), SPOTD_LOG_LIMIT_BYTES (size at which a log is rotated).
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
from trainer.agent.base.paths import NodeError, find_home, find_paths

# Each command imports only what it needs. Python compiles the zipped bundle on every call, which
# takes time that a machine about to be preempted does not have.
# ruff: noqa: PLC0415

SEND_TIMEOUT_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command and return its exit code. Errors go to stderr."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except BrokenPipeError:
        # The reader has gone. Without this Python reports an error again when it closes stdout.
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
    follow = commands.add_parser("follow", help="print journal, heartbeats and logs")
    follow.add_argument("--after", type=int, default=0, help="last journal number already known")
    follow.set_defaults(run=_follow)
    send = commands.add_parser("send", help="give the agent a command (on stdin)")
    send.set_defaults(run=_send)
    lend = commands.add_parser("lend", help="store credentials of the job's store (on stdin)")
    lend.set_defaults(run=_lend)
    for command in (follow, send, lend):
        command.add_argument("--job", required=True)
        command.add_argument("--generation", type=int, required=True)
    for name, action in (("put", _put), ("has", _has)):
        command = commands.add_parser(name, help="store a package, or check for it")
        command.add_argument("--digest", required=True, help="sha256 of the archive, in hex")
        command.set_defaults(run=action)
    commands.choices["has"].add_argument(
        "--unless-able", action="store_true", help="true also if a suitable Python is installed"
    )
    commands.choices["has"].add_argument(
        "--unless-tools",
        default="",
        help="true also if these wheels (sha256 of their archive) fit a Python here",
    )
    commands.choices["has"].add_argument(
        "--machine", default="", help="the architecture that the package is for; true on others"
    )
    commands.add_parser("admit", help="let a user log in (on stdin)").set_defaults(run=_admit)
    commands.add_parser("dismiss", help="revoke a user's login (on stdin)").set_defaults(
        run=_dismiss
    )
    clean = commands.add_parser("clean", help="make the disk fit for an image, as root")
    clean.add_argument("--home", required=True, help="the agent's folder")
    clean.add_argument("--prepared-file", default="", help="file that the preparation creates")
    clean.set_defaults(run=_clean)
    pull = commands.add_parser("pull", help="used by the agent itself")
    pull.add_argument("order", help="file that describes what to pull")
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

    paths = find_paths(os.environ, args.job, args.generation)
    stdin, stdout = sys.stdin.fileno(), sys.stdout.fileno()
    offsets = read_request(stdin)
    follower = Follower(
        paths, args.generation, after=args.after, offsets=offsets, out=write_all(stdout)
    )
    follower.run(stdin)
    return 0


def _send(args: argparse.Namespace) -> int:
    from trainer.agent.main.control import send_command

    paths = find_paths(os.environ, args.job, args.generation)
    line = sys.stdin.buffer.readline()
    try:
        reply = send_command(paths.control_socket, line, SEND_TIMEOUT_S)
    except OSError as error:
        target = f"job {args.job} generation {args.generation}"
        raise WireError(f"no agent answers for {target} ({error}): `spot-node run` first") from None
    sys.stdout.buffer.write(reply.to_line())
    sys.stdout.buffer.flush()
    return 0


def _lend(args: argparse.Namespace) -> int:
    from providers.credential_leases import parse_credentials
    from trainer.agent.base.folders import make_folders
    from trainer.agent.base.leased_credentials import store_credentials

    paths = find_paths(os.environ, args.job, args.generation)
    request = _read_strings()
    try:
        expires_at_us = int(request.get("expires_at_us", ""))
        store = request.pop("store", "")
        credentials = parse_credentials({**request, "expires_at_us": expires_at_us})
    except ValueError as error:
        raise WireError(f"no credentials: {error}") from None
    make_folders(paths)
    return _print(
        {
            "kept": store_credentials(paths, credentials, store),
            "file": str(paths.credentials_file_of(store)),
        }
    )


def _put(args: argparse.Namespace) -> int:
    from trainer.agent.data.packages import put_package

    put_package(find_home(os.environ), args.digest, sys.stdin.buffer)
    return _print({"put": True})


def _has(args: argparse.Namespace) -> int:
    from trainer.agent.base.pythons import find_python
    from trainer.agent.data.packages import has_package
    from trainer.agent.run.saver_env import wheels_fit

    home, tools = find_home(os.environ), args.unless_tools
    able = (args.unless_able or tools) and find_python(home, "s3:") != ""
    served = able or (tools and (args.machine != os.uname().machine or wheels_fit(home, tools)))
    return _print({"has": bool(served) or has_package(home, args.digest)})


def _admit(_: argparse.Namespace) -> int:
    from trainer.agent.process.ssh_access import grant_access

    request = _read_strings()
    grant_access(Path.home(), request.get("user", ""), request.get("public_key", ""))
    return _print({"admitted": True})


def _dismiss(_: argparse.Namespace) -> int:
    from trainer.agent.process.ssh_access import revoke_access

    return _print(
        {"ended": revoke_access(Path.home(), _read_strings().get("user", ""), os.environ)}
    )


def _clean(args: argparse.Namespace) -> int:
    from trainer.agent.cleanup.clean import check_rented, clean

    check_rented(os.environ, Path(args.prepared_file) if args.prepared_file else None)
    cleaned = clean(Path("/"), Path(args.home))
    _print({"cleaned": cleaned.to_data()})
    return 1 if cleaned.failed else 0


def _read_strings() -> dict[str, str]:
    """Read one JSON object with string values from stdin. Raises WireError."""
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
    from trainer.agent.process.script_supervisor import supervise

    return supervise()


if __name__ == "__main__":
    sys.exit(main())
