"""The columns of Google Cloud's detailed billing export."""

from __future__ import annotations

import re

from providers.bill_export import BillExport

_GPU = re.compile(r"\b(gpu|a100|h100|h200|b200|l4|t4|v100|p100|a2|a3|a4|g2)\b")

EXPORT = BillExport(
    machine=("resourcename", "resourceglobalname", "resourceid"),
    cost=("cost", "billedcost"),
    start=("usagestarttime", "chargeperiodstart"),
    end=("usageendtime", "chargeperiodend"),
    currency=("currency", "billingcurrency"),
    what=("skudescription", "skuid", "chargedescription"),
    is_machine=lambda _machine, what: bool(
        re.search(r"instance (core|ram)|gpu|\bvm\b", what.lower())
    ),
    is_gpu=lambda what: bool(_GPU.search(what.lower())),
    kind=("chargecategory", "costtype"),
    credits=("creditsamount", "credits"),
    credits_kind=("creditstype",),
)
