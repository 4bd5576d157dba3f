"""The columns of Azure's cost details export."""

from __future__ import annotations

import re

from providers.bill_export import BillExport

_GPU_SIZE = re.compile(r"\b(?:standard_)?n[cdv][a-z]*\d")

EXPORT = BillExport(
    machine=("resourceid", "instanceid", "instancename"),
    cost=("costinusd", "costinbillingcurrency", "pretaxcost", "billedcost", "cost"),
    start=("date", "usagedate", "usagedatetime", "chargeperiodstart"),
    end=("chargeperiodend",),
    currency=("billingcurrency", "billingcurrencycode", "currency"),
    what=("additionalinfo", "metersubcategory", "metername", "skuid"),
    is_machine=lambda machine, _what: "/virtualmachines/" in machine,
    is_gpu=lambda what: bool(_GPU_SIZE.search(what.lower().replace('"', " "))),
    kind=("chargetype", "chargecategory"),
)
