"""The dashboard's address, as links to it name it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from spotd.base.section import Section


def _checked_url(url: str) -> str:
    if not url:
        return url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address of a web page; write 'https://spotd.example.org'")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{url!r} has more than a host; give the dashboard a host of its own")
    return f"{parts.scheme}://{parts.netloc.lower()}"


class DashboardSection(Section):
    """A dashboard that people open under an address of its own."""

    url: Annotated[str, AfterValidator(_checked_url)] = Field(
        default="", description="Address that browsers open, as https://spotd.example.org"
    )
