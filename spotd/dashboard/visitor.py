"""The person who is logged in to a team's dashboard and sees a page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Visitor:
    """A logged-in person.

    `allowed` names the actions that the API permits, and `csrf` proves that a form is from a page
    of this person's session.
    """

    name: str
    csrf: str
    allowed: frozenset[str] = frozenset()
