"""Descriptions of a program's folder: what is read of them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotd.wire import (
    Manifest,
    SavedDirectory,
    SavedFile,
    SavedFolder,
    SavedLink,
    Stream,
    WireError,
    parse_manifest,
    parse_saved_folder,
)

FOLDER = SavedFolder(
    newest="checkpoint-5",
    number=5,
    files=(
        SavedFile("checkpoint-5/w.pt", "checkpoint-5", 7, 0o600),
        SavedFile("best.pt", "best.pt", 7, hard_link="checkpoint-5/w.pt"),
    ),
    links=(SavedLink("latest", "latest", "checkpoint-5"), SavedLink("data", "data", "/mnt/data")),
    directories=(
        SavedDirectory("checkpoint-5", "", 9, 0o750),
        SavedDirectory("logs/empty", "logs/empty", 9),
    ),
)


def parsed(folder: SavedFolder, **changes: Any) -> SavedFolder:
    """Write the description into a manifest, change it there, and read it."""
    state = json.loads(json.dumps(folder.to_state()))
    state["directory"] |= changes
    streams = (Stream(()),) * len(state["directory"]["files"])
    manifest = Manifest("j", 1, 5, 0, 1, streams, state=state)
    saved = parse_saved_folder(parse_manifest(manifest.to_bytes()))
    assert saved is not None
    return saved


def test_it_is_read_as_it_was_written() -> None:
    assert parsed(FOLDER) == FOLDER
    assert FOLDER.units == ("checkpoint-5", "best.pt", "latest", "data", "logs/empty")
    assert [link.leads_out for link in FOLDER.links] == [False, True]


def test_an_older_agent_named_no_directories() -> None:
    state = FOLDER.to_state()["directory"]
    del state["directories"]
    files = [{key: file[key] for key in file if key != "hard_link"} for file in state["files"]]
    old = parsed(SavedFolder("checkpoint-5", 5), files=files, links=[])
    assert old.directories == ()
    assert [file.hard_link for file in old.files] == ["", ""]


@pytest.mark.parametrize(
    ("target", "leads_out"),
    [
        ("checkpoint-5", False),
        ("../a", False),
        ("../../a", True),
        ("../b/../../a", True),
        ("/a", True),
        (".", False),
    ],
)
def test_which_links_lead_out_of_the_folder(target: str, leads_out: bool) -> None:
    assert SavedLink("folder/link", "folder/link", target).leads_out is leads_out


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"directories": [{"path": "../x", "unit": "", "modified_us": 0, "mode": 7}]}, "no path"),
        ({"directories": [{"path": "/x", "unit": "", "modified_us": 0, "mode": 7}]}, "no path"),
        ({"directories": [{"path": "x/y", "unit": "z", "modified_us": 0, "mode": 7}]}, "no path"),
        (
            {"directories": [{"path": "best.pt", "unit": "", "modified_us": 0, "mode": 7}]},
            "occurs twice",
        ),
        (
            {"directories": [{"path": "data/x", "unit": "", "modified_us": 0, "mode": 7}]},
            "lies below a file or a link",
        ),
        ({"links": [{"path": "x", "unit": "x", "target": ""}]}, "links to"),
        ({"links": [{"path": "x", "unit": "x", "target": "a\0b"}]}, "links to"),
        (
            {
                "files": [
                    {"path": "a", "unit": "a", "modified_us": 0, "mode": 7, "hard_link": "b"},
                    {"path": "b", "unit": "b", "modified_us": 0, "mode": 7},
                ]
            },
            "is a hard link to",
        ),
    ],
)
def test_what_leads_elsewhere_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        parsed(FOLDER, **changes)
