"""Permissions: which users may read and which may change things.

The kernel reports the user at the other end of the socket. The groups that count are those that the
user is in now, not those at login time.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass, field

from spotd.api.http.route import Permission
from spotd.api.request.request import ApiError
from spotd.api_routes.person import VIA, Person


@dataclass(frozen=True)
class Peer:
    """The user of the process at the other end; `uid` -1 when the kernel reports none.

    `via` names the dashboard when it makes the request for a person who has logged in there. `role`
    then limits the person's rights; None leaves them to the groups. `token_id` is the token of the
    person's login.
    """

    uid: int
    name: str
    role: Permission | None = None
    via: str = ""
    token_id: str = ""


NOBODY = Peer(-1, "")


def find_peer(uid: int) -> Peer:
    """Return the user with that number; a user without a name is called "uid:N"."""
    try:
        return Peer(uid, pwd.getpwuid(uid).pw_name)
    except KeyError:
        return Peer(uid, f"uid:{uid}")


def peer_of(person: Person) -> Peer:
    """Return the person for whom the dashboard makes the request.

    A deleted account of the box has no uid, and without a role no rights.
    """
    uid = -1
    if person.account:
        with contextlib.suppress(KeyError):
            uid = pwd.getpwnam(person.name).pw_uid
    role = {"viewer": Permission.READ, "admin": Permission.CHANGE}.get(person.role)
    if person.account and uid < 0:
        role = None
    return Peer(uid, person.name, role, VIA, person.token_id)


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

    def allowed(self, peer: Peer) -> list[Permission]:
        """Return all permissions that the user has."""
        return [need for need in Permission if self._has(peer, need)]

    def _has(self, peer: Peer, need: Permission) -> bool:
        try:
            self.check(peer, need)
        except ApiError:
            return False
        return True

    def check(self, peer: Peer, need: Permission) -> None:
        """Raise ApiError (auth) naming the missing group unless the user has the permission."""
        if peer.role is Permission.READ and need is Permission.CHANGE:
            message = f"{peer.name} may read but not change anything: a viewer of the dashboard"
            raise _refused(message, "log in as an admin, or ask one")
        if peer.uid < 0 and peer.role is not None:
            return
        if peer.uid < 0 and peer.via:
            message = f"{peer.name} is no longer a user of the daemon's box"
            raise _refused(message, "ask an admin of spotd for another token")
        if peer.uid < 0:
            raise _refused(
                "spotd answers on its unix socket only",
                "run spotctl on the box of the daemon, or with --host user@box",
            )
        if peer.uid in self.trusted or self.is_member(peer, self.admins):
            return
        if need is Permission.CHANGE:
            message = (
                f"{peer.name} may read but not change anything: not in the group {self.admins}"
            )
            raise _refused(message, _join_command(self.admins, peer))
        if self.viewers and not self.is_member(peer, self.viewers):
            message = f"{peer.name} may not read jobs: not in the group {self.viewers}"
            raise _refused(message, _join_command(self.viewers, peer))


def _refused(message: str, try_: str) -> ApiError:
    return ApiError(403, "auth", message, try_)


def _join_command(group: str, peer: Peer) -> str:
    return f"sudo groupadd -f --system {group}; sudo usermod -aG {group} {peer.name}"
