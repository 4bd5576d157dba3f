"""Which projects may have jobs, and who lets a job exceed a budget."""

from __future__ import annotations

from dataclasses import dataclass

ALLOW, WARN, REFUSE = "allow", "warn", "refuse"
ADMINS, SECOND_PERSON = "admins", "second_person"  # [limits] overrides


@dataclass(frozen=True)
class Approval:
    """The `[policies]` of the configuration about projects. Without names every project is good."""

    policy: str = WARN
    names: frozenset[str] = frozenset()

    def lacks(self, project: str) -> str:
        """Return why a job of `project` is not approved, or ""."""
        if not self.names or self.policy == ALLOW or project in self.names:
            return ""
        problem = f"the project {project!r} is not approved" if project else "it names no project"
        return f"{problem} (approved: {', '.join(sorted(self.names))})"

    def fix(self, project: str) -> str:
        """Return what to try."""
        named = f", or add [projects.{project}] to config.toml" if project else ""
        return f"write one of them as spotd.project{named}"
