"""Which dialect of a metadata service a personality speaks."""

from __future__ import annotations

from collections.abc import Callable

from providers.local.aws_documents import AwsDocuments
from providers.local.azure_documents import AzureDocuments
from providers.local.documents import MachineFacts, NoticeDocument
from providers.local.gcp_documents import GcpDocuments


def document_for(
    facts: MachineFacts, acknowledged: Callable[[str], None] = lambda _notice_id: None
) -> NoticeDocument:
    """The dialect of a personality; `acknowledged` hears of notices the machine agreed to."""
    match facts.personality:
        case "aws":
            return AwsDocuments(facts)
        case "gcp":
            return GcpDocuments(facts)
        case "azure":
            return AzureDocuments(facts, acknowledged)
    raise ValueError(f"no metadata dialect called {facts.personality!r}: use aws, gcp or azure")
