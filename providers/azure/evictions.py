"""How many Spot machines of a size Azure took back in a region, of the last 28 days: one question
to Resource Graph, whose table SpotResources tells it in bands.

Table, type and properties are from Azure's page on Spot machines and from others' queries; no
account of ours has shown them. Asked for by a plain request: the SDK for it is one more.
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.azure.clients import Clients
from providers.azure.scores import MOST_SIZES
from providers.base import Offer

API = "2022-10-01"
BANDS = {"0-5": 5, "5-10": 10, "10-15": 15, "15-20": 20, "20+": 100}  # percent


def read_evictions(clients: Clients, offers: Sequence[Offer]) -> dict[str, int]:
    """Upper end of the band by offer key, of the sizes with the most accelerators. Raises
    ProviderError."""
    sizes = {offer.instance_type: offer.accelerator_count for offer in offers}
    asked = sorted(sizes, key=lambda size: (-sizes[size], size))[:MOST_SIZES]
    answer = clients.graph(API, question(asked, sorted({offer.region for offer in offers})))
    found = {
        (str(row.get("skuName")).lower(), str(row.get("location")).lower()): BANDS.get(
            str(row.get("evictionRate")), 0
        )
        for row in answer.get("data") or ()
    }
    rates = {o.key: found.get((o.instance_type.lower(), o.region.lower()), 0) for o in offers}
    return {key: rate for key, rate in rates.items() if rate}


def question(sizes: Sequence[str], regions: Sequence[str]) -> str:
    """In the words of Resource Graph. Names of sizes and regions have no quotes in them."""
    return (
        "SpotResources"
        " | where type =~ 'microsoft.compute/skuspotevictionrate/location'"
        f" | where sku.name in~ ({_listed(sizes)}) and location in~ ({_listed(regions)})"
        " | project skuName = tostring(sku.name), location,"
        " evictionRate = tostring(properties.evictionRate)"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
