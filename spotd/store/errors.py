"""Errors that a store raises on purpose."""

from __future__ import annotations


class StoreError(Exception):
    """Base of the errors that a store raises on purpose."""


class StoreUnavailableError(StoreError):
    """The database cannot be reached or written now. Try again; create nothing meanwhile."""


class SchemaVersionError(StoreError):
    """The database has another schema than this program; the message says what to do."""


class StaleKeyError(StoreError):
    """The value is sealed with a master key that was rotated."""


class LostLeaseError(StoreError):
    """The lease of a duty belongs to another daemon, or is about to; nothing was written."""


class NoSuccessorError(StoreError):
    """The user to be disabled has unfinished jobs, and no successor was named."""


class DisabledUserError(StoreError):
    """The user who submits a job is disabled."""


class DuplicateNameError(StoreError):
    """An unfinished job has that name; `job_id` is its id."""

    def __init__(self, text: str, job_id: str) -> None:
        super().__init__(text)
        self.job_id = job_id


class DuplicateIdError(StoreError):
    """A job of that id is on record."""
