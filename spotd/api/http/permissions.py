"""Permissions: what each route requires, and which users have it.

The kernel reports the user at the other end of the socket. The groups that count are those that the
user is in now, not those at login time.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from spotd.api.request.request import ApiError


class Permission(str, Enum):
    """The permission that a route requires."""

    READ = "read"
    CHANGE = "change"


@dataclass(frozen=True)
class Rule:
    """The permission that a route requires, and how the audit records its changes.

    `action` is the audit's name of a change; `reply_fields` names the fields of the reply that the
    audit keeps. Handing out a key is a change, because its holder can change things. A `large`
    reply is not held back in memory until it is complete.
    """

    need: Permission
    action: str = ""
    reply_fields: tuple[str, ...] = ()
    large: bool = False


def _change(action: str, *reply_fields: str) -> Rule:
    return Rule(Permission.CHANGE, action, reply_fields)


_READ = Rule(Permission.READ)
RULES: Mapping[tuple[str, str], Rule] = {
    ("GET", "/metrics"): _READ,
    ("GET", "/v1/health"): _READ,
    ("GET", "/v1/doctor"): _READ,
    ("GET", "/v1/policy/{cloud}"): _READ,
    ("GET", "/v1/audit"): _READ,
    ("GET", "/v1/secrets"): _READ,
    ("POST", "/v1/secrets/{name}"): _change("secret set"),
    ("DELETE", "/v1/secrets/{name}"): _change("secret rm"),
    ("POST", "/v1/key/rotate"): _change("key rotate", "epoch"),
    ("GET", "/v1/users"): _READ,
    ("POST", "/v1/users/{name}/disable"): _change("user disable", "transferred_to", "jobs"),
    ("POST", "/v1/users/{name}/enable"): _change("user enable"),
    ("POST", "/v1/alerts/test"): _change("alerts test"),
    ("GET", "/v1/openapi.json"): _READ,
    ("GET", "/v1/quarantine"): _READ,
    ("POST", "/v1/quarantine/release"): _change("quarantine release", "reason"),
    ("GET", "/v1/safe-mode"): _READ,
    ("POST", "/v1/safe-mode/leave"): _change("safe-mode leave", "reason"),
    ("GET", "/v1/orphans"): _READ,
    ("POST", "/v1/orphans/end"): _change("orphans end", "count", "items"),
    # It holds every job's key and secrets, though encrypted: its owner has time to guess.
    ("GET", "/v1/db/backup"): Rule(Permission.CHANGE, "db backup", large=True),
    ("GET", "/v1/jobs"): _READ,
    ("POST", "/v1/jobs"): _change("run", "name", "id", "override"),
    ("POST", "/v1/plan"): _READ,
    ("POST", "/v1/advise"): _READ,
    ("GET", "/v1/providers"): _READ,
    ("GET", "/v1/images"): _READ,
    ("POST", "/v1/images"): _change("image bake", "name", "id"),
    ("DELETE", "/v1/images/{name}"): _change("image rm", "items"),
    ("GET", "/v1/nodes"): _READ,
    ("GET", "/v1/costs"): _READ,
    ("GET", "/v1/costs/report"): _READ,
    ("GET", "/v1/costs/focus"): _READ,
    ("GET", "/v1/budgets"): _READ,
    ("POST", "/v1/costs/reconcile"): _change("cost reconcile", "cloud", "segments"),
    ("GET", "/v1/offers"): _READ,
    ("GET", "/v1/prices"): _READ,
    ("GET", "/v1/stats"): _READ,
    ("GET", "/v1/traces"): _READ,
    ("GET", "/v1/review"): _READ,
    ("GET", "/v1/use"): _READ,
    ("GET", "/v1/events"): _READ,
    ("GET", "/v1/jobs/{job}"): _READ,
    ("GET", "/v1/jobs/{job}/file"): _READ,
    ("GET", "/v1/jobs/{job}/why"): _READ,
    ("GET", "/v1/jobs/{job}/sizing"): _READ,
    ("GET", "/v1/drills"): _READ,
    ("GET", "/v1/jobs/{job}/drills/terms"): _READ,
    ("POST", "/v1/jobs/{job}/drills"): _change("drill run", "drill", "id"),
    ("GET", "/v1/jobs/{job}/cost"): _READ,
    ("GET", "/v1/jobs/{job}/cost/report"): _READ,
    ("POST", "/v1/jobs/{job}/logs"): _READ,
    ("GET", "/v1/jobs/{job}/checkpoints"): _READ,
    ("POST", "/v1/jobs/{job}/checkpoints/verify"): _READ,
    # The weights are the job's result: not for users who may only read.
    ("GET", "/v1/jobs/{job}/checkpoints/data"): Rule(Permission.CHANGE, "ckpt pull", large=True),
    ("POST", "/v1/jobs/{job}/checkpoints/pin"): _change("ckpt pin", "pin", "step"),
    ("POST", "/v1/jobs/{job}/checkpoints/unpin"): _change("ckpt unpin", "pin"),
    ("POST", "/v1/jobs/{job}/checkpoints/rm"): _change("ckpt rm", "step", "objects"),
    ("POST", "/v1/jobs/{job}/results"): _change("results import", "suite", "new"),
    ("POST", "/v1/imports"): _change("ckpt import", "id", "store"),
    ("PUT", "/v1/imports/{name}/shard"): _change("ckpt import shard"),
    ("POST", "/v1/imports/{name}"): _change("ckpt import commit", "step", "bytes"),
    ("GET", "/v1/jobs/{job}/ssh"): _READ,
    ("POST", "/v1/jobs/{job}/ssh"): _change("ssh", "node_id"),
    ("POST", "/v1/jobs/{job}/cancel"): _change("cancel", "id"),
    ("POST", "/v1/jobs/{job}/pause"): _change("pause", "id"),
    ("POST", "/v1/jobs/{job}/resume"): _change("resume", "id", "override"),
    ("HEAD", "/v1/packages/{digest}"): _READ,
    ("GET", "/v1/packages/{digest}"): _READ,
    ("PUT", "/v1/packages/{digest}"): _change("upload"),
}


@dataclass(frozen=True)
class Peer:
    """The user of the process at the other end; `uid` -1 when the kernel reports none."""

    uid: int
    name: str


NOBODY = Peer(-1, "")


def find_peer(uid: int) -> Peer:
    """Return the user with that number; a user without a name is called "uid:N"."""
    try:
        return Peer(uid, pwd.getpwuid(uid).pw_name)
    except KeyError:
        return Peer(uid, f"uid:{uid}")


def in_group(peer: Peer, group: str) -> bool:
    """Return whether the user is a member of the group now; False if there is no such group."""
    try:
        group_id = grp.getgrnam(group).gr_gid
        return group_id in os.getgrouplist(peer.name, pwd.getpwuid(peer.uid).pw_gid)
    except KeyError:
        return False


@dataclass
class Permissions:
    """The groups in force, which a reloaded configuration may change.

    `viewers` "" allows everybody who can open the socket to read. `trusted` users need no group:
    root, and the user of the daemon, who could read its database anyway.
    """

    admins: str = "spotd-admin"
    viewers: str = ""
    trusted: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))
    is_member: Callable[[Peer, str], bool] = in_group

    def check(self, peer: Peer, need: Permission) -> None:
        """Raise ApiError (auth) naming the missing group unless the user has the permission."""
        if peer.uid < 0:
            raise _refused(
                "spotd answers on its unix socket only",
                "run spotctl on the box of the daemon, or with --host user@box",
            )
        if peer.uid in self.trusted or self.is_member(peer, self.admins):
            return
        if need is Permission.CHANGE:
            message = (
                f"{peer.name} may look but not change anything: not in the group {self.admins}"
            )
            raise _refused(message, _join_command(self.admins, peer))
        if self.viewers and not self.is_member(peer, self.viewers):
            message = f"{peer.name} may not look at jobs: not in the group {self.viewers}"
            raise _refused(message, _join_command(self.viewers, peer))


def _refused(message: str, try_: str) -> ApiError:
    return ApiError(403, "auth", message, try_)


def _join_command(group: str, peer: Peer) -> str:
    return f"sudo groupadd -f --system {group}; sudo usermod -aG {group} {peer.name}"
