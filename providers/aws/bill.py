"""The columns of AWS's Cost and Usage Report."""

from __future__ import annotations

import re

from providers.bill_export import BillExport

_GPU_TYPE = re.compile(r"(?:^|:)((?:p|g|gr)\d[a-z0-9-]*\.[a-z0-9]+)$")

EXPORT = BillExport(
    machine=("lineitemresourceid", "resourceid"),
    cost=("lineitemunblendedcost", "unblendedcost", "billedcost"),
    start=("lineitemusagestartdate", "chargeperiodstart"),
    end=("lineitemusageenddate", "chargeperiodend"),
    currency=("lineitemcurrencycode", "billingcurrency"),
    what=("productinstancetype", "lineitemusagetype", "skuid", "chargedescription"),
    is_machine=lambda machine, _what: machine.startswith("i-"),
    is_gpu=lambda what: bool(_GPU_TYPE.search(what.lower())),
    kind=("lineitemlineitemtype", "chargecategory"),
)
