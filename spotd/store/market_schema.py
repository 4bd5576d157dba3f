"""The tables about the market: what is on sale, what it cost, what was refused, and which cloud is
out of use."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, PrimaryKeyConstraint, Table, Text

from providers.base import Scope
from spotd.store.columns import big, key, metadata, one_of, told, words

providers = Table(
    "providers",
    metadata,
    Column("name", Text, primary_key=True),
    told("disabled"),
    big("at_us"),
    big("told_at_us"),
)

offers = Table(
    "offers",
    metadata,
    key("provider"),
    key("key"),
    key("data"),
    PrimaryKeyConstraint("provider", "key"),
)

price_history = Table(
    "price_history",
    metadata,
    key("offer_key"),
    big("at_us"),
    big("price_microusd_per_h"),
    big("list_microusd_per_h"),
    words("price_source"),
    PrimaryKeyConstraint("offer_key", "at_us"),
)

refusals = Table(
    "refusals",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id"), nullable=False),
    key("code"),
    key("offer_key"),
    key("scope"),
    big("at_us"),
    PrimaryKeyConstraint("node_id", "code"),
    one_of("scope", Scope),
)
Index("ix_refusals_at", refusals.c.at_us)
