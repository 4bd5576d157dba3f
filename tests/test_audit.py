"""An audit that looked nothing up has found nothing out."""

from __future__ import annotations

import json

import pytest

from tests.audit import CONSTRAINTS, judge, pinned

WANTED = {"alembic", "pip-api", "pyyaml"}
# As pip-audit 2.10 writes it: of a service that knows the packages, and of one that knows none
# (where it exits 0 and says "No known vulnerabilities found").
CLEAN = {
    "dependencies": [
        {"name": "alembic", "version": "1.20.1", "vulns": []},
        {"name": "pip_api", "version": "0.0.35", "vulns": []},
        {"name": "PyYAML", "version": "6.0.3", "vulns": []},
    ],
    "fixes": [],
}
VULNERABLE = {
    "dependencies": [
        *CLEAN["dependencies"][:2],
        {
            "name": "pyyaml",
            "version": "5.3",
            "vulns": [
                {
                    "id": "PYSEC-2020-96",
                    "fix_versions": ["5.3.1"],
                    "aliases": ["CVE-2020-1747"],
                    "description": "arbitrary code",
                }
            ],
        },
    ],
    "fixes": [],
}
NOTHING = {
    "dependencies": [
        {
            "name": name,
            "skip_reason": f"Dependency not found on PyPI and could not be audited: {name} (1.0)",
        }
        for name in ("alembic", "pip-api", "PyYAML")
    ],
    "fixes": [],
}
UNREACHABLE = "Traceback (most recent call last):\n  ...\nConnectionError: Failed to resolve host\n"


def test_all_audited_and_nothing_found() -> None:
    code, lines = judge(WANTED, json.dumps(CLEAN), "")
    assert code == 0
    assert lines == ["3 of 3 packages audited", "no known vulnerability"]


def test_a_vulnerability_is_told_with_its_fix() -> None:
    code, lines = judge(WANTED, json.dumps(VULNERABLE), "Found 1 known vulnerability")
    assert code == 1
    assert lines[-1] == "VULNERABLE pyyaml: PYSEC-2020-96 (fixed in 5.3.1)"


@pytest.mark.parametrize(
    ("output", "error", "told"),
    [
        (json.dumps(NOTHING), "No known vulnerabilities found", "NOT AUDITED alembic: Dependency"),
        ("", UNREACHABLE, "ConnectionError: Failed to resolve host"),
        ("", "", "pip-audit said nothing"),
        ('{"dependencies": []}', "No known vulnerabilities found", "NOT AUDITED pyyaml: not told"),
        ("[]", "", "did not get through"),
    ],
)
def test_an_audit_of_nothing_fails_and_says_so(output: str, error: str, told: str) -> None:
    code, lines = judge(WANTED, output, error)
    assert code == 2
    assert lines[0] == "0 of 3 packages audited"
    assert any(told in line for line in lines)
    assert not any("no known vulnerability" in line for line in lines)


def test_one_package_that_was_not_looked_up_is_enough_to_fail() -> None:
    part = {"dependencies": [*CLEAN["dependencies"][:2], NOTHING["dependencies"][2]]}
    code, lines = judge(WANTED, json.dumps(part), "")
    assert code == 2
    assert lines[0] == "2 of 3 packages audited"
    assert "NOT AUDITED pyyaml" in lines[1]


def test_an_empty_list_is_no_audit() -> None:
    assert judge(set(), '{"dependencies": []}', "")[0] == 2


def test_every_line_of_the_constraints_is_a_package() -> None:
    text = CONSTRAINTS.read_text()
    assert len(pinned(text)) == len(text.splitlines())
